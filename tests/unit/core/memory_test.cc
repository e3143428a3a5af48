// Memory that comes and goes while the node runs: what transports know of it, who unmaps it, and pages
// that an agent of this process has lent.
#include <map>

#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

// A transport without lanes that keeps account of what is registered with it.
class MemoryWatch final : public transport::Transport {
 public:
  MemoryWatch() {
    caps_.name = "watch";
    caps_.max_frame_bytes = 65'536;
    caps_.max_chunk_bytes = 65'536;
    caps_.max_leases = 64;
    caps_.max_chunks_in_flight = 1;
    caps_.registers_memory = true;
  }
  [[nodiscard]] const transport::Caps& caps() const noexcept override { return caps_; }
  [[nodiscard]] Result<transport::LaneId> open_lane(std::string_view, std::uint64_t) override {
    return Status{Code::unreachable};
  }
  void close_lane(transport::LaneId) noexcept override {}
  [[nodiscard]] bool try_post_frame(transport::LaneId, std::span<const std::byte>) noexcept override { return false; }
  [[nodiscard]] bool try_post_chunk(transport::LaneId, const transport::ChunkPost&) noexcept override { return false; }
  void expose(transport::LeaseId, NodeId, const transport::Payload&) noexcept override {}
  void withdraw(transport::LeaseId) noexcept override {}
  [[nodiscard]] Result<void> register_memory(std::byte* base, std::uint64_t bytes, int) override {
    const AllowAllocScope allow;
    CHECK(known.emplace(base, bytes).second);
    return {};
  }
  void unregister_memory(std::byte* base) noexcept override {
    const AllowAllocScope allow;
    CHECK(known.erase(base) == 1);
  }
  [[nodiscard]] std::size_t poll(TimeNs, std::span<transport::Event>) noexcept override { return 0; }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  [[nodiscard]] bool arm() noexcept override { return true; }
  [[nodiscard]] transport::LaneStats stats(transport::LaneId) const noexcept override { return {}; }

  std::map<const std::byte*, std::uint64_t> known;

 private:
  transport::Caps caps_;
};

struct Watched {
  Watched() {
    host = &world.add(1);
    host->node->add_transport(watch);
  }
  [[nodiscard]] const std::byte* base_of(std::uint32_t arena) const { return host->node->store().arena(arena)->base(); }

  MemoryWatch watch;  // outlives the node
  World world;
  Host* host = nullptr;
};

// Block slots in pages of this process.
struct Pages {
  explicit Pages(std::uint32_t blocks)
      : memory(blocks * small_layout().block_bytes() + 64), bytes(blocks * small_layout().block_bytes()) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    base = memory.data() + (64 - address % 64) % 64;
  }
  std::vector<std::byte> memory;
  std::byte* base = nullptr;
  std::uint64_t bytes;
};

// Commits `count` tokens that lie in imported pages.
void commit_pages(TestAgent& agent, Pages& pages, std::string_view context, std::uint64_t seed, std::size_t count) {
  const auto extent = agent.host().node->import_range(agent.handle, pages.base, pages.bytes, -1);
  REQUIRE(extent.ok());
  agent.contexts[std::string(context)].extent = extent.value();
  REQUIRE(agent.commit(context, seed, count).ok());
}

}  // namespace

TEST_CASE("core / memory / transports forget an arena before it can be unmapped") {
  Watched w;
  TestAgent stays(*w.host, "stays");
  TestAgent agent(*w.host, "agent");
  Store& store = w.host->node->store();
  const std::uint32_t arena = store.agent_arena(agent.handle);
  const std::byte* base = w.base_of(arena);
  CHECK(w.watch.known.size() == 3);  // the tenant's and two agents'
  REQUIRE(agent.commit("doc", 7, 40).ok());
  w.host->node->detach(agent.handle);
  CHECK(w.watch.known.contains(base));  // its context lies there, and may be sent
  CHECK(store.take_retired() == nullptr);

  w.world.network.advance_to(w.world.network.now_ns() + 601 * kSecondNs);
  const std::uint64_t before = w.host->node->retirements();
  w.world.settle();
  CHECK(w.host->node->retirements() == before + 1);
  CHECK_FALSE(w.watch.known.contains(base));
  CHECK(w.watch.known.size() == 2);
  CHECK(store.take_retired() != nullptr);  // still mapped up to here
}

TEST_CASE("core / memory / an import is registered, and forgotten when its last slot is free") {
  Watched w;
  TestAgent agent(*w.host, "agent");
  Pages pages(4);
  const auto extent = w.host->node->import_range(agent.handle, pages.base, pages.bytes, -1);
  REQUIRE(extent.ok());
  CHECK(w.watch.known.contains(pages.base));
  CHECK(w.host->node->free_blocks(agent.handle, extent.value()).ok());
  CHECK_FALSE(w.watch.known.contains(pages.base));
}

