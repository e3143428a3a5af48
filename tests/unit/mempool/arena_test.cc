#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "mempool/memory.h"
#include "mempool/system_memory.h"
#include "tests/support/sanitizers.h"

using namespace kvrail;
using namespace kvrail::mempool;

namespace {

ArenaOptions of(std::uint64_t bytes) {
  ArenaOptions options;
  options.bytes = bytes;
  options.name = "arena-test";
  return options;
}

int writable_again(int fd) {
  return ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
}

bool can_map(int fd, int protection) {
  void* base = ::mmap(nullptr, 4096, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return false;
  }
  ::munmap(base, 4096);
  return true;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("an arena has all its pages, zeroed, and can neither shrink nor grow") {
  auto arena = Arena::create(of(3 * 4096 + 1));
  REQUIRE(arena.ok());
  Arena& memory = **arena;
  CHECK(memory.bytes() == 4 * 4096);
  struct stat status {};
  REQUIRE(::fstat(memory.fd(), &status) == 0);
  CHECK(status.st_blocks * 512 >= 4 * 4096);
  CHECK(memory.base()[memory.bytes() - 1] == std::byte{0});
  std::memset(memory.base(), 0x5a, memory.bytes());
  CHECK(::ftruncate(memory.fd(), 4096) != 0);
  CHECK(::ftruncate(memory.fd(), 1 << 20) != 0);
  CHECK(::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
}

TEST_CASE("a read-only fd reads the same memory and maps for nothing else") {
  auto arena = Arena::create(of(4096));
  REQUIRE(arena.ok());
  auto fd = (*arena)->read_only_fd();
  REQUIRE(fd.ok());
  CHECK_FALSE(can_map(*fd, PROT_READ | PROT_WRITE));
  void* view = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, *fd, 0);
  REQUIRE(view != MAP_FAILED);
  (*arena)->base()[17] = std::byte{0x42};
  CHECK(static_cast<const std::byte*>(view)[17] == std::byte{0x42});
  ::munmap(view, 4096);
  ::close(*fd);
}

TEST_CASE("a sole writer's arena cannot be mapped for writing by opening it again") {
  ArenaOptions options = of(4096);
  options.sole_writer = true;
  auto arena = Arena::create(options);
  REQUIRE(arena.ok());
  const int again = writable_again((*arena)->fd());
  REQUIRE(again >= 0);
  CHECK_FALSE(can_map(again, PROT_READ | PROT_WRITE));
  CHECK(can_map(again, PROT_READ));
  (*arena)->base()[0] = std::byte{1};  // The engine's own mapping still writes.
  ::close(again);

  auto shared = Arena::create(of(4096));
  REQUIRE(shared.ok());
  const int writable = writable_again((*shared)->fd());
  REQUIRE(writable >= 0);
  CHECK(can_map(writable, PROT_READ | PROT_WRITE));
  ::close(writable);
}

TEST_CASE("impossible sizes are refused with one clear line") {
  CHECK(Arena::create(of(0)).status().code == Code::invalid_argument);
  CHECK(Arena::create(of(UINT64_MAX)).status().code == Code::too_large);
  const auto huge = Arena::create(of(1ULL << 50));  // More than any machine has.
  REQUIRE_FALSE(huge.ok());
  CHECK(huge.status().code == Code::out_of_memory);
  CHECK(huge.error().message.find("arena-test") != std::string::npos);
  CHECK(huge.error().message.find("left") != std::string::npos);
}

// The address and thread sanitizers turn mlock() into a call that does nothing.
#if !KVRAIL_TEST_SANITIZED
TEST_CASE("a lock beyond the limit names the limit, the need and the remedy") {
  // In a child: the limit and the right to exceed it are the process's.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit{64 * 1024, 64 * 1024};
    ::setrlimit(RLIMIT_MEMLOCK, &limit);
    if (::geteuid() == 0 && ::setuid(65534) != 0) {  // CAP_IPC_LOCK would ignore the limit.
      ::_exit(3);
    }
    ArenaOptions options = of(1 << 20);
    options.lock = true;
    const auto arena = Arena::create(options);
    if (arena.ok() || arena.status().code != Code::limit) {
      ::_exit(1);
    }
    const std::string& text = arena.error().message;
    const bool clear = text.find("64 KiB") != std::string::npos &&
                       text.find("1024 KiB") != std::string::npos &&
                       text.find("ulimit -l") != std::string::npos;
    ::_exit(clear ? 0 : 2);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("hugetlb and NUMA wishes fall back with a note") {
  ArenaOptions options = of(4096);
  options.try_hugetlb = true;
  options.numa_node = 1'000;
  auto arena = Arena::create(options);
  REQUIRE(arena.ok());
  CHECK((*arena)->note().find("NUMA node 1000") != std::string::npos);
  if ((*arena)->pages() == PageKind::hugetlb) {
    CHECK((*arena)->bytes() == 2 << 20);
  } else {
    CHECK((*arena)->note().find("hugetlb") != std::string::npos);
  }
  options.numa_node = 0;
  options.try_hugetlb = false;
  auto near = Arena::create(options);
  REQUIRE(near.ok());
}

TEST_CASE("an imported memfd is sealed against shrinking, or refused") {
  const int fd = ::memfd_create("import", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(fd >= 0);
  REQUIRE(::ftruncate(fd, 8192) == 0);
  CHECK(Arena::map_fd(fd, 8193).status().code == Code::invalid_argument);
  CHECK(Arena::map_fd(fd, 0).status().code == Code::invalid_argument);
  CHECK(Arena::map_fd(-1, 4096).status().code == Code::invalid_argument);
  auto arena = Arena::map_fd(fd, 8192);
  REQUIRE(arena.ok());
  CHECK(::ftruncate(fd, 4096) != 0);
  const char text[] = "seen";
  REQUIRE(::pwrite(fd, text, sizeof(text), 4096) == static_cast<ssize_t>(sizeof(text)));
  CHECK(std::memcmp((*arena)->base() + 4096, text, sizeof(text)) == 0);
  ::close(fd);

  const int unsealable = ::memfd_create("import", MFD_CLOEXEC);
  REQUIRE(::ftruncate(unsealable, 8192) == 0);
  CHECK(Arena::map_fd(unsealable, 8192).status().code == Code::unsupported);
  ::close(unsealable);
}

TEST_CASE("adopted memory is used in place and has no fd") {
  std::byte buffer[64];
  auto arena = Arena::adopt(buffer, sizeof(buffer));
  REQUIRE(arena.ok());
  CHECK((*arena)->base() == buffer);
  CHECK((*arena)->read_only_fd().status().code == Code::unsupported);
  CHECK(Arena::adopt(nullptr, 1).status().code == Code::invalid_argument);
}

TEST_CASE("the room is the tightest of the machine and every cgroup above") {
  const auto root =
      std::filesystem::temp_directory_path() / ("kvrail-room-" + std::to_string(::getpid()));
  write_file(root / "proc/meminfo", "MemTotal: 999 kB\nMemAvailable:   1000 kB\n");
  CHECK(memory_room((root / "proc").string(), (root / "cgroup").string())->bytes == 1'024'000);

  write_file(root / "proc/self/cgroup", "0::/outer/inner\n");
  write_file(root / "cgroup/outer/memory.max", "600000\n");
  write_file(root / "cgroup/outer/memory.current", "500000\n");
  write_file(root / "cgroup/outer/memory.stat",
             "anon 1\ninactive_file 100000\nactive_file 50000\n");
  write_file(root / "cgroup/outer/inner/memory.max", "max\n");
  write_file(root / "cgroup/outer/inner/memory.current", "400000\n");
  const auto unified = memory_room((root / "proc").string(), (root / "cgroup").string());
  CHECK(unified->bytes == 250'000);
  CHECK(unified->limited_by == "the memory cgroup /outer");

  write_file(root / "proc/self/cgroup", "4:cpu,memory:/old\n");
  write_file(root / "cgroup/memory/old/memory.limit_in_bytes", "7000\n");
  write_file(root / "cgroup/memory/old/memory.usage_in_bytes", "9000\n");
  CHECK(memory_room((root / "proc").string(), (root / "cgroup").string())->bytes == 0);
  CHECK_FALSE(memory_room((root / "none").string(), (root / "cgroup").string()).has_value());
  std::filesystem::remove_all(root);
}
