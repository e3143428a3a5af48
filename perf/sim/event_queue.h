// The virtual clock: events in the order of their time, those of one time in the order in which they were made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvrail/base/assert.h"
#include "kvrail/base/time.h"

namespace kvrail::simulation {

enum class EventKind : std::uint8_t {
  submit,     // of a job: its sender decides what to offer
  offer,      // of a job: its offer has arrived with the token ids
  accept,     // of a job: the answer has arrived at the sender
  ready,      // of a job: the encoder has done a piece more
  at_nic,     // of a lane: its next chunk has come to the receiver's interface
  ack,        // of a lane: its next chunk is acknowledged
  delivered,  // of a job: its last byte is there
  finished,   // of a job: its receiver can go on
  release,    // of a job: its context leaves the receive memory
  turn,       // of a lane: the next class has its time slot
};

struct Event {
  TimeNs at_ns = 0;
  std::uint64_t serial = 0;
  std::uint32_t index = 0;
  EventKind kind = EventKind::submit;
};

class EventQueue {
 public:
  void push(TimeNs at_ns, EventKind kind, std::uint32_t index) {
    KVRAIL_ASSERT(at_ns >= now_ns_);
    events_.push_back({at_ns, serial_++, index, kind});
    std::push_heap(events_.begin(), events_.end(), later);
  }
  [[nodiscard]] bool empty() const noexcept { return events_.empty(); }
  [[nodiscard]] TimeNs next_ns() const noexcept { return events_.front().at_ns; }
  [[nodiscard]] TimeNs now_ns() const noexcept { return now_ns_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return serial_; }
  // The clock moves to a time that no event is before.
  void set_now(TimeNs now_ns) noexcept {
    KVRAIL_ASSERT(now_ns >= now_ns_);
    now_ns_ = now_ns;
  }
  Event pop() {
    std::pop_heap(events_.begin(), events_.end(), later);
    const Event event = events_.back();
    events_.pop_back();
    set_now(event.at_ns);
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) noexcept {
    return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.serial > b.serial;
  }
  std::vector<Event> events_;
  std::uint64_t serial_ = 0;
  TimeNs now_ns_ = 0;
};

}  // namespace kvrail::simulation
