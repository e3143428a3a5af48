// The shape of a payload: both sides must find the same pieces, and nothing a peer says may break it.
#include <doctest/doctest.h>

#include "engine/core/payload_plan.h"
#include "tests/support/node_world.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

PayloadShape shape(std::uint64_t tokens, std::span<const wire::BlockRange> ranges, std::uint32_t from_row = 0,
                   Medium medium = Medium::full) {
  return {small_layout(), tokens, Coding{.medium = medium}, from_row, ranges};
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
  CHECK(whole.runs() == 6);
  CHECK(whole.pieces_of(1) == 1);
  CHECK(whole.pieces_of(6) == 2);
  CHECK(whole.rows_of(6) == 4);
  const PayloadShape grown = shape(100, ranges, 5);
  CHECK(!grown.whole(1));
  CHECK(grown.first_row_of(1) == 5);
  CHECK(grown.first_row_of(2) == 0);
  CHECK(grown.whole(2));
}

TEST_CASE("payload / over a store's blocks: layer by layer, in steps, and no memory is kept when it runs out") {
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
  REQUIRE(begin_payload(rows, true, scratch, arrays));
  int steps = 1;
  for (std::uint64_t budget = 3; !build_payload(rows, store, view.blocks, arrays, budget); budget = 3, ++steps) {
    CHECK(budget == 0);
    CHECK(arrays.payload.pieces.empty());
  }
  CHECK(steps == 4);  // ten (layer, block) pairs
  const transport::Payload& payload = arrays.payload;
  CHECK(payload.total_bytes == (100 - 32 - 6) * small_layout().token_bytes());
  REQUIRE(payload.pieces.size() == 2 * (2 + 3 + 2));
  CHECK(payload.digests.size() == payload.total_units);
  for (std::size_t i = 1; i < payload.pieces.size(); ++i) {
    CHECK(payload.starts[i] == payload.starts[i - 1] + payload.pieces[i - 1].bytes);
  }
  const auto address = [&](std::uint32_t block, std::uint32_t layer, std::uint32_t kv, std::uint32_t row) {
    return store.block(view.blocks[block]).raw + small_layout().row_offset(layer, kv, row);
  };
  CHECK(payload.pieces[0].address == address(2, 0, 0, 6));
  CHECK(payload.pieces[1].address == address(2, 0, 1, 6));
  CHECK(payload.pieces[2].address == address(3, 0, 0, 0));  // K and V in one
  CHECK(payload.pieces[2].bytes == small_layout().block_bytes() / 2);
  CHECK(payload.pieces[6].address == address(6, 0, 1, 0));
  CHECK(payload.pieces[7].address == address(2, 1, 0, 6));  // the next layer
  release_payload(scratch, arrays);
  CHECK(scratch.used() == 0);
  Scratch tiny(512);
  CHECK(!begin_payload(rows, true, tiny, arrays));
  CHECK(tiny.used() == 0);
}

TEST_CASE("payload / planes: plane 0 of all blocks layer by layer, then plane 1") {
  World world;
  Host& host = world.add(1);
  TestAgent agent(host, "agent");
  REQUIRE(agent.commit("doc", 3, 40).ok());
  Store& store = host.node->store();
  VersionView view;
  REQUIRE(store.view(store.find_for(agent.handle, name_of("doc"), 0), view));
  for (const BlockHandle block : view.blocks) REQUIRE(store.attach_planes(block, Coding{.medium = Medium::int8}));
  const std::vector<wire::BlockRange> ranges{{0, 3}};
  Scratch scratch(64 * 1024);
  PayloadArrays arrays;
  const PayloadShape planes = shape(40, ranges, 0, Medium::int8);
  REQUIRE(begin_payload(planes, true, scratch, arrays));
  std::uint64_t budget = 100;
  REQUIRE(build_payload(planes, store, view.blocks, arrays, budget));
  REQUIRE(arrays.payload.pieces.size() == 2 * 2 * 3);
  const BlockView second = store.block(view.blocks[1]);
  CHECK(arrays.payload.pieces[1].address == second.planes[0].data);
  CHECK(arrays.payload.pieces[3 + 1].address == second.planes[0].data + second.planes[0].bytes / 2);
  CHECK(arrays.payload.pieces[6 + 1].address == second.planes[1].data);
  CHECK(arrays.payload.pieces[9 + 1].address == second.planes[1].data + second.planes[1].bytes / 2);
  CHECK(arrays.payload.pieces[9 + 1].bytes == second.planes[1].bytes / 2);
  release_payload(scratch, arrays);
  for (const BlockHandle block : view.blocks) store.release_planes(block);
}

