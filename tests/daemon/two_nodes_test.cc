// Two real kvraild processes and agents in this one: every medium over every transport and worker
// mode, then faults: a peer that dies, stops, or comes back as another.
#include <doctest/doctest.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvrail/agent.h"
#include "kvrail/base/prng.h"
#include "tests/daemon/process.h"

namespace kvrail::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kSoonMs = 20'000;   // only bounds a hang
constexpr seconds kSoon{20};

Layout layout() {
  Layout l;
  l.layers = 2;
  l.kv_heads = 2;
  l.head_dim = 64;
  l.block_tokens = 16;
  return l;
}

struct Link {
  const char* name;
  bool shm;
  const char* extra;   // further configuration of both nodes
};
constexpr Link kLinks[] = {
    {"tcp, shared worker", false, ""},
    {"tcp, dedicated lane worker", false, "[runtime]\nmode = \"dedicated\"\n"},
    {"tcp over epoll", false, "[tcp2]\n"},
    {"shm", true, ""},
};

// Two daemons, B dialling A.
class Pair {
 public:
  explicit Pair(const Link& link) : link_(link), port_(free_port()) {
    start_a();
    start_b();
  }
  void start_a() { a_ = start("a", 1, true); }
  void start_b() { b_ = start("b", 2, false); }
  [[nodiscard]] Process& a() { return *a_; }
  [[nodiscard]] Process& b() { return *b_; }
  [[nodiscard]] Agent attach(const std::string& node, const std::string& name) const {
    AttachOptions options;
    options.socket_path = dir_.path(node + ".sock");
    options.name = name;
    options.tenant = "test";
    options.layout = layout();
    options.tokenizer = {1, 2};
    auto agent = Agent::attach(options);
    REQUIRE_MESSAGE(agent.ok(), (agent.ok() ? "" : agent.error().message));
    return std::move(agent).value();
  }

 private:
  std::unique_ptr<Process> start(const std::string& node, int id, bool listens) {
    const bool epoll = std::string_view(link_.extra) == "[tcp2]\n";
    std::string text = "[node]\nid = " + std::to_string(id) + "\n[attach]\nsocket = \"" + dir_.path(node + ".sock") +
                       "\"\n[memory]\ntables = \"64 MiB\"\nreceive_arena = \"64 MiB\"\nagent_arena = \"16 MiB\"\n";
    if (!epoll) text += link_.extra;
    const std::string address = link_.shm ? dir_.path("lane") : "127.0.0.1:" + std::to_string(port_);
    const std::string table = link_.shm ? "[shm]\n" : std::string("[tcp]\n") + (epoll ? "force_epoll = true\n" : "");
    text += table + (listens ? "listen = \"" + address + "\"\n" : "");
    if (!listens) {
      text += "[[peer]]\naddress = \"" + address + "\"\ntransport = \"" + (link_.shm ? "shm" : "tcp") + "\"\n";
    }
    auto process = std::make_unique<Process>(
        std::vector<std::string>{kvraild_path(), "--config", dir_.write(node + ".toml", text)});
    INFO(process->output());
    REQUIRE(process->says("takes agents at", kSoonMs));
    return process;
  }

