// Bulk over loopback: a lane of the tcp transport against blocking send() and recv(), both over
// pools of 256 MiB that are walked in turn, so that neither side lives in a cache. And, with digests as
// they are by default, against UCX, whose tool sends the same buffer again and again.
#include <string>

#include "perf/bench/benchmarks.h"
#include "perf/bench/tcp_link.h"
#include "perf/bench/ucx.h"

namespace kvrail::bench {
namespace {

constexpr std::size_t kPoolBytes = std::size_t{256} << 20;
constexpr std::uint64_t kRunBytes = std::uint64_t{512} << 20;
constexpr double kGoalOff = 0.95;
constexpr double kGoalFull = 0.90;
constexpr double kGoalSpliced = 1.10;  // reported, not required
constexpr double kGoalUcx = 1.30;

std::string size_name(std::uint64_t bytes) {
  return bytes >= (1U << 20) ? std::to_string(bytes >> 20) + " MiB"
                             : std::to_string(bytes >> 10) + " KiB";
}

using transport::tcp::Integrity;
using transport::tcp::ZeroCopy;

void compare_bulk(Report& report, const BulkSetup& setup, const Pool& source, const Pool& sink) {
  const bool full = setup.integrity == Integrity::full;
  const bool spliced = setup.zero_copy == ZeroCopy::vmsplice;
  double goal = full ? kGoalFull : kGoalOff;
  if (spliced) goal = kGoalSpliced;
  TcpLink ours(setup, source, sink);
  BlockingLink base(setup.pinned, source, sink);
  for (const std::uint64_t transfer : {std::uint64_t{64} << 10, std::uint64_t{1} << 20,
                                       std::uint64_t{16} << 20}) {
    const std::string name = "tcp bulk " + size_name(transfer) + (full ? ", digests" : "") +
                             (spliced ? ", vmsplice" : "") +
                             (setup.pinned ? ", two cores" : ", unpinned");
    // The first run of each grows the kernel's buffers and touches every page.
    static_cast<void>(ours.run(kRunBytes, transfer));
    static_cast<void>(base.run(kRunBytes, transfer));
    report.compare(
        name, "GB/s", Better::higher, "blocking send/recv, cubic", goal,
        [&] { return ours.run(kRunBytes, transfer) / 1e9; },
        [&] { return base.run(kRunBytes, transfer) / 1e9; });
    if (full && !spliced && has_ucx()) {
      report.compare(
          name, "GB/s", Better::higher, "ucx tag_bw, tcp", kGoalUcx,
          [&] { return ours.run(kRunBytes, transfer) / 1e9; },
          [&] {
            const int server = setup.pinned ? core_number(0) : -1;
            const int client = setup.pinned ? core_number(1) : -1;
            return run_ucx("tag_bw", "tcp,self", transfer, kRunBytes / transfer, server, client).bytes_per_s / 1e9;
          });
    }
  }
}

}  // namespace

void run_tcp(Report& report) {
  if (!has_ucx()) report.skip("tcp bulk against UCX", "ucx_perftest is not installed");
  const Pool source(kPoolBytes, 1);
  const Pool sink(kPoolBytes, 2);
  for (const bool pinned : {false, true}) {
    if (pinned && core_count() < 2) {
      report.skip("tcp bulk, two cores", "this process may use one core only");
      continue;
    }
    BulkSetup setup;
    setup.pinned = pinned;
    setup.integrity = Integrity::off;
    compare_bulk(report, setup, source, sink);
    setup.integrity = Integrity::full;
    compare_bulk(report, setup, source, sink);
    setup.zero_copy = ZeroCopy::vmsplice;
    compare_bulk(report, setup, source, sink);  // the pages stay the sender's, so it needs digests
  }
}

}  // namespace kvrail::bench
