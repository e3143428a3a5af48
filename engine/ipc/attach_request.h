// From an ATTACH message to an AgentInfo: every field judged, one clear line where it is refused.
// Thread: any.
#pragma once

#include <cstdint>

#include "engine/core/node.h"
#include "engine/ipc/protocol.h"
#include "kvrail/base/result.h"

namespace kvrail::engine::ipc {

struct AttachLimits {
  std::uint64_t max_arena_bytes = 64ULL << 30;   // of one agent
};

// `tenant` comes from the policy. The message is a private copy.
[[nodiscard]] Result<AgentInfo> agent_info(const AttachMessage& message, const Name& tenant,
                                           const AttachLimits& limits);
[[nodiscard]] std::uint32_t scratch_bytes_of(const AttachMessage& message) noexcept;

}  // namespace kvrail::engine::ipc