  TempDir dir_;
  Link link_;
  int port_;
  std::unique_ptr<Process> a_;
  std::unique_ptr<Process> b_;
};

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t count) {
  Prng prng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.uniform(32'000));
  return tokens;
}

// The value that the tests write at one place of a row: bf16 between 1 and 2, from the position alone,
// so that a receiver can check any block without the sender.
std::uint16_t value_at(std::uint64_t seed, std::uint32_t position, std::uint32_t half, std::size_t i) {
  const std::uint64_t mixed = (seed * 1'000'003 + position) * 31 + half * 7 + i;
  return static_cast<std::uint16_t>(0x3f80U | (mixed * 0x9E3779B97F4A7C15ULL >> 57));
}

void fill(Blocks& blocks, std::uint64_t seed, std::uint32_t from, std::uint32_t to) {
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
std::size_t differences(const Delivery& delivery, std::uint64_t seed) {
  const Layout l = layout();
  std::size_t wrong = 0;
  for (const BlockView block : delivery.blocks()) {
    for (std::uint32_t token = 0; token < block.tokens; ++token) {
      for (std::uint32_t half = 0; half < l.layers * 2; ++half) {
        const std::byte* row = block.data.data() + l.row_offset(half / 2, half % 2, token);
        for (std::size_t i = 0; i < l.row_bytes() / 2; ++i) {
          const std::uint16_t value = value_at(seed, block.position + token, half, i);
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

Outcome send(Agent& from, const Context& context, std::string_view to, Medium medium) {
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
    static_cast<void>(from.receive(milliseconds(25)));
  }
}

TEST_CASE("two nodes / every medium arrives right, growth moves only what is new, over every link") {
  for (const Link& link : kLinks) {
    CAPTURE(link.name);
    Pair pair(link);
    Agent planner = pair.attach("a", "planner");
    Agent coder = pair.attach("b", "coder");
    for (const Medium medium : {Medium::full, Medium::int8, Medium::tokens, Medium::automatic}) {
      CAPTURE(medium_name(medium));
      Growing doc(planner, 10 + static_cast<std::uint64_t>(medium), 2000);
      std::uint64_t first_bytes = 0;
      for (const std::uint32_t length : {1000U, 1001U, 1024U, 1900U}) {
        CAPTURE(length);
        const Outcome sent = send(planner, doc.commit(length), "coder", medium);
        REQUIRE_MESSAGE(sent.status.ok(), name(sent.status.code));
        auto got = coder.receive(kSoon);
        REQUIRE_MESSAGE(got.ok(), (got.ok() ? "" : got.error().message));
        CHECK(got->owner() == "planner");
        CHECK(std::vector<TokenId>(got->tokens().begin(), got->tokens().end()) ==
              std::vector<TokenId>(doc.all.begin(), doc.all.begin() + length));
        if (medium == Medium::tokens) {
          CHECK(got->blocks().empty());
          continue;
        }
        if (medium == Medium::automatic && got->medium() == Medium::tokens) continue;
        CHECK(got->blocks().size() == (length + 15) / 16);
        if (medium == Medium::full) {
          CHECK(got->medium() == Medium::full);
          CHECK(differences(*got, doc.seed) == 0);
          CHECK(got->epsilon() == 0.0);
          if (length == 1000) first_bytes = sent.bytes;
          if (length == 1001) CHECK(sent.bytes < first_bytes / 50);
        }
        if (medium == Medium::int8) CHECK(got->epsilon() > 0.0);
      }
    }
  }
}

TEST_CASE("two nodes / the receiver fetches, and several receivers of one node cost one copy") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  Agent tester = pair.attach("b", "tester");
  Growing doc(planner, 5, 1000);
  const Context context = doc.commit(800);
  CHECK(send(planner, context, "coder", Medium::full).status.ok());
  auto first = coder.receive(kSoon);
  REQUIRE(first.ok());
  const Outcome again = send(planner, context, "tester", Medium::full);
  CHECK(again.status.ok());
  CHECK(again.missing_blocks == 0);
  auto second = tester.receive(kSoon);
  REQUIRE(second.ok());
  CHECK(differences(*second, 5) == 0);
  auto ticket = tester.fetch("planner", "doc-5");
  REQUIRE(ticket.ok());
  const auto fetched = tester.wait(ticket.value(), kSoon);
  REQUIRE(fetched.ok());
  CHECK(fetched->front().status.ok());
  auto absent = tester.fetch("planner", "no-such-context");
  REQUIRE(absent.ok());
  const auto refused = tester.wait(absent.value(), kSoon);
  REQUIRE(refused.ok());
  CHECK(refused->front().status.code == Code::not_found);
}

TEST_CASE("two nodes / a peer killed mid-transfer ends the ticket once, and its next life is served") {
  for (const bool stop : {false, true}) {   // killed, or stopped so that its sockets stay open
    CAPTURE(stop);
    Pair pair(kLinks[0]);
    Agent planner = pair.attach("a", "planner");
    std::optional<Agent> coder(pair.attach("b", "coder"));
    Growing doc(planner, 3, 4000);
    REQUIRE(send(planner, doc.commit(100), "coder", Medium::full).status.ok());
    const Context big = doc.commit(4000);
    SendOptions options;
    options.medium = Medium::full;
    options.deadline = seconds(8);
    pair.b().stop();   // the bytes in flight stay in flight
    auto ticket = planner.send(big, {"coder"}, options);
    REQUIRE(ticket.ok());
    if (!stop) pair.b().signal(SIGKILL);
    const auto outcomes = planner.wait(ticket.value(), kSoon);
    REQUIRE_MESSAGE(outcomes.ok(), (outcomes.ok() ? "" : outcomes.error().message));
    REQUIRE(outcomes->size() == 1);
    CHECK_FALSE(outcomes->front().status.ok());
    INFO(name(outcomes->front().status.code));
    if (stop) {
      pair.b().signal(SIGCONT);
      pair.b().signal(SIGTERM);
    }
    CHECK(pair.b().wait(kSoonMs) >= 0);
    coder.reset();
    pair.start_b();
    coder.emplace(pair.attach("b", "coder"));
    CHECK(send(planner, big, "coder", Medium::full).status.ok());
    auto got = coder->receive(kSoon);
    REQUIRE(got.ok());
    CHECK(differences(*got, 3) == 0);
  }
}

TEST_CASE("two nodes / the sender's daemon is killed: its agent is told, the other side shows nothing partial") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  Growing doc(planner, 4, 4000);
  REQUIRE(send(planner, doc.commit(100), "coder", Medium::full).status.ok());
  REQUIRE(coder.receive(kSoon).ok());
  const Context big = doc.commit(4000);
  pair.b().stop();
  auto ticket = planner.send(big, {"coder"});
  REQUIRE(ticket.ok());
  pair.a().signal(SIGKILL);
  pair.b().signal(SIGCONT);
  const auto outcomes = planner.wait(ticket.value(), kSoon);
  const bool told = !outcomes.ok() && outcomes.status().code == Code::peer_down;
  CHECK(told);
  auto got = coder.receive(milliseconds(500));
  if (got.ok()) CHECK(differences(*got, 4) == 0);   // all of it had arrived: then whole and right
  CHECK(coder.begin_task({}).ok());
}

}  // namespace
}  // namespace kvrail::test
