// The command line of kvrail-demo.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/base/time.h"

namespace kvrail::demo {

struct DemoOptions {
  std::vector<std::uint64_t> rates_bytes_per_s;
  std::uint32_t tasks = 40;  // of each policy at each rate
  TimeNs prefill_per_token_ns = 500 * kMicrosecondNs;
  std::uint64_t seed = 1;
  std::string transport = "tcp";  // or verbs: no shaping, on the machine's RDMA device
  // verbs, two machines: this one has node `half` (0 or 1) and its agents; -1: both are here.
  int half = -1;
  std::vector<std::string> addresses;  // of node A and node B on their RDMA devices
  std::string key;                     // file that both halves have; empty: one is made
  bool brief = false;                  // only the policies adaptive and full
  std::string out;                     // folder of result.json and result.svg
  std::string kvraild, agent, model;   // paths
  std::string profile;                 // what its calibration found out
  bool keep = false;                   // keeps the working folder with configs and logs
  bool loopback = false;               // does not even try namespaces
};

/// Reads the command line; on failure the message is what to print. `exit_code` is set when the
/// program should end at once (help, or bad usage).
[[nodiscard]] Result<DemoOptions> parse_options(int argc, char** argv, int& exit_code);

/// Whether the policy (of kPolicies) is run.
[[nodiscard]] bool runs_policy(const DemoOptions& options, std::string_view policy) noexcept;

/// "1Gbit/s,50Mbit/s": units as in kvraild's configuration.
[[nodiscard]] Result<std::vector<std::uint64_t>> parse_rates(const std::string& text);

}  // namespace kvrail::demo
