// Where a poll() collects its events. Thread: owner.
#pragma once

#include <cstddef>
#include <span>

#include "kvrail/base/assert.h"
#include "transport/transport.h"

namespace kvrail::transport {

/// Where poll() puts events; every producer stops in good order when it is full.
class EventSink {
 public:
  explicit EventSink(std::span<Event> out) noexcept : out_(out) {}
  [[nodiscard]] bool full() const noexcept { return count_ == out_.size(); }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] Event& add(EventKind kind) noexcept {
    KVRAIL_ASSERT(!full());
    Event& event = out_[count_++];
    event = Event{};
    event.kind = kind;
    return event;
  }

 private:
  std::span<Event> out_;
  std::size_t count_ = 0;
};

}  // namespace kvrail::transport
