// Claims of a split: an answer may come after the call that wanted it has timed out, and must not be lost, since the
// engine leaves those tokens to this agent. So each delivery has at most one open claim, which the next call takes up.
#include "engine/client/state.h"

namespace kvrail {

namespace client {

void State::on_claimed(const ipc::CompletionRecord& record) {
  for (auto& [delivery, open] : claims) {
    if (open.ticket != record.ticket) continue;
    open.reply = record;
    open.answered = true;
    return;
  }
  // Of a delivery that was given back meanwhile.
  if (record.kind == ipc::CompletionKind::claimed && record.delivery != 0) release(*session, record.delivery, 0, true);
}

Status State::submit_claim(std::uint64_t delivery, std::uint32_t most_tokens, const Deadline& deadline) {
  ipc::SubmitRecord record;
  record.command = ipc::Command::claim;
  record.ticket = ++last_ticket;
  record.a = delivery;
  record.count = most_tokens;
  claims[delivery] = OpenClaim{record.ticket, {}, false};
  const Status status = session->submit(record, {}, deadline);
  if (!status.ok()) claims.erase(delivery);
  return status;
}

}  // namespace client

using client::Deadline;

Result<std::optional<Claim>> Agent::claim(Delivery& delivery, std::uint32_t most_tokens, Nanoseconds timeout) {
  const Deadline deadline(timeout);
  if (delivery.session_ == nullptr || !delivery.divided_) {
    return Error{{Code::invalid_argument}, "only a delivery of the medium split has tokens to claim, until its tail is there"};
  }
  if (most_tokens == 0) return Error{{Code::invalid_argument}, "claim at least one token"};
  if (delivery.session_ != state_->session) return Error{{Code::generation_mismatch}, "the delivery is of an earlier attachment"};
  if (state_->in_callback) return Error{{Code::busy}, "a callback may not make calls that wait"};
  const std::uint64_t handle = delivery.handle_;
  if (!state_->claims.contains(handle)) {
    const Status sent = state_->submit_claim(handle, most_tokens, deadline);
    if (!sent.ok()) return client::error_of(sent, "cannot claim");
  }
  const Status waited = state_->wait_until(deadline, engine::ipc::kWakeReply, [&] { return state_->claims[handle].answered; });
  if (!waited.ok()) return client::error_of(waited, "the claim is not answered yet; claim again");
  const engine::ipc::CompletionRecord reply = state_->claims[handle].reply;
  state_->claims.erase(handle);
  if (!reply.status.ok()) {
    delivery.divided_ = false;
    return client::error_of(reply.status, "the tail does not come; compute what no block covers");
  }
  if (reply.delivery == 0) return std::optional<Claim>(Claim{static_cast<std::uint32_t>(reply.offset), reply.count});
  auto whole = state_->open(reply);
  if (!whole.ok()) return std::move(whole).error();
  whole->divided_ = false;
  delivery = std::move(*whole);
  return std::optional<Claim>();
}

}  // namespace kvrail
