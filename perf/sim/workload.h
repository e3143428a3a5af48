// What happens in a simulation whatever the policy: who sends what to whom, and when. All policies of a run see the
// same one, so that they differ by their decisions only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/agent_graph.h"
#include "kvrail/base/prng.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "perf/sim/scenario.h"
#include "perf/sim/traces.h"

namespace kvrail::simulation {

using engine::AgentGraph;

inline constexpr std::uint32_t kNone = UINT32_MAX;

// One transfer. Its tokens count from the start of a context; of opaque bytes nothing is known but their number.
struct Job {
  TimeNs submitted_ns = 0;      // with predecessors: when they have all ended, and think_ns later
  TimeNs think_ns = 0;
  TimeNs deadline_ns = 0;       // from the submission on; 0: none
  std::uint32_t sender = 0;     // node
  std::uint32_t sender_agent = 0;
  std::uint32_t receiver = 0;   // agent
  std::uint32_t tokens = 0;
  std::uint64_t opaque_bytes = 0;
  std::uint32_t weight = 4;     // both roles
  std::uint32_t criticality_milli = 1000;  // of the hand-over in its task's graph
  bool critical = false;
  bool beat = false;  // periodic: what reservations are for
  std::uint32_t task = kNone;
  std::uint32_t predecessors = 0;
  std::uint32_t first_successor = 0, successor_count = 0;  // in Workload::successors
  std::uint32_t first_hash = 0, hash_count = 0;            // in Workload::hashes
};

struct ReceiverAgent {
  std::uint32_t node = 0;
  std::uint32_t model = 0;  // in Workload::models
};
// What an agent runs.
struct RunModel {
  Layout layout;
  ComputeProfile compute;
  bool foreign = false;  // its tokenizer is the sender's, its Layout is not
};
struct LanePlace {
  std::uint32_t sender = 0, receiver = 0;  // nodes
};

struct Workload {
  std::uint32_t nodes = 0;
  std::vector<ReceiverAgent> receivers;
  std::vector<RunModel> models;
  std::vector<LanePlace> lanes;      // grouped by sender
  std::vector<Job> jobs;             // those without predecessors by time
  std::vector<std::uint32_t> successors;
  std::vector<std::uint64_t> hashes;
  std::uint32_t hash_tokens = 512;   // of a block that a hash names
  std::uint32_t tasks = 0;
  std::vector<TimeNs> task_starts;
  LinkTraces links;                  // empty: lanes are constant
};

// Tokens of a context, log-normal within bounds.
[[nodiscard]] std::uint32_t draw_context_tokens(const Traffic& traffic, Prng& prng);

// `trace`: its requests replace arrivals and sizes.
[[nodiscard]] Result<Workload> make_workload(const Scenario& scenario, std::uint64_t seed, const RequestTrace* trace,
                                             LinkTraces links, const std::vector<AgentGraph>& graphs);

}  // namespace kvrail::simulation
