#include "perf/sim/policy.h"

#include <algorithm>
#include <array>

namespace kvrail::simulation {
namespace {

constexpr std::array kPolicies{
    Policy{"tokens", Choice::fixed, Medium::tokens, Order::fifo},
    Policy{"full", Choice::fixed, Medium::full, Order::fifo},
    Policy{"int8", Choice::fixed, Medium::int8, Order::fifo},
    Policy{"int4", Choice::fixed, Medium::int4, Order::fifo},
    Policy{"greedy", Choice::greedy, Medium::automatic, Order::fifo, false},
    Policy{"text_or_kv", Choice::text_or_kv, Medium::automatic, Order::fifo, false},
    Policy{"priority", Choice::priced, Medium::automatic, Order::slots},
    Policy{"fifo", Choice::priced, Medium::automatic, Order::fifo},
    Policy{"kvrail", Choice::priced, Medium::automatic, Order::scheduled},
    Policy{"no_hysteresis", Choice::priced, Medium::automatic, Order::scheduled, false, false},
    Policy{"no_suspending", Choice::priced, Medium::automatic, Order::scheduled, true, false, false},
};

}  // namespace

std::span<const Policy> policies() {
  return kPolicies;
}

const Policy* find_policy(std::string_view name) {
  const auto it = std::find_if(kPolicies.begin(), kPolicies.end(), [name](const Policy& one) { return one.name == name; });
  return it == kPolicies.end() ? nullptr : &*it;
}

}  // namespace kvrail::simulation