TEST_CASE("payload / planes: behind plane 0 of all blocks comes plane 1 of those that are protected and missing") {
  World world;
  Host& host = world.add(1);
  TestAgent agent(host, "agent");
  REQUIRE(agent.commit("doc", 3, 100).ok());
  Store& store = host.node->store();
  VersionView view;
  REQUIRE(store.view(store.find_for(agent.handle, name_of("doc"), 0), view));
  const std::vector<wire::BlockRange> ranges{{1, 2}, {4, 3}};  // of blocks 0 to 6; 0 and 3 are held
  PayloadShape planes = shape(100, ranges, 0, Medium::int4);
  planes.coding.ends = {2, 2, 7};  // 0, 1, 5 and 6
  for (std::uint32_t b = 0; b < 7; ++b) REQUIRE(store.attach_planes(view.blocks[b], planes.coding.of_block(b)));
  CHECK(planes.plane_count() == 2);
  CHECK(planes.finer_blocks() == 3);  // 1, 5, 6
  CHECK(planes.finer_before(5) == 1);
  CHECK(planes.first_piece(1) == 2 * 5);
  CHECK(planes.first_piece(2) == 2 * 5 + 2 * 3);
  CHECK(planes.piece_of(1, 5 + 3) == 10 + 3 + 1);  // layer 1, the fourth missing block, which is 5: the second protected
  CHECK_FALSE(planes.in_plane(1, 4));
  CHECK(planes.in_plane(0, 4));
  Scratch scratch(64 * 1024);
  PayloadArrays arrays;
  REQUIRE(begin_payload(planes, true, scratch, arrays));
  int steps = 1;
  for (std::uint64_t budget = 4; !build_payload(planes, store, view.blocks, arrays, budget); budget = 4, ++steps) {
  }
  CHECK(steps == 5);  // twenty (plane, layer, block)s, those that are skipped too
  REQUIRE(arrays.payload.pieces.size() == 16);
  const auto data = [&](std::uint32_t block, std::size_t plane, std::uint32_t layer) {
    const PlaneView of = store.block(view.blocks[block]).planes[plane];
    return of.data + layer * (of.bytes / 2);
  };
  CHECK(arrays.payload.pieces[9].address == data(6, 0, 1));
  CHECK(arrays.payload.pieces[10].address == data(1, 1, 0));
  CHECK(arrays.payload.pieces[11].address == data(5, 1, 0));
  CHECK(arrays.payload.pieces[12].address == data(6, 1, 0));
  CHECK(arrays.payload.pieces[13].address == data(1, 1, 1));
  CHECK(arrays.payload.digests.size() == arrays.payload.total_units);
  release_payload(scratch, arrays);
  CHECK(scratch.used() == 0);
  for (const BlockHandle block : view.blocks) store.release_planes(block);
}

TEST_CASE("payload shape / protected ends that meet or reach beyond the context count each block once") {
  const std::vector<wire::BlockRange> all{{0, 7}};
  PayloadShape planes = shape(100, all, 0, Medium::int4);
  const auto finer = [&](ProtectedEnds ends) {
    planes.coding.ends = ends;
    return planes.finer_blocks();
  };
  CHECK(finer({0, 0, 7}) == 0);
  CHECK(finer({3, 4, 7}) == 7);
  CHECK(finer({5, 5, 7}) == 7);
  CHECK(finer({65535, 65535, 7}) == 7);
  CHECK(finer({0, 65535, 7}) == 7);
  CHECK(finer({2, 1, 7}) == 3);
  planes.coding.ends = {};
  CHECK(planes.plane_count() == 1);
  CHECK(planes.first_piece(1) == 14);
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
