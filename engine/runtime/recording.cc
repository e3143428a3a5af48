#include "engine/runtime/recording.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "scheduler/record.h"

namespace kvrail::engine {
namespace {

Error failed(const std::string& path, const char* what, int error) {
  return Error{{Code::io_error, Scope::engine, error}, path + ": " + what + ": " + std::strerror(error)};
}

}  // namespace

Result<std::unique_ptr<Recording>> Recording::create(const std::string& path, std::uint64_t bytes) {
  const int fd = ::open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return failed(path, "cannot be made", errno);
  if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    ::close(fd);
    ::unlink(path.c_str());
    return failed(path, "has no room on its disk", error);
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::close(fd);
    return failed(path, "cannot be mapped", error);
  }
  return std::unique_ptr<Recording>(new Recording(fd, {static_cast<std::byte*>(memory), bytes}));
}

Recording::~Recording() {
  scheduler::RecordHead head;
  std::memcpy(&head, memory_.data(), sizeof(head));
  ::munmap(memory_.data(), memory_.size());
  if (head.magic == scheduler::RecordHead::kMagic && head.used_bytes <= memory_.size()) {
    // Where it fails the file only stays longer than it need be.
    static_cast<void>(!::ftruncate(fd_, static_cast<off_t>(head.used_bytes)));
  }
  ::close(fd_);
}

}  // namespace kvrail::engine
