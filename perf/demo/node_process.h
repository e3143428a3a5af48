// One node of the demo: its configuration file, its kvraild, and its status page.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/status_page.h"
#include "kvrail/base/result.h"
#include "perf/demo/child_process.h"

namespace kvrail::demo {

struct NodeConfig {
  std::uint64_t id = 0;
  std::string socket;
  std::string listen;  // host:port
  std::string peer;    // host:port to dial, empty: waits to be dialled
  std::string psk_file;
  std::string profile;  // of the model, with its basis; empty: none
  std::string transport = "tcp";
  std::uint64_t pacing_bytes_per_s = 0;  // 0: the network itself is shaped
};

/// The TOML text that kvraild reads.
[[nodiscard]] std::string config_text(const NodeConfig& config);

/// A node's status page, mapped read-only: what kvrailctl shows.
class StatusReader {
 public:
  [[nodiscard]] static Result<StatusReader> open(const std::string& socket);
  StatusReader(StatusReader&& other) noexcept;
  StatusReader& operator=(StatusReader&&) = delete;
  ~StatusReader();
  /// A consistent copy, or nullptr if the node was writing all the time. Valid until the next call.
  [[nodiscard]] const engine::StatusData* read();

 private:
  StatusReader(void* memory, std::size_t bytes);
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<engine::StatusData> copy_;
};

class NodeProcess {
 public:
  /// Starts kvraild in the namespace and waits until it takes agents.
  [[nodiscard]] static Result<NodeProcess> start(const std::string& kvraild,
                                                 const NodeConfig& config,
                                                 const std::string& folder,
                                                 const std::string& network_namespace);
  [[nodiscard]] ChildProcess& process() noexcept { return process_; }
  [[nodiscard]] StatusReader& status() noexcept { return status_; }
  [[nodiscard]] const NodeConfig& config() const noexcept { return config_; }

 private:
  NodeProcess(NodeConfig config, ChildProcess process, StatusReader status)
      : config_(std::move(config)), process_(std::move(process)), status_(std::move(status)) {}
  NodeConfig config_;
  ChildProcess process_;
  StatusReader status_;
};

}  // namespace kvrail::demo
