// Turns of agents in tasks: one begins when something is handed to the agent, and leads to those of the agents that it hands
// something to. What became of earlier ones tells whose turn comes next, when, and which contexts it will want.
//
// Private to engine/core. Thread: the scheduler worker. Fixed memory: forgetting costs a hint.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvrail/types.h"
#include "scheduler/keyed_table.h"
#include "scheduler/transitions.h"
#include "transport/wire/messages.h"

namespace kvrail::engine {

class Turns {
 public:
  struct Used {
    Name owner, context;
  };
  struct Next {
    Name agent;
    TimeNs in_ns = 0, spread_ns = 0;  // the earliest that is likely, and by which it may be later
    std::uint32_t probability_ppm = 0;
  };
  static constexpr std::uint32_t kSteps = 2;  // hand-overs looked ahead
  static constexpr std::uint32_t kMostUsed = 4;
  using Room = std::array<Next, scheduler::Transitions::kMostPredicted>;

  Turns();

  // Something of the task came to the agent. False: it belongs to a turn that has led to nothing yet.
  bool began(TaskId task, std::uint64_t workflow, const Name& agent, TimeNs now_ns) noexcept;
  // The agent hands something of the task to another one.
  void led(TaskId task, std::uint64_t workflow, const Name& from, const Name& to, TimeNs now_ns) noexcept;
  // The agent's turn had to do with that context: the last kMostUsed are remembered.
  void used(std::uint64_t workflow, const Name& agent, const Name& owner, const Name& context) noexcept;

  // Whose turn follows the one of `agent` that begins now. Where nothing was learned yet: who follows in the description, if
  // there is one.
  [[nodiscard]] std::span<const Next> next(std::uint64_t workflow, const Name& agent,
                                           const transport::wire::Workflow* described, Room& room) noexcept;
  [[nodiscard]] std::span<const Used> used_by(std::uint64_t workflow, const Name& agent) noexcept;

 private:
  struct Turn {
    TimeNs began_ns = 0;
    bool led = false;
  };
  struct Contexts {
    std::uint32_t count = 0, next = 0;
    std::array<Used, kMostUsed> list{};
  };
  [[nodiscard]] static std::uint64_t key(std::uint64_t of, const Name& agent) noexcept;
  void remember(const Name& agent) noexcept;

  scheduler::Transitions transitions_;
  scheduler::KeyedTable<Turn> turns_;        // by task and agent
  scheduler::KeyedTable<Contexts> contexts_; // by workflow and agent
  scheduler::KeyedTable<Name> names_;        // by their keys
};

}  // namespace kvrail::engine
