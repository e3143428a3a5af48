#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "kvrail/base/prng.h"
#include "tests/unit/transport/hex.h"
#include "tests/unit/transport/message_samples.h"
#include "transport/wire/codec.h"
#include "transport/wire/frame.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::transport::wire;
using kvrail::test::for_each_sample;

namespace {

template <class M>
std::vector<std::byte> bytes_of(const M& message) {
  std::vector<std::byte> out(kMaxMessageBytes);
  out.resize(encode(message, out));
  REQUIRE_FALSE(out.empty());
  return out;
}

template <class M>
MessageError refusal(std::span<const std::byte> payload) {
  M out{};
  const Status status = decode(payload, out);
  if (status.ok()) return MessageError::none;
  CHECK(status.code == Code::protocol_error);
  CHECK(status.scope == Scope::lane);
  return static_cast<MessageError>(status.detail);
}

// A sample's bytes with some of them replaced.
template <class M>
std::vector<std::byte> poked(const M& message, std::size_t at, std::uint64_t value,
                             std::size_t count) {
  auto out = bytes_of(message);
  REQUIRE(at + count <= out.size());
  std::memcpy(out.data() + at, &value, count);
  return out;
}

template <class M>
M sample() {
  M found{};
  for_each_sample([&](const char*, const auto& message) {
    if constexpr (std::is_same_v<std::decay_t<decltype(message)>, M>) found = message;
  });
  return found;
}

}  // namespace

TEST_CASE("every message: decode(encode(x)) encodes to the same bytes") {
  std::set<MessageType> types;
  for_each_sample([&](const char* label, const auto& message) {
    INFO(label);
    const auto first = bytes_of(message);
    const auto type = peek_type(first);
    REQUIRE(type.has_value());
    types.insert(*type);
    std::decay_t<decltype(message)> decoded{};
    REQUIRE(decode(first, decoded).ok());
    CHECK(bytes_of(decoded) == first);
  });
  CHECK(types.size() == static_cast<std::size_t>(MessageType::turn));
}

TEST_CASE("golden messages: the bytes that docs/wire.md shows") {
  for_each_sample([](const char* label, const auto& message) {
    check_golden(std::string("message.") + label, bytes_of(message));
  });
}

TEST_CASE("decoded fields are the encoded ones") {
  const auto bytes = bytes_of(sample<Offer>());
  Offer offer;
  REQUIRE(decode(bytes, offer).ok());
  CHECK(offer.context.view() == "conversation-42");
  CHECK(offer.layout == test::sample_layout());
  CHECK(offer.candidates[1].rate_bytes_per_s == 125'000'000);
  CHECK(offer.critical);
  CHECK_FALSE(offer.background);
  CHECK(offer.token_bytes.size() == 16);
  CHECK(offer.token_bytes.data() + 16 == bytes.data() + bytes.size());
  Reject reject;
  REQUIRE(decode(bytes_of(sample<Reject>()), reject).ok());
  CHECK(reject.status == Status{Code::layout_mismatch, Scope::transfer, 2});
}

TEST_CASE("a buffer that is too small gives 0, one that fits exactly works") {
  for_each_sample([](const char* label, const auto& message) {
    INFO(label);
    const std::size_t size = bytes_of(message).size();
    std::vector<std::byte> out(size);
    for (std::size_t room = 0; room < size; ++room) {
      CHECK(encode(message, std::span(out).first(room)) == 0);
    }
    CHECK(encode(message, out) == size);
  });
}

TEST_CASE("cut after every byte, and with a byte too many") {
  for_each_sample([](const char* label, const auto& message) {
    using M = std::decay_t<decltype(message)>;
    INFO(label);
    auto bytes = bytes_of(message);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      // Where the rest of a frame is free bytes, a shorter one is another right message.
      constexpr bool free_rest =
          std::is_same_v<M, Tokens> || std::is_same_v<M, Eager> || std::is_same_v<M, Summary>;
      const MessageError error = refusal<M>(std::span(bytes).first(cut));
      if (!free_rest) CHECK(error != MessageError::none);
      if (cut < 9) CHECK(error != MessageError::none);
    }
    bytes.push_back(std::byte{0});
    if (!std::is_same_v<M, Eager>) {
      CHECK(refusal<M>(bytes) == (std::is_same_v<M, Offer> || std::is_same_v<M, Tokens> ||
                                          std::is_same_v<M, Summary> || std::is_same_v<M, Encodings>
                                      ? MessageError::bad_count
                                      : MessageError::trailing));
    }
  });
}

