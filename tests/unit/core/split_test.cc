// The medium split: the agent computes the head of a context while its tail arrives, and they meet.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr SendOptions kSplit{.medium = Medium::split};
constexpr std::size_t kTokens = 800;  // fifty blocks of 16, 8 KiB each

// Takes tails as they are, so that they can be compared bit for bit, unless a test says otherwise.
AgentInfo with_split(TimeNs per_token_ns = kMillisecondNs) {
  AgentInfo info = TestAgent::base_info();
  info.accepted = mask_of(Medium::split) | mask_of(Medium::tokens) | mask_of(Medium::full);
  info.compute.prefill_per_token_ns = static_cast<std::uint64_t>(per_token_ns);
  return info;
}

transport::sim::LinkModel link_of(std::uint64_t bytes_per_s) {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = bytes_per_s;
  link.latency_ns = 100 * kMicrosecondNs;
  return link;
}

// An agent that computes what it claims, a token in so long, until the tail is there.
struct Reader {
  Reader(Pair& of, TimeNs token_ns) : pair(of), per_token_ns(token_ns) {
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::delivery, first); }));
    REQUIRE(first.medium == Medium::split);
    const Received ids = read_delivery(*pair.b, first);
    CHECK(ids.tokens == TestAgent::tokens_of(7, ids.tokens.size()));
    held = ids.blocks.size() * 16;
    begun_ns = pair.world.network.now_ns();
  }
  AgentEvent claim(std::uint32_t most) {
    const TicketId ticket = pair.receiver->next_ticket++;
    REQUIRE(pair.b->node->claim(pair.receiver->handle, ticket, first.delivery, most).ok());
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::claimed, event, ticket); }, 60 * kSecondNs));
    return event;
  }
  // The last claim's answer.
  AgentEvent run(std::uint32_t most = 32) {
    for (;;) {
      const AgentEvent event = claim(most);
      if (!event.status.ok() || event.delivery.valid()) return event;
      CHECK(event.extent.offset == held + computed);  // one behind the other
      CHECK(event.extent.count > 0);
      CHECK(event.extent.count <= most);
      computed += event.extent.count;
      pair.world.run_for(static_cast<TimeNs>(event.extent.count) * per_token_ns);
    }
  }
  [[nodiscard]] TimeNs took() const { return pair.world.network.now_ns() - begun_ns; }

  Pair& pair;
  TimeNs per_token_ns;
  AgentEvent first;
  std::uint64_t held = 0, computed = 0;
  TimeNs begun_ns = 0;
};

// Blocks that are held, then a gap of those that were computed, then the tail to the end.
void check_tail(Pair& pair, const Reader& reader, const AgentEvent& last, std::size_t tokens, float most_error = 0) {
  const Received got = read_delivery(*pair.b, last);
  CHECK(got.tokens == TestAgent::tokens_of(7, tokens));
  CHECK(got.blocks.size() == (tokens + 15) / 16 - reader.computed / 16);
  std::uint64_t position = 0;
  for (std::size_t i = 0; i < got.blocks.size(); ++i) {
    if (position == reader.held) position += reader.computed;
    CHECK(got.blocks[i].position == position);
    position += got.blocks[i].tokens;
  }
  CHECK(position == tokens);
  if (reader.computed > 0) CHECK(got.header.first_token == reader.held + reader.computed);
  CHECK(largest_error(*pair.b, got, 7) <= most_error);
}

void give_back(Pair& pair, const Reader& reader, const AgentEvent& last) {
  CHECK(pair.b->node->release(pair.receiver->handle, reader.first.delivery, 0).ok());
  CHECK(pair.b->node->release(pair.receiver->handle, last.delivery, 0).ok());
}

}  // namespace

