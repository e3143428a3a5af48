// What is compared: who chooses the medium, and who orders the bytes of a lane.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvrail/types.h"

namespace kvrail::simulation {

enum class Choice : std::uint8_t {
  fixed,       // always the same medium, where that is possible
  greedy,      // the least own latency, waits included, without prices and hysteresis
  text_or_kv,  // plain KV if that wins by 100 ms over token ids
  priced,      // kvrail's
};
enum class Order : std::uint8_t {
  scheduled,  // kvrail's
  fifo,       // a lane sends its transfers one after the other
  slots,      // strict priority of classes, and to each class its turn of 2 ms in 6 ms to be first
};

struct Policy {
  std::string_view name;
  Choice choice = Choice::priced;
  Medium medium = Medium::automatic;
  Order order = Order::scheduled;
  bool hysteresis = true;
  bool by_default = true;  // runs when no policies are named
  bool suspends = true;    // of kvrail's order
};

[[nodiscard]] std::span<const Policy> policies();
[[nodiscard]] const Policy* find_policy(std::string_view name);

}  // namespace kvrail::simulation
