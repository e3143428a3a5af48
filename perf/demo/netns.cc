#include "perf/demo/netns.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "perf/demo/command.h"

namespace kvrail::demo {
namespace {

constexpr const char* kPrefix = "kvrail-demo-";
constexpr const char* kFolder = "/run/netns";
constexpr const char* kDevice = "rail0";

// A process id can be given again, so the name of the program counts as well.
bool runs_a_demo(int pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return false;
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string comm;
  std::getline(file, comm);
  return comm.starts_with("kvrail-demo");
}

void remove_stale() {
  std::error_code error;
  std::vector<std::string> stale;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, error)) {
    const std::string name = entry.path().filename();
    const int pid = owner_of_namespace(name);
    if (pid > 0 && pid != ::getpid() && !runs_a_demo(pid)) stale.push_back(name);
  }
  for (const std::string& name : stale)
    static_cast<void>(run_command({"ip", "netns", "del", name}));
}

bool write_file(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return done;
}

// Root in a user namespace, with a /run of its own, where ip keeps its namespaces, and a network of
// its own, because ip must be allowed to return to where it came from.
bool become_root_of_a_namespace() {
  const std::string user = "0 " + std::to_string(::geteuid()) + " 1";
  const std::string group = "0 " + std::to_string(::getegid()) + " 1";
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET) == 0 &&
         write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/uid_map", user) &&
         write_file("/proc/self/gid_map", group) &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/run", "tmpfs", 0, nullptr) == 0;
}

}  // namespace

bool enter_user_namespace() noexcept {
  // Tried in a child first: half a way in would be worse than none.
  const pid_t child = ::fork();
  if (child < 0) return false;
  if (child == 0) ::_exit(become_root_of_a_namespace() && LinkedNamespaces::make().ok() ? 0 : 1);
  int state = 0;
  while (::waitpid(child, &state, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(state) && WEXITSTATUS(state) == 0 && become_root_of_a_namespace();
}

int owner_of_namespace(const std::string& name) noexcept {
  const std::string_view prefix = kPrefix;
  if (!name.starts_with(prefix)) return 0;
  int pid = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, pid);
  const std::string_view rest(stop, static_cast<std::size_t>(end - stop));
  return error == std::errc{} && pid > 0 && (rest == "-a" || rest == "-b") ? pid : 0;
}

TbfShape tbf_shape(std::uint64_t rate_bytes_per_s) noexcept {
  // A bucket lets its burst pass at once, which no cable does, and a link that is measured by short
  // transfers would look far too fast. So the burst is a packet, or on fast links what the rate
  // brings while a timer of the kernel is late. Up to 20 ms may wait, as in a small router, but no
  // less than what lets congestion control work.
  TbfShape shape;
  shape.burst_bytes = std::clamp<std::uint64_t>(rate_bytes_per_s / 10'000, 1'600, 1ULL << 20);
  shape.limit_bytes =
      shape.burst_bytes + std::max<std::uint64_t>(rate_bytes_per_s / 50, 64ULL << 10);
  return shape;
}

Result<LinkedNamespaces> LinkedNamespaces::make() {
  remove_stale();
  const std::string stem = kPrefix + std::to_string(::getpid());
  LinkedNamespaces pair(stem + "-a", stem + "-b");  // from here on the destructor cleans up
  if (Result<void> linked = pair.link(); !linked.ok()) return std::move(linked).error();
  return pair;
}

LinkedNamespaces::LinkedNamespaces(LinkedNamespaces&& other) noexcept
    : name_a_(std::exchange(other.name_a_, {})), name_b_(std::exchange(other.name_b_, {})) {}

LinkedNamespaces::~LinkedNamespaces() {
  for (const std::string* name : {&name_a_, &name_b_}) {
    // The link lies wholly in the two namespaces and goes with them.
    if (!name->empty()) static_cast<void>(run_command({"ip", "netns", "del", *name}));
  }
}

Result<void> LinkedNamespaces::link() {
  for (int end = 0; end < 2; ++end) {
    if (auto made = run_command({"ip", "netns", "add", name(end)}); !made.ok())
      return std::move(made).error();
  }
  auto linked = run_command({"ip", "-n", name_a_, "link", "add", kDevice, "type", "veth", "peer",
                             "name", kDevice, "netns", name_b_});
  if (!linked.ok()) return std::move(linked).error();
  for (int end = 0; end < 2; ++end) {
    const std::vector<std::vector<std::string>> steps{
        {"ip", "-n", name(end), "address", "add", std::string(address(end)) + "/30", "dev",
         kDevice},
        {"ip", "-n", name(end), "link", "set", "lo", "up"},
        {"ip", "-n", name(end), "link", "set", kDevice, "up"},
    };
    for (const auto& step : steps) {
      if (auto done = run_command(step); !done.ok()) return std::move(done).error();
    }
  }
  return {};
}

Result<void> LinkedNamespaces::shape(std::uint64_t rate_bytes_per_s) {
  const TbfShape tbf = tbf_shape(rate_bytes_per_s);
  for (int end = 0; end < 2; ++end) {
    auto done =
        run_command({"tc", "-n", name(end), "qdisc", "replace", "dev", kDevice, "root", "tbf",
                     "rate", std::to_string(rate_bytes_per_s * 8) + "bit", "burst",
                     std::to_string(tbf.burst_bytes), "limit", std::to_string(tbf.limit_bytes)});
    if (!done.ok()) return std::move(done).error();
  }
  return {};
}

}  // namespace kvrail::demo
