// The disk by io_uring: as many operations at a time as the tier has buffers, on registered memory, so that the kernel
// pins it once and not for each of them.
#include <liburing.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "engine/tier/disk.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"

namespace kvrail::engine::tier {
namespace {

// Best first; an older kernel answers EINVAL to flags that it does not know.
constexpr std::array<unsigned, 2> kSetupFlags{IORING_SETUP_COOP_TASKRUN, 0U};

class UringDisk final : public Disk {
 public:
  UringDisk() = default;
  ~UringDisk() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] int open(const DiskOptions& options);

  void start(DiskOp& op) noexcept override;
  [[nodiscard]] DiskOp* reap() noexcept override;
  void wait(TimeNs timeout_ns) noexcept override;
  [[nodiscard]] const char* name() const noexcept override { return "io_uring"; }

 private:
  [[nodiscard]] io_uring_sqe* take_sqe() noexcept;
  void submit() noexcept;

  io_uring ring_{};
  int event_fd_ = -1;
  bool open_ = false;
  bool registered_ = false;
  bool watching_ = false;  // a poll of the event fd is under way
  bool woken_ = false;
};

int UringDisk::open(const DiskOptions& options) {
  int rc = -EINVAL;
  // One place more for the poll of the event fd.
  const auto entries = static_cast<unsigned>(next_power_of_two(options.depth + 1));
  for (const unsigned flags : kSetupFlags) {
    rc = io_uring_queue_init(entries, &ring_, flags);
    if (rc != -EINVAL) break;
  }
  if (rc < 0) return rc;
  open_ = true;
  event_fd_ = options.event_fd;
  if (options.buffers == 0) return 0;
  std::vector<iovec> pieces(options.buffers);
  const std::size_t bytes = options.memory.size() / options.buffers;
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = {options.memory.data() + i * bytes, bytes};
  // Refused where less memory may be locked; then the kernel pins it for each operation.
  registered_ = io_uring_register_buffers(&ring_, pieces.data(), options.buffers) == 0;
  return 0;
}

io_uring_sqe* UringDisk::take_sqe() noexcept {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) {
    submit();
    sqe = io_uring_get_sqe(&ring_);
  }
  KVRAIL_ASSERT_MSG(sqe != nullptr, "the ring has room for every operation there can be");
  return sqe;
}

void UringDisk::submit() noexcept {
  int rc = 0;
  do {
    rc = io_uring_submit(&ring_);
  } while (rc == -EINTR);
  // Short of memory: what was not taken stays in the ring and is offered again.
  KVRAIL_ASSERT_MSG(rc >= 0 || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM, "io_uring_enter refused what this file prepared");
}

void UringDisk::start(DiskOp& op) noexcept {
  io_uring_sqe* const sqe = take_sqe();
  const bool fixed = registered_ && op.buffer >= 0;
  switch (op.kind) {
    case DiskOp::Kind::read:
      if (fixed) io_uring_prep_read_fixed(sqe, op.fd, op.data, op.bytes, op.offset, op.buffer);
      else io_uring_prep_read(sqe, op.fd, op.data, op.bytes, op.offset);
      break;
    case DiskOp::Kind::write:
      if (fixed) io_uring_prep_write_fixed(sqe, op.fd, op.data, op.bytes, op.offset, op.buffer);
      else io_uring_prep_write(sqe, op.fd, op.data, op.bytes, op.offset);
      break;
    case DiskOp::Kind::sync: io_uring_prep_fsync(sqe, op.fd, IORING_FSYNC_DATASYNC); break;
  }
  io_uring_sqe_set_data(sqe, &op);
}

DiskOp* UringDisk::reap() noexcept {
  if (io_uring_sq_ready(&ring_) > 0) submit();
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
    auto* const op = static_cast<DiskOp*>(io_uring_cqe_get_data(cqe));
    const std::int32_t result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (op == nullptr) {
      watching_ = false;
      woken_ = true;
      continue;
    }
    op->result = result;
    return op;
  }
  return nullptr;
}

void UringDisk::wait(TimeNs timeout_ns) noexcept {
  if (!watching_) {
    io_uring_sqe* const sqe = take_sqe();
    io_uring_prep_poll_add(sqe, event_fd_, POLLIN);
    io_uring_sqe_set_data(sqe, nullptr);
    watching_ = true;
  }
  if (!woken_) {
    io_uring_cqe* cqe = nullptr;
    __kernel_timespec limit{timeout_ns / kSecondNs, timeout_ns % kSecondNs};
    static_cast<void>(io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, timeout_ns == kNever ? nullptr : &limit, nullptr));
  }
  woken_ = false;
  std::uint64_t count = 0;
  static_cast<void>(::read(event_fd_, &count, sizeof(count)));
}

}  // namespace

Result<std::unique_ptr<Disk>> make_uring_disk(const DiskOptions& options) {
  auto disk = std::make_unique<UringDisk>();
  if (const int rc = disk->open(options); rc < 0) {
    return Error{{Code::unsupported, Scope::device, -rc}, std::string("io_uring is not available here: ") + std::strerror(-rc)};
  }
  return Result<std::unique_ptr<Disk>>(std::move(disk));
}

}  // namespace kvrail::engine::tier