TEST_CASE("core / split / head and tail meet where both have taken about as long, and sooner than either alone") {
  // 8 KiB a block at 1 MB/s: 8.2 ms. 16 tokens at 0.5 ms: 8 ms. Of fifty blocks each side does about half.
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(kMillisecondNs / 2), link_of(1'000'000));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
  Reader reader(pair, kMillisecondNs / 2);
  const AgentEvent last = reader.run();
  CHECK(last.status == Status{});
  CHECK(last.medium == Medium::split);
  CHECK(reader.computed >= 20 * 16);
  CHECK(reader.computed <= 30 * 16);
  CHECK(reader.took() < 300 * kMillisecondNs);  // either alone takes 400
  check_tail(pair, reader, last, kTokens);
  const AgentEvent sent = pair.ended(ticket);
  CHECK(sent.status == Status{});
  CHECK(sent.medium == Medium::split);
  CHECK(sent.bytes < (50 - reader.computed / 16 + 8) * small_layout().block_bytes());
  give_back(pair, reader, last);
  pair.finish();
}

TEST_CASE("core / split / coded tails: each block with all of its planes, the protected ones with one more") {
  for (const Medium medium : {Medium::lossless, Medium::int8, Medium::int4}) {
    CAPTURE(medium_name(medium));
    NodeOptions options = World::small_options(1, 1);
    options.protection = {0, 0, 1, 2};
    AgentInfo to = with_split(kMillisecondNs / 4);
    to.accepted = mask_of(Medium::split) | mask_of(medium);
    Pair pair(options, TestAgent::base_info(), to, link_of(500'000));
    REQUIRE(pair.sender->commit("doc", 7, kTokens - 3).ok());
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
    Reader reader(pair, kMillisecondNs / 4);
    const AgentEvent last = reader.run();
    CHECK(last.status == Status{});
    CHECK(reader.computed > 0);
    check_tail(pair, reader, last, kTokens - 3, medium == Medium::lossless ? 0.0F : 1.0F);
    VersionView view;
    REQUIRE(pair.b->node->store().view(last.version, view));
    const auto planes = [&](std::size_t block) {
      const BlockView of = pair.b->node->store().block(view.blocks[block]);
      return (of.planes[0].data != nullptr ? 1 : 0) + (of.planes[1].data != nullptr ? 2 : 0);
    };
    CHECK(planes(49) == (medium == Medium::lossless ? 0 : 3));
    CHECK(planes(48) == (medium == Medium::lossless ? 0 : 3));
    CHECK(planes(47) == (medium == Medium::lossless ? 0 : medium == Medium::int8 ? 3 : 1));
    CHECK(pair.ended(ticket).status == Status{});
    give_back(pair, reader, last);
    pair.finish();
  }
}

TEST_CASE("core / split / who claims nothing gets all of it, as by the medium that its tail comes in") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(), link_of(10'000'000));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  CHECK(pair.send("doc", kSplit).status == Status{});
  Reader reader(pair, kMillisecondNs);
  const AgentEvent last = reader.run();
  CHECK(reader.computed == 0);
  CHECK(last.medium != Medium::split);
  check_tail(pair, reader, last, kTokens, 1.0F);
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);  // by the claim alone
  give_back(pair, reader, last);
  pair.finish();
}

