// Two kvraild and what agents hand over between them: contexts whose every byte follows from a seed and
// its place, so that a receiver can check them without the sender.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvrail/base/prng.h"
#include "tests/daemon/daemon.h"

namespace kvrail::test {

inline Layout layout() {
  Layout l;
  l.layers = 2;
  l.kv_heads = 2;
  l.head_dim = 64;
  l.block_tokens = 16;
  return l;
}

struct Link {
  const char* name;
  bool shm = false;
  bool epoll = false;
  const char* extra = "";   // further sections for both nodes
  const char* verbs = nullptr;   // the address of an RDMA port: lanes over it, and no others
  const char* tcp = "";     // further lines of the section tcp
  const char* receive_arena = "64 MiB";
};
inline constexpr Link kLinks[] = {
    {"tcp, shared worker"},
    {"tcp, dedicated lane worker", false, false, "[runtime]\nmode = \"dedicated\"\n"},
    {"tcp over epoll", false, true},
    {"shm", true},
};

// Two daemons, B dialling A.
class Pair {
 public:
  // `extra`: further sections for both nodes, beside the link's; "@NODE@" in it is a or b.
  explicit Pair(const Link& link, std::string extra = {}) : link_(link), extra_(std::move(extra)), port_(free_port()) {
    start_a();
    start_b();
  }
  void start_a() { a_ = start("a", 1, true); }
  void start_b() { b_ = start("b", 2, false); }
  [[nodiscard]] std::string socket(const std::string& node) const { return dir_.path(node + ".sock"); }
  [[nodiscard]] Process& a() { return *a_; }
  [[nodiscard]] Process& b() { return *b_; }
  // `more`: media beside those that every agent takes.
  [[nodiscard]] Agent attach(const std::string& node, const std::string& name, MediumMask more = 0) {
    AttachOptions options;
    options.socket_path = dir_.path(node + ".sock");
    options.name = name;
    options.tenant = "test";
    options.layout = layout();
    options.tokenizer = {1, 2};
    options.accepted |= more;
    options.timeout = kSoon;
    auto agent = Agent::attach(options);
    if (!agent.ok()) {
      INFO((node == "a" ? a() : b()).output_now());
      FAIL(agent.error().message);
    }
    return std::move(agent).value();
  }

 private:
  std::unique_ptr<Process> start(const std::string& node, int id, bool listens) {
    std::string text = "[node]\nid = " + std::to_string(id) + "\n[attach]\nsocket = \"" + dir_.path(node + ".sock") +
                       "\"\n[memory]\ntables = \"64 MiB\"\nagent_arena = \"16 MiB\"\n";
    text += std::string("receive_arena = \"") + link_.receive_arena + "\"\n";
    text += "[transfer]\nwindow_tokens = 160\nsparse_values = \"lossless\"\nsummary_tokens = 100\n";
    std::string extra = link_.extra + extra_;
    for (std::size_t at = extra.find("@NODE@"); at != std::string::npos; at = extra.find("@NODE@")) extra.replace(at, 6, node);
    text += extra;
    const bool verbs = link_.verbs != nullptr;
    const std::string host = verbs ? link_.verbs : "127.0.0.1";
    const std::string address = link_.shm ? dir_.path("lane") : host + ":" + std::to_string(port_);
    const std::string table = link_.shm ? "[shm]\n"
                              : verbs   ? "[tcp]\ninsecure = true\n[verbs]\n"
                                        : std::string("[tcp]\n") + (link_.epoll ? "force_epoll = true\n" : "") + link_.tcp;
    text += table + (listens ? "listen = \"" + address + "\"\n" : "");
    if (!listens) {
      text += "[[peer]]\naddress = \"" + address + "\"\ntransport = \"" + (link_.shm ? "shm" : verbs ? "verbs" : "tcp") + "\"\n";
    }
    auto process = std::make_unique<Process>(std::vector<std::string>{kvraild_path(), "--config",
                                                                      dir_.write(node + ".toml", text)});
    INFO(process->output());
    REQUIRE(process->says("takes agents at", kSoonMs));
    return process;
  }

