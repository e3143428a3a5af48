#include "engine/core/turns.h"

#include <algorithm>

#include "engine/core/workflows.h"

namespace kvrail::engine {
namespace {

constexpr std::uint32_t kAgents = 1024, kOpenTurns = 4096, kContextsOf = 512;

}  // namespace

Turns::Turns() : transitions_(kAgents), turns_(kOpenTurns), contexts_(kContextsOf), names_(kAgents) {}

std::uint64_t Turns::key(std::uint64_t of, const Name& agent) noexcept {
  return scheduler::mix_key(scheduler::mix_key(of) ^ name_key(agent));
}

void Turns::remember(const Name& agent) noexcept { names_.obtain(name_key(agent)) = agent; }

bool Turns::began(TaskId task, std::uint64_t workflow, const Name& agent, TimeNs now_ns) noexcept {
  Turn* known = turns_.find(key(task, agent));
  if (known != nullptr && !known->led) return false;
  turns_.obtain(key(task, agent)) = {now_ns, false};
  remember(agent);
  transitions_.began(workflow, name_key(agent));
  return true;
}

void Turns::led(TaskId task, std::uint64_t workflow, const Name& from, const Name& to, TimeNs now_ns) noexcept {
  Turn* turn = turns_.find(key(task, from));
  if (turn == nullptr) return;  // nobody saw it begin
  turn->led = true;
  remember(to);
  transitions_.followed(workflow, name_key(from), name_key(to), now_ns - turn->began_ns);
}

void Turns::used(std::uint64_t workflow, const Name& agent, const Name& owner, const Name& context) noexcept {
  Contexts& known = contexts_.obtain(key(workflow, agent));
  for (std::uint32_t i = 0; i < known.count; ++i) {
    if (known.list[i].owner == owner && known.list[i].context == context) return;
  }
  known.list[known.next] = {owner, context};
  known.next = (known.next + 1) % kMostUsed;
  known.count = std::min(known.count + 1, kMostUsed);
}

std::span<const Turns::Next> Turns::next(std::uint64_t workflow, const Name& agent,
                                         const transport::wire::Workflow* described, Room& room) noexcept {
  std::size_t count = 0;
  scheduler::Transitions::Predicted predicted;
  for (const scheduler::NextTurn& turn : transitions_.predict(workflow, name_key(agent), kSteps, predicted)) {
    const Name* name = names_.find(turn.agent);
    if (name != nullptr) room[count++] = {*name, std::max<TimeNs>(turn.after_ns - turn.spread_ns, 0), turn.spread_ns, turn.probability_ppm};
  }
  if (count > 0 || described == nullptr) return std::span(room).first(count);
  for (std::uint32_t e = 0; e < described->edge_count && count < room.size(); ++e) {
    const auto& from = described->steps[described->edges[e].from];
    if (from.agent != agent) continue;
    room[count++] = {described->steps[described->edges[e].to].agent, static_cast<TimeNs>(from.duration_ns), 0, 1'000'000};
  }
  return std::span(room).first(count);
}

std::span<const Turns::Used> Turns::used_by(std::uint64_t workflow, const Name& agent) noexcept {
  const Contexts* known = contexts_.find(key(workflow, agent));
  return known == nullptr ? std::span<const Used>{} : std::span(known->list).first(known->count);
}

}  // namespace kvrail::engine
