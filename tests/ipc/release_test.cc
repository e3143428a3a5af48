// When the engine gets a delivery back: at once, or with what the agent says next.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "engine/ipc/embedded_port.h"
#include "tests/ipc/engine_rig.h"

namespace kvrail::test {
namespace {

// Two agents of this process, driven by the test.
struct Two {
  explicit Two(Nanoseconds spin) {
    auto made = engine::ipc::EmbeddedPort::create(rig.sessions(), [this] { rig.round(); });
    REQUIRE(made.ok());
    port.emplace(std::move(*made));
    planner.emplace(attach("planner", Nanoseconds(0)));
    coder.emplace(attach("coder", spin));
  }
  Agent attach(const std::string& name, Nanoseconds spin) {
    AttachOptions options = options_of("", name);
    options.spin = spin;
    Result<Agent> agent = port->attach(options);
    REQUIRE_MESSAGE(agent.ok(), agent.error().message);
    return std::move(*agent);
  }
  Context commit(const char* name, std::uint32_t count) {
    Result<Blocks> blocks = planner->allocate(small_layout(), count, Place::host(), kSoon);
    REQUIRE(blocks.ok());
    return commit(name, *blocks);
  }
  Context commit(const char* name, Blocks& blocks) {
    Result<Context> context =
        planner->commit(name, tokens_of(16 * blocks.size()), blocks, Fence::none(), nullptr, kSoon);
    REQUIRE_MESSAGE(context.ok(), context.error().message);
    return *context;
  }
  Delivery pass(const Context& context) {
    REQUIRE(planner->send(context, {"coder"}).ok());
    Result<Delivery> delivery = coder->receive(kSoon);
    REQUIRE_MESSAGE(delivery.ok(), delivery.error().message);
    return std::move(*delivery);
  }
  // Deliveries that the engine knows of, once it has read what was written.
  std::uint64_t open() {
    for (int i = 0; i < 3; ++i) rig.round();
    return rig.deliveries();
  }

  EngineRig rig;
  std::optional<engine::ipc::EmbeddedPort> port;
  std::optional<Agent> planner, coder;
};

constexpr Nanoseconds kSpins{kMillisecondNs};

}  // namespace

TEST_CASE("release / an agent that looks all the time gives a small delivery back with its next call") {
  Two two(kSpins);
  const Context context = two.commit("note", 1);
  { const Delivery delivery = two.pass(context); }
  CHECK(two.open() == 1);
  SUBCASE("that looks for news") { CHECK(two.coder->poll().ok()); }
  SUBCASE("before it sleeps in an event loop") { CHECK(two.coder->arm()); }
  SUBCASE("behind a send") { CHECK(two.coder->send(context, {"nobody"}).ok()); }
  SUBCASE("before what may want the memory") {
    CHECK(two.coder->allocate(small_layout(), 1, Place::host(), kSoon).ok());
  }
  SUBCASE("with the next one that it gives back") {
    Delivery first = two.pass(context);
    { const Delivery second = two.pass(context); }
    first = Delivery();
  }
  CHECK(two.open() == 0);
}

TEST_CASE("release / others get back at once what is large, lent, or of an agent that sleeps") {
  SUBCASE("large") {
    Two two(kSpins);
    { const Delivery delivery = two.pass(two.commit("book", 9)); }
    CHECK(two.open() == 0);
  }
  SUBCASE("an agent that sleeps") {
    Two two(Nanoseconds(0));
    { const Delivery delivery = two.pass(two.commit("note", 1)); }
    CHECK(two.open() == 0);
  }
  SUBCASE("pages of the sender's own") {
    Two two(kSpins);
    std::vector<std::byte> pages(small_layout().block_bytes() + 16);
    ImportSource source;
    source.kind = ImportSource::Kind::host_pages;
    source.pages = pages.data() + (16 - reinterpret_cast<std::uintptr_t>(pages.data()) % 16) % 16;
    source.bytes = small_layout().block_bytes();
    Result<Blocks> lent = two.planner->import(source, kSoon);
    REQUIRE_MESSAGE(lent.ok(), lent.error().message);
    { const Delivery delivery = two.pass(two.commit("note", *lent)); }
    CHECK(two.open() == 0);
  }
}

}  // namespace kvrail::test
