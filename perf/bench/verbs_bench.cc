// RDMA: kvrail's lane against perftest on the same device, in turn. In a guest with soft-RoCE these
// are ratios of software, not figures of a network.
#include <algorithm>
#include <array>
#include <string>

#include "perf/bench/benchmarks.h"
#include "perf/bench/verbs_link.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::bench {
namespace {

constexpr int kVerbsPairs = 9;
constexpr int kSweepPairs = 5;
constexpr double kGoalBulk = 0.9;
constexpr double kGoalLatency = 1 / 1.5;
constexpr std::uint32_t kAhead = 32;

std::string size_name(std::uint32_t bytes) {
  return bytes >= (1u << 20)   ? std::to_string(bytes >> 20) + " MiB"
         : bytes >= (1u << 10) ? std::to_string(bytes >> 10) + " KiB"
                               : std::to_string(bytes) + " B";
}

void compare_writes(Report& report, VerbsLink& link, const std::string& host, std::uint32_t bytes,
                    std::uint64_t count, bool digests) {
  const std::string size = size_name(bytes);
  static_cast<void>(link.write(bytes, count / 4 + 1, kAhead, digests));
  report.compare(
      "verbs write " + size + (digests ? ", digests" : ""), "MB/s", Better::higher, "ib_write_bw",
      bytes == (1u << 20) && !digests ? std::optional<double>(kGoalBulk) : std::nullopt,
      [&] { return link.write(bytes, count, kAhead, digests) / 1e6; },
      [&] { return ib_write_bw(host, bytes, count, kAhead) / 1e6; }, kVerbsPairs);
}

// Messages of all sizes, as chunks are: each announced, written, and acknowledged by the receiver.
void sweep(Report& report, VerbsLink& link, const std::string& host) {
  for (std::uint32_t bytes = 64; bytes <= (1u << 20); bytes *= 4) {
    const std::uint64_t count = std::clamp<std::uint64_t>((32u << 20) / bytes, 64, 2000);
    const auto rate = [bytes](double bytes_per_s) { return bytes_per_s / bytes / 1e3; };
    static_cast<void>(link.write(bytes, count / 4 + 1, kAhead, false));
    report.compare(
        "verbs sweep, messages of " + size_name(bytes), "k/s", Better::higher, "ib_write_bw",
        std::nullopt, [&] { return rate(link.write(bytes, count, kAhead, false)); },
        [&] { return rate(ib_write_bw(host, bytes, count, kAhead)); }, kSweepPairs);
  }
}

// Asked in a copy of this process: the receiver is forked from one that does not know the device.
std::string device_address() {
  const Shared<std::array<char, 64>> text;
  Child asker([&] {
    const std::string address = transport::verbs::own_address();
    address.copy(text->data(), text->size() - 1);
  });
  return asker.ended_well(20'000'000'000) ? std::string(text->data()) : std::string();
}

}  // namespace

void run_verbs(Report& report) {
  const std::string host = device_address();
  if (host.empty() || !has_perftest()) {
    const std::string why =
        host.empty() ? transport::verbs::why_unavailable() : "perftest is not installed";
    report.skip("verbs", why);
    return;
  }
  VerbsLink link(host);
  compare_writes(report, link, host, 1u << 20, 64, false);
  compare_writes(report, link, host, 1u << 20, 64, true);
  report.compare(
      "verbs write 1 MiB", "MB/s", Better::higher, "ib_read_bw", std::nullopt,
      [&] { return link.write(1u << 20, 64, kAhead, false) / 1e6; },
      [&] { return ib_read_bw(host, 1u << 20, 64) / 1e6; }, kVerbsPairs);
  sweep(report, link, host);
  report.compare(
      "verbs frame 64 B, one way", "us", Better::lower, "ib_send_lat", kGoalLatency,
      [&] { return link.half_round_trip_us(64, 1000); },
      [&] { return ib_send_lat(host, 64, 1000); }, kVerbsPairs);
}

}  // namespace kvrail::bench
