// Summaries that the engine makes itself of what the agent said matters: spans of the text, as token ids,
// in budgeted steps.
#include <algorithm>
#include <cstring>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr std::uint64_t kMostTokens = 1U << 18;  // of a text that is looked through
constexpr std::uint32_t kTokensPerStep = 16;     // what costs about as much as a block elsewhere
constexpr std::uint8_t kTokenIds = 1;            // kind of a summary

}  // namespace

// A summary is one frame, on whatever lane it will go.
std::uint64_t Node::Core::summary_limit() const noexcept {
  std::uint64_t limit = frame_.size();
  for (std::uint32_t t = 0; t < transport_count_; ++t) {
    limit = std::min<std::uint64_t>(limit, transports_[t]->caps().max_frame_bytes);
  }
  return limit - wire::kMaxSummaryOverhead;
}

// An agent that makes summaries itself is asked for them. 0: none can be made.
std::uint32_t Node::Core::extract_tokens(AgentHandle from, const VersionView& view) noexcept {
  const LocalAgent* owner = agent(from);
  const bool asks = owner != nullptr && owner->info.summary_bytes > 0;
  if (asks || view.importance.empty() || view.tokens.size() > kMostTokens) return 0;
  const std::uint64_t room = std::min<std::uint64_t>(summary_limit() / sizeof(TokenId), view.tokens.size());
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(options_.summary_tokens, room));
}

bool Node::Core::begin_extract(ExtractWork& work, const VersionView& view, std::uint32_t tokens) noexcept {
  work.spans = scratch_.try_array<codec::TextSpan>(view.tokens.size());
  work.ids = scratch_.try_array<TokenId>(tokens);
  if (work.spans.empty() || work.ids.empty()) {
    release_extract(work);
    return false;
  }
  codec::ExtractRule rule;
  rule.separators = options_.summary_separators;
  work.extractor = codec::Extractor(rule, tokens);
  return true;
}

bool Node::Core::step_extract(ExtractWork& work, const VersionView& view) noexcept {
  Steps steps(*this);
  const TimeNs before = clock_.now_ns();
  std::uint64_t tokens = steps.left * kTokensPerStep;
  const bool done = work.extractor.step(view.tokens, view.importance, work.spans, work.ids, tokens);
  steps.left = tokens / kTokensPerStep;
  work.spent_ns += clock_.now_ns() - before;
  if (done) codecs_.learn_encode(Medium::summary, work.spent_ns, view.tokens.size_bytes());
  return done;
}

void Node::Core::release_extract(ExtractWork& work) noexcept {
  scratch_.give_back(work.spans);
  scratch_.give_back(work.ids);
}

// ---- to another node -------------------------------------------------------------------------------

// False: it goes on in another cycle, or the transfer has ended.
bool Node::Core::run_extract(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  VersionView view;
  KVRAIL_ASSERT(store_->view(out.version, view));
  if (!step_extract(out.extract, view)) {
    want(Kind::out, index);
    return false;
  }
  const std::span<const TokenId> ids = out.extract.ids.first(out.extract.extractor.written());
  out.summary = scratch_.try_array<std::byte>(ids.size_bytes());
  if (!ids.empty() && !out.summary.empty()) std::memcpy(out.summary.data(), ids.data(), ids.size_bytes());
  const Code refusal = ids.empty() ? Code::rejected : Code::out_of_memory;  // no span is as short as that
  release_extract(out.extract);
  out.summary_kind = kTokenIds;
  out.summary_ready = !out.summary.empty();
  if (!out.summary_ready) cancel_out(index, Status{refusal});
  return out.summary_ready;
}

// ---- on this node ----------------------------------------------------------------------------------

void Node::Core::run_local_extract(std::uint32_t index) noexcept {
  LocalWait* open = local_waits_.get(local_waits_.handle_at(index));
  if (open == nullptr || !open->extract.open()) return;  // ended while it was queued
  VersionView view;
  KVRAIL_ASSERT(store_->view(open->request.version, view));
  if (!step_extract(open->extract, view)) return want(Kind::local_wait, index);
  const std::span<const TokenId> ids = open->extract.ids.first(open->extract.extractor.written());
  if (ids.empty()) return end_local_wait(index, Status{Code::rejected}, VersionHandle{});
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  const auto version = store_->publish_summary(view.tenant, view.owner, open->request.context, view.number, kTokenIds,
                                               std::as_bytes(ids));
  end_local_wait(index, version.status(), version.ok() ? version.value() : VersionHandle{});
}

}  // namespace kvrail::engine
