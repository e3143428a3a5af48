#include "transport/verbs/queue_pair.h"

namespace kvrail::transport::verbs {

namespace {

// What may wait without a completion: far less than the send queue, and than the ring of messages.
constexpr std::uint32_t kMostQuietRequests = 16;
constexpr std::uint64_t kMostQuietBytes = 32 * 1024;

}  // namespace

bool Doorbell::may_be_quiet() noexcept {
  bool quiet = !wanted_;
  for (std::uint32_t i = 0; i < count_; ++i) {
    quiet = quiet && requests_[i].opcode == IBV_WR_SEND;
    if (requests_[i].num_sge > 0) queue_->quiet_bytes += requests_[i].sg_list[0].length;
  }
  queue_->quiet_requests += count_;
  quiet = quiet && queue_->quiet_requests <= kMostQuietRequests &&
          queue_->quiet_bytes <= kMostQuietBytes;
  if (!quiet) {
    queue_->quiet_requests = 0;
    queue_->quiet_bytes = 0;
  }
  wanted_ = false;
  return quiet;
}

bool Doorbell::ring() noexcept {
  if (count_ == 0 || failure_ != 0) return failure_ == 0;
  for (std::uint32_t i = 0; i < count_; ++i) {
    id_.number = static_cast<std::uint32_t>(queue_->posted + i + 1);
    requests_[i].wr_id = id_.pack();
    requests_[i].next = i + 1 < count_ ? &requests_[i + 1] : nullptr;
  }
  if (!may_be_quiet()) requests_[count_ - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  failure_ = ::ibv_post_send(queue_->pair, requests_.data(), &refused);
  queue_->posted += count_;
  count_ = 0;
  return failure_ == 0;
}

}  // namespace kvrail::transport::verbs
