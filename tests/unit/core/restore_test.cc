// Contexts that leave memory for a tier, and how they come back: to who fetches or forwards them, and in the place of
// bytes that an offer would bring.
#include "tests/support/mode.h"
#include "tests/unit/core/tiered.h"

using namespace kvrail;
using namespace kvrail::testing;

TEST_CASE("contexts that nobody uses are written ahead of need, leave when room is wanted, and stubs of them stay") {
  Tiered t;
  t.bring_many(8);
  CHECK(t.counters().offloads > 0);
  CHECK(t.store().counters().stubs > 0);
  CHECK(t.store().counters().stubs <= t.counters().offloads);
  CHECK(t.view_of(0).stub);
  CHECK(t.view_of(0).blocks.empty());
  CHECK(t.view_of(0).hashes.size() == 40);
  const auto tokens = TestAgent::tokens_of(100, kTokens);
  CHECK(std::equal(tokens.begin(), tokens.end(), t.view_of(0).tokens.begin(), t.view_of(0).tokens.end()));
  CHECK_FALSE(t.view_of(7).stub);
  for (const Hash128& hash : t.view_of(0).hashes) CHECK(t.tier.find(hash).has_value());
  CHECK_FALSE(t.store().short_of_memory(t.store().find_tenant(name_of("tenant")), 250'000));
}

TEST_CASE("what was kept of a context whose owner has gone is fetched from the tier, exact") {
  Tiered t;
  t.bring_many(8);
  t.owner_goes();
  REQUIRE(t.view_of(0).stub);
  const AgentEvent event = t.fetch(0);
  CHECK(event.status.ok());
  const Received got = t.pair.exact(100, kTokens);
  CHECK(got.header.medium == Medium::full);
  CHECK(got.header.version == 1);
  CHECK(t.counters().restores == 1);
  CHECK(t.counters().restored_bytes == 40 * small_layout().block_bytes());
  CHECK_FALSE(t.view_of(0).stub);  // and the stub has gone
  t.settle();
}

TEST_CASE("a context that grew comes back from the tier as far as it is there, and only the rest is sent") {
  transport::sim::LinkModel slow;
  slow.rate_bytes_per_s = 10'000'000;
  Tiered t({}, slow);
  t.bring_many(8);
  REQUIRE(t.view_of(1).stub);
  REQUIRE(t.pair.sender->commit("c1", 101, kTokens + 160, 2 * kTokens).ok());
  const AgentEvent sent = t.pair.send("c1", Tiered::whole());
  CHECK(sent.status.ok());
  CHECK(sent.missing_blocks == 10);
  CHECK(sent.bytes == 10 * small_layout().block_bytes());
  t.pair.exact(101, kTokens + 160);
  CHECK(t.counters().restores == 1);
  t.settle();
}

TEST_CASE("where sending is quicker than the tier, the tier is not asked") {
  MemoryTierOptions slow;
  slow.bytes_per_s = 1'000'000;
  Tiered t(slow);
  REQUIRE(t.tier.restore_ns(40 * small_layout().block_bytes()) > 300 * kMillisecondNs);
  REQUIRE(t.pair.sender->commit("c", 5, kTokens).ok());
  VersionView view;
  const auto tenant = t.pair.a->node->store().find_tenant(name_of("tenant"));
  REQUIRE(t.pair.a->node->store().view(t.pair.a->node->store().find(tenant, name_of("sender"), name_of("c"), 0), view));
  for (std::size_t b = 0; b < view.blocks.size(); ++b) {
    const BlockView block = t.pair.a->node->store().block(view.blocks[b]);
    REQUIRE(t.tier.put({std::uint64_t{1} << 62, block.hash, view.layout, block.tokens, 0, block.raw}));
    t.pair.world.network.advance_to(t.tier.next_due_ns());
    std::array<TierCompletion, 1> done;
    REQUIRE(t.tier.poll(done) == 1);
  }
  CHECK(t.pair.send("c", Tiered::whole()).status.ok());
  t.pair.exact(5, kTokens);
  CHECK(t.counters().restores + t.counters().restores_failed == 0);
}

TEST_CASE("damage in the tier costs a transfer or a computation, never a wrong byte") {
  transport::sim::LinkModel slow;
  slow.rate_bytes_per_s = 10'000'000;
  Tiered t({}, slow);
  t.bring_many(8);
  REQUIRE(t.view_of(0).stub);
  SUBCASE("a stub is delivered as token ids") {
    t.owner_goes();
    t.tier.corrupt(t.view_of(0).hashes[17]);
    CHECK(t.fetch(0).status.ok());
    const Received got = read_delivery(*t.pair.b, t.pair.delivered());
    CHECK(got.header.medium == Medium::tokens);
    CHECK(got.blocks.empty());
    CHECK(got.tokens == TestAgent::tokens_of(100, kTokens));
    CHECK(t.counters().restores_failed == 1);
  }
  SUBCASE("of an offer the blocks before the damage come from the tier, the others are sent") {
    t.tier.corrupt(t.view_of(0).hashes[17]);
    REQUIRE(t.pair.sender->commit("c0", 100, kTokens, 2 * kTokens).ok());
    const AgentEvent sent = t.pair.send("c0", Tiered::whole());
    CHECK(sent.status.ok());
    t.pair.exact(100, kTokens);
    CHECK(sent.missing_blocks == 40 - 17);
    CHECK(t.counters().restores_failed == 1);
    CHECK(t.counters().restores == 1);
  }
  SUBCASE("a block that the tier lost without a word") {
    t.owner_goes();
    t.tier.lose_unseen(t.view_of(0).hashes[0]);
    CHECK(t.fetch(0).status.ok());
    CHECK(read_delivery(*t.pair.b, t.pair.delivered()).header.medium == Medium::tokens);
  }
  t.settle();
}

TEST_CASE("a tier that takes nothing leaves things as they are without one") {
  Tiered t;
  t.tier.set_state(TierState::failed);
  t.bring_many(10);  // more than fits: room is made by dropping
  CHECK(t.counters().offloads == 0);
  CHECK(t.store().counters().stubs > 0);
  t.owner_goes();
  REQUIRE(t.view_of(0).stub);
  CHECK(t.fetch(0).status.ok());
  CHECK(read_delivery(*t.pair.b, t.pair.delivered()).header.medium == Medium::tokens);
}

TEST_CASE("who waits for a restore ends as wanted, and what the tier still writes to stays until then") {
  Tiered t;
  t.bring_many(8);
  t.owner_goes();
  REQUIRE(t.view_of(0).stub);
  t.tier.hold(true);
  const TicketId ticket = t.pair.receiver->next_ticket++;
  SendOptions options;
  options.deadline_ns = 100 * kMillisecondNs;
  REQUIRE(t.pair.b->node->fetch(t.pair.receiver->handle, ticket, name_of("sender"), name_of("c0"), 0, options).ok());
  t.pair.world.run_for(10 * kMillisecondNs);
  REQUIRE(t.tier.under_way() > 0);
  AgentEvent event;
  SUBCASE("cancelled") {
    CHECK(t.pair.b->node->cancel(t.pair.receiver->handle, ticket).ok());
    REQUIRE(t.pair.receiver->take(AgentEventKind::fetched, event, ticket));
    CHECK(event.status.code == Code::cancelled);
  }
  SUBCASE("at its deadline") {
    REQUIRE(t.pair.world.run_until([&] { return t.pair.receiver->take(AgentEventKind::fetched, event, ticket); }));
    CHECK(event.status.code == Code::timed_out);
  }
  SUBCASE("gone") { t.pair.b->node->detach(t.pair.receiver->handle); }
  t.pair.world.check();
  t.tier.hold(false);
  t.settle();
  CHECK(t.counters().restores == 1);
  CHECK_FALSE(t.view_of(0).stub);
}

TEST_CASE("a tier that stalls holds nobody up") {
  transport::sim::LinkModel slow;
  slow.rate_bytes_per_s = 10'000'000;
  Tiered t({}, slow);
  t.bring_many(8);
  REQUIRE(t.view_of(0).stub);
  t.tier.hold(true);
  SUBCASE("what is asked for is token ids") {
    t.owner_goes();
    CHECK(t.fetch(0).status.ok());
    CHECK(read_delivery(*t.pair.b, t.pair.delivered()).header.medium == Medium::tokens);
    CHECK(t.fetch(0).status.ok());  // and nobody waits for the same again
    CHECK(read_delivery(*t.pair.b, t.pair.delivered()).header.medium == Medium::tokens);
  }
  SUBCASE("what is offered is sent") {
    REQUIRE(t.pair.sender->commit("c0", 100, kTokens, 2 * kTokens).ok());
    const AgentEvent sent = t.pair.send("c0", Tiered::whole());
    CHECK(sent.status.ok());
    CHECK(sent.missing_blocks == 40);
    t.pair.exact(100, kTokens);
  }
  CHECK(t.tier.under_way() > 0);
  t.pair.world.check();
  t.tier.hold(false);
  CHECK(t.pair.world.run_until([&] { return t.pair.world.idle() && t.tier.under_way() == 0; }));
  t.settle();
}

TEST_CASE("a sender that ends while the receiver restores leaves nothing behind") {
  transport::sim::LinkModel slow;
  slow.rate_bytes_per_s = 10'000'000;
  Tiered t({}, slow);
  t.bring_many(8);
  REQUIRE(t.view_of(0).stub);
  t.tier.hold(true);
  REQUIRE(t.pair.sender->commit("c0", 100, kTokens + 160, 2 * kTokens).ok());
  const TicketId ticket = t.pair.sender->send("c0", {"receiver"}, Tiered::whole());
  REQUIRE(t.pair.world.run_until([&] { return t.tier.under_way() > 0; }));
  SUBCASE("by its agent") { CHECK(t.pair.a->node->cancel(t.pair.sender->handle, ticket).ok()); }
  SUBCASE("with its node") { t.pair.world.kill(1); }
  t.pair.world.run_for(5 * kSecondNs);
  t.tier.hold(false);
  CHECK(t.pair.world.run_until([&] { return t.pair.world.idle() && t.tier.under_way() == 0; }));
  t.settle();
}

TEST_CASE("a context of an agent that came back is sent on from the tier") {
  // The owner lives on the node with the tier, goes, and comes back under its name.
  Tiered t;
  auto owner = std::make_unique<TestAgent>(*t.pair.b, "owner");
  REQUIRE(owner->commit("work", 7, kTokens).ok());
  t.pair.b->node->detach(owner->handle);
  const auto tenant = t.store().find_tenant(name_of("tenant"));
  t.bring_many(8);
  VersionView view;
  const auto left = [&] { return t.store().find(tenant, name_of("owner"), name_of("work"), 0); };
  REQUIRE((t.store().view(left(), view) && view.stub));
  owner = std::make_unique<TestAgent>(*t.pair.b, "owner");
  REQUIRE(t.pair.world.run_until([&] { return t.pair.a->node->knows(name_of("tenant"), name_of("owner")); }));
  const TicketId ticket = owner->send("work", {"sender"}, Tiered::whole());
  AgentEvent event;
  REQUIRE(t.pair.world.run_until([&] { return owner->take(AgentEventKind::sent, event, ticket); }));
  CHECK(event.status.ok());
  CHECK(event.medium == Medium::full);
  REQUIRE(t.pair.sender->take(AgentEventKind::delivery, event));
  CHECK(largest_error(*t.pair.a, read_delivery(*t.pair.a, event), 7) == 0);
  REQUIRE((t.store().view(left(), view) && !view.stub));
  t.settle();
}

TEST_CASE("what an agent says it will need is back in time, and stays until it is used") {
  MemoryTierOptions slow;  // by its bytes, which are what estimates count
  slow.fixed_ns = 1'000;
  slow.bytes_per_s = 10'000'000;
  Tiered t(slow);
  t.bring_many(8);
  t.owner_goes();
  REQUIRE(t.view_of(0).stub);
  Node& node = *t.pair.b->node;
  const AgentHandle agent = t.pair.receiver->handle;
  const auto need = [&](int i, TimeNs in_ns, std::uint32_t ppm) {
    return node.will_need(agent, name_of("sender"), name_of(t.context(i)), in_ns, ppm);
  };
  CHECK(need(99, kSecondNs, 1'000'000).code == Code::not_found);
  CHECK(need(0, -1, 1'000'000).code == Code::invalid_argument);
  CHECK(need(0, kSecondNs, 1'000'001).code == Code::invalid_argument);

  SUBCASE("it starts 1.25 restore times before") {
    const TimeNs restore_ns = t.tier.restore_ns(40 * small_layout().block_bytes());
    const TimeNs begun = t.pair.world.network.now_ns();
    CHECK(need(0, kSecondNs, 600'000).ok());
    REQUIRE(t.pair.world.run_until([&] { return t.counters().prefetches == 1; }));
    const TimeNs started = t.pair.world.network.now_ns() - begun;
    CHECK(started >= kSecondNs - restore_ns * 5 / 4);
    CHECK(started <= kSecondNs - restore_ns);
    REQUIRE(t.pair.world.run_until([&] { return !t.view_of(0).stub; }));
    // The tier is polled once a millisecond here, which its estimate doesn't know.
    CHECK(t.pair.world.network.now_ns() - begun <= kSecondNs + restore_ns / 2);
    CHECK(t.view_of(0).pins == 1);
    const AgentEvent event = t.fetch(0);
    CHECK(event.status.ok());
    CHECK(t.counters().restores == 1);  // by nobody else
    t.pair.exact(100, kTokens);
    CHECK(t.view_of(0).pins == 0);
  }
  SUBCASE("it is improbable") {
    CHECK(need(0, 10 * kMillisecondNs, 499'999).ok());
    t.pair.world.run_for(3 * kSecondNs);
    CHECK(t.view_of(0).stub);
  }
  SUBCASE("it is taken back") {
    CHECK(need(0, 500 * kMillisecondNs, 1'000'000).ok());
    CHECK(need(0, 0, 0).ok());
    t.pair.world.run_for(3 * kSecondNs);
    CHECK(t.counters().prefetches == 0);
  }
  SUBCASE("nobody comes for it") {
    CHECK(need(0, 500 * kMillisecondNs, 1'000'000).ok());
    REQUIRE(t.pair.world.run_until([&] { return !t.view_of(0).stub; }));
    CHECK(t.view_of(0).pins == 1);
    t.pair.world.run_for(3 * kSecondNs);
    CHECK(t.view_of(0).pins == 0);
  }
  SUBCASE("its agent goes, before or while it comes") {
    CHECK(need(0, 500 * kMillisecondNs, 1'000'000).ok());
    CHECK(need(1, 0, 1'000'000).ok());
    t.tier.hold(true);
    t.pair.world.run_for(kMillisecondNs);
    node.detach(agent);
    t.tier.hold(false);
    t.pair.world.run_for(3 * kSecondNs);
    CHECK(t.view_of(0).stub);
    CHECK(t.view_of(1).pins == 0);
  }
  SUBCASE("it is damaged") {
    t.tier.corrupt(t.view_of(0).hashes[3]);
    CHECK(need(0, 0, 1'000'000).ok());
    t.pair.world.run_for(kSecondNs);
    CHECK(t.view_of(0).stub);
    CHECK(t.view_of(0).pins == 0);
  }
  t.settle();
}

// Contexts come, grow and are asked for again in any order, on a tier with every fault.
TEST_CASE("whatever the tier does, what is delivered is exact or token ids") {
  std::uint64_t restores = 0;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = 1; seed <= kvrail::test::by_mode<std::uint64_t>(20, 60, 5'000); ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    MemoryTierOptions options;
    options.seed = seed;
    options.capacity_bytes = (std::uint64_t{200} << prng.uniform(3)) * small_layout().block_bytes();
    options.in_flight = 1 + static_cast<std::uint32_t>(prng.uniform(40));
    options.corrupt_ppm = prng.chance(0.5) ? 5'000 : 0;
    options.lose_ppm = prng.chance(0.5) ? 5'000 : 0;
    options.refuse_ppm = prng.chance(0.3) ? 20'000 : 0;
    transport::sim::LinkModel link;
    link.rate_bytes_per_s = std::uint64_t{2'000'000} << prng.uniform(8);
    Tiered t(options, link);
    std::map<int, std::size_t> lengths;
    for (int step = 0; step < 40; ++step) {
      const int i = static_cast<int>(prng.uniform(14));
      std::size_t& length = lengths[i];
      if (length == 0 || prng.chance(0.3)) length += 16 + prng.uniform(kTokens);
      length = std::min(length, 2 * kTokens);
      t.bring(i, length);
      if (prng.chance(0.3)) t.pair.world.run_for(static_cast<TimeNs>(prng.uniform(100'000'000)));
    }
    t.owner_goes();
    for (const auto& [i, length] : lengths) {
      const auto tenant = t.store().find_tenant(name_of("tenant"));
      if (!t.store().find(tenant, name_of("sender"), name_of(Tiered::context(i)), 0).valid()) continue;
      REQUIRE(t.fetch(i).status.ok());
      const AgentEvent event = t.pair.delivered();
      const Received got = read_delivery(*t.pair.b, event);
      CHECK(got.tokens.size() <= length);
      CHECK(got.tokens == TestAgent::tokens_of(100 + static_cast<std::uint64_t>(i), got.tokens.size()));
      CHECK((got.blocks.empty() ? got.header.medium == Medium::tokens : largest_error(*t.pair.b, got, 100 + static_cast<std::uint64_t>(i)) == 0));
      CHECK(t.pair.b->node->release(t.pair.receiver->handle, event.delivery, 0).ok());
    }
    t.settle();
    restores += t.counters().restores;
    failed += t.counters().restores_failed;
  }
  CHECK(restores > 20);
  CHECK(failed > 0);
}

TEST_CASE("a tier that codes with loss gives back what it kept, and what it lost is told") {
  constexpr std::uint32_t kLoss = 20'000;
  MemoryTierOptions options;
  options.loss_ppm = kLoss;
  Tiered t(options);
  t.bring_many(8);
  const std::uint64_t written = t.tier.figures().puts;
  t.owner_goes();
  REQUIRE(t.view_of(0).stub);
  CHECK(t.fetch(0).status.ok());
  const Received got = t.pair.exact(100, kTokens);  // the tier only says so
  CHECK(got.header.epsilon_ppm == kLoss);
  CHECK(got.header.medium == Medium::full);
  CHECK(t.counters().restores == 1);
  t.settle();
  CHECK(t.tier.figures().puts <= written + 80);  // what came back is not written again and again
}

TEST_CASE("what cannot fit drives nothing out") {
  Tiered t;
  t.bring_many(8);
  const std::uint64_t stubs = t.store().counters().stubs;
  REQUIRE(stubs > 0);
  // All eight at once, where six have room: those that have none are token ids.
  std::vector<AgentEvent> held;
  t.owner_goes();
  std::size_t whole = 0;
  for (int i = 0; i < 8; ++i) {
    CHECK(t.fetch(i).status.ok());
    AgentEvent event;
    REQUIRE(t.pair.receiver->take(AgentEventKind::delivery, event));
    held.push_back(event);
    whole += event.medium == Medium::full ? 1 : 0;
  }
  CHECK(whole >= 5);
  CHECK(whole < 8);
  for (int i = 0; i < 8; ++i) CHECK(t.view_of(i).tokens.size() == kTokens);  // all are known still
  for (const AgentEvent& event : held) CHECK(t.pair.b->node->release(t.pair.receiver->handle, event.delivery, 0).ok());
  t.settle();
}

TEST_CASE("a stub of which the tier has only the beginning comes as token ids with that, to be computed on") {
  Tiered t;
  t.bring_many(10);
  int stub = 0;
  while (!t.view_of(stub).stub || !t.view_of(stub).kept) REQUIRE(++stub < 10);
  t.tier.lose(t.view_of(stub).hashes[12]);
  t.tier.lose(t.view_of(stub).hashes[30]);
  t.owner_goes();
  for (int again = 0; again < 2; ++again) {
    const AgentEvent event = t.fetch(stub);
    CHECK(event.status.ok());
    AgentEvent delivery;
    REQUIRE(t.pair.receiver->take(AgentEventKind::delivery, delivery));
    const Received got = read_delivery(*t.pair.b, delivery);
    CHECK(got.header.medium == Medium::tokens);
    CHECK(got.tokens == TestAgent::tokens_of(Tiered::seed_of(stub), kTokens));
    CHECK(got.blocks.size() == 12);
    CHECK(largest_error(*t.pair.b, got, Tiered::seed_of(stub)) == 0);
    CHECK(t.pair.b->node->release(t.pair.receiver->handle, delivery.delivery, 0).ok());
    CHECK(t.view_of(stub).stub);  // it is one still
  }
  CHECK(t.counters().restores == 2);
  CHECK(t.counters().restores_failed == 0);
  t.pair.world.run_for(kSecondNs);
  t.pair.world.check();
}

TEST_CASE("names survive a restart: what was written is fetched by its name, whoever owned it, and nothing else is found") {
  for (const std::uint32_t loss_ppm : {0U, 700U}) {  // what a tier codes with loss its names have not
    CAPTURE(loss_ppm);
    MemoryTierOptions tier_options;
    tier_options.loss_ppm = loss_ppm;
    Tiered t(tier_options);
    t.bring_many(8);
    const std::vector<int> written = t.written(8);
    REQUIRE(written.size() >= 2);
    const std::string first = Tiered::context(written[0]), second = Tiered::context(written[1]);
    const std::uint64_t number = t.view_of(written[1]).number;
    t.owner_goes();
    // Another life of the node, with the same tier.
    const auto tier = std::move(t.pair.b->tier);
    t.pair.world.kill(2);
    const NodeOptions options = World::small_options(2, 2);
    Host& again = t.pair.world.add(2, &options);
    again.node->set_tier(*tier);
    TestAgent reader(again, "reader");
    const auto fetch = [&](std::string_view owner, std::string_view context, std::uint64_t version) {
      const TicketId ticket = reader.next_ticket++;
      AgentEvent event;
      const Status status = again.node->fetch(reader.handle, ticket, name_of(owner), name_of(context), version, {});
      if (!status.ok()) return status;
      REQUIRE(t.pair.world.run_until([&] { return reader.take(AgentEventKind::fetched, event, ticket); }));
      return event.status;
    };
    REQUIRE(again.node->store().counters().versions == 0);
    CHECK(fetch("sender", first, 0).ok());
    AgentEvent delivery;
    REQUIRE(reader.take(AgentEventKind::delivery, delivery));
    const Received got = read_delivery(again, delivery);
    CHECK(got.tokens == TestAgent::tokens_of(Tiered::seed_of(written[0]), kTokens));
    CHECK(got.blocks.size() == kTokens / 16);
    CHECK(got.header.epsilon_ppm == loss_ppm);
    CHECK(largest_error(again, got, Tiered::seed_of(written[0])) == 0);
    CHECK(again.node->counters().restores == 1);
    CHECK(fetch("sender", second, number).ok());
    CHECK(fetch("sender", first, 99).code == Code::not_found);  // another number than is kept
    CHECK(fetch("sender", "c77", 0).code == Code::not_found);
    CHECK(fetch("somebody", second, 0).code == Code::not_found);
    // Of another tenant there is no such context.
    AgentInfo other = TestAgent::base_info();
    other.tenant = name_of("others");
    TestAgent stranger(again, "stranger", other);
    CHECK(again.node->fetch(stranger.handle, 1, name_of("sender"), name_of(first), 0, {}).code == Code::not_found);
    t.pair.world.check();
    t.pair.world.kill(2);
  }
}

TEST_CASE("names that are damaged, slow or asked for by who has gone end as not found, cancelled or timed out, each once") {
  Tiered t;
  t.bring_many(8);
  const std::vector<int> written = t.written(8);
  REQUIRE(written.size() >= 2);
  const std::string first = Tiered::context(written[0]), second = Tiered::context(written[1]);
  t.owner_goes();
  const auto tier = std::move(t.pair.b->tier);
  t.pair.world.kill(2);
  const NodeOptions options = World::small_options(2, 2);
  Host& again = t.pair.world.add(2, &options);
  again.node->set_tier(*tier);
  TestAgent reader(again, "reader");
  const auto ask = [&](TestAgent& who, std::string_view context, TimeNs deadline_ns = 0) {
    const TicketId ticket = who.next_ticket++;
    REQUIRE(again.node->fetch(who.handle, ticket, name_of("sender"), name_of(context), 0, {.deadline_ns = deadline_ns}).ok());
    return ticket;
  };
  const auto end_of = [&](TicketId ticket) {
    AgentEvent event;
    REQUIRE(t.pair.world.run_until([&] { return reader.take(AgentEventKind::fetched, event, ticket); }));
    return event.status.code;
  };
  tier->hold(true);
  const TicketId late = ask(reader, first, 20 * kMillisecondNs);
  const TicketId cancelled = ask(reader, second);
  CHECK(again.node->cancel(reader.handle, cancelled).ok());
  CHECK(end_of(cancelled) == Code::cancelled);
  CHECK(end_of(late) == Code::timed_out);
  auto leaver = std::make_unique<TestAgent>(again, "leaver");
  (void)ask(*leaver, second);
  again.node->detach(leaver->handle);
  tier->hold(false);
  tier->set_state(TierState::failed);  // from here on it gives nothing
  const TicketId failed = reader.next_ticket++;
  const Status refused = again.node->fetch(reader.handle, failed, name_of("sender"), name_of(first), 0, {});
  CHECK((refused.code == Code::not_found || end_of(failed) == Code::not_found));
  REQUIRE(t.pair.world.run_until([&] { return again.node->open_transfers() == 0; }));
  CHECK(reader.count(AgentEventKind::fetched) == 0);
  t.pair.world.check();
  t.pair.world.kill(2);
}