TEST_CASE("the type byte must be the message's own") {
  for_each_sample([](const char*, const auto& message) {
    using M = std::decay_t<decltype(message)>;
    for (const unsigned type : {0u, 21u, 255u}) {
      const auto bytes = poked(message, 0, type, 1);
      CHECK(refusal<M>(bytes) == MessageError::bad_type);
      CHECK_FALSE(peek_type(bytes).has_value());
    }
  });
  CHECK_FALSE(peek_type({}).has_value());
}

TEST_CASE("bad input 5: counts, duplicates and overlaps") {
  const Accept accept = sample<Accept>();
  const std::size_t count_at = bytes_of(accept).size() - 16 - 4;
  CHECK(refusal<Accept>(poked(accept, count_at, 0xFFFFFFFF, 4)) == MessageError::bad_count);
  CHECK(refusal<Accept>(poked(accept, count_at, 65, 4)) == MessageError::bad_count);
  CHECK(refusal<Accept>(poked(accept, count_at, 64, 4)) == MessageError::truncated);
  const std::size_t ranges = count_at + 4;
  CHECK(refusal<Accept>(poked(accept, ranges + 8, 0, 4)) == MessageError::bad_range);   // twice
  CHECK(refusal<Accept>(poked(accept, ranges + 4, 3, 4)) == MessageError::bad_range);   // overlap
  CHECK(refusal<Accept>(poked(accept, ranges + 12, 0, 4)) == MessageError::bad_range);  // empty
  CHECK(refusal<Accept>(poked(accept, ranges + 12, 0xFFFFFFFF, 4)) == MessageError::bad_range);

  const Outcome outcome = sample<Outcome>();
  const std::size_t range = bytes_of(outcome).size() - 16;
  CHECK(refusal<Outcome>(poked(outcome, range, UINT64_MAX - 5, 8)) == MessageError::bad_range);
  CHECK(refusal<Outcome>(poked(outcome, range - 4, 0xFFFFFFFF, 4)) == MessageError::bad_count);
}

