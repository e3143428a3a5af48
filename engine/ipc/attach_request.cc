#include "engine/ipc/attach_request.h"

#include <algorithm>
#include <optional>

#include "codec/hash.h"
#include "engine/ipc/record_check.h"
#include "kvrail/base/checked.h"

namespace kvrail::engine::ipc {
namespace {

constexpr MediumMask kKnownMedia = (MediumMask{1} << kMediumCount) - 1;
constexpr std::uint64_t kMaxProfileNs = 3600ULL * 1'000'000'000ULL;

Error refusal(Code code, std::string text) { return Error{{code, Scope::engine}, std::move(text)}; }

Result<Layout> layout_of(const LayoutRecord& record) {
  Layout layout;
  layout.model_id = record.model_id;
  layout.layers = record.layers;
  layout.kv_heads = record.kv_heads;
  layout.head_dim = record.head_dim;
  layout.block_tokens = record.block_tokens;
  layout.rope_base = record.rope_base;
  layout.rope_scale = record.rope_scale;
  const std::optional<std::uint8_t> dtype = checked_narrow<std::uint8_t>(record.dtype);
  layout.dtype = static_cast<Dtype>(dtype.value_or(0));
  if (dtype_bytes(layout.dtype) == 0) {
    return refusal(Code::invalid_argument, "dtype " + std::to_string(record.dtype) + " of the layout is not known");
  }
  if (Result<void> valid = codec::validate(layout); !valid.ok()) return std::move(valid).error();
  return layout;
}

// What an agent says of its speed: hours per token would overflow sums further in, and are no use.
ComputeProfile clamped(const ComputeProfile& profile) noexcept {
  ComputeProfile out;
  out.prefill_fixed_ns = std::min(profile.prefill_fixed_ns, kMaxProfileNs);
  out.prefill_per_token_ns = std::min(profile.prefill_per_token_ns, kMaxProfileNs);
  out.prefill_quadratic_ns_q20 = std::min(profile.prefill_quadratic_ns_q20, kMaxProfileNs);
  out.decode_per_token_ns = std::min(profile.decode_per_token_ns, kMaxProfileNs);
  return out;
}

}  // namespace

Result<AgentInfo> agent_info(const AttachMessage& message, const Name& tenant, const AttachLimits& limits) {
  AgentInfo info;
  info.tenant = tenant;
  if (!clean_name(message.agent, info.name)) {
    return refusal(Code::invalid_argument, "an agent's name must have 1 to 63 bytes without spaces");
  }
  if ((message.flags & ~kKnownAttachFlags) != 0 || message.reserved != 0) {
    return refusal(Code::protocol_error, "the agent uses flags that this engine does not know: update the engine");
  }
  if (message.role == 0) return refusal(Code::invalid_argument, "a role's weight must be at least 1");
  if (message.accepted == 0 || (message.accepted & ~kKnownMedia) != 0) {
    return refusal(Code::invalid_argument, "an agent must accept at least one medium, and only known ones");
  }
  if (message.arena_bytes > limits.max_arena_bytes) {
    return refusal(Code::too_large, "an arena of " + std::to_string(message.arena_bytes) +
                                        " bytes is over the limit of " + std::to_string(limits.max_arena_bytes));
  }
  if (message.scratch_bytes > kMaxScratchBytes) {
    return refusal(Code::too_large, "a scratch area of " + std::to_string(message.scratch_bytes) +
                                        " bytes is over the limit of " + std::to_string(kMaxScratchBytes));
  }
  if (message.summary_bytes > kMaxSummaryBytes) {
    return refusal(Code::too_large, "summaries of " + std::to_string(message.summary_bytes) +
                                        " bytes are over the limit of " + std::to_string(kMaxSummaryBytes));
  }
  Result<Layout> layout = layout_of(message.layout);
  if (!layout.ok()) return std::move(layout).error();
  info.layout = *layout;
  info.role = message.role;
  info.accepted = message.accepted;
  info.tokenizer = message.tokenizer;
  info.compute = clamped(message.compute);
  info.arena_bytes = message.arena_bytes;
  info.summary_bytes = message.summary_bytes;
  info.summary_ns = std::min(message.summary_ns, kMaxProfileNs);
  return info;
}

std::uint32_t scratch_bytes_of(const AttachMessage& message) noexcept {
  const std::uint32_t wish = message.scratch_bytes == 0 ? kDefaultScratchBytes : message.scratch_bytes;
  const std::uint32_t bounded = std::clamp(wish, kMinScratchBytes, kMaxScratchBytes);
  return static_cast<std::uint32_t>(align_up(bounded, kCacheLineBytes).value());
}

}  // namespace kvrail::engine::ipc
