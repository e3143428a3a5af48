// int4 with protected blocks at the ends of a context: these arrive as int8 would bring them, the others as int4.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr SendOptions kInt4{.medium = Medium::int4};
constexpr std::size_t kTokens = 100;  // six blocks of 16 and one of 4

NodeOptions with(std::uint32_t first, std::uint32_t last) {
  NodeOptions options = World::small_options(1, 1);
  options.protection = {0, 0, first, last};
  return options;
}

std::uint64_t plane(std::size_t number, std::uint32_t rows) {
  return plane_bytes(small_layout(), Coding{.medium = Medium::int8}, rows, number);
}
std::uint64_t plain_bytes() { return 6 * plane(0, 16) + plane(0, 4); }

// K and V of all rows of a block of the delivery, layer by layer.
std::vector<std::byte> rows_of(Host& host, const ManifestBlock& block) {
  const Layout layout = small_layout();
  const std::byte* slot = host.node->store().arena(block.arena)->base() + block.offset;
  std::vector<std::byte> out;
  for (std::uint32_t half = 0; half < 2 * layout.layers; ++half) {
    const std::byte* from = slot + layout.row_offset(half / 2, half % 2, 0);
    out.insert(out.end(), from, from + block.tokens * layout.row_bytes());
  }
  return out;
}

using Rows = std::vector<std::vector<std::byte>>;
Rows rows_of(Host& host, const Received& got) {
  Rows out;
  for (const ManifestBlock& block : got.blocks) out.push_back(rows_of(host, block));
  return out;
}

// As a medium alone brings them.
Rows rows_by(Medium medium, std::size_t tokens = kTokens) {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, tokens).ok());
  REQUIRE(pair.send("doc", {.medium = medium}).status == Status{});
  return rows_of(*pair.b, read_delivery(*pair.b, pair.delivered()));
}

void check_rows(const Rows& got, const std::vector<std::uint32_t>& finer) {
  const Rows coarse = rows_by(Medium::int4);
  const Rows fine = rows_by(Medium::int8);
  REQUIRE(got.size() == coarse.size());
  for (std::uint32_t b = 0; b < got.size(); ++b) {
    CAPTURE(b);
    const bool is_finer = std::find(finer.begin(), finer.end(), b) != finer.end();
    REQUIRE(coarse[b] != fine[b]);
    CHECK(got[b] == (is_finer ? fine[b] : coarse[b]));
  }
}

// Which planes each block of the delivered version has, as digits: 1 for int4's alone, 3 with int8's.
std::string planes_of_delivery(Host& host, const AgentEvent& event) {
  VersionView view;
  REQUIRE(host.node->store().view(event.version, view));
  std::string out;
  for (const BlockHandle handle : view.blocks) {
    const BlockView block = host.node->store().block(handle);
    out += static_cast<char>('0' + (block.planes[0].data != nullptr ? 1 : 0) + (block.planes[1].data != nullptr ? 2 : 0));
  }
  return out;
}

}  // namespace

TEST_CASE("core / protected / blocks at the ends arrive as int8, the others as int4, and the bytes are theirs") {
  for (const bool integrity : {true, false}) {
    NodeOptions options = with(1, 2);
    options.integrity = integrity;
    Pair pair(options);
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    const AgentEvent sent = pair.send("doc", kInt4);
    CHECK(sent.status == Status{});
    CHECK(sent.medium == Medium::int4);
    // Plane 1 of block 0, of block 5, and of the partial block 6.
    CHECK(sent.bytes == plain_bytes() + 2 * plane(1, 16) + plane(1, 4));
    const AgentEvent event = pair.delivered();
    CHECK(event.medium == Medium::int4);
    CHECK(planes_of_delivery(*pair.b, event) == "3111133");
    check_rows(rows_of(*pair.b, read_delivery(*pair.b, event)), {0, 5, 6});
    pair.finish();
  }
}

TEST_CASE("core / protected / more than there are: all blocks are, once") {
  Pair pair(with(5, 64));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  CHECK(pair.send("doc", kInt4).bytes == plain_bytes() + 6 * plane(1, 16) + plane(1, 4));
  CHECK(planes_of_delivery(*pair.b, pair.delivered()) == "3333333");
  pair.finish();
}

