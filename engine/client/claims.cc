// Claims of a split: an answer may come after the call that wanted it has timed out, and must not be lost, since the
// engine leaves those tokens to this agent. So each delivery has at most one open claim, which the next call takes up.
#include <algorithm>

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

void State::drop_abandoned_claims() {
  std::erase_if(claims, [this](const auto& entry) {
    const OpenClaim& open = entry.second;
    if (!open.answered || !open.asker.expired()) return false;
    if (open.reply.delivery != 0) release(*session, open.reply.delivery, 0, true);
    return true;
  });
}

Status State::submit_claim(std::uint64_t delivery, const std::shared_ptr<void>& asker, std::uint32_t most_tokens,
                           const Deadline& deadline) {
  ipc::SubmitRecord record;
  record.command = ipc::Command::claim;
  record.ticket = ++last_ticket;
  record.a = delivery;
  record.count = most_tokens;
  claims[delivery] = OpenClaim{record.ticket, asker, {}, false};
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
  if (delivery.session_ != state_->session) return Error{{Code::generation_mismatch}, "the delivery is of another attachment"};
  if (state_->in_callback) return Error{{Code::busy}, "a callback may not make calls that wait"};
  const std::uint64_t handle = delivery.handle_;
  if (!state_->claims.contains(handle)) {
    if (delivery.claims_ == nullptr) delivery.claims_ = std::make_shared<char>();
    const Status sent = state_->submit_claim(handle, delivery.claims_, most_tokens, deadline);
    if (!sent.ok()) return client::error_of(sent, "cannot claim");
  }
  const Status waited = state_->wait_until(deadline, engine::ipc::kWakeReply, [&] { return state_->claims[handle].answered; });
  if (waited.code == Code::timed_out) return client::error_of(waited, "the claim is not answered yet; claim again");
  if (!waited.ok()) return client::error_of(waited, "cannot claim");
  engine::ipc::CompletionRecord& answer = state_->claims[handle].reply;
  if (answer.status.ok() && answer.delivery == 0) {
    // A claim that timed out may have asked for more than this one does: the rest is for the next.
    const std::uint32_t step = delivery.layout_.block_tokens;
    const std::uint32_t tokens = std::min(answer.count, std::max(most_tokens / step, 1U) * step);
    const Claim claim{static_cast<std::uint32_t>(answer.offset), tokens};
    answer.offset += tokens;
    answer.count -= tokens;
    if (answer.count == 0) state_->claims.erase(handle);
    return std::optional<Claim>(claim);
  }
  const engine::ipc::CompletionRecord reply = answer;
  state_->claims.erase(handle);
  if (!reply.status.ok()) {
    delivery.divided_ = false;
    // timed_out is for claims that may be made again.
    const Code code = reply.status.code == Code::timed_out ? Code::cancelled : reply.status.code;
    return client::error_of({code, reply.status.scope, reply.status.detail}, "the tail does not come; compute what no block covers");
  }
  auto whole = state_->open(reply);
  if (!whole.ok()) return std::move(whole).error();
  whole->divided_ = false;
  delivery = std::move(*whole);
  return std::optional<Claim>();
}

}  // namespace kvrail
