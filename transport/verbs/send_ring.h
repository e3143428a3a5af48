// The messages that wait to be sent on a lane's control queue pair, in memory that the device
// reads. Frames that come while the last message has not been posted are added to it, so a busy
// lane sends few and large messages.
//
// Thread: owner.
// Invariant: a message's bytes stay in place from its first byte until the completion that covers
// its SEND; messages are contiguous, posted in order and freed in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/base/assert.h"
#include "transport/fixed_ring.h"
#include "transport/verbs/envelope.h"

namespace kvrail::transport::verbs {

class SendRing {
 public:
  struct Message {
    std::uint32_t at = 0;     // offset of its envelope in the memory
    std::uint32_t bytes = 0;  // envelope included
    MessageKind kind = MessageKind::credit;
    std::uint64_t work = 0;  // number of its SEND, once posted
  };

  explicit SendRing(std::uint32_t most_messages) : messages_(most_messages) {}
  void set_memory(std::span<std::byte> memory) noexcept { memory_ = memory; }
  [[nodiscard]] std::size_t capacity() const noexcept { return memory_.size(); }

  /// Room for `bytes` of a body; empty if there is none. `spare`: bytes that must stay free behind.
  [[nodiscard]] std::span<std::byte> append(MessageKind kind, std::size_t bytes,
                                            std::size_t spare) noexcept {
    if (kind == MessageKind::frames && posted_ < messages_.size()) {
      Message& last = messages_[messages_.size() - 1];
      const std::size_t end = last.at + last.bytes;
      if (last.kind == kind && last.bytes + bytes <= kSlotBytes && fits(end, bytes, spare)) {
        last.bytes += static_cast<std::uint32_t>(bytes);
        return memory_.subspan(end, bytes);
      }
    }
    return begin(kind, bytes, spare);
  }
  [[nodiscard]] bool has_waiting() const noexcept { return posted_ < messages_.size(); }
  [[nodiscard]] Message& next() noexcept { return messages_[posted_]; }
  [[nodiscard]] std::span<std::byte> bytes_of(const Message& message) noexcept {
    return memory_.subspan(message.at, message.bytes);
  }
  void mark_posted(std::uint64_t work) noexcept { messages_[posted_++].work = work; }
  /// Every SEND up to number `work` has completed.
  void release(std::uint64_t work) noexcept {
    while (posted_ > 0 && messages_.front().work <= work) {
      messages_.pop();
      --posted_;
    }
  }
  void clear() noexcept {
    messages_.clear();
    posted_ = 0;
  }

 private:
  // The free part is [end of the last, begin of the first), or both ends if the used part is whole.
  [[nodiscard]] bool fits(std::size_t from, std::size_t bytes, std::size_t spare) noexcept {
    const std::size_t first = messages_.front().at;
    if (from <= first) return from + bytes + spare < first;
    const std::size_t behind = memory_.size() - from;
    if (bytes > behind) return false;
    return behind - bytes >= spare || first > spare;
  }
  [[nodiscard]] std::span<std::byte> begin(MessageKind kind, std::size_t body,
                                           std::size_t spare) noexcept {
    const std::size_t bytes = kEnvelopeBytes + body;
    KVRAIL_ASSERT(bytes <= kSlotBytes);
    std::size_t at = 0;
    if (messages_.full()) return {};
    if (!messages_.empty()) {
      const Message& last = messages_[messages_.size() - 1];
      const std::size_t end = last.at + last.bytes;
      const bool wrapped = end <= messages_.front().at;
      if (fits(end, bytes, spare)) {
        at = end;
      } else if (wrapped || bytes + spare >= messages_.front().at) {
        return {};
      }
    }
    messages_.push(
        Message{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(bytes), kind, 0});
    return memory_.subspan(at + kEnvelopeBytes, body);
  }

  std::span<std::byte> memory_;
  FixedRing<Message> messages_;
  std::size_t posted_ = 0;  // of the messages, from the front
};

}  // namespace kvrail::transport::verbs
