// What a scenario file says. Everything has a value without one: that is `steady` at 6 transfers/s.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "perf/sim/profiles.h"

namespace kvrail::simulation {

enum class Arrivals : std::uint8_t { poisson, pareto_on_off };

struct Traffic {
  Arrivals arrivals = Arrivals::poisson;
  double per_second = 6;        // of all senders together, in the long run
  std::uint32_t transfers = 8000;
  double on_s = 1, off_s = 4;   // pareto_on_off: mean lengths of both phases
  double shape = 1.5;           // of the Pareto distribution, > 1
  double median_tokens = 3000, sigma = 1;  // of the log-normal
  std::uint64_t least_tokens = 256, most_tokens = 32'768;
  TimeNs deadline_ns = 0;       // of each transfer, from its submission; 0: none
  TimeNs slo_ns = kSecondNs;    // what counts as in time for the figure `slo`
};

// Small transfers of opaque bytes beside the contexts, which overtake everything.
struct Critical {
  double per_second = 0;        // Poisson, of all senders together; 0: none
  std::uint64_t bytes = 64 * 1024;
  TimeNs period_ns = 0;         // instead of Poisson: one each period from each sender
  bool reserved = false;        // asked of the arbiter at the start
};

struct Cluster {
  std::uint32_t senders = 1;         // nodes
  std::uint32_t receiver_nodes = 1;
  std::uint32_t receivers = 8;       // agents with a GPU each, spread over their nodes in turn
  std::uint64_t link_bytes_per_s = 1'250'000'000;  // of each lane
  std::uint64_t sender_nic_bytes_per_s = 0;        // 0: the lane is what limits
  std::uint64_t receiver_nic_bytes_per_s = 0;      // likewise
  TimeNs round_trip_ns = 100 * kMicrosecondNs;
  std::uint64_t pool_bytes = 0;      // receive memory of a receiver node; 0: enough
  TimeNs keep_ns = 0;                // how long a context stays in it after its delivery
  std::uint32_t team_nodes = 0;      // peers of a node; 0: all. Then every node both sends and receives
  bool codec_takes_time = true;
};

// Bounded memory of agents' own contexts, beside the transfers: memory_run.h.
struct MemoryBound {
  double fraction = 0;             // of the contexts of a node's agents; 0: not simulated
  std::uint32_t sessions = 24;     // of one graph each, with a context for each of its agents
  std::uint64_t restore_bytes_per_s = 4'000'000'000;  // of a node, from where contexts are offloaded to
  double pause_s = 60;             // mean, exponential, between two tasks of a session
  double announce_s = 1;           // how long before a task begins its first agents are known (will_need)
  std::uint32_t tasks = 400;
  double skip = 0.1;               // share of the hand-overs that a task leaves out
};

struct Scenario {
  std::string name = "steady";
  Traffic traffic;
  Critical critical;
  Cluster cluster;
  MemoryBound memory;
  std::vector<std::string> models{"8b"};  // of the receivers in turn; "foreign:NAME" can't read the sender's KV
  std::string gpu = "datacenter";
  std::vector<Medium> media{Medium::tokens, Medium::full, Medium::int8, Medium::int4};
  MediaProfile profile = MediaProfile::built_in();
  std::vector<ModelClass> model_classes = built_in_models();
  std::vector<GpuClass> gpu_classes = built_in_gpus();
  std::uint32_t block_tokens = 64;
  // Chunks are as in the engine, but at least this much: a coarser picture of the order for more transfers a minute.
  std::uint32_t least_chunk_bytes = 2U << 20;
  std::uint32_t fidelity_floor_ppm = 0;
  // Agent graphs of the `workflow` kind: so many tasks at once.
  std::vector<std::string> graphs;
  std::uint32_t tasks = 0;
  bool describe = true;  // nodes know the graphs: hand-overs are as critical as their place in them
  double think_s = 0.5;       // mean of what an agent computes before it sends on
  std::string links;          // like --links; an empty one: none
  double link_scale_mbit_s = 10'000;
  // Repeated with each of these.
  std::vector<double> sweep_per_second;
  std::vector<std::uint32_t> sweep_agents;
  std::vector<std::string> policies;  // empty: all
};

// Where relative paths within it begin: at the file's folder.
[[nodiscard]] Result<Scenario> load_scenario(const std::string& path);
[[nodiscard]] Result<Scenario> parse_scenario(const std::string& text, const std::string& path);

}  // namespace kvrail::simulation
