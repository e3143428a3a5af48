// Everything that runs at one rate: two nodes and the agents on them.
//
//   node A  coordinator, verifier-a          node B  executor-1, executor-2, verifier-b, clerk
//
// verifier-b checks executor-1 on its own node, where a hand-over moves nothing; verifier-a fetches
// the context of executor-2 over the link. The clerk's blocks have another size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "perf/demo/child_process.h"
#include "perf/demo/netns.h"
#include "perf/demo/node_process.h"
#include "perf/demo/options.h"
#include "perf/demo/transfer_log.h"

namespace kvrail::demo {

/// Where the nodes run.
struct Network {
  const LinkedNamespaces* namespaces = nullptr;  // nullptr: loopback, paced by the lane
  std::uint64_t rate_bytes_per_s = 0;
};

class Stage {
 public:
  /// Starts all, and waits until every agent is attached and known at the other node.
  [[nodiscard]] static Result<std::unique_ptr<Stage>> start(const DemoOptions& options,
                                                            const Network& network,
                                                            const std::string& folder);
  ~Stage();

  [[nodiscard]] ChildProcess& coordinator() noexcept { return agents_.front(); }
  void collect(TransferLog& log);
  /// Half B: returns when half A has gone, which ends the demo.
  [[nodiscard]] Result<void> wait_for_other_half();
  /// Fails with the name and the last words of the first program that has ended.
  [[nodiscard]] Result<void> check();
  /// Ends all in order. Fails if one did not end as it should.
  [[nodiscard]] Result<void> stop();

 private:
  Stage(const DemoOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}
  [[nodiscard]] Result<void> start_nodes(const Network& network);
  [[nodiscard]] NodeConfig config_of(int node, const Network& network) const;
  [[nodiscard]] bool has(int node) const noexcept {
    return options_.half < 0 || options_.half == node;
  }
  [[nodiscard]] NodeProcess& node(int number) noexcept {
    return nodes_[options_.half < 0 ? static_cast<std::size_t>(number) : 0];
  }
  [[nodiscard]] Result<void> start_agent(int node, const std::vector<std::string>& arguments);
  [[nodiscard]] Result<void> start_agents();
  [[nodiscard]] Result<void> wait_ready();
  [[nodiscard]] Result<void> wait_known();

  const DemoOptions& options_;
  std::string folder_;
  const LinkedNamespaces* namespaces_ = nullptr;
  std::vector<NodeProcess> nodes_;
  std::vector<ChildProcess>
      agents_;  // the coordinator first; declared last: they end before their nodes
};

}  // namespace kvrail::demo
