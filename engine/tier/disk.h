// The seam to the disk: reads, writes and syncs of open files that may end later. Whoever tests what a disk can do to
// us stands in between.
//
// Thread: the tier's, for all calls. An operation's memory is the disk's from start() until reap() gives it back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kvrail/base/result.h"
#include "kvrail/base/time.h"

namespace kvrail::engine::tier {

struct DiskOp {
  enum class Kind : std::uint8_t { read, write, sync };  // sync: fdatasync
  Kind kind = Kind::read;
  int fd = -1;
  std::int32_t buffer = -1;  // the number of the registered memory that `data` lies in; -1: none
  std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  std::uint64_t offset = 0;
  std::int32_t result = 0;  // as of pread(), pwrite(), fdatasync(): bytes, or a negative errno
  DiskOp* next = nullptr;   // the disk's own
};

class Disk {
 public:
  Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  virtual ~Disk() = default;

  // At most as many at a time as the disk was made for.
  virtual void start(DiskOp& op) noexcept = 0;
  // One that has ended, or nullptr; hands what was started to the kernel.
  [[nodiscard]] virtual DiskOp* reap() noexcept = 0;
  // Until there may be something to reap, the event fd was readable (it is drained), or `timeout_ns` is over.
  virtual void wait(TimeNs timeout_ns) noexcept = 0;
  [[nodiscard]] virtual const char* name() const noexcept = 0;
};

struct DiskOptions {
  std::uint32_t depth = 0;        // most operations at a time
  int event_fd = -1;              // an eventfd that wakes wait()
  std::span<std::byte> memory;    // registered as `buffers` pieces of one size, where that is allowed
  std::uint32_t buffers = 0;
};

// unsupported, with the errno in detail: the kernel has no io_uring for us.
[[nodiscard]] Result<std::unique_ptr<Disk>> make_uring_disk(const DiskOptions& options);
// Each start() does it there and then.
[[nodiscard]] std::unique_ptr<Disk> make_plain_disk(const DiskOptions& options);

using DiskWrap = std::function<std::unique_ptr<Disk>(std::unique_ptr<Disk>)>;

}  // namespace kvrail::engine::tier
