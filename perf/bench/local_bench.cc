// A committed context handed to an agent of the same node, 64 KiB to 64 MiB, through kvraild: from send()
// until the other process has the delivery. Against copying that many bytes once (from memory that no
// cache holds, as KV just computed would be), and against a message of that size over UCX's shared memory.
#include <sched.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"
#include "perf/bench/ucx.h"

namespace kvrail::bench {
namespace {

constexpr std::uint64_t kBlock = 64 << 10;
constexpr std::uint64_t kArena = 256 << 20;
constexpr std::array<std::uint64_t, 4> kSizes{64ULL << 10, 1ULL << 20, 16ULL << 20, 64ULL << 20};
constexpr int kSends = 200;
constexpr double kSameLatency = 0.8;  // of the smallest size's, at least

std::string size_name(std::uint64_t bytes) {
  return bytes >= (1U << 20) ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes >> 10) + " KiB";
}

// What the receiving process writes for the sending one.
struct Arrival {
  std::atomic<std::int64_t> at_ns{0};
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> expected_blocks{0};  // the receiver checks every block of the next one
};

class Handover {
 public:
  Handover()
      : daemon_(folder_, "node", "[memory]\nagent_arena = \"256 MiB\"\n"), receiver_([this] { receive(); }) {
    daemon_.await(0, 1);
    sender_ = std::make_unique<Agent>(attach(daemon_.socket(), agent_options("a", large_layout(), kArena)));
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const auto blocks = static_cast<std::uint32_t>(kSizes[i] / kBlock);
      contexts_[i] = commit_new(*sender_, "context-" + std::to_string(i), blocks, i, true);
      arrival_->expected_blocks = blocks;
      static_cast<void>(send(i));
    }
  }

  double latency_us(std::size_t size) {
    Samples samples;
    for (int i = 0; i < kSends; ++i) samples.values.push_back(send(size));
    return samples.median();
  }
  [[nodiscard]] double copied_bytes() {
    wait_for("a status page", 5'000'000'000, [&] {
      return daemon_.status().counters.local_deliveries >= arrival_->count.load();
    });
    return static_cast<double>(daemon_.status().counters.copied_bytes);
  }

 private:
  double send(std::size_t size) {
    const std::uint64_t before = arrival_->count.load(std::memory_order_acquire);
    const std::int64_t start = now_ns();
    send_and_wait(*sender_, contexts_[size].context, "b", {});
    while (arrival_->count.load(std::memory_order_acquire) == before) {
      if (!receiver_.running()) throw Failure("the receiver ended");
      ::sched_yield();
    }
    return static_cast<double>(arrival_->at_ns.load(std::memory_order_relaxed) - start) / 1e3;
  }

  void receive() {
    Agent agent = attach(daemon_.socket(), agent_options("b", large_layout(), 1 << 20));
    for (;;) {
      const Delivery delivery = must(agent.receive(10 * kPatience), "no delivery");
      const std::int64_t at = now_ns();
      if (const auto blocks = arrival_->expected_blocks.exchange(0); blocks != 0) {
        verify(delivery, static_cast<std::uint32_t>(blocks), seed_of(delivery));
      }
      arrival_->at_ns.store(at, std::memory_order_relaxed);  // published by the count
      arrival_->count.fetch_add(1, std::memory_order_release);
    }
  }

  Folder folder_;
  Shared<Arrival> arrival_;
  Daemon daemon_;
  Child receiver_;
  std::unique_ptr<Agent> sender_;
  std::array<NewContext, kSizes.size()> contexts_;
};

// Copies of `bytes` through two pools, so that what is read was not touched lately.
class Copier {
 public:
  double copy_us(std::uint64_t bytes) {
    Samples samples;
    for (int i = 0; i < 9; ++i) {
      if (at_ + bytes > kPool) at_ = 0;
      const std::int64_t start = now_ns();
      std::memcpy(to_->bytes + at_, from_->bytes + at_, bytes);
      samples.values.push_back(static_cast<double>(now_ns() - start) / 1e3);
      at_ += bytes;
    }
    return samples.median();
  }
  Copier() {
    std::memset(from_->bytes, 1, kPool);
    std::memset(to_->bytes, 2, kPool);
  }

 private:
  static constexpr std::uint64_t kPool = 256 << 20;
  struct Memory {
    std::byte bytes[kPool];
  };
  Shared<Memory> from_, to_;
  std::uint64_t at_ = 0;
};

}  // namespace

void run_local(Report& report) {
  Handover handover;
  Copier copier;
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    const std::string name = "local " + size_name(kSizes[i]);
    const auto ours = [&] { return handover.latency_us(i); };
    report.compare(name, "us", Better::lower, "memcpy, once", std::nullopt, ours,
                   [&] { return copier.copy_us(kSizes[i]); });
    if (has_ucx()) {
      const std::uint64_t rounds = std::max<std::uint64_t>((64ULL << 20) / kSizes[i], 8);
      report.compare(name, "us", Better::lower, "ucx tag_lat, posix shm", std::nullopt, ours,
                     [&] { return run_ucx("tag_lat", "posix,self", kSizes[i], rounds).latency_us; });
    } else {
      report.skip(name + " against UCX", "ucx_perftest is not installed");
    }
  }
  report.compare("local 64 MiB, latency", "us", Better::lower, "ours, 64 KiB", kSameLatency,
                 [&] { return handover.latency_us(kSizes.size() - 1); }, [&] { return handover.latency_us(0); });
  report.measure("local, bytes copied in all of these", "B", 0.0, [&] { return handover.copied_bytes(); }, 1);
}

}  // namespace kvrail::bench
