// Loss along a lineage: it never adds up below the floor, and what was lost is given back while all is quiet, or before a
// transfer that may not go on with it.
#include <array>
#include <string>

#include "scheduler/cost.h"
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr std::uint64_t kBlockTokens = 16;

double fidelity_of(std::uint32_t epsilon_ppm) {
  return static_cast<double>(scheduler::fidelity_ppm(scheduler::MediumLoss{}, epsilon_ppm)) * 1e-6;
}

// Agents on nodes of their own, in a row: each gets a context from the one before, computes a block more on what has
// come, and hands the longer one on, by int4 wherever that is possible.
class Chain {
 public:
  static constexpr std::uint64_t kSeed = 7;

  Chain(std::size_t length, std::uint32_t floor_ppm) {
    NodeOptions options = World::small_options(1, 1);
    options.policy = Medium::int4;
    options.lineage_floor_ppm = floor_ppm;
    for (std::size_t i = 0; i < length; ++i) {
      hosts_.push_back(&world_.add(i + 1, &options));
      agents_.push_back(std::make_unique<TestAgent>(*hosts_[i], "agent" + std::to_string(i)));
      if (i > 0) world_.dial(*hosts_[i - 1], i + 1);
    }
    REQUIRE(world_.run_until([&] {
      for (std::size_t i = 0; i + 1 < length; ++i) {
        if (!hosts_[i]->node->knows(name_of("tenant"), name_of("agent" + std::to_string(i + 1)))) return false;
      }
      return true;
    }));
    REQUIRE(agents_[0]->commit("doc", kSeed, 4 * kBlockTokens).ok());
  }

  // Agent `from` hands it to the next one, who goes on with it. What has come.
  ManifestHeader hop(std::size_t from) {
    const TicketId ticket = agents_[from]->send("doc", {"agent" + std::to_string(from + 1)});
    AgentEvent sent, delivery;
    REQUIRE(world_.run_until([&] { return agents_[from]->take(AgentEventKind::sent, sent, ticket); }));
    REQUIRE(sent.status.ok());
    TestAgent& to = *agents_[from + 1];
    REQUIRE(to.take(AgentEventKind::delivery, delivery));
    const Received got = read_delivery(*hosts_[from + 1], delivery);
    computed_.push_back(delivery.medium == Medium::tokens);
    go_on(from + 1, delivery, got);
    return got.header;
  }
  // λ of the newest context of an agent.
  double fidelity(std::size_t at) {
    VersionView view;
    Store& store = hosts_[at]->node->store();
    REQUIRE(store.view(store.find_for(agents_[at]->handle, name_of("doc"), 0), view));
    return fidelity_of(view.epsilon_ppm);
  }
  std::uint64_t counted(std::uint64_t StatusCounters::* which) {
    std::uint64_t sum = 0;
    for (Host* host : hosts_) sum += host->node->counters().*which;
    return sum;
  }
  std::size_t computed() const { return static_cast<std::size_t>(std::count(computed_.begin(), computed_.end(), true)); }
  void check() { world_.check(); }

 private:
  // Commits a block more than has come. Of token ids all is computed anew, on what was shown with them.
  void go_on(std::size_t at, const AgentEvent& delivery, const Received& got) {
    TestAgent& agent = *agents_[at];
    Node& node = *hosts_[at]->node;
    const std::size_t blocks = got.tokens.size() / kBlockTokens + 1;
    const auto first = static_cast<std::uint32_t>(got.blocks.size());
    AgentEvent event;
    REQUIRE(node.allocate(agent.handle, 500, static_cast<std::uint32_t>(blocks) - first).ok());
    REQUIRE(agent.take(AgentEventKind::allocated, event, 500));
    const Extent extent = event.extent;
    std::byte* base = node.store().arena(extent.arena)->base() + extent.offset;
    for (std::size_t token = first * kBlockTokens; token < blocks * kBlockTokens; ++token) {
      TestAgent::write_row(agent.layout, kSeed, token, base + (token / kBlockTokens - first) * agent.layout.block_bytes());
    }
    const auto tokens = TestAgent::tokens_of(kSeed, blocks * kBlockTokens);
    REQUIRE(node.commit(agent.handle, 501, name_of("doc"), tokens, std::span(&extent, 1), delivery.delivery, first).ok());
    REQUIRE(world_.run_until([&] { return agent.take(AgentEventKind::committed, event, 501); }));
    REQUIRE(event.status.ok());
    REQUIRE(node.release(agent.handle, delivery.delivery, 0).ok());
  }

  World world_;
  std::vector<Host*> hosts_;
  std::vector<std::unique_ptr<TestAgent>> agents_;
  std::vector<bool> computed_;
};

