// RDMA: kvrail's lane against perftest on the same device, in turn. In a guest with soft-RoCE these
// are ratios of software, not figures of a network.
#include <array>
#include <string>

#include "perf/bench/benchmarks.h"
#include "perf/bench/verbs_link.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::bench {
namespace {

constexpr int kVerbsPairs = 9;
constexpr double kGoalBulk = 0.9;
constexpr double kGoalLatency = 1 / 1.5;
constexpr std::uint32_t kAhead = 32;

void compare_writes(Report& report, VerbsLink& link, const std::string& host, std::uint32_t bytes,
                    std::uint64_t count, bool digests) {
  const std::string size = bytes >= (1u << 20) ? std::to_string(bytes >> 20) + " MiB"
                                               : std::to_string(bytes >> 10) + " KiB";
  static_cast<void>(link.write(bytes, count / 4 + 1, kAhead, digests));
  report.compare(
      "verbs write " + size + (digests ? ", digests" : ""), "MB/s", Better::higher, "ib_write_bw",
      bytes == (1u << 20) && !digests ? std::optional<double>(kGoalBulk) : std::nullopt,
      [&] { return link.write(bytes, count, kAhead, digests) / 1e6; },
      [&] { return ib_write_bw(host, bytes, count, kAhead) / 1e6; }, kVerbsPairs);
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
  compare_writes(report, link, host, 64u << 10, 512, false);
  compare_writes(report, link, host, 4u << 10, 2000, false);
  report.compare(
      "verbs frame 64 B, one way", "us", Better::lower, "ib_send_lat", kGoalLatency,
      [&] { return link.half_round_trip_us(64, 1000); },
      [&] { return ib_send_lat(host, 64, 1000); }, kVerbsPairs);
}

}  // namespace kvrail::bench
