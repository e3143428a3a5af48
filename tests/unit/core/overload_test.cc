// More than a node can take: what is sent gets smaller before anything is refused, and a refusal says what was missing.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr std::size_t kTokens = 640;  // 40 blocks of 8 KiB; the receive arena of 2 MiB holds six of these

SendOptions whole() {
  SendOptions options;
  options.medium = Medium::full;
  return options;
}

AgentInfo accepting(MediumMask media) {
  AgentInfo info = TestAgent::base_info();
  info.accepted = media;
  return info;
}

// The receiver keeps all that fits.
void fill(Pair& pair) {
  for (int i = 0; i < 6; ++i) {
    const std::string context = std::string("kept-").append(std::to_string(i));
    REQUIRE(pair.sender->commit(context, 100 + static_cast<std::uint64_t>(i), kTokens).ok());
    REQUIRE(pair.send(context, whole()).status.ok());
    static_cast<void>(pair.delivered());
    REQUIRE(pair.a->node->drop_context(pair.sender->handle, name_of(context)).ok());
    KVRAIL_ASSERT(pair.a->node->free_blocks(pair.sender->handle, pair.sender->contexts[context].extent).code != Code::internal);
    pair.sender->contexts.erase(context);
  }
  REQUIRE(pair.sender->commit("more", 7, kTokens).ok());
}

}  // namespace

TEST_CASE("core / overload / without receive memory what needs none is sent, at once") {
  Pair pair;
  fill(pair);
  const AgentEvent sent = pair.send("more");
  CHECK(sent.status.ok());
  CHECK(sent.medium == Medium::tokens);
  CHECK(pair.b->node->counters().laters == 0);
}

TEST_CASE("core / overload / who takes nothing smaller waits for memory, and is told when there was none") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), accepting(mask_of(Medium::full)));
  fill(pair);
  SUBCASE("without a deadline") {
    const AgentEvent sent = pair.ended(pair.sender->send("more", {"receiver"}, whole()), 60 * kSecondNs);
    CHECK(sent.status.code == Code::out_of_memory);
    CHECK(sent.status.scope == Scope::transfer);
    CHECK(sent.status.detail > 3);  // so often it was asked for
  }
  SUBCASE("by its deadline") {
    SendOptions options = whole();
    options.deadline_ns = 2 * kSecondNs;
    CHECK(pair.send("more", options).status == Status{Code::timed_out});
  }
  CHECK(pair.a->node->counters().laters > 3);
  pair.world.check();
}
