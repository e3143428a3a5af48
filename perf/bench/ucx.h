// ucx_perftest as a baseline: two processes of it, over the UCX transports that are named.
#pragma once

#include <cstdint>
#include <string>

namespace kvrail::bench {

struct UcxFigures {
  double latency_us = 0;         // one way, average over the run
  double bytes_per_s = 0;
  double messages_per_s = 0;
};

[[nodiscard]] bool has_ucx();
// `test` as ucx_perftest names it; `transports` as in UCX_TLS ("tcp", "posix,self"). Cores -1: unpinned.
[[nodiscard]] UcxFigures run_ucx(const std::string& test, const std::string& transports, std::uint64_t bytes,
                                 std::uint64_t iterations, int server_core = -1, int client_core = -1);

}  // namespace kvrail::bench
