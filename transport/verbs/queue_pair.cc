#include "transport/verbs/queue_pair.h"

namespace kvrail::transport::verbs {

bool Doorbell::ring() noexcept {
  if (count_ == 0 || failure_ != 0) return failure_ == 0;
  for (std::uint32_t i = 0; i < count_; ++i) {
    id_.number = static_cast<std::uint32_t>(queue_->posted + i + 1);
    requests_[i].wr_id = id_.pack();
    requests_[i].next = i + 1 < count_ ? &requests_[i + 1] : nullptr;
  }
  requests_[count_ - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  failure_ = ::ibv_post_send(queue_->pair, requests_.data(), &refused);
  queue_->posted += count_;
  count_ = 0;
  return failure_ == 0;
}

}  // namespace kvrail::transport::verbs
