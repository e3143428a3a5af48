#include "mempool/system_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace kvrail::mempool {
namespace {

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  if (!(in >> word)) {
    return std::nullopt;
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  // "max" is how a cgroup says that it has no limit.
  return error == std::errc{} && end == word.data() + word.size() ? std::optional(value)
                                                                  : std::nullopt;
}

// The value after `key` in files of "key value" lines, such as memory.stat and meminfo.
std::optional<std::uint64_t> read_field(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == key) {
      return value;
    }
  }
  return std::nullopt;
}

// Clean page cache is given back under pressure, so it counts as room; shared memory does not.
std::uint64_t reclaimable(const std::string& directory, bool unified) {
  const std::string stat = directory + "/memory.stat";
  const char* prefix = unified ? "" : "total_";
  const auto active = read_field(stat, std::string(prefix) + "active_file");
  const auto inactive = read_field(stat, std::string(prefix) + "inactive_file");
  return active.value_or(0) + inactive.value_or(0);
}

void consider(std::optional<MemoryRoom>& least, std::uint64_t bytes, std::string by) {
  if (!least || bytes < least->bytes) {
    least = MemoryRoom{bytes, std::move(by)};
  }
}

// A limit binds all groups below it, so every parent is looked at.
void consider_groups(std::optional<MemoryRoom>& least, const std::string& root, std::string group,
                     bool unified) {
  for (;;) {
    const std::string directory = root + group;
    const auto limit =
        read_number(directory + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used =
        read_number(directory + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
    if (limit && used) {
      const std::uint64_t held = *used - std::min(*used, reclaimable(directory, unified));
      consider(least, *limit - std::min(*limit, held),
               "the memory cgroup " + (group.empty() ? "/" : group));
    }
    if (group.empty()) {
      return;
    }
    group.resize(std::min(group.rfind('/'), group.size() - 1));
  }
}

}  // namespace

std::optional<MemoryRoom> memory_room(const std::string& proc, const std::string& cgroup) {
  std::optional<MemoryRoom> least;
  if (const auto available_kib = read_field(proc + "/meminfo", "MemAvailable:")) {
    consider(least, *available_kib * 1024, "the machine (MemAvailable)");
  }
  std::ifstream groups(proc + "/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // hierarchy-id:controllers:path; version 2 is "0::path".
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = std::string(",").append(line, first + 1, second - first - 1).append(",");
    std::string group = line.substr(second + 1);
    if (!group.empty() && group.back() == '/') {
      group.pop_back();
    }
    if (controllers == ",,") {
      consider_groups(least, cgroup, group, true);
    } else if (controllers.find(",memory,") != std::string::npos) {
      consider_groups(least, cgroup + "/memory", group, false);
    }
  }
  return least;
}

std::optional<MemoryRoom> memory_room() {
  return memory_room("/proc", "/sys/fs/cgroup");
}

std::string size_text(std::uint64_t bytes) {
  char text[32];
  if (bytes >= 10 * (1ULL << 20)) {
    std::snprintf(text, sizeof(text), "%llu MiB", static_cast<unsigned long long>(bytes >> 20));
  } else {
    std::snprintf(text, sizeof(text), "%llu KiB",
                  static_cast<unsigned long long>((bytes + 1023) >> 10));
  }
  return text;
}

Error lock_refused(const std::string& what, std::uint64_t bytes, int error_number) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string current =
      limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited") : size_text(limit.rlim_cur);
  return Error{
      {Code::limit, Scope::engine, error_number},
      "cannot lock " + what + " in memory: it needs " + size_text(bytes) +
          " of locked memory and RLIMIT_MEMLOCK is " + current +
          "; raise it (ulimit -l, LimitMEMLOCK= of the service) or switch memory locking off"};
}

Result<void> probe_lock(std::uint64_t bytes) {
  void* range = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    return Error{{Code::out_of_memory, Scope::engine, errno},
                 "no address space for " + size_text(bytes) + "; lower the arena sizes"};
  }
  const int rc = ::mlock2(range, bytes, MLOCK_ONFAULT);
  const int error_number = errno;
  ::munmap(range, bytes);
  return rc == 0 ? Result<void>() : Result<void>(lock_refused("room for one agent", bytes, error_number));
}

bool probe_hugetlb(std::uint64_t bytes) {
  const int fd = ::memfd_create("kvrail-probe", MFD_CLOEXEC | MFD_HUGETLB);
  if (fd < 0) {
    return false;
  }
  constexpr std::uint64_t kHugePageBytes = 2ULL << 20;
  const std::uint64_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  // Mapping reserves the pages, so it fails where there are too few.
  void* range = ::ftruncate(fd, static_cast<off_t>(rounded)) != 0
                    ? MAP_FAILED
                    : ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (range == MAP_FAILED) {
    return false;
  }
  ::munmap(range, rounded);
  return true;
}

}  // namespace kvrail::mempool
