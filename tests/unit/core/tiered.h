// A pair of which the second node has a tier: where tests of what leaves memory, and comes back, start.
#pragma once

#include "engine/tier/memory_tier.h"
#include "tests/unit/core/pair.h"

namespace kvrail::testing {

inline constexpr std::size_t kTokens = 640;  // 40 blocks of 8 KiB; a receive arena of 2 MiB holds six of these

// The second node has a tier. Its receiver is sent contexts of seed 100 + i that it gives back at once.
struct Tiered {
  explicit Tiered(const MemoryTierOptions& tier_options = {}, const transport::sim::LinkModel& link = {})
      : pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), link),
        tier(pair.world.give_tier(*pair.b, tier_options)) {}

  static SendOptions whole() {
    SendOptions options;
    options.medium = Medium::full;
    return options;
  }
  static std::string context(int i) { return std::string("c").append(std::to_string(i)); }
  static std::uint64_t seed_of(int i) { return 100 + static_cast<std::uint64_t>(i); }
  void bring(int i, std::size_t tokens = kTokens) {
    REQUIRE(pair.sender->commit(context(i), seed_of(i), tokens, 2 * kTokens).ok());
    REQUIRE(pair.send(context(i), whole()).status.ok());
    pair.exact(seed_of(i), tokens);
    // The sender's arena is no larger: it keeps one context at a time.
    KVRAIL_ASSERT(pair.a->node->drop_context(pair.sender->handle, name_of(context(i))).ok());
    KVRAIL_ASSERT(pair.a->node->free_blocks(pair.sender->handle, pair.sender->contexts[context(i)].extent).code != Code::internal);
    pair.sender->contexts.erase(context(i));
  }
  void bring_many(int count) {
    for (int i = 0; i < count; ++i) {
      bring(i);
      settle();
    }
  }
  // Until nothing is written any more.
  void settle() {
    pair.world.run_for(100 * kMillisecondNs);
    pair.world.check();
  }
  [[nodiscard]] Store& store() { return pair.b->node->store(); }
  [[nodiscard]] const StatusCounters& counters() { return pair.b->node->counters(); }
  [[nodiscard]] VersionView view_of(int i) {
    VersionView view;
    const auto tenant = store().find_tenant(name_of("tenant"));
    REQUIRE(store().view(store().find(tenant, name_of("sender"), name_of(context(i)), 0), view));
    return view;
  }
  // Those that the tier has.
  [[nodiscard]] std::vector<int> written(int count) {
    std::vector<int> all;
    for (int i = 0; i < count; ++i) {
      const VersionView view = view_of(i);
      if (view.kept) all.push_back(i);
    }
    return all;
  }
  void owner_goes() {
    pair.a->node->detach(pair.sender->handle);
    REQUIRE(pair.world.run_until([&] { return !pair.b->node->knows(name_of("tenant"), name_of("sender")); }));
  }
  // The terminal event of a fetch by the receiver, of a context whose owner has gone.
  AgentEvent fetch(int i) {
    const TicketId ticket = pair.receiver->next_ticket++;
    REQUIRE(pair.b->node->fetch(pair.receiver->handle, ticket, name_of("sender"), name_of(context(i)), 0, {}).ok());
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::fetched, event, ticket); }));
    return event;
  }

  Pair pair;
  MemoryTier& tier;
};

}  // namespace kvrail::testing
