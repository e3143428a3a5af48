#include "perf/demo/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <sstream>

#include "engine/config/config.h"

namespace kvrail::demo {
namespace {

namespace fs = std::filesystem;
constexpr const char* kDefaultRates = "2Gbit/s,50Mbit/s,5Mbit/s";
constexpr std::uint32_t kFewestTasks = 1, kMostTasks = 10'000;
constexpr std::uint32_t kFullTasks = 120;

std::string beside(const fs::path& self, std::initializer_list<const char*> places) {
  for (const char* place : places) {
    const fs::path path = self.parent_path() / place;
    if (fs::exists(path)) return fs::canonical(path);
  }
  return (self.parent_path() / *places.begin()).lexically_normal();
}

// A run from a build folder inside the source tree puts its results into the tree's build/demo.
std::string default_out(const fs::path& self) {
  for (fs::path folder = self.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (folder.filename() == "build" && fs::exists(folder.parent_path() / "meson.build"))
      return folder / "demo";
  }
  return fs::current_path() / "build" / "demo";
}

Result<void> check(const DemoOptions& options) {
  if (options.transport != "tcp" && options.transport != "verbs") {
    return Error{{Code::unsupported},
                 "--transport " + options.transport + ": is not one of tcp, verbs"};
  }
  if (options.half >= 0 && (options.transport != "verbs" || options.addresses.size() != 2)) {
    return Error{{Code::invalid_argument}, "--half needs --transport verbs and two --addresses"};
  }
  for (const std::string* path :
       {&options.kvraild, &options.agent, &options.model, &options.profile}) {
    if (::access(path->c_str(), R_OK) != 0) {
      return Error{{Code::not_found},
                   *path + " is missing; scripts/demo builds what the demo needs"};
    }
  }
  return {};
}

}  // namespace

bool runs_policy(const DemoOptions& options, std::string_view policy) noexcept {
  return !options.brief || policy == "adaptive" || policy == "full";
}

Result<std::vector<std::uint64_t>> parse_rates(const std::string& text) {
  std::vector<std::uint64_t> rates;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    auto rate = engine::parse_rate(item);
    if (!rate.ok())
      return Error{rate.status(), "--rates: \"" + item + "\": " + rate.error().message};
    rates.push_back(*rate);
  }
  if (rates.empty())
    return Error{{Code::invalid_argument}, "--rates needs at least one rate, as 50Mbit/s"};
  return rates;
}

Result<DemoOptions> parse_options(int argc, char** argv, int& exit_code) {
  const fs::path self = fs::canonical("/proc/self/exe");
  DemoOptions options;
  options.out = default_out(self);
  options.agent = beside(self, {"kvrail-demo-agent"});
  options.kvraild =
      beside(self, {"../../engine/kvraild", "../../engine/daemon/kvraild", "kvraild"});
  options.model = KVRAIL_MODEL_WEIGHTS;
  options.profile = KVRAIL_MODEL_PROFILE;
  std::string rates = kDefaultRates;
  double prefill_ms = static_cast<double>(options.prefill_per_token_ns) / 1e6;
  bool full = false;
  CLI::App app(
      "kvrail-demo: agents with a real model hand each other context through two kvrail nodes.");
  app.add_flag("--full", full, "three times the tasks");
  app.add_option("--rates", rates, "rates of the link, as 1Gbit/s,50Mbit/s,5Mbit/s")
      ->capture_default_str();
  app.add_option("--tasks", options.tasks, "tasks of each policy at each rate (40)")
      ->check(CLI::Range(kFewestTasks, kMostTasks));
  app.add_option("--prefill-ms", prefill_ms,
                 "time a token takes to read for the model that ours stands for (0.5)")
      ->check(CLI::Range(0.0, 100.0));
  app.add_option("--seed", options.seed, "of documents and questions (1)");
  app.add_option("--transport", options.transport, "tcp, or verbs: unshaped, over the RDMA device")
      ->capture_default_str();
  app.add_option("--half", options.half, "verbs: only node A (0) or node B (1) with its agents")
      ->check(CLI::Range(0, 1));
  app.add_option("--addresses", options.addresses, "verbs, with --half: of both nodes")
      ->delimiter(',');
  app.add_option("--key", options.key, "a key file that both halves have");
  app.add_flag("--brief", options.brief, "only the policies adaptive and full");
  app.add_option("--out", options.out, "folder of result.json and result.svg")
      ->capture_default_str();
  app.add_flag("--keep", options.keep, "keep the folder with configurations and logs");
  app.add_flag("--loopback", options.loopback, "no namespaces: loopback, paced by the tcp lane");
  app.add_option("--kvraild", options.kvraild, "the daemon");
  app.add_option("--model", options.model, "weights of the recall model");
  app.add_option("--profile", options.profile, "its profile of kvrail-calibrate");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return Error{{Code::invalid_argument}, ""};
  }
  exit_code = 2;
  if (full && app.count("--tasks") == 0) options.tasks = kFullTasks;
  options.prefill_per_token_ns = static_cast<TimeNs>(prefill_ms * 1e6);
  auto parsed = parse_rates(rates);
  if (!parsed.ok()) return std::move(parsed).error();
  options.rates_bytes_per_s = std::move(parsed).value();
  if (options.transport == "verbs") options.rates_bytes_per_s.resize(1);  // nothing is shaped
  if (auto good = check(options); !good.ok()) return std::move(good).error();
  return options;
}

}  // namespace kvrail::demo
