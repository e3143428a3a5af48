// An agent's reservations.
#include <utility>

#include "engine/client/state.h"

namespace kvrail {

using client::Deadline;
using client::error_of;
using engine::ipc::Command;
using engine::ipc::CompletionKind;
using engine::ipc::SubmitRecord;

Result<Reservation> Agent::reserve(std::string_view receiver, const ReserveOptions& options, ReservationFigures* figures,
                                   Nanoseconds timeout) {
  const Result<Name> to = make_name(receiver);
  if (!to.ok()) return Error{to.status(), "receiver '" + std::string(receiver) + "': " + to.error().message};
  if (options.bytes == 0 || options.period.count() <= 0 || options.offset.count() < 0 || options.offset >= options.period) {
    return Error{{Code::invalid_argument}, "a reservation has bytes, a period, and an offset within it"};
  }
  SubmitRecord record;
  record.command = Command::reserve;
  record.name = *to;
  record.a = options.bytes;
  record.b = options.period.count();
  record.c = static_cast<std::uint64_t>(options.offset.count());
  auto reply = state_->call(record, {}, Deadline(timeout), "cannot reserve");
  // A refusal comes with its figures as the answer does.
  const engine::ipc::CompletionRecord& last = state_->call_reply;
  ReservationFigures known;
  if (state_->call_done && last.kind == CompletionKind::reserved) known = {last.bytes, last.missing_blocks, last.version_number};
  if (figures != nullptr) *figures = known;
  if (reply.ok()) return Reservation{static_cast<std::uint16_t>(reply->transfer)};
  Error error = std::move(reply).error();
  if (error.status.code == Code::limit) {
    error.message += "; it takes " + std::to_string(known.needed) + " bytes/s, and " + std::to_string(known.available) +
                     " are free of the " + std::to_string(known.half) + " that are half of the lane";
  }
  return error;
}

Result<void> Agent::release_reservation(Reservation reservation) {
  SubmitRecord record;
  record.command = Command::unreserve;
  record.flags = engine::ipc::kFlagAnswer;
  record.a = reservation.id;
  auto reply = state_->call(record, {}, Deadline(kCallTimeout), "cannot release the reservation");
  return reply.ok() ? Result<void>() : Result<void>(std::move(reply).error());
}

std::optional<ReservationEnd> Agent::reservation_ended() noexcept {
  if (state_->ended_reservations.empty()) return std::nullopt;
  const ReservationEnd end = state_->ended_reservations.front();
  state_->ended_reservations.pop_front();
  return end;
}

}  // namespace kvrail
