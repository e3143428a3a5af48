// One filled-in value of every message, for round trips, golden bytes and the fuzzer's corpus.
#pragma once

#include <cstring>

#include "transport/wire/codec.h"

namespace kvrail::test {

inline Name name_of(std::string_view text) {
  Name name;
  std::memcpy(name.bytes.data(), text.data(), text.size());
  return name;
}

inline Layout sample_layout() {
  Layout layout;
  layout.model_id = {0x0102030405060708, 0x1112131415161718};
  layout.layers = 4;
  layout.kv_heads = 2;
  layout.head_dim = 64;
  layout.block_tokens = 64;
  layout.dtype = Dtype::bf16;
  return layout;
}

// Calls f(name, message) for one sample of each type. Spans point to static memory.
template <class F>
void for_each_sample(F&& f) {
  namespace w = transport::wire;
  static constexpr std::array<std::uint32_t, 4> kTokens{1, 2, 70'000, 0xFFFFFFFF};
  const auto tokens = std::as_bytes(std::span(kTokens));

  f("keepalive", w::Keepalive{42});
  w::AgentUp up;
  up.tenant = name_of("acme");
  up.agent = name_of("planner");
  up.role = kRoleCoordinator;
  up.accepted = mask_of(Medium::tokens) | mask_of(Medium::full);
  up.tokenizer = {1, 2};
  up.layout = sample_layout();
  up.compute = {1'000, 2'000, 3, 4'000};
  up.lowrank = {{7, 8}, 720};
  f("agent_up", up);
  f("agent_down", w::AgentDown{name_of("acme"), name_of("planner")});
  w::Offer offer;
  offer.transfer = 7;
  offer.task = 8;
  offer.tenant = name_of("acme");
  offer.from_agent = name_of("planner");
  offer.to_agent = name_of("coder");
  offer.context = name_of("conversation-42");
  offer.version = 3;
  offer.layout = sample_layout();
  offer.tokenizer = {1, 2};
  offer.total_tokens = 132;
  offer.base_tokens = 128;
  offer.base_hash = {5, 6};
  offer.remaining_ns = 50'000'000;
  offer.age_ns = 1'000;
  offer.fidelity_floor_ppm = 950'000;
  offer.weight = 4;
  offer.criticality_milli = 588;
  offer.critical = true;
  offer.lowrank = {{7, 8}, 720};
  offer.token_count_here = 4;
  offer.candidate_count = 2;
  offer.candidates[0].medium = Medium::tokens;
  offer.candidates[0].fixed_bytes = 16;
  offer.candidates[1].medium = Medium::full;
  offer.candidates[1].block_bytes = 131'072;
  offer.candidates[1].tail_bytes = 8'192;
  offer.candidates[1].rate_bytes_per_s = 125'000'000;
  offer.candidates[1].values = Medium::int8;
  offer.candidates[1].rows = 700;
  offer.token_bytes = tokens;
  f("offer", offer);
  f("tokens", w::Tokens{7, 128, tokens});
  f("eager", w::Eager{7, 0xDEADBEEF, tokens});
  w::Accept accept;
  accept.transfer = 7;
  accept.medium = Medium::full;
  accept.lease = {3, 9};
  accept.lease_remaining_ns = 1'000'000'000;
  accept.predicted_ns = 2'000'000;
  accept.tail_from_row = 2;
  accept.range_count = 2;
  accept.missing[0] = {0, 1};
  accept.missing[1] = {2, 1};
  f("accept", accept);
  f("later", w::Later{7, 1'000'000, 65'536});
  f("reject", w::Reject{7, 0, Status{Code::layout_mismatch, Scope::transfer, 2}});
  f("done", w::Done{7, Status{}, Medium::full, 139'264, 1'900'000});
  f("cancel", w::Cancel{7, Status{Code::timed_out, Scope::transfer, 0}});
  f("query", w::Query{7, 0x77});
  w::Outcome outcome;
  outcome.transfer = 7;
  outcome.state = w::TransferState::receiving;
  outcome.lease = {3, 9};
  outcome.range_count = 1;
  outcome.missing[0] = {65'536, 73'728};
  f("outcome", outcome);
  w::Fetch fetch;
  fetch.fetch_id = 11;
  fetch.task = 8;
  fetch.tenant = name_of("acme");
  fetch.requester = name_of("tester");
  fetch.owner = name_of("planner");
  fetch.context = name_of("conversation-42");
  fetch.remaining_ns = 1'000'000'000;
  f("fetch", fetch);
  f("state", w::State{1 << 20, 1 << 28, 300'000, 1'500, 2'500});
  f("summary", w::Summary{7, 1, tokens});
  f("encodings", w::Encodings{7, 2, 1, tokens});
  w::Workflow workflow;
  workflow.tenant = name_of("acme");
  workflow.workflow = name_of("review");
  workflow.step_count = 2;
  workflow.steps[0] = {name_of("planner"), 2'000'000};
  workflow.steps[1] = {name_of("coder"), 0};
  workflow.edge_count = 1;
  workflow.edges[0] = {0, 1};
  f("workflow", workflow);
  f("task", w::TaskNotice{8, name_of("acme"), name_of("review"), 1'000'000'000});
  f("turn", w::TurnNotice{name_of("acme"), name_of("review"), name_of("coder"), 20'000'000, 5'000'000, 750'000});
}

}  // namespace kvrail::test
