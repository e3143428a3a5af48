#include "engine/ipc/agent_session.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/ipc/socket_io.h"

namespace kvrail::engine::ipc {

static_assert(sizeof(Extent) == sizeof(ExtentRecord) && offsetof(Extent, offset) == offsetof(ExtentRecord, offset) &&
                  offsetof(Extent, count) == offsetof(ExtentRecord, count),
              "the copied payload is used as an array of Extent");
static_assert(sizeof(WorkflowStep) == sizeof(WorkflowStepRecord) && sizeof(WorkflowEdge) == sizeof(WorkflowEdgeRecord) &&
                  offsetof(WorkflowStep, duration_ns) == offsetof(WorkflowStepRecord, duration_ns),
              "as are steps and hand-overs of a workflow");

const char* name(DropReason reason) noexcept {
  switch (reason) {
    case DropReason::none: return "none";
    case DropReason::detached: return "detached";
    case DropReason::hung_up: return "hung_up";
    case DropReason::ring_corrupt: return "ring_corrupt";
    case DropReason::protocol_breach: return "protocol_breach";
    case DropReason::not_reading: return "not_reading";
    case DropReason::shutting_down: return "shutting_down";
  }
  return "?";
}

void Bell::ring() const noexcept {
  if (is_socket_) {
    MessageHeader message;
    message.type = MessageType::bell;
    message.bytes = sizeof(message);
    // Full: bells that it has not read yet wake it as well. Closed: the hang-up is noticed elsewhere.
    static_cast<void>(send_message(fd_, message));
    return;
  }
  // An eventfd of this process, non-blocking; full means that it is readable already.
  static_cast<void>(::eventfd_write(fd_, 1));
}

AgentSession::AgentSession(std::uint64_t id, const AgentInfo& info, ControlMemory memory, Bell bell,
                           UniqueFd submit_bell)
    : id_(id),
      info_(info),
      memory_(std::move(memory)),
      view_(view_control(memory_.arena->base(), memory_.layout)),
      bell_(bell),
      submit_bell_(std::move(submit_bell)),
      submit_(view_.submit, memory_.layout.submit_capacity),
      completion_(view_.completion, memory_.layout.completion_capacity) {
  KVRAIL_ASSERT(id != 0);
}

std::size_t AgentSession::poll(AgentCommands& commands, std::span<std::byte> payload, TimeNs now_ns,
                               std::size_t budget) noexcept {
  KVRAIL_ASSERT(agent_.valid() && payload.size() >= view_.scratch.size());
  std::size_t done = 0;
  SubmitRecord record;
  // The rest is asked only when a record is there: most cycles find none, and looking at the agent's index
  // for nothing costs a cache miss.
  while (done < budget && drop_ == DropReason::none && submit_.has_next() && commands.ready(agent_)) {
    // While the record is on its way, so is the payload that lies where the library puts most of them.
    __builtin_prefetch(view_.scratch.data() + payload_at_);
    if (!has_room(1) || !submit_.try_pop(record)) break;
    handle(commands, record, payload, now_ns);
    ++processed_;
    ++done;
  }
  if (done != 0) report_processed();
  if (submit_.state() != RingState::ok || completion_.state() != RingState::ok) {
    drop_ = DropReason::ring_corrupt;
  }
  counters_.records += done;
  return done;
}

void AgentSession::report_processed() noexcept {
  view_.shared->processed.store(processed_, std::memory_order_seq_cst);  // R1, R2 -> R3
  if (view_.shared->room_wanted.load(std::memory_order_seq_cst) == 0) return;  // R3
  if (view_.shared->room_wanted.exchange(0, std::memory_order_seq_cst) != 0) {
    ++counters_.bells;
    bell_.ring();
  }
}

void AgentSession::handle(AgentCommands& commands, const SubmitRecord& record,
                          std::span<std::byte> payload, TimeNs now_ns) noexcept {
  const Judged judged = judge(record, static_cast<std::uint32_t>(view_.scratch.size()));
  Status status = judged.status;
  if (judged.verdict == Verdict::breach) {
    if (++counters_.breaches >= kMaxBreaches) drop_ = DropReason::protocol_breach;
  } else if (judged.verdict == Verdict::fine) {
    const std::span<std::byte> copy = payload.first(record.payload_bytes);
    if (!copy.empty()) {
      std::memcpy(copy.data(), view_.scratch.data() + record.payload_offset, copy.size());
      const std::size_t next = std::size_t{record.payload_offset} + record.payload_bytes;
      payload_at_ = next < view_.scratch.size() ? next : 0;
      asm volatile("" ::: "memory");  // From here on only the copy exists.
    }
    status = run(commands, record, copy, now_ns);
  }
  if (!status.ok()) ++counters_.refused;
  if (!status.ok() || (record.flags & kFlagAnswer) != 0) push(answer_to(record, status));
}

Status AgentSession::run(AgentCommands& commands, const SubmitRecord& record,
                         std::span<std::byte> payload, TimeNs now_ns) noexcept {
  switch (record.command) {
    case Command::allocate: return commands.allocate(agent_, record.ticket, record.count);
    case Command::free_blocks:
      return commands.free_blocks(agent_, Extent{record.d, record.count, record.c});
    case Command::cancel: return commands.cancel(agent_, record.ticket);
    case Command::release:
      return commands.release(agent_, DeliveryHandle::unpack(record.a), record.b);
    case Command::summary: return commands.summary(agent_, record.a, record.kind, payload);
    case Command::end_task: return commands.end_task(agent_, record.a);
    case Command::claim:
      return commands.claim(agent_, record.ticket, DeliveryHandle::unpack(record.a), record.count);
    case Command::unreserve: return commands.unreserve(agent_, static_cast<ReservationId>(record.a));
    case Command::reserve:
    case Command::commit:
    case Command::send:
    case Command::fetch:
    case Command::drop_context:
    case Command::set_importance:
    case Command::will_need:
    case Command::describe_workflow:
    case Command::begin_task: return run_named(commands, record, payload, now_ns);
  }
  KVRAIL_UNREACHABLE();
}

Status AgentSession::run_named(AgentCommands& commands, const SubmitRecord& record,
                               std::span<std::byte> payload, TimeNs now_ns) noexcept {
  Name name;
  if (!clean_name(record.name, name)) return Code::invalid_argument;
  switch (record.command) {
    case Command::drop_context: return commands.drop_context(agent_, name);
    case Command::set_importance:
      return commands.set_importance(agent_, name, record.a, record.d,
                                     {reinterpret_cast<const float*>(payload.data()), record.count});
    case Command::begin_task: {
      std::int64_t left = 0;
      if (!remaining(record, now_ns, left)) return Code::timed_out;
      return commands.begin_task(agent_, record.ticket, name, left);
    }
    case Command::will_need: {
      Name owner;
      const auto& raw = *reinterpret_cast<const Name*>(payload.data());
      return clean_name(raw, owner) ? commands.will_need(agent_, owner, name, record.b, record.d) : Code::invalid_argument;
    }
    case Command::describe_workflow: return run_describe(commands, record, name, payload);
    case Command::reserve:
      return commands.reserve(agent_, record.ticket, name, {record.b, static_cast<std::int64_t>(record.c), record.a});
    case Command::commit: {
      const std::size_t extent_bytes = std::size_t{record.count} * sizeof(Extent);
      const auto* extents = reinterpret_cast<const Extent*>(payload.data());
      const auto* tokens = reinterpret_cast<const TokenId*>(payload.data() + extent_bytes);
      const std::span<const TokenId> all{tokens, (payload.size() - extent_bytes) / sizeof(TokenId)};
      return commands.commit(agent_, record.ticket, name, all, {extents, record.count},
                             DeliveryHandle::unpack(record.a), record.d);
    }
    default: return run_send(commands, record, name, payload, now_ns);
  }
}

Status AgentSession::run_send(AgentCommands& commands, const SubmitRecord& record, const Name& name,
                              std::span<std::byte> payload, TimeNs now_ns) noexcept {
  std::int64_t left = 0;
  if (!remaining(record, now_ns, left)) return Code::timed_out;
  KVRAIL_ASSERT(record.count <= kMaxReceivers && payload.size() == record.count * sizeof(Name));
  auto* names = reinterpret_cast<Name*>(payload.data());  // the private copy, cleaned in place
  for (std::uint32_t i = 0; i < record.count; ++i) {
    const Name raw = names[i];
    if (!clean_name(raw, names[i])) {
      return {Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(i)};
    }
  }
  const SendOptions options = send_options(record, left);
  if (record.command == Command::fetch) {
    return commands.fetch(agent_, record.ticket, names[0], name, record.a, options);
  }
  return commands.send(agent_, record.ticket, name, record.a, {names, record.count}, options);
}

Status AgentSession::run_describe(AgentCommands& commands, const SubmitRecord& record, const Name& name,
                                  std::span<std::byte> payload) noexcept {
  auto* steps = reinterpret_cast<WorkflowStep*>(payload.data());  // the private copy, cleaned in place
  for (std::uint32_t i = 0; i < record.count; ++i) {
    const Name raw = steps[i].agent;
    if (!clean_name(raw, steps[i].agent)) return Code::invalid_argument;
  }
  const std::span<std::byte> rest = payload.subspan(record.count * sizeof(WorkflowStep));
  const auto* edges = reinterpret_cast<const WorkflowEdge*>(rest.data());
  return commands.describe_workflow(agent_, name, {steps, record.count}, {edges, rest.size() / sizeof(WorkflowEdge)});
}

bool AgentSession::prepare_park() noexcept {
  const bool no_records = submit_.prepare_park();
  if (submit_.state() != RingState::ok || completion_.state() != RingState::ok) return false;
  if (no_records && !starved_) return true;
  view_.shared->reading_wanted.store(1, std::memory_order_relaxed);  // F1, ordered by the fence
  std::atomic_thread_fence(std::memory_order_seq_cst);
  known_room_ = completion_.free_slots();
  // One slot serves a record, an event needs another beside it.
  if (known_room_ < (no_records ? 2U : 1U)) return completion_.state() == RingState::ok;
  starved_ = false;
  return false;
}

bool AgentSession::has_room(std::uint32_t slots) noexcept {
  if (known_room_ < slots) known_room_ = completion_.free_slots();
  return known_room_ >= slots;
}

bool AgentSession::try_push(const AgentEvent& event) noexcept {
  if (!has_room(2)) {  // One stays for the answer to the record in hand.
    ++counters_.full;
    starved_ = true;
    return false;
  }
  push(completion_of(event));
  ++counters_.events;
  return true;
}

void AgentSession::push(const CompletionRecord& record) noexcept {
  if (known_room_ == 0 || !completion_.try_push(record)) {
    // Only a ring that turned corrupt after its room was counted loses a record here.
    KVRAIL_ASSERT(completion_.state() != RingState::ok);
    return;
  }
  --known_room_;
  // From half full on everything wakes, so that a ring never fills up beside a sleeper.
  const std::uint32_t kinds = has_room(completion_.capacity() / 2) ? wake_kind(record.kind) : kWakeAny;
  if (completion_.publish(kinds)) {
    ++counters_.bells;
    bell_.ring();
  }
}

bool AgentSession::read_probe(Probe& out) noexcept {
  ProbeRecord& record = *view_.probe;
  // Acquire pairs with the agent's release store of the even value. Everything in here may be a lie,
  // so a torn or endless write costs this reader one look and no more.
  const std::uint64_t before = record.sequence.load(std::memory_order_acquire);
  if (before == probe_sequence_ || (before & 1U) != 0) return false;
  std::array<std::uint64_t, kProbeWords> words;
  for (std::size_t i = 0; i < kProbeWords; ++i) {
    words[i] = record.words[i].load(std::memory_order_relaxed);  // judged by `sequence` below
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record.sequence.load(std::memory_order_relaxed) != before) return false;
  probe_sequence_ = before;

  const auto at = [&words](ProbeWord word) noexcept { return words[static_cast<std::size_t>(word)]; };
  // Durations beyond an hour are not believed: sums of them must not overflow further in.
  const auto duration = [&at](ProbeWord word) noexcept {
    return std::min<std::uint64_t>(at(word), 3600ULL * 1'000'000'000ULL);
  };
  out.queue_length = static_cast<std::uint32_t>(std::min<std::uint64_t>(at(ProbeWord::queue_length), 1U << 30));
  out.compute_load_ppm = static_cast<std::uint32_t>(std::min<std::uint64_t>(at(ProbeWord::compute_load_ppm), 1'000'000));
  out.cache_bytes = at(ProbeWord::cache_bytes);
  out.backlog_ns = static_cast<TimeNs>(duration(ProbeWord::backlog_ns));
  out.idle_until_ns = static_cast<TimeNs>(at(ProbeWord::idle_until_ns) & INT64_MAX);
  out.compute.prefill_fixed_ns = duration(ProbeWord::prefill_fixed_ns);
  out.compute.prefill_per_token_ns = duration(ProbeWord::prefill_per_token_ns);
  out.compute.prefill_quadratic_ns_q20 = duration(ProbeWord::prefill_quadratic_ns_q20);
  out.compute.decode_per_token_ns = duration(ProbeWord::decode_per_token_ns);
  out.accepted = static_cast<MediumMask>(at(ProbeWord::accepted)) & ((MediumMask{1} << kMediumCount) - 1);
  out.tokenizer = {at(ProbeWord::tokenizer_low), at(ProbeWord::tokenizer_high)};
  return true;
}

}  // namespace kvrail::engine::ipc
