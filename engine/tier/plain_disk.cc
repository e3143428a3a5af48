// Where there is no io_uring: system calls that wait, on the tier's own thread.
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "engine/tier/disk.h"

namespace kvrail::engine::tier {
namespace {

class PlainDisk final : public Disk {
 public:
  explicit PlainDisk(int event_fd) noexcept : event_fd_(event_fd) {}

  void start(DiskOp& op) noexcept override {
    ssize_t result = 0;
    switch (op.kind) {
      case DiskOp::Kind::read: result = ::pread(op.fd, op.data, op.bytes, static_cast<off_t>(op.offset)); break;
      case DiskOp::Kind::write: result = ::pwrite(op.fd, op.data, op.bytes, static_cast<off_t>(op.offset)); break;
      case DiskOp::Kind::sync: result = ::fdatasync(op.fd); break;
    }
    op.result = static_cast<std::int32_t>(result < 0 ? -errno : result);
    op.next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = &op;
    last_ = &op;
  }

  [[nodiscard]] DiskOp* reap() noexcept override {
    DiskOp* const op = first_;
    if (op == nullptr) return nullptr;
    first_ = op->next;
    if (first_ == nullptr) last_ = nullptr;
    return op;
  }

  void wait(TimeNs timeout_ns) noexcept override {
    if (first_ != nullptr) return;
    pollfd poll{event_fd_, POLLIN, 0};
    const timespec limit{timeout_ns / kSecondNs, timeout_ns % kSecondNs};
    static_cast<void>(::ppoll(&poll, 1, timeout_ns == kNever ? nullptr : &limit, nullptr));
    std::uint64_t count = 0;
    static_cast<void>(::read(event_fd_, &count, sizeof(count)));
  }

  [[nodiscard]] const char* name() const noexcept override { return "system calls"; }

 private:
  int event_fd_;
  DiskOp *first_ = nullptr, *last_ = nullptr;  // ended, oldest first
};

}  // namespace

std::unique_ptr<Disk> make_plain_disk(const DiskOptions& options) {
  return std::make_unique<PlainDisk>(options.event_fd);
}

}  // namespace kvrail::engine::tier
