// Agent graphs in the YAML form of ChatDev: graph.nodes with id and type, graph.edges with from and to.
// Thread: the Conductor; it reads files.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/agent_port.h"
#include "kvrail/base/result.h"

namespace kvrail::engine {

// Who hands a context to whom in one task, without cycles: edges go from a smaller index to a larger one.
struct AgentGraph {
  std::string name;
  std::vector<std::string> agents;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
};

// Nodes that compute nothing (literal, passthrough, loop_counter) are passed through. A task goes through a loop
// once: edges that lead back are left out. No edges may be left: then no agent hands anything to another one.
// `path` stands in messages: "PATH:LINE: what".
[[nodiscard]] Result<AgentGraph> parse_graph(const std::string& text, const std::string& path);

// A graph as a node is told of it. Blanks in ids are hyphens in agents' names.
struct DescribedWorkflow {
  Name name;
  std::vector<WorkflowStep> steps;
  std::vector<WorkflowEdge> edges;
};
// The graph in a file of at most 1 MiB; refused where nobody hands anything over, or where it has more than 64 agents or
// 256 hand-overs.
[[nodiscard]] Result<DescribedWorkflow> load_workflow(const std::string& name, const std::string& path);

}  // namespace kvrail::engine
