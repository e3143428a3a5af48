// The shape of a payload: both sides must find the same pieces, and nothing a peer says may break it.
#include <doctest/doctest.h>

#include "engine/core/payload_plan.h"
#include "tests/support/node_world.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

PayloadShape shape(std::uint64_t tokens, std::span<const wire::BlockRange> ranges, std::uint32_t from_row = 0,
                   Medium medium = Medium::full) {
  return {small_layout(), tokens, medium, from_row, ranges};
}

}  // namespace

TEST_CASE("payload shape / what a peer may not say is refused") {
  using R = std::vector<wire::BlockRange>;
  CHECK(shape(100, R{{0, 7}}).valid());
  CHECK(shape(100, R{{0, 2}, {4, 3}}).valid());
  CHECK(!shape(100, R{}).valid());
  CHECK(!shape(100, R{{0, 8}}).valid());
  CHECK(!shape(100, R{{7, 1}}).valid());
  CHECK(!shape(100, R{{2, 0}}).valid());
  CHECK(!shape(100, R{{4, 1}, {2, 1}}).valid());
  CHECK(!shape(100, R{{2, 3}, {4, 1}}).valid());
  CHECK(!shape(100, R{{0xffffffff, 2}}).valid());
  CHECK(shape(100, R{{6, 1}}, 3).valid());
  CHECK(!shape(100, R{{6, 1}}, 4).valid());   // block 6 has 4 rows
  CHECK(!shape(100, R{{5, 2}}, 16).valid());
  CHECK(!shape(100, R{{6, 1}}, 2, Medium::int8).valid());
}

TEST_CASE("payload shape / pieces: whole slots, rows of partial blocks, rows after those held") {
  const std::vector<wire::BlockRange> ranges{{1, 2}, {6, 1}};
  const PayloadShape whole = shape(100, ranges);
  CHECK(whole.missing_blocks() == 3);
  CHECK(whole.nth(0) == 1);
  CHECK(whole.nth(2) == 6);
  CHECK(whole.pieces_of(1) == 1);
  CHECK(whole.pieces_of(6) == 4);
  CHECK(whole.rows_of(6) == 4);
  const PayloadShape grown = shape(100, ranges, 5);
  CHECK(!grown.whole(1));
  CHECK(grown.first_row_of(1) == 5);
  CHECK(grown.first_row_of(2) == 0);
  CHECK(grown.whole(2));
}

TEST_CASE("payload / over a store's blocks: sizes add up, and no memory is kept when it runs out") {
  World world;
  Host& host = world.add(1);
  TestAgent agent(host, "agent");
  REQUIRE(agent.commit("doc", 3, 100).ok());
  Store& store = host.node->store();
  VersionView view;
  REQUIRE(store.view(store.find_for(agent.handle, name_of("doc"), 0), view));
  const std::vector<wire::BlockRange> ranges{{2, 5}};
  Scratch scratch(64 * 1024);
  PayloadArrays arrays;
  const PayloadShape rows = shape(100, ranges, 6);
  REQUIRE(build_payload(rows, store, view.blocks, true, scratch, arrays));
  CHECK(arrays.payload.total_bytes == (100 - 32 - 6) * small_layout().token_bytes());
  CHECK(arrays.payload.pieces.size() == 4 + 3 + 4);
  CHECK(arrays.payload.digests.size() == arrays.payload.total_units);
  for (std::size_t i = 1; i < arrays.payload.pieces.size(); ++i) {
    CHECK(arrays.payload.starts[i] == arrays.payload.starts[i - 1] + arrays.payload.pieces[i - 1].bytes);
  }
  release_payload(scratch, arrays);
  CHECK(scratch.used() == 0);
  Scratch tiny(512);
  CHECK(!build_payload(rows, store, view.blocks, true, tiny, arrays));
  CHECK(tiny.used() == 0);
}

TEST_CASE("transfer states / nothing leaves the end, and everything can reach it") {
  for (std::size_t i = 0; i < kOutStates; ++i) {
    const auto from = static_cast<OutState>(i);
    CHECK(may_move(from, OutState::draining) == (from != OutState::draining));
    CHECK(!may_move(OutState::draining, from));
  }
  for (std::size_t i = 0; i < kInStates; ++i) {
    const auto from = static_cast<InState>(i);
    CHECK(!may_move(InState::closing, from));
    const bool direct = may_move(from, InState::closing);
    const bool over_lease = may_move(from, InState::failing) && may_move(InState::failing, InState::closing);
    CHECK((direct || over_lease || from == InState::closing));
  }
}
