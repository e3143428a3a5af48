// One plain TCP connection over a shaped link that carries bulk units and small messages in the order
// in which they were made: what a critical message meets without a scheduler.
#pragma once

#include <cstdint>

#include "perf/bench/shaped_link.h"

namespace kvrail::bench {

struct UnderLoad {
  double p50_ms = 0, p95_ms = 0, p99_ms = 0;
  double bulk_bytes_per_s = 0;
};

inline constexpr std::size_t kNoteBytes = 4096;
// The pause before the next message: 1.5 to 6.5 ms, without a pattern that a timer could meet.
[[nodiscard]] std::int64_t note_pause_ns(std::uint64_t number);

// For `run_ns` after a warm-up: bulk in units of `unit_bytes` without end, and messages in between.
[[nodiscard]] UnderLoad run_fifo(const ShapedLink& link, std::uint64_t unit_bytes, std::int64_t run_ns);

}  // namespace kvrail::bench