// A sender, a receiver, and a third agent on a node of its own that the receiver can hand things on to.
struct Forwarding {
  explicit Forwarding(std::uint64_t prefill_per_token_ns = 1'000'000) {
    AgentInfo info = TestAgent::base_info();
    info.compute.prefill_per_token_ns = prefill_per_token_ns;
    c = &pair.world.add(3);
    pair.world.dial(*c, 2);
    last = std::make_unique<TestAgent>(*c, "last", info);
    REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("last")); }));
    REQUIRE(pair.sender->commit("doc", 8, 100).ok());
    CHECK(pair.send("doc", {.medium = Medium::int4}).status.ok());
    (void)pair.delivered();  // the agent goes on reading
  }
  // The receiver hands on what it was sent. What arrives at the last agent.
  Received forward(const SendOptions& options) {
    const TicketId ticket = pair.receiver->send("doc", {"last"}, options);
    REQUIRE(pair.receiver->last_status.ok());
    AgentEvent sent, delivery;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::sent, sent, ticket); }));
    REQUIRE(sent.status.ok());
    REQUIRE(last->take(AgentEventKind::delivery, delivery));
    return read_delivery(*c, delivery);
  }
  [[nodiscard]] const StatusCounters& counters() { return pair.b->node->counters(); }
  [[nodiscard]] std::uint32_t epsilon_ppm() {
    VersionView view;
    Store& store = pair.b->node->store();
    REQUIRE(store.view(store.find(store.find_tenant(name_of("tenant")), name_of("sender"), name_of("doc"), 0), view));
    return view.epsilon_ppm;
  }

  Pair pair;
  Host* c = nullptr;
  std::unique_ptr<TestAgent> last;
};

}  // namespace

