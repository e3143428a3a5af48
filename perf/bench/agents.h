// Agents of the benchmarks: how they attach, and contexts for them to hand over.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "kvrail/agent.h"
#include "perf/bench/processes.h"

namespace kvrail::bench {

inline constexpr Nanoseconds kPatience = std::chrono::seconds(60);  // only bounds a hang

// The value, or a Failure that says what could not be done.
template <class T>
T must(Result<T> result, const char* what) {
  if (!result.ok()) throw Failure(std::string(what) + ": " + name(result.status().code) + " " + result.error().message);
  return std::move(result).value();
}
inline void must(const Result<void>& result, const char* what) {
  if (!result.ok()) throw Failure(std::string(what) + ": " + name(result.status().code) + " " + result.error().message);
}

[[nodiscard]] Layout small_layout();   // blocks of 16 tokens, 4 KiB
[[nodiscard]] Layout large_layout();   // blocks of 32 tokens, 64 KiB

[[nodiscard]] AttachOptions agent_options(const std::string& name, const Layout& layout, std::uint64_t arena_bytes);
[[nodiscard]] Agent attach(const std::string& socket, AttachOptions options);

// A context of `block_count` blocks whose tokens no other seed has, so that no block is known anywhere.
// The rows of each block begin with seed and block number where `write` is set, for verify().
struct NewContext {
  Blocks blocks;
  Context context;
};
[[nodiscard]] NewContext commit_new(Agent& agent, const std::string& name, std::uint32_t block_count,
                                    std::uint64_t seed, bool write);
// The seed in a delivery's first token; it must be `block_count` blocks long.
[[nodiscard]] std::uint32_t seed_of(const Delivery& delivery);
// Every block bears its seed and number; a Failure says which does not.
void verify(const Delivery& delivery, std::uint32_t block_count, std::uint64_t seed);

// Sends and waits for the outcome; a Failure if it is not ok.
void send_and_wait(Agent& agent, const Context& context, std::string_view receiver, const SendOptions& options);

}  // namespace kvrail::bench
