#include "scheduler/transitions.h"

#include <algorithm>
#include <utility>

namespace kvrail::scheduler {
namespace {

constexpr std::uint64_t kMillion = 1'000'000;
constexpr TimeNs kGain = 4;  // a new time counts a quarter

}  // namespace

void Transitions::began(std::uint64_t workflow, std::uint64_t agent) noexcept {
  Turns& turns = table_.obtain(key_of(workflow, agent));
  if (++turns.count < kHalveAt) return;
  turns.count /= 2;
  for (Successor& next : turns.next) next.count /= 2;
}

void Transitions::followed(std::uint64_t workflow, std::uint64_t from, std::uint64_t to, TimeNs elapsed_ns) noexcept {
  Turns& turns = table_.obtain(key_of(workflow, from));
  const auto known = [to](const Successor& next) { return next.count > 0 && next.agent == to; };
  auto* next = std::find_if(turns.next.begin(), turns.next.end(), known);
  if (next == turns.next.end()) {
    next = std::min_element(turns.next.begin(), turns.next.end(),
                            [](const Successor& a, const Successor& b) { return a.count < b.count; });
    *next = Successor{to, 1, std::max<TimeNs>(elapsed_ns, 0), std::max<TimeNs>(elapsed_ns, 0) / 2};
    return;
  }
  ++next->count;
  const TimeNs error = std::max<TimeNs>(elapsed_ns, 0) - next->after_ns;
  next->after_ns += error / kGain;
  next->spread_ns += ((error < 0 ? -error : error) - next->spread_ns) / kGain;
}

std::span<const NextTurn> Transitions::predict(std::uint64_t workflow, std::uint64_t agent, std::uint32_t steps,
                                               Predicted& room) noexcept {
  std::uint32_t count = 0;
  const auto add = [&](const Successor& next, std::uint32_t turns, const NextTurn& from) {
    // Counts of turns and of successors fade at different times, and a turn may be followed twice by one agent.
    const std::uint64_t seen = std::min(next.count, turns);
    const auto probability =
        static_cast<std::uint32_t>(std::uint64_t{from.probability_ppm} * seen / (std::uint64_t{turns} + 1));
    const NextTurn found{next.agent, probability, from.after_ns + next.after_ns, from.spread_ns + next.spread_ns};
    for (std::uint32_t i = 0; i < count; ++i) {
      if (room[i].agent != next.agent) continue;
      if (room[i].probability_ppm < probability) room[i] = found;
      return;
    }
    if (count < kMostPredicted && probability > 0) room[count++] = found;
  };
  const auto expand = [&](const NextTurn& from) {
    const Turns* const turns = table_.find(key_of(workflow, from.agent));
    if (turns == nullptr || turns->count == 0) return;
    for (const Successor& next : turns->next)
      if (next.count > 0) add(next, turns->count, from);
  };
  std::uint32_t begin = 0;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint32_t end = count;
    if (step == 0) {
      expand(NextTurn{agent, kMillion, 0, 0});
    } else {
      for (std::uint32_t i = begin; i < end; ++i) expand(NextTurn{room[i]});
    }
    begin = end;
  }
  // By insertion: std::stable_sort may take memory.
  for (std::uint32_t i = 1; i < count; ++i) {
    for (std::uint32_t k = i; k > 0 && room[k - 1].probability_ppm < room[k].probability_ppm; --k)
      std::swap(room[k - 1], room[k]);
  }
  return {room.data(), count};
}

}  // namespace kvrail::scheduler