TEST_CASE("offers: names, layouts, token counts and candidates out of bounds") {
  const Offer offer = sample<Offer>();
  constexpr std::size_t kNames = 1 + 24;
  CHECK(refusal<Offer>(poked(offer, kNames, 0, 1)) == MessageError::bad_name);
  CHECK(refusal<Offer>(poked(offer, kNames, 64, 1)) == MessageError::bad_name);
  CHECK(refusal<Offer>(poked(offer, kNames + 1, ' ', 1)) == MessageError::bad_name);
  CHECK(refusal<Offer>(poked(offer, kNames + 1, 0, 1)) == MessageError::bad_name);
  CHECK(refusal<Offer>(poked(offer, kNames + 1, 0x7F, 1)) == MessageError::bad_name);
  constexpr std::size_t kLayout = kNames + 5 + 8 + 6 + 16 + 8 + 16;
  CHECK(refusal<Offer>(poked(offer, kLayout, 0, 4)) == MessageError::bad_layout);
  CHECK(refusal<Offer>(poked(offer, kLayout, 1025, 4)) == MessageError::bad_layout);
  CHECK(refusal<Offer>(poked(offer, kLayout + 4, 0xFFFFFFFF, 4)) == MessageError::bad_layout);
  CHECK(refusal<Offer>(poked(offer, kLayout + 8, 577, 4)) == MessageError::bad_layout);
  CHECK(refusal<Offer>(poked(offer, kLayout + 12, 17, 4)) == MessageError::bad_layout);
  CHECK(refusal<Offer>(poked(offer, kLayout + 12, 0, 4)) == MessageError::bad_layout);
  CHECK(refusal<Offer>(poked(offer, kLayout + 16, 6, 1)) == MessageError::bad_enum);
  CHECK(refusal<Offer>(poked(offer, kLayout + 16, 0, 1)) == MessageError::bad_layout);
  CHECK(refusal<Offer>(poked(offer, kLayout + 17, 0x7FC00000, 4)) == MessageError::bad_layout);
  constexpr std::size_t kTotals = kLayout + 25 + 16;
  CHECK(refusal<Offer>(poked(offer, kTotals, 1ull << 40, 8)) == MessageError::bad_range);
  CHECK(refusal<Offer>(poked(offer, kTotals, 131, 8)) == MessageError::bad_count);
  CHECK(refusal<Offer>(poked(offer, kTotals + 8, 127, 8)) == MessageError::bad_range);
  CHECK(refusal<Offer>(poked(offer, kTotals + 8, 192, 8)) == MessageError::bad_range);
  constexpr std::size_t kWish = kTotals + 16 + 16 + 16 + 8 + 2 + 2 + 2;
  CHECK(refusal<Offer>(poked(offer, kWish - 4, 0, 2)) == MessageError::bad_value);
  CHECK(refusal<Offer>(poked(offer, kWish - 4, 1001, 2)) == MessageError::bad_value);
  CHECK(refusal<Offer>(poked(offer, kWish - 1, 2, 1)) == MessageError::bad_enum);
  CHECK(refusal<Offer>(poked(offer, kWish, kMediumCount, 1)) == MessageError::bad_enum);
  constexpr std::size_t kCounts = kWish + 1 + 1 + 1 + 1 + 18;
  CHECK(refusal<Offer>(poked(offer, kCounts, 0xFFFFFFFF, 4)) == MessageError::bad_count);
  CHECK(refusal<Offer>(poked(offer, kCounts, 3, 4)) == MessageError::bad_count);
  CHECK(refusal<Offer>(poked(offer, kCounts + 4, kMaxCandidates + 1, 1)) == MessageError::bad_count);
  CHECK(refusal<Offer>(poked(offer, kCounts + 5, 0, 1)) == MessageError::bad_enum);
  CHECK(refusal<Offer>(poked(offer, kCounts + 6, UINT64_MAX, 8)) == MessageError::bad_value);
}