  TempDir dir_;
  Link link_;
  std::string extra_;
  int port_;
  std::unique_ptr<Process> a_;
  std::unique_ptr<Process> b_;
};

inline std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t count) {
  Prng prng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.uniform(32'000));
  return tokens;
}

// The value that the tests write at one place of a row: bf16 between 1 and 2, from the position alone,
// so that a receiver can check any block without the sender.
inline std::uint16_t value_at(std::uint64_t seed, std::uint32_t position, std::uint32_t half, std::size_t i) {
  const std::uint64_t mixed = (seed * 1'000'003 + position) * 31 + half * 7 + i;
  return static_cast<std::uint16_t>(0x3f80U | (mixed * 0x9E3779B97F4A7C15ULL >> 57));
}

inline void fill(Blocks& blocks, std::uint64_t seed, std::uint32_t from, std::uint32_t to) {
  const Layout l = layout();
  for (std::uint32_t position = from; position < to; ++position) {
    for (std::uint32_t half = 0; half < l.layers * 2; ++half) {
      const auto row = blocks.row(position / l.block_tokens, half / 2, half % 2, position % l.block_tokens);
      for (std::size_t i = 0; i < row.size() / 2; ++i) {
        const std::uint16_t value = value_at(seed, position, half, i);
        std::memcpy(row.data() + i * 2, &value, 2);
      }
    }
  }
}

// Bytes that differ from what fill() wrote, over all valid rows of the delivery.
inline std::size_t differences(const Delivery& delivery, std::uint64_t seed) {
  const Layout l = layout();
  std::size_t wrong = 0;
  std::size_t packed = 0;  // rows of topk so far
  for (const BlockView block : delivery.blocks()) {
    for (std::uint32_t token = 0; token < block.tokens; ++token) {
      const std::uint32_t position =
          delivery.positions().empty() ? block.position + token : delivery.positions()[packed++];
      for (std::uint32_t half = 0; half < l.layers * 2; ++half) {
        const std::byte* row = block.data.data() + l.row_offset(half / 2, half % 2, token);
        for (std::size_t i = 0; i < l.row_bytes() / 2; ++i) {
          const std::uint16_t value = value_at(seed, position, half, i);
          wrong += std::memcmp(row + i * 2, &value, 2) != 0;
        }
      }
    }
  }
  return wrong;
}

struct Growing {
  explicit Growing(Agent& owner, std::uint64_t s, std::uint32_t capacity_tokens)
      : agent(owner), seed(s), all(tokens_of(s, capacity_tokens)) {
    auto allocated = agent.allocate(layout(), capacity_tokens / layout().block_tokens + 1);
    REQUIRE_MESSAGE(allocated.ok(), (allocated.ok() ? "" : allocated.error().message));
    blocks.emplace(std::move(allocated).value());
  }
  Context commit(std::uint32_t count) {
    fill(*blocks, seed, length, count);
    length = count;
    auto context = agent.commit("doc-" + std::to_string(seed), std::span(all).first(count), *blocks);
    REQUIRE_MESSAGE(context.ok(), (context.ok() ? "" : context.error().message));
    return context.value();
  }
  Agent& agent;
  std::uint64_t seed;
  std::vector<TokenId> all;
  std::optional<Blocks> blocks;
  std::uint32_t length = 0;
};

inline Outcome send(Agent& from, const Context& context, std::string_view to, Medium medium) {
  SendOptions options;
  options.medium = medium;
  // The directory of the other node may still be under way right after its daemon came up.
  for (int attempt = 0;; ++attempt) {
    auto ticket = from.send(context, {to}, options);
    REQUIRE_MESSAGE(ticket.ok(), (ticket.ok() ? "" : ticket.error().message));
    auto outcomes = from.wait(ticket.value(), kSoon);
    REQUIRE_MESSAGE(outcomes.ok(), (outcomes.ok() ? "" : outcomes.error().message));
    REQUIRE(outcomes->size() == 1);
    const Outcome outcome = outcomes->front();
    if (outcome.status.code != Code::not_found || attempt == 200) return outcome;
    static_cast<void>(from.receive(std::chrono::milliseconds(25)));
  }
}

}  // namespace kvrail::test