TEST_CASE("core / lineage / loss of one hand-over after the other never adds up below the floor") {
  constexpr std::size_t kHops = 15;  // an agent and its arena each; int4 loses 0.0095 in each of them
  Chain chain(kHops + 1, 900'000);
  std::size_t otherwise = 0;
  for (std::size_t hop = 0; hop < kHops; ++hop) {
    CAPTURE(hop);
    const ManifestHeader got = chain.hop(hop);
    otherwise += got.medium == Medium::int4 ? 0 : 1;
    CHECK(fidelity_of(got.epsilon_ppm) >= 0.9);
    CHECK(chain.fidelity(hop + 1) >= 0.9);
  }
  // Eleven hops fit in -ln 0.9 = 0.10536.
  CHECK(otherwise == kHops - 11);
  CHECK(chain.counted(&StatusCounters::lineages_kept) >= kHops - 11);
  CHECK(chain.counted(&StatusCounters::lineages_below) == 0);
  chain.check();
}

TEST_CASE("core / lineage / without a floor the same hand-overs add up until it is under one") {
  Chain chain(13, 0);
  for (std::size_t hop = 0; hop < 12; ++hop) CHECK(chain.hop(hop).medium == Medium::int4);
  CHECK(chain.fidelity(12) < 0.9);
}

TEST_CASE("core / lineage / one that is under its floor is computed anew, and what is held below it counts as missing") {
  Chain chain(6, 985'000);  // -ln 0.985 = 0.0151: one hop by int4, and then others
  std::size_t lossy = 0;
  for (std::size_t hop = 0; hop < 5; ++hop) {
    lossy += chain.hop(hop).medium == Medium::int4 ? 1 : 0;
    CHECK(chain.fidelity(hop + 1) >= 0.985);
  }
  CHECK(lossy == 1);
  // The receiver holds a coarse copy, and one that may lose less comes: all blocks of it count as missing.
  Forwarding f;
  const AgentEvent again = f.pair.send("doc", {.fidelity_floor_ppm = 999'000});
  CHECK(again.missing_blocks == 7);
  CHECK(largest_error(*f.pair.b, read_delivery(*f.pair.b, f.pair.delivered()), 8) < 0.05F);
}

TEST_CASE("core / lineage / who takes nothing else has what is below the floor, and it is counted") {
  NodeOptions options = World::small_options(1, 1);
  options.policy = Medium::int4;
  options.lineage_floor_ppm = 999'000;
  AgentInfo picky = TestAgent::base_info();
  picky.accepted = mask_of(Medium::int4);
  Pair pair(options, TestAgent::base_info(), picky);
  REQUIRE(pair.sender->commit("doc", 8, 100).ok());
  const AgentEvent sent = pair.send("doc");
  CHECK(sent.status.ok());
  CHECK(sent.medium == Medium::int4);
  CHECK(pair.delivered().medium == Medium::int4);
  CHECK(pair.b->node->counters().lineages_below == 1);
  // A floor of its own is no preference.
  CHECK(pair.send("doc", {.fidelity_floor_ppm = 999'000}).status.code == Code::rejected);
  pair.finish();
}

TEST_CASE("core / refresh / while all is quiet the planes come that were left out, and nobody is told") {
  Forwarding f;
  CHECK(f.epsilon_ppm() == 9'500);
  const std::uint64_t before = f.counters().payload_bytes_in;
  REQUIRE(f.pair.world.run_until([&] { return f.counters().refreshes == 1; }));
  CHECK(f.epsilon_ppm() == 40);
  const std::uint64_t moved = f.counters().payload_bytes_in - before;
  CHECK(f.counters().refreshed_bytes == moved);
  CHECK(moved == 100 * small_layout().token_bytes() / 4);  // four bits a value of sixteen, no scales
  f.pair.world.run_for(5 * kSecondNs);
  CHECK(f.counters().refreshes == 1);  // there is nothing more to have
  CHECK(f.counters().refreshes_failed == 0);
  CHECK(f.pair.receiver->count(AgentEventKind::delivery) == 0);
  CHECK(f.pair.receiver->count(AgentEventKind::fetched) == 0);
  // What is handed on now has it.
  CHECK(f.forward({.medium = Medium::int8}).header.epsilon_ppm == 40);
  CHECK(f.counters().refreshes_forced == 0);
  f.pair.finish();
}

TEST_CASE("core / refresh / makes way for whatever else moves, and comes when all is quiet again") {
  Forwarding f;
  // So slow that it is under way when somebody else comes: plane 1 has 12,800 bytes.
  transport::sim::LinkModel slow;
  slow.rate_bytes_per_s = 25'000;
  f.pair.world.network.set_link(1, 2, slow);
  REQUIRE(f.pair.world.run_until([&] { return f.pair.b->node->open_transfers() > 0; }));
  f.pair.world.run_for(50 * kMillisecondNs);
  REQUIRE(f.counters().refreshes == 0);
  CHECK(f.forward({.medium = Medium::int4}).header.epsilon_ppm == 9'500);
  CHECK(f.counters().refreshes_failed == 1);
  REQUIRE(f.pair.world.run_until([&] { return f.counters().refreshes == 1; }));
  CHECK(f.epsilon_ppm() == 40);
  f.pair.finish();
}

TEST_CASE("core / refresh / does not hold up a drain") {
  Forwarding f;
  transport::sim::LinkModel slow;
  slow.rate_bytes_per_s = 2'000;
  f.pair.world.network.set_link(1, 2, slow);
  REQUIRE(f.pair.world.run_until([&] { return f.pair.b->node->open_transfers() > 0; }));
  f.pair.b->node->drain(f.pair.world.network.now_ns() + 10 * kSecondNs);
  CHECK(f.pair.world.run_until([&] { return f.pair.b->node->drained(); }, 500 * kMillisecondNs));
  CHECK(f.counters().refreshes_failed == 1);
}

TEST_CASE("core / refresh / not where it is switched off, nor of an origin that has gone") {
  NodeOptions options = World::small_options(1, 1);
  options.refresh = false;
  Pair off(options);
  REQUIRE(off.sender->commit("doc", 8, 100).ok());
  CHECK(off.send("doc", {.medium = Medium::int4}).status.ok());
  (void)off.delivered();
  off.world.run_for(5 * kSecondNs);
  CHECK(off.b->node->counters().refreshes == 0);
  Forwarding gone;
  gone.pair.a->node->detach(gone.pair.sender->handle);
  gone.pair.world.run_for(5 * kSecondNs);
  CHECK(gone.counters().refreshes + gone.counters().refreshes_failed == 0);
  CHECK(gone.epsilon_ppm() == 9'500);
}

TEST_CASE("core / refresh / a transfer that may not go on with the loss has the planes first, where that is quicker") {
  Forwarding f;
  const Received got = f.forward({.fidelity_floor_ppm = 999'000});
  CHECK(f.counters().refreshes_forced == 1);
  CHECK(f.counters().refreshes == 1);
  CHECK(got.header.epsilon_ppm <= 80);
  CHECK(got.blocks.size() == 7);
  CHECK(largest_error(*f.c, got, 8) < 0.05F);
  f.pair.finish();
}

TEST_CASE("core / refresh / else the tokens are computed: at a fast receiver, or when the origin has gone meanwhile") {
  Forwarding fast(10);
  CHECK(fast.forward({.fidelity_floor_ppm = 999'000}).header.medium == Medium::tokens);
  CHECK(fast.counters().refreshes_forced == 0);
  Forwarding gone;
  transport::sim::LinkModel slow;
  slow.rate_bytes_per_s = 2'000;
  gone.pair.world.network.set_link(1, 2, slow);
  const TicketId ticket = gone.pair.receiver->send("doc", {"last"}, {.fidelity_floor_ppm = 999'000});
  gone.pair.world.run_for(100 * kMillisecondNs);
  CHECK(gone.pair.receiver->count(AgentEventKind::sent) == 0);
  gone.pair.world.kill(1);
  AgentEvent sent;
  REQUIRE(gone.pair.world.run_until([&] { return gone.pair.receiver->take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.status.ok());
  CHECK(sent.medium == Medium::tokens);
  CHECK(gone.counters().refreshes_failed == 1);
  gone.pair.world.check();
}
