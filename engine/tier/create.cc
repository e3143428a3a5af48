#include "engine/tier/create.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "engine/config/profile.h"
#include "engine/tier/file_tier.h"

namespace kvrail::engine {
namespace {

constexpr std::uint64_t kOtherFiles = 1'024;  // sockets, arenas, devices

tier::DirectMode direct_mode(DirectIo direct) noexcept {
  switch (direct) {
    case DirectIo::automatic: return tier::DirectMode::automatic;
    case DirectIo::on: return tier::DirectMode::on;
    case DirectIo::off: return tier::DirectMode::off;
  }
  return tier::DirectMode::automatic;
}

}  // namespace

tier::TierOptions tier_options(const Config& config) {
  tier::TierOptions options;
  options.directory = config.offload_directory;
  options.capacity_bytes = config.offload_capacity_bytes;
  options.segment_bytes = config.offload_segment_bytes;
  options.max_blocks = config.offload_max_blocks;
  options.coding = config.offload_coding;
  options.direct = direct_mode(config.offload_direct);
  options.uring = config.offload_io_uring;
  options.depth = config.offload_depth;
  // So many that the disk never waits for the worker to look, and few enough that a get waits for few.
  options.in_flight = std::min<std::uint32_t>(4 * config.offload_depth, 256);
  options.commit_ns = config.offload_commit_ns;
  options.commit_bytes = config.offload_commit_bytes;
  options.slow_ns = config.offload_slow_after_ns;
  return options;
}

Result<void> tier_files(const Config& config) {
  const rlim_t wanted = config.offload_capacity_bytes / config.offload_segment_bytes + kOtherFiles;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return {};
  const rlim_t most = limit.rlim_max;
  limit.rlim_cur = std::min(wanted, most);
  if (most >= wanted && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return {};
  return Error{{Code::limit, Scope::engine, EMFILE},
               "offload.capacity: needs " + std::to_string(wanted) + " open files, the limit is " + std::to_string(most) +
                   "; raise the limit (LimitNOFILE=, ulimit -n) or offload.segment"};
}

namespace {

// What the coding loses by the calibration, or by the built-in figures, at the depth where it is worst.
Result<std::uint32_t> calibrated_epsilon(const Config& config) {
  scheduler::DepthLoss loss;
  if (!config.profile.empty()) {
    auto profile = load_profile(config.profile);
    if (!profile.ok()) return std::move(profile).error();
    loss = loss_of(*profile);
  }
  std::uint32_t worst = 0;
  loss = scheduler::weighed(loss);
  for (const scheduler::LossProfile& depth : loss.depths) {
    worst = std::max(worst, depth.media[static_cast<std::size_t>(config.offload_coding)].epsilon_ppm);
  }
  return worst;
}

}  // namespace

Result<std::unique_ptr<TierPort>> create_tier(const Config& config, std::vector<std::string>* warnings) {
  if (config.offload_directory.empty()) return std::unique_ptr<TierPort>();
  if (auto able = tier_files(config); !able.ok()) return std::move(able).error();
  auto epsilon = calibrated_epsilon(config);
  if (!epsilon.ok()) return std::move(epsilon).error();
  tier::TierOptions options = tier_options(config);
  options.coding_epsilon_ppm = *epsilon;
  auto made = tier::FileTier::create(options);
  if (!made.ok()) return std::move(made).error();
  if (warnings != nullptr) warnings->insert(warnings->end(), (*made)->warnings().begin(), (*made)->warnings().end());
  return std::unique_ptr<TierPort>(std::move(made).value());
}

}  // namespace kvrail::engine
