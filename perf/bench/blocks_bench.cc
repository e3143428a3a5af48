// 100,000 blocks of 4 KiB as one context: cost per block from send() until the receiver has the delivery,
// on one node and over tcp between two. Against UCX messages of 4 KiB, as many.
#include <atomic>
#include <memory>
#include <string>

#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"
#include "perf/bench/ucx.h"

namespace kvrail::bench {
namespace {

constexpr std::uint32_t kBlocks = 100'000;
constexpr std::uint64_t kBlockBytes = 4096;
constexpr double kGoalTcp = 3.0;
// Room for the context of this run and of the last one, and for one more while they are exchanged.
constexpr std::uint64_t kArena = 3ULL * kBlocks * kBlockBytes;
constexpr const char* kMemory =
    "[memory]\nreceive_arena = \"2 GiB\"\ntables = \"1 GiB\"\nmax_blocks = 1048576\n";

struct Arrival {
  std::atomic<std::int64_t> at_ns{0};
  std::atomic<std::uint64_t> seed{0};
};

// An agent in a process of its own that takes deliveries, checks them and lets them go.
class Receiver {
 public:
  explicit Receiver(const std::string& socket) : child_([this, socket] { receive(socket); }) {}
  // When the context with this seed had arrived.
  std::int64_t arrival_of(std::uint64_t seed) {
    wait_for("a context of 100,000 blocks", 120'000'000'000, [&] {
      if (!child_.running()) throw Failure("the receiver ended");
      return arrival_->seed.load(std::memory_order_acquire) == seed;
    });
    return arrival_->at_ns.load(std::memory_order_relaxed);
  }

 private:
  void receive(const std::string& socket) {
    Agent agent = attach(socket, agent_options("b", small_layout(), 1 << 20));
    for (;;) {
      const Delivery delivery = must(agent.receive(10 * kPatience), "no delivery");
      const std::int64_t at = now_ns();
      const std::uint64_t seed = seed_of(delivery);
      verify(delivery, kBlocks, seed);
      arrival_->at_ns.store(at, std::memory_order_relaxed);  // published by the seed
      arrival_->seed.store(seed, std::memory_order_release);
    }
  }
  Shared<Arrival> arrival_;
  Child child_;
};

class Sender {
 public:
  explicit Sender(const std::string& socket) : agent_(attach(socket, options())) {}
  // Microseconds per block of one context that nobody has yet; `commit_us` likewise, of its commit.
  double block_us(Receiver& receiver, double& commit_us) {
    const std::uint64_t seed = ++seed_;
    const std::int64_t begin = now_ns();
    const NewContext made = commit_new(agent_, "all", kBlocks, seed, true);
    const std::int64_t start = now_ns();
    SendOptions how;
    how.medium = Medium::full;
    send_and_wait(agent_, made.context, "b", how);
    const std::int64_t arrived = receiver.arrival_of(seed);
    must(agent_.drop_context("all"), "cannot drop the context");
    commit_us = static_cast<double>(start - begin) / 1e3 / kBlocks;
    return static_cast<double>(arrived - start) / 1e3 / kBlocks;
  }

 private:
  static AttachOptions options() {
    AttachOptions options = agent_options("a", small_layout(), kArena);
    options.scratch_bytes = 8 << 20;  // the ids of 1.6 million tokens
    return options;
  }
  Agent agent_;
  std::uint64_t seed_ = 0;
};

void measure(Report& report, const std::string& name, Sender& sender, Receiver& receiver,
             const std::string& transports, const std::string& base, std::optional<double> goal) {
  Samples commits;
  const auto ours = [&] {
    double commit_us = 0;
    const double cost = sender.block_us(receiver, commit_us);
    commits.values.push_back(commit_us);
    return cost;
  };
  static_cast<void>(ours());  // touches all memory
  if (has_ucx()) {
    report.compare(name, "us/block", Better::lower, base, goal, ours,
                   [&] { return 1e6 / run_ucx("tag_bw", transports, kBlockBytes, kBlocks).messages_per_s; });
  } else {
    report.measure(name, "us/block", std::nullopt, ours);
    report.skip(name + " against UCX", "ucx_perftest is not installed");
  }
  char text[64];
  std::snprintf(text, sizeof(text), "write and commit %.3g us/block", commits.median());
  report.note(text);
}

}  // namespace

void run_blocks(Report& report) {
  const Folder folder;
  {
    Daemon node(folder, "node", kMemory);
    Receiver receiver(node.socket());
    node.await(0, 1);
    Sender sender(node.socket());
    measure(report, "blocks of 4 KiB, same node", sender, receiver, "posix,self", "ucx tag_bw 4 KiB, posix shm",
            std::nullopt);
  }
  const std::uint16_t port = free_port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  Daemon here(folder, "here", std::string(kMemory) + "[[peer]]\naddress = \"" + address + "\"\n");
  Daemon there(folder, "there", std::string(kMemory) + "[tcp]\nlisten = \"" + address + "\"\n");
  Receiver receiver(there.socket());
  here.await(1, 1);
  Sender sender(here.socket());
  measure(report, "blocks of 4 KiB, tcp", sender, receiver, "tcp,self", "ucx tag_bw 4 KiB, tcp", kGoalTcp);
}

}  // namespace kvrail::bench
