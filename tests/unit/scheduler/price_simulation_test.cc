// Why prices: one shared link and eight receivers with a prefill queue each, in virtual time.
// Choosing the medium by one's own latency alone collapses with the static choices; adding the
// delay that the choice causes to others does not. The choice under test is MediumChooser's own.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/medium_choice.h"

using namespace kvrail;
using namespace kvrail::scheduler;

namespace {

constexpr std::size_t kReceivers = 8;
constexpr std::uint64_t kLinkRate = 1'250'000'000;  // 10 Gbit/s
constexpr std::uint64_t kTokenBytes = 131'072;      // an 8B model's bf16 KV
constexpr std::uint32_t kBlockTokens = 64;
constexpr double kInt8Ratio = 1.95, kInt4Ratio = 3.76;

enum class Policy { always_full, always_int8, always_int4, always_tokens, greedy, priced };

LossProfile profile() {
  LossProfile loss = LossProfile::built_in();
  // 20 ms of extra decoding for int4, as a careful calibration would say.
  loss.media[static_cast<std::size_t>(Medium::int4)].extra_tokens_milli = 2000;
  return loss;
}
constexpr std::uint64_t kDecodeNs = 10'000'000;
constexpr std::uint64_t kQuadraticQ20 =
    687'194;  // 0.66 ns per token squared: 400 TFLOP/s, 32 layers

double log_normal(Prng& prng, double median, double sigma) {
  const double radius = std::sqrt(-2.0 * portable_log(1.0 - prng.uniform01()));
  return median * std::exp(sigma * radius * std::cos(6.283185307179586 * prng.uniform01()));
}

CandidateCost kv(Medium medium, double ratio) {
  CandidateCost it;
  it.medium = medium;
  it.block_bytes =
      static_cast<std::uint64_t>(static_cast<double>(kTokenBytes * kBlockTokens) / ratio);
  it.rate_bytes_per_s = kLinkRate;
  return it;
}

struct Outcome {
  double mean_ms = 0;
  std::array<int, kMediumCount> chosen{};
  std::uint64_t changes = 0;
};

Outcome run(Policy policy, double per_second, std::uint64_t seed, int transfers) {
  Prng prng(seed);
  MediumChooser chooser(profile());
  PriceMeter link_meter(Demand::elastic);
  std::array<PriceMeter, kReceivers> gpu_meters;
  std::array<TimeNs, kReceivers> gpu_free{};
  TimeNs link_free = 0, now = 0;
  Outcome outcome;
  double sum_ms = 0;
  for (int i = 0; i < transfers; ++i) {
    now += static_cast<TimeNs>(prng.exponential(1e9 / per_second));
    const double wanted = std::clamp(log_normal(prng, 3000, 1.0), 256.0, 32'768.0);
    const std::uint64_t blocks = static_cast<std::uint64_t>(wanted) / kBlockTokens;
    const std::size_t receiver = prng.uniform(kReceivers);
    const TimeNs link_wait = std::max<TimeNs>(link_free - now, 0);
    const TimeNs gpu_wait = std::max<TimeNs>(gpu_free[receiver] - now, 0);
    const bool priced = policy == Policy::priced;

    ReceiverFacts facts;
    facts.pair_key = receiver;
    facts.block_tokens = kBlockTokens;
    facts.total_tokens = blocks * kBlockTokens;
    facts.missing_full_blocks = blocks;
    facts.compute = {0, 40'000, kQuadraticQ20, kDecodeNs};
    facts.compute_backlog_ns = gpu_wait;
    facts.lease_bytes_free = ~std::uint64_t{0};
    if (priced) {
      facts.compute_price_ppm = gpu_meters[receiver].price_ppm(now, gpu_wait);
      facts.compute_arrivals_milli_per_s = gpu_meters[receiver].arrivals_milli_per_s(now);
      facts.nic_price_ppm = link_meter.price_ppm(now, link_wait);
      facts.nic_arrivals_milli_per_s = link_meter.arrivals_milli_per_s(now);
    }

    std::vector<CandidateCost> all{kv(Medium::full, 1), kv(Medium::int8, kInt8Ratio),
                                   kv(Medium::int4, kInt4Ratio),
                                   kv(Medium::tokens, static_cast<double>(kTokenBytes) / 3)};
    // Token ids came with the offer, ahead of the KV that waits.
    for (CandidateCost& it : all) it.wait_ns = it.medium == Medium::tokens ? 0 : static_cast<std::uint64_t>(link_wait);
    std::vector<CandidateCost> offered = all;
    if (policy < Policy::greedy) offered = {all[static_cast<std::size_t>(policy)]};
    const Pick pick = chooser.pick(offered, facts, 0);
    REQUIRE(pick.index >= 0);
    const CostLine& line = pick.lines[static_cast<std::size_t>(pick.index)];
    ++outcome.chosen[static_cast<std::size_t>(line.medium)];

    const bool text = line.medium == Medium::tokens;
    if (!text) link_free = std::max(link_free, now) + line.transmit_ns;
    TimeNs finished = link_free;
    if (text) {
      const double x = static_cast<double>(facts.total_tokens);
      const auto prefill = static_cast<TimeNs>(40'000 * x + static_cast<double>(kQuadraticQ20) /
                                                                1'048'576.0 * x * x);
      gpu_free[receiver] = std::max(gpu_free[receiver], now) + prefill;
      finished = gpu_free[receiver];
    }
    link_meter.arrival(now, std::max<TimeNs>(link_free - now, 0));
    gpu_meters[receiver].arrival(now, std::max<TimeNs>(gpu_free[receiver] - now, 0));
    sum_ms += static_cast<double>(finished - now + line.loss_ns) / 1e6;
  }
  outcome.mean_ms = sum_ms / transfers;
  return outcome;
}

double mean_ms(Policy policy, double per_second) {
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    sum += run(policy, per_second, seed, 8000).mean_ms;
  return sum / 3;
}

}  // namespace

TEST_CASE(
    "price simulation / priced choice beats every static medium and the greedy one under load") {
  const std::array loads{1.0, 3.0, 6.0, 10.0, 20.0, 30.0};
  for (const double load : loads) {
    std::array<double, 6> mean{};
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = mean_ms(static_cast<Policy>(i), load);
    MESSAGE("per second " << load << ": full " << mean[0] << " int8 " << mean[1] << " int4 "
                          << mean[2] << " tokens " << mean[3] << " greedy " << mean[4] << " priced "
                          << mean[5] << " ms");
    const double priced = mean[5];
    for (std::size_t i = 0; i < 4; ++i) CHECK(priced < mean[i]);
    // What nobody waits for has no price, so under little load there is nothing to win over greed.
    CHECK(priced < mean[4] * (load < 6 ? 1.01 : 1.0));
    if (load >= 30) CHECK(priced * 1.1 < mean[4]);
  }
}

TEST_CASE("price simulation / the same seed gives the same decisions") {
  const Outcome first = run(Policy::priced, 10, 5, 3000);
  const Outcome second = run(Policy::priced, 10, 5, 3000);
  CHECK(first.chosen == second.chosen);
  CHECK(first.mean_ms == second.mean_ms);
  // Under load both the link and the machines are used.
  CHECK(first.chosen[static_cast<std::size_t>(Medium::tokens)] > 300);
  CHECK(first.chosen[static_cast<std::size_t>(Medium::int4)] > 300);
}
