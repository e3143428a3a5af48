// Acknowledgements that a lane owes its peer. Thread: owner.
#pragma once

#include <cstdint>

#include "kvrail/base/status.h"
#include "transport/fixed_ring.h"
#include "transport/wire/frame.h"

namespace kvrail::transport {

/// Acknowledgements owed for the chunks of one class, neighbours with one outcome merged.
class AckQueue {
 public:
  explicit AckQueue(std::uint32_t capacity) : ranges_(capacity) {}
  struct Range {
    std::uint64_t first = 0;
    std::uint32_t count = 0;
    Code code = Code::ok;
  };
  [[nodiscard]] bool full() const noexcept { return ranges_.full(); }
  [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
  [[nodiscard]] const Range& front() noexcept { return ranges_.front(); }
  void pop() noexcept { ranges_.pop(); }
  /// The next chunk of the class ended with `code`.
  void push(Code code) noexcept {
    if (!ranges_.empty()) {
      Range& last = ranges_[ranges_.size() - 1];
      if (last.code == code && last.count < wire::kMaxAckCount) {
        ++last.count;
        ++next_;
        return;
      }
    }
    ranges_.push(Range{next_++, 1, code});
  }
  void clear() noexcept {
    ranges_.clear();
    next_ = 0;
  }

 private:
  FixedRing<Range> ranges_;
  std::uint64_t next_ = 0;
};

}  // namespace kvrail::transport
