// A disk between the tier and its own that does what disks do at their worst. Everything is decided in start() and
// reap(), on the tier's thread; the test sets what is to happen through atomics.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "engine/tier/disk.h"
#include "kvrail/base/prng.h"

namespace kvrail::engine::testing {

struct Faults {
  std::atomic<int> fail_writes{0}, fail_reads{0}, fail_syncs{0};  // how many are to fail from now on
  std::atomic<int> error{EIO};
  std::atomic<bool> shorten{false};  // reads and writes come in parts, some of no page, some interrupted
  std::atomic<bool> hold{false};     // nothing ends
  std::atomic<int> overlong{0};      // results beyond what was asked for
};

class FaultyDisk final : public tier::Disk {
 public:
  FaultyDisk(std::unique_ptr<tier::Disk> under, std::shared_ptr<Faults> faults) : under_(std::move(under)), faults_(std::move(faults)) {}

  void start(tier::DiskOp& op) noexcept override {
    if (op.kind != tier::DiskOp::Kind::sync && faults_->shorten.load()) {
      const std::uint64_t draw = random_.uniform(6);
      if (draw == 0) return answer(op, -EINTR);
      if (draw == 1) return answer(op, -EAGAIN);
      // Part of it is really done; what the tier hears is the part.
      if (draw < 4 && op.bytes > 4096) {
        Cut cut{&op, op.bytes};
        op.bytes = static_cast<std::uint32_t>(4096 * (1 + random_.uniform(op.bytes / 4096)));
        if (draw == 3) cut.report = op.bytes - static_cast<std::uint32_t>(random_.uniform(4096));
        cuts_.push_back(cut);
      }
    }
    std::atomic<int>& failures = op.kind == tier::DiskOp::Kind::sync    ? faults_->fail_syncs
                                 : op.kind == tier::DiskOp::Kind::write ? faults_->fail_writes
                                                                        : faults_->fail_reads;
    if (take(failures)) return answer(op, -faults_->error.load());
    if (op.kind != tier::DiskOp::Kind::sync && take(faults_->overlong)) return answer(op, static_cast<std::int32_t>(op.bytes + 1));
    under_->start(op);
  }

  [[nodiscard]] tier::DiskOp* reap() noexcept override {
    if (faults_->hold.load()) return nullptr;
    if (!answered_.empty()) {
      tier::DiskOp* const op = answered_.front();
      answered_.pop_front();
      return op;
    }
    tier::DiskOp* const op = under_->reap();
    for (auto it = cuts_.begin(); op != nullptr && it != cuts_.end(); ++it) {
      if (it->op != op) continue;
      op->bytes = it->whole;
      if (it->report > 0 && op->result > 0) op->result = static_cast<std::int32_t>(it->report);
      cuts_.erase(it);
      break;
    }
    return op;
  }
  void wait(TimeNs timeout_ns) noexcept override {
    if (!answered_.empty() && !faults_->hold.load()) return;
    // Held operations may have ended below: no answer of theirs wakes anybody, so this looks again soon.
    under_->wait(faults_->hold.load() ? kMillisecondNs : timeout_ns);
  }
  [[nodiscard]] const char* name() const noexcept override { return "faulty"; }

 private:
  struct Cut {
    tier::DiskOp* op = nullptr;
    std::uint32_t whole = 0, report = 0;
  };
  static bool take(std::atomic<int>& left) noexcept {
    if (left.load() <= 0) return false;
    --left;
    return true;
  }
  void answer(tier::DiskOp& op, std::int32_t result) noexcept {
    op.result = result;
    answered_.push_back(&op);
  }

  std::unique_ptr<tier::Disk> under_;
  std::shared_ptr<Faults> faults_;
  Prng random_{7};
  std::list<tier::DiskOp*> answered_;
  std::list<Cut> cuts_;
};

// Loses what was written and not synced. Writes are kept aside until a sync of their file; forget() is the power cut:
// of each of them nothing, all, or some of its pages is on the disk.
class UnsyncedDisk final : public tier::Disk {
 public:
  struct Power {
    std::atomic<bool> cut{false};
    std::atomic<std::uint64_t> lost{0};
    std::uint64_t seed = 1;
  };
  UnsyncedDisk(std::unique_ptr<tier::Disk> under, std::shared_ptr<Power> power)
      : under_(std::move(under)), power_(std::move(power)), random_(power_->seed) {}
  ~UnsyncedDisk() override {
    for (const Write& write : writes_) lose(write);
  }

  void start(tier::DiskOp& op) noexcept override {
    switch (op.kind) {
      case tier::DiskOp::Kind::write:
        if (!power_->cut.load()) writes_.push_back({op.fd, op.offset, {op.data, op.data + op.bytes}});
        return answer(op, power_->cut.load() ? -EIO : static_cast<std::int32_t>(op.bytes));
      case tier::DiskOp::Kind::sync:
        if (power_->cut.load()) return answer(op, -EIO);
        for (auto it = writes_.begin(); it != writes_.end();) {
          if (it->fd == op.fd) {
            put(*it, 0, it->bytes.size());
            it = writes_.erase(it);
          } else {
            ++it;
          }
        }
        return answer(op, 0);
      case tier::DiskOp::Kind::read: break;
    }
    // As the page cache would: a read sees what was written, synced or not.
    const ssize_t got = ::pread(op.fd, op.data, op.bytes, static_cast<off_t>(op.offset));
    for (const Write& write : writes_) overlay(write, op);
    answer(op, static_cast<std::int32_t>(got < 0 ? -errno : got));
  }
  [[nodiscard]] tier::DiskOp* reap() noexcept override {
    if (answered_.empty()) return nullptr;
    tier::DiskOp* const op = answered_.front();
    answered_.pop_front();
    return op;
  }
  void wait(TimeNs timeout_ns) noexcept override {
    if (answered_.empty()) under_->wait(timeout_ns);
  }
  [[nodiscard]] const char* name() const noexcept override { return "unsynced"; }

 private:
  struct Write {
    int fd = -1;
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  // Tests' memory is not aligned for direct I/O: these folders are opened without it.
  static void put(const Write& write, std::size_t from, std::size_t bytes) noexcept {
    KVRAIL_ASSERT(::pwrite(write.fd, write.bytes.data() + from, bytes, static_cast<off_t>(write.offset + from)) ==
                  static_cast<ssize_t>(bytes));
  }
  void lose(const Write& write) noexcept {
    ++power_->lost;
    for (std::size_t page = 0; page < write.bytes.size(); page += 4096) {
      if (random_.chance(0.5)) put(write, page, 4096);
    }
  }
  static void overlay(const Write& write, tier::DiskOp& op) noexcept {
    if (write.fd != op.fd) return;
    const std::uint64_t begin = std::max(write.offset, op.offset);
    const std::uint64_t end = std::min(write.offset + write.bytes.size(), op.offset + op.bytes);
    if (begin < end) std::memcpy(op.data + (begin - op.offset), write.bytes.data() + (begin - write.offset), end - begin);
  }
  void answer(tier::DiskOp& op, std::int32_t result) noexcept {
    op.result = result;
    answered_.push_back(&op);
  }

  std::unique_ptr<tier::Disk> under_;
  std::shared_ptr<Power> power_;
  Prng random_;
  std::list<Write> writes_;
  std::list<tier::DiskOp*> answered_;
};

}  // namespace kvrail::engine::testing
