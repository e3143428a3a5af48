#include "perf/bench/shaped_link.h"

#include <unistd.h>

#include <sstream>

#include "perf/bench/processes.h"

namespace kvrail::bench {
namespace {

constexpr std::int64_t kTimeoutNs = 20'000'000'000;

Child::Program words_of(const std::string& command) {
  Child::Program program;
  std::istringstream words(command);
  for (std::string word; words >> word;) program.command.push_back(word);
  return program;
}

}  // namespace

ShapedLink::ShapedLink(const std::string& rate) {
  const std::string stem = "kvrail-bench-" + std::to_string(::getpid());
  names_[0] = stem + "-a";
  names_[1] = stem + "-b";
  if (!in_path("ip") || !in_path("tc")) {
    missing_ = "ip and tc are not installed";
    return;
  }
  for (const std::string& each : names_) run("ip netns add " + each);
  run("ip -n " + names_[0] + " link add rail0 type veth peer name rail0 netns " + names_[1]);
  for (int end = 0; end < 2; ++end) {
    const std::string in = " -n " + name(end) + " ";
    run("ip" + in + "address add " + address(end) + "/30 dev rail0");
    run("ip" + in + "link set lo up");
    run("ip" + in + "link set rail0 up");
    run("tc" + in + "qdisc replace dev rail0 root tbf rate " + rate + " burst 128kb limit 1mb");
  }
}

ShapedLink::~ShapedLink() {
  for (const std::string& each : names_) {
    if (in_path("ip")) static_cast<void>(output_of(words_of("ip netns del " + each), kTimeoutNs));
  }
}

void ShapedLink::run(const std::string& command) {
  if (missing_.empty() && !output_of(words_of(command), kTimeoutNs)) missing_ = "refused here: " + command;
}

}  // namespace kvrail::bench
