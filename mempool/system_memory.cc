#include "mempool/system_memory.h"

#include <algorithm>
#include <charconv>
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
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
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

}  // namespace kvrail::mempool