TEST_CASE("core / memory / what was prepared for an attachment that is refused is the Conductor's to unmap") {
  Watched w;
  TestAgent agent(*w.host, "agent");
  AgentInfo info = TestAgent::base_info();
  info.name = name_of("agent");
  const StoreOptions options = World::small_options(1, 1).store;
  auto memory = Node::prepare_attach(options, info);
  REQUIRE(memory.ok());
  CHECK(w.host->node->attach(info, std::move(memory).value()).status().code == Code::already_exists);
  CHECK(w.host->node->retirements() == 2);

  info.name = name_of("other");  // without memory for a tenant that is there
  memory = Node::prepare_attach(options, info, false);
  REQUIRE(memory.ok());
  CHECK(w.host->node->attach(info, std::move(memory).value()).ok());
  info.tenant = name_of("new");
  memory = Node::prepare_attach(options, info, false);
  REQUIRE(memory.ok());
  CHECK(w.host->node->attach(info, std::move(memory).value()).status().code == Code::busy);
}

TEST_CASE("core / memory / pages that an agent lent go with it: nobody finds them, readers end first") {
  Watched w;
  Node& node = *w.host->node;
  auto lender = std::make_unique<TestAgent>(*w.host, "lender");
  TestAgent reader(*w.host, "reader");
  Pages pages(8);
  commit_pages(*lender, pages, "doc", 7, 100);
  lender->send("doc", {"reader"});
  w.world.settle();
  AgentEvent event;
  REQUIRE(reader.take(AgentEventKind::delivery, event));
  CHECK(largest_error(*w.host, read_delivery(*w.host, event), 7) == 0);
  // Another agent's context that shares its blocks.
  const auto tokens = TestAgent::tokens_of(7, 96);
  REQUIRE(node.commit(reader.handle, 900, name_of("mine"), tokens, {}, event.delivery, 6).ok());
  w.world.settle();
  AgentEvent committed;
  REQUIRE(reader.take(AgentEventKind::committed, committed));
  REQUIRE(committed.status.ok());

  const AgentHandle gone = lender->handle;
  node.detach(gone);
  node.check();
  CHECK(node.lends(gone));
  CHECK(w.watch.known.contains(pages.base));
  CHECK_FALSE(node.store().find(node.tenant_of(reader.handle), name_of("lender"), name_of("doc"), 0).valid());
  CHECK_FALSE(node.store().find_for(reader.handle, name_of("mine"), 0).valid());
  CHECK(node.store().have(node.tenant_of(reader.handle), small_layout(), tokens, 0).held_blocks == 0);
  CHECK(largest_error(*w.host, read_delivery(*w.host, event), 7) == 0);  // what was handed out stays readable
  // It can't be built upon any more.
  REQUIRE(node.commit(reader.handle, 901, name_of("late"), tokens, {}, event.delivery, 6).ok());
  w.world.settle();
  REQUIRE(reader.take(AgentEventKind::committed, committed, 901));
  CHECK_FALSE(committed.status.ok());

  CHECK(node.release(reader.handle, event.delivery, 0).ok());
  CHECK_FALSE(node.lends(gone));
  CHECK_FALSE(w.watch.known.contains(pages.base));
  node.check();
}

TEST_CASE("core / memory / a transfer from lent pages ends with its agent, at any moment") {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 20'000'000;
  link.latency_ns = 2 * kMillisecondNs;
  for (const TimeNs moment : {TimeNs{0}, TimeNs{5'000'000}, TimeNs{15'000'000}, TimeNs{35'000'000}, TimeNs{60'000'000}}) {
    for (const Medium medium : {Medium::full, Medium::int8}) {
      Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), link);
      Pages pages(100);
      commit_pages(*pair.sender, pages, "doc", 7, 1500);
      pair.sender->send("doc", {"receiver"}, {.medium = medium});
      pair.world.run_for(moment);
      const AgentHandle gone = pair.sender->handle;
      pair.a->node->detach(gone);
      CHECK(pair.world.run_until([&] { return !pair.a->node->lends(gone); }, kSecondNs));
      std::fill(pages.memory.begin(), pages.memory.end(), std::byte{0xee});  // they are the agent's again
      CHECK(pair.world.run_until([&] { return pair.world.idle(); }));
      pair.world.check();
      AgentEvent event;
      if (pair.receiver->take(AgentEventKind::delivery, event) && medium == Medium::full) {
        CHECK(largest_error(*pair.b, read_delivery(*pair.b, event), 7) == 0);
      }
    }
  }
}