TEST_CASE("core / split / the last block always comes from the network, and a claim waits for it") {
  // A second for each block: the agent has computed all but one long before.
  AgentInfo to = with_split(kMicrosecondNs);
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), to, link_of(8'192));
  REQUIRE(pair.sender->commit("doc", 7, 160).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
  Reader reader(pair, kMicrosecondNs);
  const AgentEvent last = reader.run(1000);
  CHECK(last.status == Status{});
  CHECK(reader.computed == 9 * 16);
  CHECK(reader.took() > 500 * kMillisecondNs);
  check_tail(pair, reader, last, 160);
  CHECK(pair.ended(ticket).status == Status{});
  give_back(pair, reader, last);
  pair.finish();
}

TEST_CASE("core / split / what is held is shown with the ids, and the head begins behind it") {
  AgentInfo to = with_split();
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), to, link_of(500'000));
  REQUIRE(pair.sender->commit("doc", 7, 320, kTokens).ok());
  REQUIRE(pair.send("doc", {.medium = Medium::full}).status == Status{});
  (void)pair.exact(7, 320);
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
  Reader reader(pair, kMillisecondNs);
  CHECK(reader.held == 320);
  const AgentEvent last = reader.run();
  CHECK(last.status == Status{});
  CHECK(reader.computed > 0);
  check_tail(pair, reader, last, kTokens, 1.0F);
  CHECK(pair.ended(ticket).status == Status{});
  give_back(pair, reader, last);
  pair.finish();
}

TEST_CASE("core / split / nobody is given a part for the whole") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(kMillisecondNs / 2), link_of(1'000'000));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
  Reader reader(pair, kMillisecondNs / 2);
  const AgentEvent last = reader.run();
  REQUIRE(reader.computed > 0);
  CHECK(pair.ended(ticket).status == Status{});
  // On to another node: the ids only.
  Host& third = pair.world.add(3);
  pair.world.dial(third, 2);
  TestAgent far(third, "far");
  TestAgent near(*pair.b, "near", with_split());
  REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("far")); }));
  const auto forward = [&](const char* to, Medium medium) {
    const TicketId asked = pair.receiver->send("doc", {to}, {.medium = medium});
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::sent, event, asked); }));
    return event.status.code;
  };
  CHECK(forward("far", Medium::full) == Code::rejected);
  CHECK(forward("far", Medium::tokens) == Code::ok);
  AgentEvent event;
  REQUIRE(far.take(AgentEventKind::delivery, event));
  CHECK(event.medium == Medium::tokens);
  CHECK(forward("near", Medium::automatic) == Code::ok);
  REQUIRE(near.take(AgentEventKind::delivery, event));
  CHECK(event.medium == Medium::tokens);
  // And sent again by its owner, what is missing comes; what came of it before is found.
  const AgentEvent again = pair.send("doc", {.medium = Medium::full});
  CHECK(again.status == Status{});
  CHECK(again.bytes == reader.computed * small_layout().token_bytes());
  (void)pair.exact(7, kTokens);
  give_back(pair, reader, last);
  pair.finish();
}

TEST_CASE("core / split / given back while it is open, it ends at the sender too, and nothing is kept") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(), link_of(500'000));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
  Reader reader(pair, kMillisecondNs);
  (void)reader.claim(32);
  CHECK(pair.b->node->release(pair.receiver->handle, reader.first.delivery, 0).ok());
  CHECK(pair.b->node->claim(pair.receiver->handle, 99, reader.first.delivery, 16).code == Code::generation_mismatch);
  CHECK(pair.ended(ticket).status.code == Code::cancelled);
  pair.finish();
}

TEST_CASE("core / split / what was not asked for goes with its delivery") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(), link_of(10'000'000));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  CHECK(pair.send("doc", kSplit).status == Status{});
  Reader reader(pair, kMillisecondNs);
  CHECK(pair.b->node->release(pair.receiver->handle, reader.first.delivery, 0).ok());
  CHECK(pair.b->node->store().counters().deliveries == 0);
  pair.finish();
}

TEST_CASE("core / split / the sender's end, a deadline, and an agent that leaves end it with an answer, once") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(), link_of(100'000));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  SUBCASE("cancelled") {
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
    Reader reader(pair, kMillisecondNs);
    reader.computed = reader.claim(32).extent.count;
    CHECK(pair.a->node->cancel(pair.sender->handle, ticket).ok());
    const AgentEvent last = reader.run(16);
    CHECK(last.status.code == Code::cancelled);
    CHECK(pair.b->node->claim(pair.receiver->handle, 99, reader.first.delivery, 16).code == Code::generation_mismatch);
    CHECK(pair.ended(ticket).status.code == Code::cancelled);
    CHECK(pair.b->node->release(pair.receiver->handle, reader.first.delivery, 0).ok());
  }
  SUBCASE("deadline") {
    // Before the first block, which takes 82 ms, is whole.
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.deadline_ns = 60 * kMillisecondNs, .medium = Medium::split});
    Reader reader(pair, 10 * kMillisecondNs);
    CHECK(reader.run(16).status.code == Code::timed_out);
    CHECK(pair.ended(ticket).status.code == Code::timed_out);
    CHECK(pair.b->node->release(pair.receiver->handle, reader.first.delivery, 0).ok());
  }
  SUBCASE("deadline, with some blocks") {
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.deadline_ns = 1'500 * kMillisecondNs, .medium = Medium::split});
    Reader reader(pair, 10 * kMillisecondNs);
    const AgentEvent last = reader.run(16);
    REQUIRE(last.status == Status{});
    CHECK(last.medium == Medium::split);
    const Received got = read_delivery(*pair.b, last);
    CHECK(got.blocks.size() >= 8);  // a chunk, of eight blocks, takes 0.65 s
    CHECK(got.blocks.size() <= 18);
    CHECK(got.blocks.front().position + 16 * got.blocks.size() == kTokens);  // the end, without a gap
    CHECK(got.header.first_token == got.blocks.front().position);
    CHECK(largest_error(*pair.b, got, 7) == 0);
    CHECK(reader.computed <= 12 * 16);  // so not all before it was claimed
    const AgentEvent sent = pair.ended(ticket);
    CHECK(sent.status == Status{});
    CHECK(sent.medium == Medium::split);
    CHECK(pair.b->node->counters().transfers_cut == 1);
    give_back(pair, reader, last);
  }
  SUBCASE("leaves") {
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
    Reader reader(pair, kMillisecondNs);
    (void)reader.claim(32);
    pair.b->node->detach(pair.receiver->handle);
    CHECK(!pair.ended(ticket).status.ok());
  }
  pair.finish();
}

