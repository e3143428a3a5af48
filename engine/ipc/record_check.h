// Judges submit records and the names in them. Pure functions over private copies: nothing here
// ever looks at shared memory, so nothing can change between the check and the use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/agent_port.h"
#include "engine/ipc/protocol.h"
#include "kvrail/base/status.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail::engine::ipc {

// What is wrong with a record: nothing; something that a correct library can be asked for; or
// something that no correct library writes, which counts towards dropping the agent.
enum class Verdict : std::uint8_t { fine, refused, breach };

struct Judged {
  Verdict verdict = Verdict::fine;
  Status status;
};

// Form: enumerations, flags, reserved fields, sizes against counts, payload inside the scratch.
[[nodiscard]] Judged judge(const SubmitRecord& record, std::uint32_t scratch_bytes) noexcept;

// The bytes up to the first zero as a canonical Name: same rules as make_name(), no allocation.
[[nodiscard]] bool clean_name(const Name& raw, Name& out) noexcept;

// Time that is left at `now` of a deadline that runs from the record's submission; out 0: none was
// set. False: it has passed.
[[nodiscard]] bool remaining(const SubmitRecord& record, TimeNs now_ns, std::int64_t& out) noexcept;

[[nodiscard]] SendOptions send_options(const SubmitRecord& record, std::int64_t deadline_ns) noexcept;

// The wire form of an event.
[[nodiscard]] CompletionRecord completion_of(const AgentEvent& event) noexcept;
[[nodiscard]] CompletionRecord answer_to(const SubmitRecord& record, Status status) noexcept;

}  // namespace kvrail::engine::ipc
