// Who comes after whom in a workflow, learned from what happened: for each agent of a workflow how many of its turns
// led to a turn of which other agent, and how long that took. Old turns fade: at 64 turns all counts are halved.
//
// Thread: owner. Fixed memory (KeyedTable); integers only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvrail/base/time.h"
#include "scheduler/keyed_table.h"

namespace kvrail::scheduler {

struct NextTurn {
  std::uint64_t agent = 0;
  std::uint32_t probability_ppm = 0;
  TimeNs after_ns = 0;   // from the beginning of the turn that was asked about, in the mean
  TimeNs spread_ns = 0;  // mean deviation of that
};

class Transitions {
 public:
  static constexpr std::uint32_t kSuccessors = 8;  // of an agent; the rarest one gives way
  static constexpr std::uint32_t kMostPredicted = 16;
  static constexpr std::uint32_t kHalveAt = 64;
  using Predicted = std::array<NextTurn, kMostPredicted>;

  // `agents`: of all workflows together, about which something is remembered.
  explicit Transitions(std::uint32_t agents) : table_(agents) {}

  // A turn of this agent has begun.
  void began(std::uint64_t workflow, std::uint64_t agent) noexcept;
  // A turn of `to` has begun, `elapsed_ns` after the turn of `from` that led to it. Call began() for it too.
  void followed(std::uint64_t workflow, std::uint64_t from, std::uint64_t to, TimeNs elapsed_ns) noexcept;

  // Whose turns follow the one of `agent` that begins now, over at most `steps` hand-overs, most probable first. The probability
  // along a way is the product, and each share is taken as one turn fewer than it was seen in, so that a single
  // observation is worth a half. An agent that can be reached in several ways stands there with the most probable.
  [[nodiscard]] std::span<const NextTurn> predict(std::uint64_t workflow, std::uint64_t agent, std::uint32_t steps,
                                                  Predicted& room) noexcept;

 private:
  struct Successor {
    std::uint64_t agent = 0;
    std::uint32_t count = 0;  // 0: empty
    TimeNs after_ns = 0, spread_ns = 0;
  };
  struct Turns {
    std::uint32_t count = 0;
    std::array<Successor, kSuccessors> next{};
  };
  [[nodiscard]] static std::uint64_t key_of(std::uint64_t workflow, std::uint64_t agent) noexcept {
    return mix_key(mix_key(workflow) ^ agent);
  }
  KeyedTable<Turns> table_;
};

}  // namespace kvrail::scheduler
