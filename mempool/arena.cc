#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "kvrail/base/bits.h"
#include "kvrail/base/checked.h"
#include "mempool/memory.h"
#include "mempool/system_memory.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1; Debian 12's libc headers lag behind its kernel.
#endif

namespace kvrail::mempool {
namespace {

constexpr std::uint64_t kHugePageBytes = 2ULL << 20;

std::uint64_t page_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

Error system_error(Code code, const std::string& what, int error_number) {
  return Error{{code, Scope::engine, error_number}, what + ": " + std::strerror(error_number)};
}

Error no_room(const ArenaOptions& options, std::uint64_t bytes, int error_number) {
  return system_error(
      Code::out_of_memory,
      "arena '" + options.name + "' needs " + size_text(bytes) +
          " and shared memory (memfd, as in /dev/shm) or the memory cgroup has not that much left; "
          "lower the arena size or raise the limit",
      error_number);
}

// Shared memory is only asked for after the system said that it has it: beyond its limits the
// kernel would rather kill a process than fail the call.
Result<void> check_room(const ArenaOptions& options, std::uint64_t bytes) {
  const auto room = memory_room();
  if (!room || bytes <= room->bytes) {
    return {};
  }
  return Error{{Code::out_of_memory, Scope::engine, ENOMEM},
               "arena '" + options.name + "' needs " + size_text(bytes) + ", but " +
                   room->limited_by + " has only " + size_text(room->bytes) +
                   " left; lower the arena size or raise that limit"};
}

int allocate_pages(int fd, std::uint64_t bytes) {
  int rc = 0;
  do {
    rc = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  return rc == 0 ? 0 : errno;
}

// The pages are there; this enters them in the page table, so that the first transfer into the
// arena does not take a fault for each. A kernel before 5.14 does it page by page later.
void populate(std::byte* base, std::uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  ::madvise(base, bytes, MADV_POPULATE_WRITE);
#else
  static_cast<void>(base);
  static_cast<void>(bytes);
#endif
}

std::byte* map_shared(int fd, std::uint64_t bytes, int protection) {
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

// madvise() succeeds even where the administrator has switched huge pages for shared memory off.
bool shmem_huge_pages_allowed() {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(in, line);
  return line.find("[advise]") != std::string::npos || line.find("[always]") != std::string::npos ||
         line.find("[within_size]") != std::string::npos ||
         line.find("[force]") != std::string::npos;
}

}  // namespace

Result<std::unique_ptr<Arena>> Arena::create(const ArenaOptions& options) {
  if (options.bytes == 0) {
    return Error{{Code::invalid_argument, Scope::engine}, "an arena of 0 bytes was asked for"};
  }
  const auto rounded = align_up(options.bytes, kHugePageBytes);
  if (!rounded || *rounded > static_cast<std::uint64_t>(INT64_MAX)) {
    return Error{{Code::too_large, Scope::engine},
                 "arena '" + options.name + "': " + std::to_string(options.bytes) +
                     " bytes exceed what can be mapped"};
  }
  std::unique_ptr<Arena> arena(new Arena());
  if (auto opened = arena->open_memory(options); !opened) {
    return std::move(opened).error();
  }
  if (auto finished = arena->finish(options); !finished) {
    return std::move(finished).error();
  }
  return arena;
}

Result<void> Arena::open_memory(const ArenaOptions& options) {
  if (options.try_hugetlb && try_hugetlb(options)) {
    return {};
  }
  return open_small(options);
}

bool Arena::try_hugetlb(const ArenaOptions& options) {
  bytes_ = *align_up(options.bytes, kHugePageBytes);
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB;
  fd_ = ::memfd_create(options.name.c_str(), flags);
  if (fd_ >= 0 && ::ftruncate(fd_, static_cast<off_t>(bytes_)) == 0) {
    base_ = map_shared(fd_, bytes_, PROT_READ | PROT_WRITE);
    mapped_ = base_ != nullptr;
  }
  if (mapped_) {
    bind_to(options.numa_node);
    if (allocate_pages(fd_, bytes_) == 0) {
      pages_ = PageKind::hugetlb;
      return true;
    }
  }
  note_ = "no hugetlb pages for arena '" + options.name + "' (vm.nr_hugepages too low?), using ";
  close_memory();
  return false;
}

Result<void> Arena::open_small(const ArenaOptions& options) {
  bytes_ = *align_up(options.bytes, page_bytes());
  if (auto room = check_room(options, bytes_); !room) {
    return room;
  }
  fd_ = ::memfd_create(options.name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) {
    const int error_number = errno;
    return system_error(
        error_number == EMFILE || error_number == ENFILE ? Code::limit : Code::io_error,
        "memfd_create for arena '" + options.name + "'", error_number);
  }
  if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) {
    return no_room(options, bytes_, errno);
  }
  base_ = map_shared(fd_, bytes_, PROT_READ | PROT_WRITE);
  if (base_ == nullptr) {
    return no_room(options, bytes_, errno);
  }
  mapped_ = true;
  bind_to(options.numa_node);
  // Advice comes before the pages are taken, or it would apply to none of them.
  const bool advised = ::madvise(base_, bytes_, MADV_HUGEPAGE) == 0 && shmem_huge_pages_allowed();
  pages_ = advised ? PageKind::transparent_huge : PageKind::small;
  if (!note_.empty()) {
    note_ += mempool::name(pages_);
  }
  if (const int error_number = allocate_pages(fd_, bytes_); error_number != 0) {
    return no_room(options, bytes_, error_number);
  }
  populate(base_, bytes_);
  return {};
}

Result<void> Arena::finish(const ArenaOptions& options) {
  // A client of another user may hold an fd, but must not open the memory again with more rights.
  if (::fchmod(fd_, S_IRUSR | S_IWUSR) != 0) {
    return system_error(Code::io_error, "fchmod of arena '" + options.name + "'", errno);
  }
  if (options.lock && ::mlock(base_, bytes_) != 0) {
    return lock_refused("arena '" + options.name + "'", bytes_, errno);
  }
  if (options.sole_writer && ::fcntl(fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0) {
    return system_error(
        Code::unsupported,
        "arena '" + options.name + "' cannot be sealed against other writers (Linux 5.1 or newer)",
        errno);
  }
  if (options.seal && ::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return system_error(Code::io_error, "sealing arena '" + options.name + "'", errno);
  }
  return {};
}

void Arena::bind_to(int numa_node) {
  if (numa_node < 0) {
    return;
  }
  bool bound = false;
  if (::numa_available() >= 0 && numa_node <= ::numa_max_node()) {
    bitmask* nodes = ::numa_allocate_nodemask();
    ::numa_bitmask_setbit(nodes, static_cast<unsigned>(numa_node));
    // Preferred, not strict: on a full node strict binding would end in the OOM killer.
    bound = ::mbind(base_, bytes_, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) == 0;
    ::numa_free_nodemask(nodes);
  }
  if (!bound) {
    note_ = "NUMA node " + std::to_string(numa_node) +
            " is not available, memory comes from any node; " + note_;
  }
}

Result<std::unique_ptr<Arena>> Arena::adopt(std::byte* base, std::uint64_t bytes) {
  if (base == nullptr || bytes == 0) {
    return Error{{Code::invalid_argument},
                 "an imported range needs an address and a length above 0"};
  }
  std::unique_ptr<Arena> arena(new Arena());
  arena->base_ = base;
  arena->bytes_ = bytes;
  return arena;
}

Result<std::unique_ptr<Arena>> Arena::map_fd(int fd, std::uint64_t bytes) {
  struct stat status {};
  if (bytes == 0 || ::fstat(fd, &status) != 0) {
    return Error{{Code::invalid_argument, Scope::transfer, errno},
                 "an import by fd needs an open file and a length above 0"};
  }
  if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) < bytes) {
    return Error{{Code::invalid_argument},
                 "the imported file has " + std::to_string(status.st_size) +
                     " bytes, less than the " + std::to_string(bytes) + " to import"};
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || ((seals & F_SEAL_SHRINK) == 0 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)) {
    return Error{
        {Code::unsupported, Scope::transfer, errno},
        "the imported fd is no memfd sealed against shrinking; make it with MFD_ALLOW_SEALING"};
  }
  std::unique_ptr<Arena> arena(new Arena());
  arena->fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  arena->bytes_ = bytes;
  if (arena->fd_ < 0) {
    return system_error(Code::limit, "duplicating an imported fd", errno);
  }
  // A hole in the file would be filled at the first read, and a full machine makes that a SIGBUS.
  if (const int error_number = allocate_pages(arena->fd_, bytes); error_number != 0) {
    const bool access = error_number == EBADF || error_number == EPERM;
    return system_error(access ? Code::invalid_argument : Code::out_of_memory,
                        "taking the pages of an imported memfd (it must be open for writing)",
                        error_number);
  }
  arena->base_ = map_shared(arena->fd_, bytes, PROT_READ);
  if (arena->base_ == nullptr) {
    return system_error(Code::out_of_memory, "mapping an imported memfd", errno);
  }
  arena->mapped_ = true;
  return arena;
}

Result<int> Arena::read_only_fd() const {
  if (fd_ < 0) {
    return Error{{Code::unsupported},
                 "memory imported by address has no fd to share with other processes"};
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd_);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return system_error(errno == EMFILE ? Code::limit : Code::io_error,
                        "opening " + path + " for reading", errno);
  }
  return fd;
}

void Arena::close_memory() noexcept {
  if (mapped_) {
    ::munmap(base_, bytes_);
  }
  if (fd_ >= 0) {
    ::close(fd_);
  }
  base_ = nullptr;
  fd_ = -1;
  mapped_ = false;
}

Arena::~Arena() {
  close_memory();
}

}  // namespace kvrail::mempool
