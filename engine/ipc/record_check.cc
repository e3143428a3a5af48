#include "engine/ipc/record_check.h"

#include "kvrail/base/checked.h"

namespace kvrail::engine::ipc {
namespace {

constexpr std::uint32_t kMillion = 1'000'000;

constexpr Judged kFine{Verdict::fine, Status{}};
constexpr Judged kBreach{Verdict::breach, Status{Code::protocol_error}};

constexpr Judged refused(Code code, std::int32_t detail = 0) noexcept {
  return {Verdict::refused, Status{code, Scope::transfer, detail}};
}

// count × element bytes and `rest` bytes of whole tokens must be exactly what the payload has.
Judged judge_commit(const SubmitRecord& record) noexcept {
  const std::uint64_t extents = std::uint64_t{record.count} * sizeof(ExtentRecord);
  if (record.count > kMaxExtents) return refused(Code::too_large, static_cast<std::int32_t>(kMaxExtents));
  if (record.payload_bytes < extents || (record.payload_bytes - extents) % sizeof(TokenId) != 0) {
    return kBreach;
  }
  return record.payload_bytes == extents ? refused(Code::invalid_argument) : kFine;
}

Judged judge_transfer(const SubmitRecord& record, std::uint32_t most_names) noexcept {
  if (record.medium >= kMediumCount || record.d > kMillion || record.b < 0) return kBreach;
  if (record.count == 0) return refused(Code::invalid_argument);
  if (record.count > most_names) {
    return refused(Code::too_large, static_cast<std::int32_t>(most_names));
  }
  const std::uint64_t names = std::uint64_t{record.count} * sizeof(Name);
  return record.payload_bytes == names ? kFine : kBreach;
}

Judged judge_summary(const SubmitRecord& record) noexcept {
  if (record.payload_bytes > kMaxSummaryBytes) {
    return refused(Code::too_large, static_cast<std::int32_t>(kMaxSummaryBytes));
  }
  return kFine;
}

// NaN and Inf are values as others are.
Judged judge_importance(const SubmitRecord& record) noexcept {
  if (record.payload_bytes != std::uint64_t{record.count} * sizeof(float)) return kBreach;
  return record.count == 0 ? refused(Code::invalid_argument) : kFine;
}

Judged judge_workflow(const SubmitRecord& record) noexcept {
  const std::uint64_t steps = std::uint64_t{record.count} * sizeof(WorkflowStepRecord);
  if (record.payload_bytes < steps || (record.payload_bytes - steps) % sizeof(WorkflowEdgeRecord) != 0) return kBreach;
  if (record.count == 0) return refused(Code::invalid_argument);
  const std::uint64_t edges = (record.payload_bytes - steps) / sizeof(WorkflowEdgeRecord);
  return record.count > kMaxWorkflowSteps || edges > kMaxWorkflowEdges ? refused(Code::too_large) : kFine;
}

bool needs_ticket(const SubmitRecord& record) noexcept {
  switch (record.command) {
    case Command::allocate:
    case Command::commit:
    case Command::send:
    case Command::fetch:
    case Command::cancel:
    case Command::claim:
    case Command::reserve:
    case Command::begin_task: return true;
    default: return (record.flags & kFlagAnswer) != 0;
  }
}

bool may_have_payload(Command command) noexcept {
  return command == Command::commit || command == Command::send || command == Command::fetch ||
         command == Command::summary || command == Command::set_importance || command == Command::will_need ||
         command == Command::describe_workflow;
}

}  // namespace

Judged judge(const SubmitRecord& record, std::uint32_t scratch_bytes) noexcept {
  const auto command = static_cast<std::uint16_t>(record.command);
  if (command == 0 || command >= kCommandCount || (record.flags & ~kKnownSubmitFlags) != 0 ||
      (record.reservation != 0 && record.command != Command::send) || (needs_ticket(record) && record.ticket == 0)) {
    return kBreach;
  }
  if (!range_fits(record.payload_offset, record.payload_bytes, scratch_bytes) ||
      (record.payload_bytes != 0 && !may_have_payload(record.command))) {
    return kBreach;
  }
  switch (record.command) {
    case Command::allocate:
    case Command::claim:
    case Command::free_blocks: return record.count == 0 ? refused(Code::invalid_argument) : kFine;
    case Command::commit: return judge_commit(record);
    case Command::send: return judge_transfer(record, kMaxReceivers);
    case Command::fetch: return judge_transfer(record, 1);
    case Command::summary: return judge_summary(record);
    case Command::set_importance: return judge_importance(record);
    case Command::will_need:
      return record.payload_bytes == sizeof(Name) && record.b >= 0 && record.d <= 1'000'000 ? kFine : kBreach;
    case Command::describe_workflow: return judge_workflow(record);
    case Command::release:
    case Command::begin_task: return record.b < 0 ? kBreach : kFine;
    // What makes no sense of the rest is refused with the figures.
    case Command::reserve: return record.b < 0 || static_cast<std::int64_t>(record.c) < 0 ? kBreach : kFine;
    case Command::unreserve: return record.a > 0xffff ? kBreach : kFine;
    case Command::cancel:
    case Command::drop_context:
    case Command::end_task: return kFine;
  }
  return kBreach;
}

bool clean_name(const Name& raw, Name& out) noexcept {
  Name name;
  std::size_t n = 0;
  for (; n < kMaxNameBytes && raw.bytes[n] != '\0'; ++n) {
    const auto c = static_cast<unsigned char>(raw.bytes[n]);
    if (c <= 0x20 || c == 0x7f) return false;
    name.bytes[n] = raw.bytes[n];
  }
  if (n == 0 || raw.bytes[n] != '\0') return false;
  out = name;
  return true;
}

bool remaining(const SubmitRecord& record, TimeNs now_ns, std::int64_t& out) noexcept {
  KVRAIL_ASSERT(record.b >= 0);
  if (record.b == 0) {
    out = 0;
    return true;
  }
  // A time of submission in the future or before the clock's start can only be wrong: counted as now.
  const bool sane = record.submitted_ns > 0 && record.submitted_ns <= now_ns;
  const std::int64_t left = record.b - (sane ? now_ns - record.submitted_ns : 0);
  if (left <= 0) return false;
  out = left;
  return true;
}

SendOptions send_options(const SubmitRecord& record, std::int64_t deadline_ns) noexcept {
  KVRAIL_ASSERT(record.medium < kMediumCount);
  SendOptions options;
  options.task = record.c;
  options.deadline_ns = deadline_ns;
  options.fidelity_floor_ppm = record.d;
  options.medium = static_cast<Medium>(record.medium);
  options.critical = (record.flags & kFlagCritical) != 0;
  options.background = (record.flags & kFlagBackground) != 0;
  options.reservation = record.reservation;
  return options;
}

namespace {

CompletionKind kind_of(AgentEventKind kind) noexcept {
  switch (kind) {
    case AgentEventKind::allocated: return CompletionKind::allocated;
    case AgentEventKind::committed: return CompletionKind::committed;
    case AgentEventKind::sent: return CompletionKind::sent;
    case AgentEventKind::delivery: return CompletionKind::delivery;
    case AgentEventKind::fetched: return CompletionKind::fetched;
    case AgentEventKind::summary_request: return CompletionKind::summary_request;
    case AgentEventKind::task: return CompletionKind::task;
    case AgentEventKind::imported: return CompletionKind::imported;
    case AgentEventKind::claimed: return CompletionKind::claimed;
    case AgentEventKind::reserved: return CompletionKind::reserved;
    case AgentEventKind::reservation_ended: return CompletionKind::reservation_ended;
  }
  KVRAIL_UNREACHABLE();
}

}  // namespace

CompletionRecord completion_of(const AgentEvent& event) noexcept {
  CompletionRecord record;
  record.kind = kind_of(event.kind);
  record.medium = static_cast<std::uint8_t>(event.medium);
  record.flags = event.critical ? kCompletionCritical : 0;
  record.receiver = event.receiver;
  record.status = event.status;
  record.ticket = event.ticket;
  record.task = event.task;
  record.transfer = event.transfer;
  const bool extent = event.kind == AgentEventKind::allocated || event.kind == AgentEventKind::imported ||
                      (event.kind == AgentEventKind::claimed && !event.delivery.valid());
  record.arena = extent ? event.extent.arena : event.manifest.arena;
  record.count = extent ? event.extent.count : 0;
  record.offset = extent ? event.extent.offset : event.manifest.offset;
  record.manifest_bytes = extent ? 0 : event.manifest.bytes;
  record.version = event.version.packed();
  record.version_number = event.version_number;
  record.delivery = event.delivery.packed();
  record.bytes = event.bytes;
  record.missing_blocks = event.missing_blocks;
  record.predicted_ns = event.predicted_ns;
  record.observed_ns = event.observed_ns;
  if (record.kind == CompletionKind::reserved || record.kind == CompletionKind::reservation_ended) {
    record.transfer = event.reservation;
    record.bytes = event.figures[0];
    record.missing_blocks = event.figures[1];
    record.version_number = event.figures[2];
  }
  return record;
}

CompletionRecord answer_to(const SubmitRecord& record, Status status) noexcept {
  CompletionRecord answer;
  answer.kind = CompletionKind::answer;
  const auto command = static_cast<std::uint16_t>(record.command);
  answer.command = command < kCommandCount ? static_cast<std::uint8_t>(command) : 0;
  answer.status = status;
  answer.ticket = record.ticket;
  return answer;
}

}  // namespace kvrail::engine::ipc
