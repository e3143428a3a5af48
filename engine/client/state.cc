#include "engine/client/state.h"

#include <algorithm>
#include <utility>

namespace kvrail::client {

Error error_of(Status status, const char* what) {
  return Error{status, std::string(what) + ": " + name(status.code)};
}

Result<ipc::CompletionRecord> State::call(ipc::SubmitRecord record, std::span<const Bytes> payload,
                                          const Deadline& deadline, const char* what) {
  if (call_ticket != 0) return Error{{Code::busy}, "a callback may not make calls that wait"};
  record.ticket = ++last_ticket;
  call_ticket = record.ticket;
  call_done = false;
  Status status = session->submit(record, payload, deadline);
  if (status.ok()) status = wait_until(deadline, ipc::kWakeReply, [this] { return call_done; });
  call_ticket = 0;
  if (status.ok()) status = call_reply.status;
  if (!status.ok()) return error_of(status, what);
  return call_reply;
}

Result<Ticket> State::post(ipc::SubmitRecord record, std::span<const Bytes> payload, std::uint32_t outcomes,
                           const char* what) {
  record.ticket = ++last_ticket;
  const Status status = session->submit(record, payload, Deadline(kCallTimeout));
  if (!status.ok()) return error_of(status, what);
  TicketState state;
  state.expected = outcomes;
  tickets.emplace(record.ticket, std::move(state));
  // Whoever only sends would else let the completion ring run full. After the send: what has come
  // meanwhile takes time to read, in which the engine can work already.
  take_all();
  return Ticket{record.ticket};
}

Status State::tell(const ipc::SubmitRecord& record) {
  return session->submit(record, {}, Deadline(kCallTimeout));
}

std::size_t State::take_all() {
  std::size_t taken = 0;
  ipc::CompletionRecord record;
  while (session->take(record)) {
    on_completion(record);
    ++taken;
  }
  if (!claims.empty()) drop_abandoned_claims();
  return taken;
}

void State::on_completion(const ipc::CompletionRecord& record) {
  switch (record.kind) {
    case ipc::CompletionKind::answer: return on_answer(record);
    case ipc::CompletionKind::sent:
    case ipc::CompletionKind::fetched: return on_outcome(record);
    case ipc::CompletionKind::delivery: deliveries.push_back(record); return;
    case ipc::CompletionKind::summary_request: summaries.push_back(record); return;
    case ipc::CompletionKind::claimed: return on_claimed(record);
    case ipc::CompletionKind::reserved: return on_reserved(record);
    case ipc::CompletionKind::reservation_ended:
      ended_reservations.push_back({Reservation{static_cast<std::uint16_t>(record.transfer)}, record.status});
      return;
    case ipc::CompletionKind::allocated:
    case ipc::CompletionKind::committed:
    case ipc::CompletionKind::task:
    case ipc::CompletionKind::imported:
      if (record.ticket == call_ticket && call_ticket != 0) {
        call_reply = record;
        call_done = true;
      } else if (record.kind == ipc::CompletionKind::allocated && record.status.ok()) {
        // The call that wanted these blocks has timed out.
        free_run(*session, record.arena, record.offset, record.count);
      }
      return;
  }
}

void State::on_reserved(const ipc::CompletionRecord& record) {
  if (record.ticket == call_ticket && call_ticket != 0) {
    call_reply = record;
    call_done = true;
    return;
  }
  if (!record.status.ok()) return;
  ipc::SubmitRecord release;  // the call that wanted it has timed out
  release.command = ipc::Command::unreserve;
  release.a = record.transfer;
  static_cast<void>(tell(release));
}

void State::on_answer(const ipc::CompletionRecord& record) {
  if (record.ticket == call_ticket && call_ticket != 0) {
    call_reply = record;
    call_done = true;
    return;
  }
  // The answer to a cancel bears the ticket of what was to be cancelled, and says nothing of it.
  if (record.command == static_cast<std::uint8_t>(ipc::Command::cancel)) return;
  if (record.command == static_cast<std::uint8_t>(ipc::Command::claim)) return on_claimed(record);
  if (const auto reply = summary_replies.extract(record.ticket); !reply.empty()) {
    if (!record.status.ok()) decline_summary(reply.mapped());
    return;
  }
  const auto found = tickets.find(record.ticket);
  if (found != tickets.end() && !record.status.ok()) found->second.refused = record.status;
}

void State::on_outcome(const ipc::CompletionRecord& record) {
  const auto found = tickets.find(record.ticket);
  if (found == tickets.end()) return;  // forgotten
  Outcome outcome;
  outcome.receiver = record.receiver;
  outcome.status = record.status;
  outcome.medium = static_cast<Medium>(record.medium);
  outcome.transfer = record.transfer;
  outcome.bytes = record.bytes;
  outcome.missing_blocks = record.missing_blocks;
  outcome.predicted_ns = record.predicted_ns;
  outcome.observed_ns = record.observed_ns;
  found->second.outcomes.push_back(outcome);
}

void State::run_summaries() {
  while (!summaries.empty()) {
    const ipc::CompletionRecord record = summaries.front();
    summaries.pop_front();
    Summary summary;
    Delivery view;
    if (make_summary && (record.manifest_bytes == 0 || read_manifest(record, view).ok())) {
      SummaryRequest request;
      request.context = view.context();
      request.version = record.version_number;
      request.tokens = view.tokens();
      in_callback = true;
      summary = make_summary(request);
      in_callback = false;
    }
    ipc::SubmitRecord reply;
    reply.command = ipc::Command::summary;
    reply.a = record.transfer;
    reply.kind = static_cast<std::uint8_t>(summary.kind);
    reply.flags = ipc::kFlagAnswer;
    reply.ticket = ++last_ticket;
    const Bytes payload = summary.bytes;
    const Status sent = session->submit(reply, {&payload, 1}, Deadline(kCallTimeout));
    if (sent.ok()) summary_replies.emplace(reply.ticket, record.transfer);
    if (sent.code == Code::too_large) decline_summary(record.transfer);
  }
}

// A summary that cannot be sent is none: whoever waits for it must not wait until the deadline.
void State::decline_summary(std::uint64_t request) {
  ipc::SubmitRecord reply;
  reply.command = ipc::Command::summary;
  reply.a = request;
  static_cast<void>(session->submit(reply, {}, Deadline(kCallTimeout)));
}

namespace {
bool is_empty(const ComputeProfile& profile) noexcept {
  return profile.prefill_fixed_ns == 0 && profile.prefill_per_token_ns == 0 &&
         profile.prefill_quadratic_ns_q20 == 0 && profile.decode_per_token_ns == 0;
}
}  // namespace

void State::set_probe(const Probe& news) noexcept {
  probe = news;
  if (is_empty(probe.compute)) probe.compute = options.compute;
  if (probe.accepted == 0) probe.accepted = options.accepted;
  if (probe.tokenizer == Hash128{}) probe.tokenizer = options.tokenizer;
  session->write_probe(probe, copied_bytes);
}

void State::count_copied(std::uint64_t bytes) noexcept {
  copied_bytes += bytes;
  session->write_probe(probe, copied_bytes);
}

void State::free_run(Session& session, std::uint32_t arena, std::uint64_t offset, std::uint32_t count) noexcept {
  ipc::SubmitRecord record;
  record.command = ipc::Command::free_blocks;
  record.count = count;
  record.c = offset;
  record.d = arena;
  static_cast<void>(session.submit(record, {}, Deadline(kGiveBackTimeout)));
}

void State::release(Session& session, std::uint64_t delivery, TimeNs recompute_ns, bool may_wait) noexcept {
  ipc::SubmitRecord record;
  record.command = ipc::Command::release;
  record.a = delivery;
  record.b = std::max<TimeNs>(recompute_ns, 0);
  session.give_back(record, may_wait);
}

}  // namespace kvrail::client
