// kvrail-demo: the main job. Two nodes, a network between them at three rates in turn, agents with
// a real model, four policies; see README.md here.
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "perf/demo/campaign.h"
#include "perf/demo/svg.h"
#include "perf/model/model.h"

namespace {

volatile sig_atomic_t stopped = 0;
void stop(int) {
  stopped = 1;
}

}  // namespace

namespace kvrail::demo {

bool interrupted() noexcept {
  return stopped != 0;
}

namespace {

namespace fs = std::filesystem;

class WorkFolder {
 public:
  explicit WorkFolder(bool keep) : keep_(keep) {
    std::string pattern = (fs::temp_directory_path() / "kvrail-demo-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  ~WorkFolder() {
    std::error_code error;
    if (!keep_ && !path_.empty()) fs::remove_all(path_, error);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  bool keep_;
};

// The key that both nodes share; new in every run.
bool write_key(const std::string& folder) {
  const std::string path = folder + "/key";
  std::array<unsigned char, 32> key{};
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) return false;
  std::ofstream file(path, std::ios::binary);
  for (const unsigned char byte : key) file << fmt::format("{:02x}", byte);
  file.close();
  return file.good() && ::chmod(path.c_str(), 0600) == 0;
}

std::vector<std::string> what_is_real(const DemoOptions& options,
                                      const Result<LinkedNamespaces>& network) {
  std::vector<std::string> lines;
  if (options.transport == "verbs") {
    lines.push_back(
        "Real: two kvraild processes, RDMA by libibverbs; six agent processes; every byte moved; a "
        "trained "
        "model (bf16 KV, 1,536 B a token) computes and answers.");
    lines.push_back(
        "Where the device is soft-RoCE in an emulated guest, times say nothing of RDMA.");
    return lines;
  }
  lines.push_back(network.ok() ? "Real: two kvraild processes in two network namespaces, TCP over "
                                 "veth shaped by tc tbf; six agent "
                                 "processes; every byte moved; a trained model (bf16 KV, 1,536 B a "
                                 "token) computes and answers."
                               : "Real: two kvraild processes; six agent processes; every byte "
                                 "moved; a trained model (bf16 KV, "
                                 "1,536 B a token) computes and answers.");
  if (!network.ok()) {
    lines.push_back(
        "Simulated: the network. Namespaces are not to be had here (" + network.error().message +
        "), so both nodes are on loopback and the tcp lane paces its bulk to the rate.");
  }
  lines.push_back(
      fmt::format("Simulated: a bigger model's prefill. During a task an agent takes {:.3g} ms for "
                  "each token it reads, and waits out what "
                  "our small model does not need. The KV is not padded.",
                  static_cast<double>(options.prefill_per_token_ns) / 1e6));
  lines.push_back(
      "The engine is not told the rate. The first document of a task is read before its clock "
      "starts; documents of "
      "64 facts grow to 80 and 96, and the last round hands over what did not change.");
  return lines;
}

bool write_results(const DemoOptions& options, const std::vector<RateResult>& rates,
                   const std::vector<JsonTransfer>& transfers,
                   const std::vector<std::string>& notes) {
  std::error_code error;
  fs::create_directories(options.out, error);
  const std::string json = options.out + "/result.json";
  const std::string plot = options.out + "/result.svg";
  std::ofstream json_file(json);
  json_file << result_json(rates, transfers);
  std::ofstream plot_file(plot);
  plot_file << result_svg(rates, notes);
  json_file.close();
  plot_file.close();
  if (!json_file.good() || !plot_file.good()) {
    std::fprintf(stderr, "kvrail-demo: cannot write into %s\n", options.out.c_str());
    return false;
  }
  std::printf("\nResults: %s, %s\n", json.c_str(), plot.c_str());
  return true;
}

struct Findings {
  std::vector<RateResult> rates;
  std::vector<JsonTransfer> transfers;
  std::vector<std::string> failures;
};

// One rate from start to stop. False: the demo cannot go on.
bool run_rate(const DemoOptions& options, LinkedNamespaces* network, std::uint64_t rate,
              const std::string& folder, Progress& progress, Findings& findings) {
  const std::string name = options.transport == "verbs" ? "unshaped" : rate_name(rate);
  const auto give_up = [&](const Error& error) {
    progress.clear();
    findings.failures.push_back(name + ": " + error.message);
    return false;
  };
  if (network != nullptr) {
    if (auto shaped = network->shape(rate); !shaped.ok()) return give_up(shaped.error());
  }
  std::printf("\n== %s ==\n", name.c_str());
  std::fflush(stdout);
  auto stage = Stage::start(options, {network, rate}, folder);
  if (!stage.ok()) return give_up(stage.error());
  Campaign campaign(options, **stage, name, rate, progress,
                    findings.rates.size() * tasks_at_a_rate(options));
  auto result = campaign.run();
  if (!result.ok()) return give_up(result.error());
  findings.rates.push_back(std::move(result->rate));
  findings.transfers.insert(findings.transfers.end(), result->transfers.begin(),
                            result->transfers.end());
  findings.failures.insert(findings.failures.end(), result->failures.begin(),
                           result->failures.end());
  if (auto ended = (*stage)->stop(); !ended.ok()) return give_up(ended.error());
  return true;
}

// Node B and its agents, for as long as node A's are there.
int run_half_b(const DemoOptions& options, const std::string& folder) {
  auto stage = Stage::start(options, {nullptr, 0}, folder);
  Result<void> ended = stage.ok() ? (*stage)->wait_for_other_half() : Result<void>(stage.error());
  if (ended.ok()) ended = (*stage)->stop();
  if (!ended.ok()) std::fprintf(stderr, "kvrail-demo: %s\n", ended.error().message.c_str());
  return ended.ok() ? 0 : 1;
}

int run(const DemoOptions& options) {
  if (!options.loopback && ::geteuid() != 0) static_cast<void>(enter_user_namespace());
  const WorkFolder folder(options.keep);
  if (folder.path().empty() || !write_key(folder.path())) {
    std::fprintf(stderr, "kvrail-demo: cannot make a working folder under %s\n",
                 fs::temp_directory_path().c_str());
    return 1;
  }
  Result<LinkedNamespaces> network =
      options.loopback || options.transport == "verbs"
          ? Result<LinkedNamespaces>(Error{{Code::unsupported}, "--loopback was given"})
          : LinkedNamespaces::make();
  const std::vector<std::string> notes = what_is_real(options, network);
  for (const std::string& line : notes) std::printf("%s\n", line.c_str());
  if (options.keep) std::printf("Configurations and logs stay in %s\n", folder.path().c_str());
  if (options.half == 1) return run_half_b(options, folder.path());
  Progress progress(options.rates_bytes_per_s.size() * tasks_at_a_rate(options));
  Findings findings;
  for (const std::uint64_t rate : options.rates_bytes_per_s) {
    if (!run_rate(options, network.ok() ? &*network : nullptr, rate, folder.path(), progress,
                  findings))
      break;
  }
  const bool written =
      !findings.rates.empty() && write_results(options, findings.rates, findings.transfers, notes);
  for (const std::string& failure : findings.failures)
    std::fprintf(stderr, "kvrail-demo: %s\n", failure.c_str());
  const bool good = written && findings.failures.empty() &&
                    findings.rates.size() == options.rates_bytes_per_s.size();
  std::printf("%s\n", good ? "The demo has passed." : "The demo has FAILED.");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace kvrail::demo

int main(int argc, char** argv) {
  struct sigaction action {};
  action.sa_handler = stop;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGHUP, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  int exit_code = 0;
  auto options = kvrail::demo::parse_options(argc, argv, exit_code);
  if (!options.ok()) {
    if (!options.error().message.empty())
      std::fprintf(stderr, "kvrail-demo: %s\n", options.error().message.c_str());
    return exit_code;
  }
  return kvrail::demo::run(*options);
}