TEST_CASE("core / split / a lane that is lost goes on from what is still needed") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(kMillisecondNs / 2), link_of(1'000'000));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kSplit);
  Reader reader(pair, kMillisecondNs / 2);
  for (int i = 0; i < 3; ++i) {
    const AgentEvent event = reader.claim(32);
    reader.computed += event.extent.count;
    pair.world.run_for(20 * kMillisecondNs);
  }
  pair.world.network.lose_lanes(1, 2);
  const AgentEvent last = reader.run();
  CHECK(last.status == Status{});
  check_tail(pair, reader, last, kTokens);
  const AgentEvent sent = pair.ended(ticket);
  CHECK(sent.status == Status{});
  CHECK(pair.a->node->counters().resumes > 0);
  give_back(pair, reader, last);
  pair.finish();
}

TEST_CASE("core / split / only who says so is given one, and only where it gains") {
  SUBCASE("not accepted") {
    Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), link_of(1'000'000));
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    CHECK(pair.send("doc", kSplit).status.code == Code::rejected);
    pair.finish();
  }
  SUBCASE("of itself, where both sides are about as fast") {
    Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(kMillisecondNs / 2), link_of(1'000'000));
    REQUIRE(pair.sender->commit("warm", 9, kTokens).ok());  // the lane's rate becomes known
    REQUIRE(pair.send("warm", {.medium = Medium::full}).status == Status{});
    (void)pair.delivered();
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, {});
    Reader reader(pair, kMillisecondNs / 2);
    const AgentEvent last = reader.run();
    CHECK(reader.computed > 0);
    CHECK(pair.ended(ticket).medium == Medium::split);
    give_back(pair, reader, last);
    pair.finish();
  }
  SUBCASE("not where others of the node wait for what it brings") {
    Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(kMillisecondNs / 2), link_of(1'000'000));
    TestAgent second(*pair.b, "second", with_split(kMillisecondNs / 2));
    REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(name_of("tenant"), name_of("second")); }));
    REQUIRE(pair.sender->commit("warm", 9, kTokens).ok());
    REQUIRE(pair.send("warm", {.medium = Medium::full}).status == Status{});
    (void)pair.delivered();
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    const TicketId ticket = pair.sender->send("doc", {"receiver", "second"});
    AgentEvent sent;
    for (int i = 0; i < 2; ++i) {
      REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::sent, sent, ticket); }));
      CHECK(sent.status == Status{});
      CHECK(sent.medium != Medium::split);
    }
    (void)pair.delivered();
    pair.finish();
  }
  SUBCASE("not where the network alone is nearly as fast") {
    Pair pair(World::small_options(1, 1), TestAgent::base_info(), with_split(20 * kMillisecondNs), link_of(1'000'000));
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    CHECK(pair.send("doc").medium == Medium::full);
    (void)pair.delivered();
    pair.finish();
  }
}
