// Blocks of 1 MiB into the tier's files and back, against fio in the same folder with the same engine, depth and direct
// mode. Ours counts until the last block is acknowledged, which is after its sync; fio's figure is without any sync.
// And a look-up among a million blocks.
#include <poll.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/tier/file_tier.h"
#include "kvrail/base/prng.h"
#include "perf/bench/benchmarks.h"
#include "perf/bench/processes.h"

namespace kvrail::bench {
namespace {

using engine::TierCompletion;
using engine::tier::FileTier;
using engine::tier::TierOptions;

constexpr std::uint64_t kBlocks = 512;
constexpr std::uint64_t kBlockBytes = 1 << 20;
constexpr std::uint32_t kDepth = 8;
constexpr double kGoal = 0.9;
constexpr std::int64_t kTimeoutNs = 120'000'000'000;

Layout layout_of_a_mib() {
  Layout layout;
  layout.model_id = {1, 2};
  layout.layers = 8;
  layout.kv_heads = 8;
  layout.head_dim = 64;
  return layout;
}

Hash128 hash_of(std::uint64_t number) { return {engine::mix_bits(number + 1), engine::mix_bits(~number)}; }

class Tier {
 public:
  explicit Tier(const std::string& folder) : folder_(folder), rows_(kDepth * 2) {
    std::filesystem::create_directory(folder);
    TierOptions options;
    options.directory = folder;
    options.capacity_bytes = 2ULL << 30;
    options.depth = kDepth;
    auto made = FileTier::create(options);
    if (!made.ok()) throw Failure(made.error().message);
    tier_ = std::move(made).value();
    Prng random(5);
    for (auto& rows : rows_) {
      rows.resize(kBlockBytes);
      for (std::byte& byte : rows) byte = static_cast<std::byte>(random.next_u32());
    }
    wait_for("the tier", kTimeoutNs, [&] {
      std::array<TierCompletion, 1> out;
      static_cast<void>(tier_->poll(out));
      return tier_->figures().state == engine::TierState::ready;
    });
  }
  ~Tier() {
    tier_.reset();
    std::filesystem::remove_all(folder_);
  }
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  [[nodiscard]] double write() {
    return gb_per_s([&](std::uint64_t number) { return tier_->put({number, hash_of(number), layout_, layout_.block_tokens, 0, at(number)}); });
  }
  [[nodiscard]] double read() {
    return gb_per_s([&](std::uint64_t number) { return tier_->get({number, hash_of(number), layout_, layout_.block_tokens, at(number)}); });
  }
  [[nodiscard]] const char* disk() const { return tier_->thread().disk_name(); }

 private:
  std::byte* at(std::uint64_t number) { return rows_[number % rows_.size()].data(); }
  template <class Start>
  double gb_per_s(Start start) {
    const std::int64_t begin = now_ns();
    std::array<TierCompletion, 16> out;
    // Completions come in any order, so two of these may use the same rows for a while: nobody looks at them.
    std::uint64_t started = 0;
    std::uint64_t ended = 0;
    while (ended < kBlocks) {
      while (started < kBlocks && started - ended < rows_.size() && start(started)) ++started;
      const std::size_t count = tier_->poll(out);
      for (const TierCompletion& done : std::span(out).first(count)) {
        if (!done.status.ok()) throw Failure(std::string("the tier answers ") + name(done.status.code));
      }
      ended += count;
      if (count > 0) continue;
      pollfd wake{tier_->wake_fd(), POLLIN, 0};
      if (::poll(&wake, 1, 10'000) != 1) throw Failure("the tier does not answer");
    }
    return static_cast<double>(kBlocks * kBlockBytes) / static_cast<double>(now_ns() - begin);
  }

  std::string folder_;
  Layout layout_ = layout_of_a_mib();
  std::vector<std::vector<std::byte>> rows_;
  std::unique_ptr<FileTier> tier_;
};

double fio(const std::string& file, const std::string& way) {
  const auto output = output_of({.command = {"fio", "--name=baseline", "--filename=" + file, "--rw=" + way, "--bs=1m",
                                             "--size=" + std::to_string(kBlocks * kBlockBytes), "--ioengine=io_uring",
                                             "--iodepth=" + std::to_string(kDepth), "--direct=1", "--fixedbufs=1",
                                             "--output-format=json"},
                                 .environment = {},
                                 .output = {},
                                 .network_namespace = {}},
                                kTimeoutNs);
  if (!output) throw Failure("fio does not run");
  const std::size_t begin = output->find('{');
  const auto json = nlohmann::json::parse(begin == std::string::npos ? "" : output->substr(begin), nullptr, false);
  if (json.is_discarded()) throw Failure("fio printed something else: " + *output);
  return json.at("jobs").at(0).at(way).at("bw_bytes").get<double>() / 1e9;
}

// What find() is: a look-up in the worker's own table.
double find_ns(const engine::tier::RecordTable<FileTier::Known>& table, std::uint64_t blocks) {
  constexpr std::uint64_t kLookups = 10'000'000;
  Prng random(9);
  std::uint64_t found = 0;
  const std::int64_t begin = now_ns();
  for (std::uint64_t i = 0; i < kLookups; ++i) {
    // One in ten is not there.
    found += table.find(hash_of(random.uniform(blocks + blocks / 9))) != table.kNone ? 1 : 0;
  }
  const double ns = static_cast<double>(now_ns() - begin) / kLookups;
  if (found < kLookups / 2) throw Failure("look-ups do not find what is there");
  return ns;
}

}  // namespace

void run_tier(Report& report) {
  const Folder folder;
  const std::string file = folder.path("fio");
  std::unique_ptr<Tier> tier;
  const auto write = [&] {
    tier.reset();
    tier = std::make_unique<Tier>(folder.path("tier"));
    return tier->write();
  };
  static_cast<void>(write());
  if (!in_path("fio")) {
    report.measure("tier, 1 MiB blocks, write", "GB/s", std::nullopt, write);
    report.measure("tier, 1 MiB blocks, read", "GB/s", std::nullopt, [&] { return tier->read(); });
    report.skip("tier against fio", "fio is not installed");
  } else {
    report.compare("tier, 1 MiB blocks, write", "GB/s", Better::higher, "fio, no sync", kGoal, write, [&] {
      std::filesystem::remove(file);
      return fio(file, "write");
    });
    report.note(tier->disk());
    report.compare("tier, 1 MiB blocks, read", "GB/s", Better::higher, "fio", kGoal, [&] { return tier->read(); }, [&] { return fio(file, "read"); });
  }
  tier.reset();
  constexpr std::uint32_t kKnown = 1'000'000;
  engine::tier::RecordTable<FileTier::Known> table(kKnown);
  for (std::uint32_t number = 0; number < kKnown; ++number) {
    static_cast<void>(table.insert({.hash = hash_of(number), .entry = {.tokens = 64, .epsilon_ppm = 0, .stored_bytes = 1}}));
  }
  report.measure("tier, find among 1,000,000 blocks", "ns", 200.0, [&] { return find_ns(table, kKnown); });
}

}  // namespace kvrail::bench
