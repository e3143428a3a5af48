// What a Worker polls: a node, the sessions of agents, an inbox, a transport.
// Thread: the worker's, but for what an implementation says itself.
#pragma once

#include <cstddef>
#include <span>

#include "kvrail/base/time.h"

namespace kvrail::engine {

class Pollable {
 public:
  Pollable() = default;
  Pollable(const Pollable&) = delete;
  Pollable& operator=(const Pollable&) = delete;
  virtual ~Pollable() = default;

  // Bounded work; returns how much was done, 0 for none. Takes no memory from the heap.
  virtual std::size_t cycle(TimeNs now_ns) noexcept = 0;
  // Before the worker parks: from now on any new work makes a wait fd readable. False: there is
  // work already, the worker cycles again instead.
  [[nodiscard]] virtual bool arm() noexcept = 0;
  // Valid until the next cycle().
  [[nodiscard]] virtual std::span<const int> wait_fds() const noexcept = 0;
  // When cycle() must run again even if nothing becomes readable; kNever: no need.
  [[nodiscard]] virtual TimeNs next_deadline_ns() const noexcept = 0;
};

}  // namespace kvrail::engine
