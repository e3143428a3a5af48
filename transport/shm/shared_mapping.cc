#include "transport/shm/shared_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "kvrail/base/assert.h"
#include "kvrail/base/checked.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::transport::shm {
namespace {

Status from_errno(int error) noexcept {
  const Code code = error == ENOMEM || error == ENOSPC   ? Code::out_of_memory
                    : error == EMFILE || error == ENFILE ? Code::limit
                                                         : Code::io_error;
  return Status{code, Scope::lane, error};
}

bool cannot_shrink(int fd) noexcept {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace

void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Mapping::reset() noexcept {
  if (base_ != nullptr) ::munmap(base_, bytes_);
  base_ = nullptr;
  bytes_ = 0;
}

Status make_shared(std::size_t bytes, UniqueFd& fd, Mapping& mapping) noexcept {
  UniqueFd made(::memfd_create("kvrail-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.valid()) return from_errno(errno);
  // Allocated now, so that a full /dev/shm or cgroup is an error here and no SIGBUS later.
  if (const int error = ::posix_fallocate(made.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    return from_errno(error);
  }
  if (::fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return from_errno(errno);
  }
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.get(), 0);
  if (at == MAP_FAILED) return from_errno(errno);
  mapping = Mapping(static_cast<std::byte*>(at), bytes);
  fd = std::move(made);
  return Status::ok_status();
}

Status map_foreign(int fd, std::uint64_t offset, std::uint64_t bytes, bool writable,
                   Mapping& mapping) noexcept {
  const Status refused{Code::protocol_error, Scope::lane};
  struct stat info {};
  if (bytes == 0 || !cannot_shrink(fd) || ::fstat(fd, &info) != 0 || info.st_size < 0 ||
      !range_fits(offset, bytes, static_cast<std::uint64_t>(info.st_size)) ||
      offset % static_cast<std::uint64_t>(::getpagesize()) != 0) {
    return refused;
  }
  void* at = ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                    static_cast<off_t>(offset));
  if (at == MAP_FAILED) return errno == EACCES ? refused : from_errno(errno);
  mapping = Mapping(static_cast<std::byte*>(at), bytes);
  return Status::ok_status();
}

UniqueFd read_only_copy(int fd) noexcept {
  if (!cannot_shrink(fd)) return UniqueFd{};
  char path[64];
  const int length = std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  KVRAIL_ASSERT(length > 0 && static_cast<std::size_t>(length) < sizeof(path));
  return UniqueFd(::open(path, O_RDONLY | O_CLOEXEC));
}

}  // namespace kvrail::transport::shm