TEST_CASE("core / protected / what is held is not sent again, and what was last stays finer as the context grows") {
  Pair pair(with(1, 1));
  REQUIRE(pair.sender->commit("doc", 7, 64, 96).ok());
  CHECK(pair.send("doc", kInt4).bytes == 4 * plane(0, 16) + 2 * plane(1, 16));
  CHECK(planes_of_delivery(*pair.b, pair.delivered()) == "3113");
  REQUIRE(pair.sender->commit("doc", 7, 96).ok());
  CHECK(pair.send("doc", kInt4).bytes == 2 * plane(0, 16) + plane(1, 16));
  CHECK(planes_of_delivery(*pair.b, pair.delivered()) == "311313");
  CHECK(pair.send("doc", kInt4).bytes == 0);
  (void)pair.delivered();
  pair.finish();
}

TEST_CASE("core / protected / a finer medium builds on plane 0 of every block") {
  Pair pair(with(1, 1));
  REQUIRE(pair.sender->commit("doc", 7, 64).ok());
  REQUIRE(pair.send("doc", kInt4).status == Status{});
  (void)pair.delivered();
  CHECK(pair.send("doc", {.medium = Medium::int8}).bytes == 4 * plane(1, 16));
  CHECK(planes_of_delivery(*pair.b, pair.delivered()) == "3333");
  pair.finish();
}

TEST_CASE("core / protected / is forwarded as it came, whatever the node in between would protect") {
  struct Hop {
    std::uint32_t first, last;
    const char* planes;
  };
  for (const Hop hop : {Hop{1, 2, "3111133"}, Hop{0, 0, "1111111"}, Hop{64, 1, "3111113"}}) {
    CAPTURE(hop.planes);
    const NodeOptions first = with(1, 2);
    const NodeOptions second = with(hop.first, hop.last);
    Pair pair(first, TestAgent::base_info(), TestAgent::base_info(), {}, &second);
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    REQUIRE(pair.send("doc", kInt4).status == Status{});
    (void)pair.delivered();
    Host& third = pair.world.add(3);
    pair.world.dial(third, 2);
    TestAgent last(third, "last");
    REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("last")); }));
    const TicketId ticket = pair.receiver->send("doc", {"last"}, kInt4);
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::sent, event, ticket); }));
    CHECK(event.status == Status{});
    CHECK(pair.b->node->counters().encoded_bytes == 0);
    REQUIRE(last.take(AgentEventKind::delivery, event));
    CHECK(planes_of_delivery(third, event) == hop.planes);
    std::vector<std::uint32_t> finer;
    for (std::uint32_t b = 0; hop.planes[b] != '\0'; ++b) {
      if (hop.planes[b] == '3') finer.push_back(b);
    }
    check_rows(rows_of(third, read_delivery(third, event)), finer);
    pair.finish();
  }
}

TEST_CASE("core / protected / cut between the planes, it is int4 without protection") {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 1'250'000;
  link.latency_ns = 100 * kMicrosecondNs;
  Pair pair(with(40, 40), TestAgent::base_info(), TestAgent::base_info(), link);
  REQUIRE(pair.sender->commit("doc", 7, 1500).ok());
  // Plane 0 of 1,500 tokens takes 160 ms on this link, plane 1 of 80 of its 94 blocks 130 ms.
  const AgentEvent sent = pair.send("doc", {.deadline_ns = 240 * kMillisecondNs, .medium = Medium::int4});
  CHECK(sent.status == Status{});
  CHECK(pair.b->node->counters().transfers_cut == 1);
  CHECK(planes_of_delivery(*pair.b, pair.delivered()) == std::string(94, '1'));
  pair.finish();
}

TEST_CASE("core / protected / rows of topk and other media have no such blocks") {
  Pair pair(with(1, 2));
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  CHECK(pair.send("doc", {.medium = Medium::int8}).bytes == plain_bytes() + 6 * plane(1, 16) + plane(1, 4));
  (void)pair.delivered();
  pair.finish();
}