TEST_CASE("saturated costs travel as their bound instead of failing") {
  Offer offer = sample<Offer>();
  offer.candidates[0].price_ns = UINT64_MAX;
  offer.remaining_ns = UINT64_MAX;
  Offer out;
  REQUIRE(decode(bytes_of(offer), out).ok());
  CHECK(out.candidates[0].price_ns == std::uint64_t{1} << 50);
  CHECK(out.remaining_ns <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
}

TEST_CASE("the other messages' fields out of bounds") {
  CHECK(refusal<Tokens>(poked(sample<Tokens>(), 9, kMaxContextTokens - 3, 8)) ==
        MessageError::bad_range);
  CHECK(refusal<Tokens>(poked(sample<Tokens>(), 9, UINT64_MAX, 8)) == MessageError::bad_range);
  CHECK(refusal<Tokens>(poked(sample<Tokens>(), 1, 0, 8)) == MessageError::bad_value);
  CHECK(refusal<Done>(poked(sample<Done>(), 9, kCodeCount, 2)) == MessageError::bad_enum);
  CHECK(refusal<Done>(poked(sample<Done>(), 11, kScopeCount, 1)) == MessageError::bad_enum);
  CHECK(refusal<Query>(poked(sample<Query>(), 9, 0, 8)) == MessageError::bad_value);
  CHECK(refusal<Reject>(poked(sample<Reject>(), 1, 0, 8)) == MessageError::bad_value);
  CHECK(refusal<State>(poked(sample<State>(), 1, UINT64_MAX, 8)) == MessageError::bad_value);
  CHECK(refusal<Summary>(poked(sample<Summary>(), 9, 3, 1)) == MessageError::bad_enum);
  CHECK(refusal<Encodings>(poked(sample<Encodings>(), 13, 2, 4)) == MessageError::bad_count);
  CHECK(refusal<Encodings>(poked(sample<Encodings>(), 9, 0xFFFFFFFF, 4)) ==
        MessageError::bad_range);
  CHECK(refusal<Accept>(poked(sample<Accept>(), 10, kMaxLeaseSlots, 4)) == MessageError::bad_value);
  CHECK(refusal<Outcome>(poked(sample<Outcome>(), 9, 4, 1)) == MessageError::bad_enum);
  Eager big = sample<Eager>();
  std::vector<std::byte> too_much(kMaxEagerBytes + 1);
  auto bytes = bytes_of(big);
  bytes.resize(17 + too_much.size());
  CHECK(refusal<Eager>(bytes) == MessageError::bad_count);
  const Workflow workflow = sample<Workflow>();
  constexpr std::size_t kSteps = 1 + 5 + 7;
  CHECK(refusal<Workflow>(poked(workflow, kSteps, 65, 1)) == MessageError::bad_count);
  CHECK(refusal<Workflow>(poked(workflow, kSteps + 1, 0, 1)) == MessageError::bad_name);
  CHECK(refusal<Workflow>(poked(workflow, kSteps + 9, UINT64_MAX, 8)) == MessageError::bad_value);
  constexpr std::size_t kEdges = kSteps + 1 + 8 + 8 + 6 + 8;
  CHECK(refusal<Workflow>(poked(workflow, kEdges, 257, 4)) == MessageError::bad_count);
  CHECK(refusal<Workflow>(poked(workflow, kEdges + 4, 2, 1)) == MessageError::bad_range);
  CHECK(refusal<Workflow>(poked(workflow, kEdges + 5, 2, 1)) == MessageError::bad_range);
  CHECK(refusal<TaskNotice>(poked(sample<TaskNotice>(), 1, 0, 8)) == MessageError::bad_value);
  CHECK(refusal<TurnNotice>(poked(sample<TurnNotice>(), bytes_of(sample<TurnNotice>()).size() - 4, 1'000'001, 4)) ==
        MessageError::bad_value);
  const AgentUp up = sample<AgentUp>();
  const std::size_t role = 1 + 5 + 8;
  CHECK(refusal<AgentUp>(poked(up, role, 0, 2)) == MessageError::bad_value);
  CHECK(refusal<AgentUp>(poked(up, role + 2, 1u << kMediumCount, 4)) == MessageError::bad_enum);
}

TEST_CASE("frames at their largest stay under the overheads that senders leave free") {
  const Name longest = test::name_of(std::string(kMaxNameBytes, 'n'));
  Offer offer = sample<Offer>();
  offer.tenant = offer.from_agent = offer.to_agent = offer.context = longest;
  offer.candidate_count = kMaxCandidates;
  for (auto& candidate : offer.candidates) candidate.medium = Medium::full;
  CHECK(bytes_of(offer).size() - offer.token_bytes.size() <= kMaxOfferOverhead);
  Workflow workflow = sample<Workflow>();
  workflow.tenant = workflow.workflow = longest;
  workflow.step_count = kMaxWorkflowSteps;
  for (auto& step : workflow.steps) step.agent = longest;
  workflow.edge_count = kMaxWorkflowEdges;
  CHECK(bytes_of(workflow).size() <= kMaxWorkflowBytes);
  CHECK(bytes_of(sample<Tokens>()).size() - 16 <= kMaxTokensOverhead);
  CHECK(bytes_of(sample<Eager>()).size() - 16 <= kMaxEagerOverhead);
  CHECK(bytes_of(sample<Summary>()).size() - 16 <= kMaxSummaryOverhead);
  CHECK(bytes_of(sample<Encodings>()).size() - 16 <= kMaxEncodingsOverhead);
}

TEST_CASE("random damage never reads out of bounds, and what is accepted encodes again") {
  Prng prng(11);
  for_each_sample([&](const char*, const auto& message) {
    using M = std::decay_t<decltype(message)>;
    const auto good = bytes_of(message);
    for (int round = 0; round < 3000; ++round) {
      auto bad = good;
      const std::uint64_t changes = 1 + prng.uniform(4);
      for (std::uint64_t i = 0; i < changes; ++i) {
        bad[prng.uniform(bad.size())] = static_cast<std::byte>(prng.next_u64());
      }
      bad.resize(1 + prng.uniform(bad.size()));
      bad.shrink_to_fit();
      M out{};
      if (!decode(bad, out).ok()) continue;
      CHECK(bytes_of(out) == bad);
    }
  });
}
