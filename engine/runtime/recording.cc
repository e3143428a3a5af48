#include "engine/runtime/recording.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "scheduler/record.h"

namespace kvrail::engine {
namespace {

Error failed(const std::string& path, const char* what, int error) {
  return Error{{Code::io_error, Scope::engine, error}, path + ": " + what + ": " + std::strerror(error)};
}

// Nothing there, an empty file or a recording: true where there is one.
Result<bool> old_recording(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    return failed(path, "cannot be looked at", errno);
  }
  const auto refused = [&](const char* what) {
    return Error{{Code::already_exists, Scope::engine}, path + ": " + what + "; move it away, or name another file"};
  };
  if (!S_ISREG(info.st_mode)) return refused("is there, and no regular file");
  if (info.st_size == 0) return true;
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return failed(path, "cannot be read", errno);
  std::uint64_t magic = 0;
  const ssize_t got = ::read(fd, &magic, sizeof(magic));
  ::close(fd);
  // All zeros: a daemon that ended before it recorded anything.
  if (got != sizeof(magic) || (magic != scheduler::RecordHead::kMagic && magic != 0)) return refused("is there, and no recording");
  return true;
}

}  // namespace

Result<void> Recording::check(const std::string& path) {
  if (auto old = old_recording(path); !old.ok()) return std::move(old).error();
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return failed(path, "its folder cannot be written to", errno);
  return {};
}

// Under another name first: an engine that runs keeps its own file whatever happens here.
Result<std::unique_ptr<Recording>> Recording::create(const std::string& path, std::uint64_t bytes) {
  auto old = old_recording(path);
  if (!old.ok()) return std::move(old).error();
  if (*old && ::rename(path.c_str(), (path + ".1").c_str()) != 0) return failed(path, "cannot be kept as PATH.1", errno);
  const int fd = ::open(path.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return failed(path, "cannot be made", errno);
  const auto give_up = [&](const char* what, int error) {
    ::close(fd);
    ::unlink(path.c_str());  // it was made here
    return failed(path, what, error);
  };
  if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) return give_up("has no room on its disk", error);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return give_up("cannot be mapped", errno);
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
