// 100,000 blocks of 4 KiB as one context: cost per block from send() until the receiver has the delivery,
// on one node and over tcp between two. Against UCX messages of 4 KiB, as many. Also 4,096 blocks of
// 64 KiB over tcp, for what blocks of that size cost less.
#include <atomic>
#include <cstdio>
#include <string>

#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"
#include "perf/bench/ucx.h"

namespace kvrail::bench {
namespace {

// What is sent: one context of `blocks` blocks.
struct Load {
  Layout layout;
  std::uint32_t blocks;
  [[nodiscard]] std::uint64_t bytes() const { return blocks * layout.block_bytes(); }
};
constexpr double kGoalTcp = 3.0;
constexpr const char* kMemory =
    "[memory]\nreceive_arena = \"2 GiB\"\ntables = \"1 GiB\"\nmax_blocks = 1048576\n";

struct Arrival {
  std::atomic<std::int64_t> at_ns{0};
  std::atomic<std::uint64_t> seed{0};
};

// An agent in a process of its own that takes deliveries, checks them and lets them go.
class Receiver {
 public:
  Receiver(const std::string& socket, const Load& load) : child_([this, socket, load] { receive(socket, load); }) {}
  // When the context with this seed had arrived.
  std::int64_t arrival_of(std::uint64_t seed) {
    wait_for("a context of many blocks", 120'000'000'000, [&] {
      if (!child_.running()) throw Failure("the receiver ended");
      return arrival_->seed.load(std::memory_order_acquire) == seed;
    });
    return arrival_->at_ns.load(std::memory_order_relaxed);
  }

 private:
  void receive(const std::string& socket, const Load& load) {
    Agent agent = attach(socket, agent_options("b", load.layout, 1 << 20));
    for (;;) {
      const Delivery delivery = must(agent.receive(10 * kPatience), "no delivery");
      const std::int64_t at = now_ns();
      const std::uint64_t seed = seed_of(delivery);
      verify(delivery, load.blocks, seed);
      arrival_->at_ns.store(at, std::memory_order_relaxed);  // published by the seed
      arrival_->seed.store(seed, std::memory_order_release);
    }
  }
  Shared<Arrival> arrival_;
  Child child_;
};

class Sender {
 public:
  Sender(const std::string& socket, const Load& load) : load_(load), agent_(attach(socket, options())) {}
  // Microseconds per block of one context that nobody has yet; `commit_us` likewise, of its commit.
  double block_us(Receiver& receiver, double& commit_us) {
    const std::uint64_t seed = ++seed_;
    const std::int64_t begin = now_ns();
    const NewContext made = commit_new(agent_, "all", load_.blocks, seed, true);
    const std::int64_t start = now_ns();
    SendOptions how;
    how.medium = Medium::full;
    send_and_wait(agent_, made.context, "b", how);
    const std::int64_t arrived = receiver.arrival_of(seed);
    must(agent_.drop_context("all"), "cannot drop the context");
    commit_us = static_cast<double>(start - begin) / 1e3 / load_.blocks;
    return static_cast<double>(arrived - start) / 1e3 / load_.blocks;
  }

 private:
  [[nodiscard]] AttachOptions options() const {
    // Room for the context of this run and of the last one, and for one more while they are exchanged.
    AttachOptions options = agent_options("a", load_.layout, 3 * load_.bytes());
    options.scratch_bytes = 8 << 20;  // the ids of 1.6 million tokens
    return options;
  }
  Load load_;
  Agent agent_;
  std::uint64_t seed_ = 0;
};

// Against UCX messages of one block each over the named transports, where it is installed.
void measure(Report& report, const std::string& name, const Load& load, Sender& sender, Receiver& receiver,
             const std::string& transports, std::optional<double> goal) {
  Samples commits, rates;
  const auto ours = [&] {
    double commit_us = 0;
    const double cost = sender.block_us(receiver, commit_us);
    commits.values.push_back(commit_us);
    rates.values.push_back(static_cast<double>(load.layout.block_bytes()) / 1e3 / cost);
    return cost;
  };
  static_cast<void>(ours());  // touches all memory
  if (has_ucx()) {
    report.compare(name, "us/block", Better::lower, "ucx tag_bw, " + transports, goal, ours, [&] {
      return 1e6 / run_ucx("tag_bw", transports, load.layout.block_bytes(), load.blocks).messages_per_s;
    });
  } else {
    report.measure(name, "us/block", std::nullopt, ours);
    report.skip(name + " against UCX", "ucx_perftest is not installed");
  }
  char text[80];
  std::snprintf(text, sizeof(text), "%.3g GB/s; write and commit %.3g us/block", rates.median(), commits.median());
  report.note(text);
}

void run_tcp_pair(Report& report, const Folder& folder, const std::string& name, const Load& load,
                  std::optional<double> goal) {
  const std::string address = "127.0.0.1:" + std::to_string(free_port());
  Daemon here(folder, "here", std::string(kMemory) + "[[peer]]\naddress = \"" + address + "\"\n");
  Daemon there(folder, "there", std::string(kMemory) + "[tcp]\nlisten = \"" + address + "\"\n");
  Receiver receiver(there.socket(), load);
  here.await(1, 1);
  Sender sender(here.socket(), load);
  measure(report, name, load, sender, receiver, "tcp,self", goal);
}

}  // namespace

void run_blocks(Report& report) {
  const Folder folder;
  const Load many{small_layout(), 100'000};
  {
    Daemon node(folder, "node", kMemory);
    Receiver receiver(node.socket(), many);
    node.await(0, 1);
    Sender sender(node.socket(), many);
    measure(report, "100,000 blocks of 4 KiB, same node", many, sender, receiver, "posix,self", std::nullopt);
  }
  run_tcp_pair(report, folder, "100,000 blocks of 4 KiB, tcp", many, kGoalTcp);
  run_tcp_pair(report, folder, "4,096 blocks of 64 KiB, tcp", {large_layout(), 4096}, std::nullopt);
}

}  // namespace kvrail::bench
