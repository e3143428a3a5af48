// What the worker and the tier's thread tell each other.
//
// Threads: worker (pushes commands, pops messages), tier thread (the reverse).
// State: two queues of fixed capacity; an eventfd and a flag per direction.
// Invariant: a queue that is not empty has a reader that runs, or a readable eventfd.
// Edges:
//   C1 worker: push command, then asleep_.exchange(false); true: write command_fd_.
//   C2 thread: asleep_.exchange(true), then look once more, then wait. Both are read-modify-writes of one flag, so one
//      comes first: the worker sees `true` and writes, or the thread's exchange acquires the push before it.
//   M1 thread: push message, then told_.exchange(true); false: write message_fd_.
//   M2 worker: drain message_fd_, then told_.exchange(false), then pop. A message pushed before the exchange is popped
//      now; one pushed after it finds `false` and writes. Draining comes first, or it could eat that write.
//   R1 thread, where the queue of messages is full: blocked_.exchange(true), tries once more, waits on command_fd_.
//   R2 worker: having popped, blocked_.exchange(false); true: write command_fd_.
// Relaxed: none. Wrap: none, Boost's queues count within their capacity.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "engine/core/tier_port.h"
#include "engine/ipc/fd.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/spsc_queue.h"

namespace kvrail::engine::tier {

struct Command {
  enum class Kind : std::uint8_t { put, get, forget };
  Kind kind = Kind::put;
  std::uint32_t slot = 0;  // the worker's, given back in the message
  TierPut put{};
  TierGet get{};
  Hash128 hash{};  // forget
  bool forgotten = false;  // the thread's: while it waits there
};

struct Message {
  enum class Kind : std::uint8_t {
    put,        // ended; ok: it is there from now on
    get,        // ended
    present,    // found at the start
    gone,       // given up
    forgotten,  // as was asked
    ready,      // all that was kept before the start is known
  };
  Kind kind = Kind::put;
  std::uint32_t slot = 0;
  Hash128 hash{};
  Status status{};
  TierEntry entry{};
};

class Mailbox {
 public:
  static constexpr std::size_t kCommands = 1024;
  static constexpr std::size_t kMessages = 4096;

  Mailbox() : command_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), message_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  [[nodiscard]] bool valid() const noexcept { return command_fd_.valid() && message_fd_.valid(); }
  [[nodiscard]] int command_fd() const noexcept { return command_fd_.get(); }
  [[nodiscard]] int message_fd() const noexcept { return message_fd_.get(); }

  // ---- worker ----
  [[nodiscard]] bool command(const Command& command) noexcept {
    if (!commands_.push(command)) return false;
    if (asleep_.exchange(false, std::memory_order_acq_rel)) signal(command_fd_);  // C1
    return true;
  }
  [[nodiscard]] bool has_message() const noexcept { return told_.load(std::memory_order_acquire); }
  void begin_messages() noexcept {
    drain(message_fd_);
    static_cast<void>(told_.exchange(false, std::memory_order_acq_rel));  // M2
  }
  [[nodiscard]] bool message(Message& out) noexcept { return messages_.pop(out); }
  // After popping; what is left is signalled anew.
  void end_messages() noexcept {
    if (messages_.read_available() > 0 && !told_.exchange(true, std::memory_order_acq_rel)) signal(message_fd_);
    if (blocked_.exchange(false, std::memory_order_acq_rel)) signal(command_fd_);  // R2
  }
  void stop() noexcept {
    stopping_.store(true, std::memory_order_release);
    signal(command_fd_);
  }

  // ---- any thread ----
  // The tier's thread looks around once more.
  void poke() noexcept { signal(command_fd_); }

  // ---- tier thread ----
  [[nodiscard]] bool next_command(Command& out) noexcept { return commands_.pop(out); }
  // Whether it may sleep now; C2.
  [[nodiscard]] bool may_sleep() noexcept {
    static_cast<void>(asleep_.exchange(true, std::memory_order_acq_rel));
    return commands_.read_available() == 0 && !stopping();
  }
  void awake() noexcept { asleep_.store(false, std::memory_order_release); }
  [[nodiscard]] bool stopping() const noexcept { return stopping_.load(std::memory_order_acquire); }
  // Waits while the worker has not read what is there. After stop() nobody reads: it is dropped then.
  void tell(const Message& message) noexcept {
    while (!messages_.push(message)) {
      static_cast<void>(blocked_.exchange(true, std::memory_order_acq_rel));  // R1
      if (messages_.push(message)) break;
      if (stopping()) return;
      pollfd poll{command_fd_.get(), POLLIN, 0};
      static_cast<void>(::ppoll(&poll, 1, nullptr, nullptr));
      drain(command_fd_);
    }
    if (!told_.exchange(true, std::memory_order_acq_rel)) signal(message_fd_);  // M1
  }

 private:
  static void signal(const ipc::UniqueFd& fd) noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(fd.get(), &one, sizeof(one)));
  }
  static void drain(const ipc::UniqueFd& fd) noexcept {
    std::uint64_t count = 0;
    static_cast<void>(!::read(fd.get(), &count, sizeof(count)));
  }

  ipc::UniqueFd command_fd_, message_fd_;
  SpscQueue<Command, kCommands> commands_;
  SpscQueue<Message, kMessages> messages_;
  alignas(kCacheLineBytes) std::atomic<bool> asleep_{false};
  alignas(kCacheLineBytes) std::atomic<bool> told_{false};
  alignas(kCacheLineBytes) std::atomic<bool> blocked_{false};
  std::atomic<bool> stopping_{false};
};

}  // namespace kvrail::engine::tier
