// Agent graphs in the YAML form of ChatDev: graph.nodes with id and type, graph.edges with from and to.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvrail/base/result.h"

namespace kvrail::simulation {

// Who hands a context to whom in one task, without cycles: edges go from a smaller index to a larger one.
struct AgentGraph {
  std::string name;
  std::vector<std::string> agents;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
};

// Nodes that compute nothing (literal, passthrough, loop_counter) are passed through. A task goes through a loop
// once: edges that lead back are left out. No edges may be left: then no agent hands anything to another one.
[[nodiscard]] Result<AgentGraph> load_graph(const std::string& path);
[[nodiscard]] Result<AgentGraph> parse_graph(const std::string& text, const std::string& path);

}  // namespace kvrail::simulation
