// The medium lowrank from one node to another: it arrives as its codec decodes it, and only where both sides have
// the same basis and threshold.
#include <cstring>
#include <vector>

#include "codec/lowrank.h"
#include "tests/unit/codec/bases.h"
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr SendOptions kLowRank{.medium = Medium::lowrank};
constexpr std::size_t kOfLowRank = static_cast<std::size_t>(Medium::lowrank);
constexpr std::uint32_t kPromisedPpm = 500'000;
constexpr std::uint32_t kWeighedPpm = kPromisedPpm / 1000 * 24;  // by κ

// For small_layout(). Layers are groups of their own, the second of smaller gains: its runs are smaller.
codec::Basis basis_of(std::uint64_t seed, const Hash128& model = small_layout().model_id) {
  codec::BasisShape shape;
  shape.model_id = model;
  shape.layers = shape.groups = 2;
  shape.kv_heads = 2;
  shape.head_dim = shape.components = 32;
  shape.heads_per_segment = 1;
  shape.rope.rotary_dims = 32;
  codec::BasisContent content = codec_test::random_basis(shape, seed);
  for (std::size_t s = content.segments.size() / 2; s < content.segments.size(); ++s) {
    for (float& gain : content.segments[s].gains) gain *= 0.02F;
  }
  auto basis = codec::Basis::parse(codec::basis_file(content));
  REQUIRE_MESSAGE(basis.ok(), (basis.ok() ? "" : basis.error().message));
  return std::move(basis).value();
}

LowRankBasisPtr lowrank_of(std::uint64_t seed = 1, double bits = 3.0, int other_theta = 0) {
  codec::Basis basis = basis_of(seed);
  const int theta = codec::theta_for_rate(basis, bits, 16) + other_theta;
  return std::make_shared<const LowRankBasis>(std::move(basis), static_cast<std::uint16_t>(theta));
}

NodeOptions with(LowRankBasisPtr lowrank) {
  NodeOptions options = World::small_options(1, 1);
  options.store.lowrank = std::move(lowrank);
  // These rows have nothing to do with these bases: half of them is lost.
  for (scheduler::LossProfile& depth : options.loss.depths) depth.media[kOfLowRank].epsilon_ppm = kPromisedPpm;
  return options;
}

std::uint64_t bytes_of(const LowRankBasis& lowrank, std::uint64_t tokens) {
  std::uint64_t bytes = 0;
  for (std::uint32_t layer = 0; layer < lowrank.layers(); ++layer) {
    for (std::uint64_t first = 0; first < tokens; first += 16) {
      const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(16, tokens - first));
      bytes += codec::lowrank_bytes(lowrank.basis(), layer, lowrank.theta(), rows);
    }
  }
  return bytes;
}

// K and V of one layer of a block, as the codec alone gives them back.
std::vector<std::byte> coded_rows(const LowRankBasis& lowrank, std::uint64_t seed, std::uint32_t first, std::uint32_t rows,
                                  std::uint32_t layer) {
  const Layout layout = small_layout();
  std::vector<std::byte> slot(layout.block_bytes());
  for (std::uint32_t row = 0; row < rows; ++row) TestAgent::write_row(layout, seed, first + row, slot.data());
  const codec::RunShape shape = codec::run_shape(layout, rows);
  const codec::LowRank codec(lowrank.basis(), layer, first, lowrank.theta());
  std::vector<std::byte> scratch_bytes(codec.scratch_bytes(shape) + 64);
  const std::size_t skew = reinterpret_cast<std::uintptr_t>(scratch_bytes.data()) % 64;
  const std::span<std::byte> scratch = std::span(scratch_bytes).subspan(64 - skew, scratch_bytes.size() - 64);
  std::vector<std::byte> plane(codec.bound(shape, 0));
  codec::Meta meta;
  const codec::RunView in{{slot.data() + layout.row_offset(layer, 0, 0), shape.side_bytes()},
                          {slot.data() + layout.row_offset(layer, 1, 0), shape.side_bytes()}};
  REQUIRE(codec.encode(shape, in, {plane, {}, {}}, scratch, meta).status.ok());
  std::vector<std::byte> out(shape.raw_bytes());
  const codec::MutableRun rows_out{std::span(out).first(shape.side_bytes()), std::span(out).last(shape.side_bytes())};
  REQUIRE(codec.decode(shape, meta, {plane, {}, {}}, rows_out, scratch).status.ok());
  return out;
}

// The delivery's rows are those, bit by bit.
void check_rows(Host& host, const Received& got, const LowRankBasis& lowrank, std::uint64_t seed) {
  const Layout layout = small_layout();
  for (const ManifestBlock& block : got.blocks) {
    const std::byte* slot = host.node->store().arena(block.arena)->base() + block.offset;
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
      const auto rows = coded_rows(lowrank, seed, static_cast<std::uint32_t>(block.position), block.tokens, layer);
      const std::size_t side = rows.size() / 2;
      CHECK(std::memcmp(slot + layout.row_offset(layer, 0, 0), rows.data(), side) == 0);
      CHECK(std::memcmp(slot + layout.row_offset(layer, 1, 0), rows.data() + side, side) == 0);
    }
  }
}

std::vector<std::byte> planes_of_delivery(Host& host, const AgentEvent& event) {
  VersionView view;
  REQUIRE(host.node->store().view(event.version, view));
  std::vector<std::byte> bytes;
  for (const BlockHandle handle : view.blocks) {
    const PlaneView plane = host.node->store().block(handle).planes[kLowRankPlane];
    REQUIRE(plane.data != nullptr);
    bytes.insert(bytes.end(), plane.data, plane.data + plane.bytes);
  }
  return bytes;
}

}  // namespace

TEST_CASE("lowrank sizes / a run begins where the sizes of those before it say, at any number of rows") {
  const LowRankBasisPtr lowrank = lowrank_of();
  CHECK(lowrank->run_bytes(16, 0) > lowrank->run_bytes(16, 1));
  for (std::uint32_t rows = 0; rows <= 512; ++rows) {
    std::uint64_t at = 0;
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      const std::uint64_t bytes = codec::lowrank_bytes(lowrank->basis(), layer, lowrank->theta(), rows);
      REQUIRE(lowrank->offset(rows, layer) == at);
      REQUIRE(lowrank->run_bytes(rows, layer) == bytes);
      REQUIRE(lowrank->most_run_bytes(rows) >= bytes);
      at += bytes;
    }
    REQUIRE(lowrank->offset(rows, 2) == at);
  }
  Layout layout = small_layout();
  CHECK(lowrank->fits(layout));
  layout.model_id.low += 1;
  CHECK(lowrank->takes(layout));
  CHECK_FALSE(lowrank->fits(layout));
  layout = small_layout();
  layout.rope_base = 500'000.0F;
  CHECK_FALSE(lowrank->fits(layout));
  layout = small_layout();
  layout.dtype = Dtype::fp8_e4m3;
  CHECK_FALSE(lowrank->takes(layout));
}

TEST_CASE("core / lowrank / arrives bit for bit as the codec alone decodes it, the partial tail too") {
  const LowRankBasisPtr lowrank = lowrank_of();
  for (const bool integrity : {true, false}) {
    NodeOptions options = with(lowrank);
    options.integrity = integrity;
    options.loss.depths[0].media[kOfLowRank] = {.epsilon_ppm = 12'345};
    Pair pair(options);
    REQUIRE(pair.sender->commit("doc", 7, 100).ok());
    const AgentEvent sent = pair.send("doc", kLowRank);
    CHECK(sent.status == Status{});
    CHECK(sent.medium == Medium::lowrank);
    CHECK(sent.bytes == bytes_of(*lowrank, 100));
    CHECK(sent.bytes * 4 < 100 * small_layout().token_bytes());
    const AgentEvent event = pair.delivered();
    CHECK(event.medium == Medium::lowrank);
    const Received got = read_delivery(*pair.b, event);
    CHECK(got.header.medium == Medium::lowrank);
    CHECK(got.header.epsilon_ppm == 12'345);
    CHECK(got.tokens == TestAgent::tokens_of(7, 100));
    check_rows(*pair.b, got, *lowrank, 7);
    // A second one to the same node moves nothing: its planes are there.
    CHECK(pair.send("doc", kLowRank).bytes == 0);
    (void)pair.delivered();
    pair.finish();
  }
}

TEST_CASE("core / lowrank / a context that grows sends its new blocks, and the tail again as a whole") {
  const LowRankBasisPtr lowrank = lowrank_of();
  Pair pair(with(lowrank));
  REQUIRE(pair.sender->commit("doc", 7, 36, 200).ok());
  REQUIRE(pair.send("doc", kLowRank).status == Status{});
  (void)pair.delivered();
  for (const std::size_t tokens : {std::size_t{43}, std::size_t{48}, std::size_t{117}}) {
    const std::size_t held = tokens == 117 ? 48 : 32;
    REQUIRE(pair.sender->commit("doc", 7, tokens).ok());
    const AgentEvent sent = pair.send("doc", kLowRank);
    CHECK(sent.status == Status{});
    CHECK(sent.bytes == bytes_of(*lowrank, tokens) - bytes_of(*lowrank, held));
    const Received got = read_delivery(*pair.b, pair.delivered());
    CHECK(got.header.token_count == tokens);
    check_rows(*pair.b, got, *lowrank, 7);
  }
  pair.finish();
}

TEST_CASE("core / lowrank / three hops leave the planes byte-identical, and nobody encodes them again") {
  const LowRankBasisPtr lowrank = lowrank_of();
  const NodeOptions options = with(lowrank);
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  REQUIRE(pair.send("doc", kLowRank).status == Status{});
  const std::vector<std::byte> first = planes_of_delivery(*pair.b, pair.delivered());
  Host* from_host = pair.b;
  TestAgent* from = pair.receiver.get();
  std::vector<std::unique_ptr<TestAgent>> agents;
  for (const NodeId id : {NodeId{3}, NodeId{4}}) {
    Host& next = pair.world.add(id, &options);
    pair.world.dial(next, from_host->id);
    const std::string name = "agent" + std::to_string(id);
    agents.push_back(std::make_unique<TestAgent>(next, name));
    REQUIRE(pair.world.run_until([&] { return from_host->node->knows(name_of("tenant"), name_of(name)); }));
    const TicketId ticket = from->send("doc", {name}, kLowRank);
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return from->take(AgentEventKind::sent, event, ticket); }));
    CHECK(event.status == Status{});
    CHECK(event.bytes == bytes_of(*lowrank, 100));
    REQUIRE(agents.back()->take(AgentEventKind::delivery, event));
    CHECK(planes_of_delivery(next, event) == first);
    const Received got = read_delivery(next, event);
    check_rows(next, got, *lowrank, 7);
    CHECK(got.header.epsilon_ppm == kWeighedPpm);  // as after the first hop
    CHECK(from_host->node->counters().encoded_bytes == 0);
    // What was lost is not to be had here.
    const TicketId asked = from->send("doc", {name}, {.medium = Medium::int4});
    REQUIRE(pair.world.run_until([&] { return from->take(AgentEventKind::sent, event, asked); }));
    CHECK(event.status.code == Code::rejected);
    from_host = &next;
    from = agents.back().get();
  }
  pair.finish();
}

TEST_CASE("core / lowrank / a better medium sends all its planes, and a worse one nothing") {
  const LowRankBasisPtr lowrank = lowrank_of();
  Pair pair(with(lowrank));
  REQUIRE(pair.sender->commit("first", 7, 100).ok());
  const std::uint64_t int8_bytes = pair.send("first", {.medium = Medium::int8}).bytes;
  (void)pair.delivered();
  CHECK(pair.send("first", kLowRank).bytes == 0);  // it is held with less loss
  (void)pair.delivered();
  REQUIRE(pair.sender->commit("second", 8, 100).ok());
  REQUIRE(pair.send("second", kLowRank).status == Status{});
  const AgentEvent coarse = pair.delivered();
  const AgentEvent finer = pair.send("second", {.medium = Medium::int8});
  CHECK(finer.status == Status{});
  CHECK(finer.bytes == int8_bytes);  // planes of lowrank are no base of others
  (void)pair.delivered();
  CHECK(pair.send("second", {.medium = Medium::exact}).status == Status{});
  CHECK(pair.exact(8, 100).header.epsilon_ppm == 0);
  check_rows(*pair.b, read_delivery(*pair.b, coarse), *lowrank, 8);  // who reads the coarse copy reads on
  pair.finish();
}

TEST_CASE("core / lowrank / without the very same basis and threshold on both sides there is no such offer") {
  const LowRankBasisPtr lowrank = lowrank_of();
  const NodeOptions here = with(lowrank);
  const NodeOptions others[] = {with(nullptr), with(lowrank_of(2)), with(lowrank_of(1, 3.0, 1))};
  for (const NodeOptions& other : others) {
    for (const bool sends : {true, false}) {
      Pair pair(sends ? here : other, TestAgent::base_info(), TestAgent::base_info(), {}, sends ? &other : &here);
      REQUIRE(pair.sender->commit("doc", 7, 100).ok());
      CHECK(pair.send("doc", kLowRank).status.code == Code::rejected);
      CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
      pair.finish();
    }
  }
}

TEST_CASE("core / lowrank / a basis that was made for another model or RoPE is none") {
  AgentInfo info = TestAgent::base_info();
  SUBCASE("model") { info.layout.model_id = {1, 2}; }
  SUBCASE("rope") { info.layout.rope_base = 500'000.0F; }
  Pair pair(with(lowrank_of()), info, info);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.send("doc", kLowRank).status.code == Code::rejected);
  CHECK(pair.send("doc", {.medium = Medium::int4}).status == Status{});
  (void)pair.delivered();
  pair.finish();
}

TEST_CASE("core / lowrank / rows that the basis was not made for are found out as they are coded, and not sent so") {
  NodeOptions options = with(lowrank_of());
  for (scheduler::LossProfile& depth : options.loss.depths) depth.media[kOfLowRank].epsilon_ppm = 10'300;
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.send("doc", kLowRank).status.code == Code::rejected);
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
  CHECK(pair.send("doc", kLowRank).status.code == Code::rejected);  // what was coded meanwhile is no better
  pair.finish();
  options.policy = Medium::lowrank;
  Pair other(options);
  REQUIRE(other.sender->commit("doc", 7, 100).ok());
  const AgentEvent sent = other.send("doc");
  CHECK(sent.status == Status{});
  CHECK(sent.medium != Medium::lowrank);
  (void)other.delivered();
  other.finish();
}

TEST_CASE("core / lowrank / as a policy it yields to the other media where it is not possible") {
  NodeOptions here = with(lowrank_of());
  here.policy = Medium::lowrank;
  const NodeOptions without = with(nullptr);
  Pair same(here);
  REQUIRE(same.sender->commit("doc", 7, 100).ok());
  CHECK(same.send("doc").medium == Medium::lowrank);
  (void)same.delivered();
  same.finish();
  Pair other(here, TestAgent::base_info(), TestAgent::base_info(), {}, &without);
  REQUIRE(other.sender->commit("doc", 7, 100).ok());
  const AgentEvent sent = other.send("doc");
  CHECK(sent.status == Status{});
  CHECK(sent.medium != Medium::lowrank);
  (void)other.delivered();
  other.finish();
}

TEST_CASE("core / lowrank / the receiver holds what an offer says against its own basis") {
  // Frames are changed on their way: the sender believes that the receiver has what it has.
  const LowRankBasisPtr lowrank = lowrank_of();
  for (const std::uint16_t theta : {lowrank->theta(), static_cast<std::uint16_t>(lowrank->theta() - 1), std::uint16_t{65'535}}) {
    const bool same = theta == lowrank->theta();
    const NodeOptions there = with(same ? lowrank_of(2) : lowrank);
    Pair pair(with(lowrank), TestAgent::base_info(), TestAgent::base_info(), {}, &there);
    pair.world.network.set_frame_filter([&](NodeId from, NodeId, std::span<std::byte> frame) {
      const AllowAllocScope test;
      if (from == 2 && wire::peek_type(frame) == wire::MessageType::agent_up) {
        wire::AgentUp up;
        REQUIRE(wire::decode(frame, up).ok());
        up.lowrank = {lowrank->basis().id(), lowrank->theta()};
        CHECK(wire::encode(up, frame) == frame.size());
      }
      if (from == 1 && wire::peek_type(frame) == wire::MessageType::offer) {
        wire::Offer offer;
        REQUIRE(wire::decode(frame, offer).ok());
        REQUIRE(offer.lowrank == wire::LowRankCode{lowrank->basis().id(), lowrank->theta()});
        std::vector<std::byte> tokens(offer.token_bytes.begin(), offer.token_bytes.end());
        offer.token_bytes = tokens;
        offer.lowrank.theta = theta;
        CHECK(wire::encode(offer, frame) == frame.size());
      }
      return false;
    });
    TestAgent late(*pair.b, "late");
    REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(name_of("tenant"), name_of("late")); }));
    REQUIRE(pair.sender->commit("doc", 7, 100).ok());
    const AgentEvent sent = pair.ended(pair.sender->send("doc", {"late"}, kLowRank));
    CHECK(sent.status.code == Code::layout_mismatch);
    CHECK(late.count(AgentEventKind::delivery) == 0);
    pair.finish();
  }
}

TEST_CASE("core / lowrank / sizes that are not the basis's own are refused") {
  const LowRankBasisPtr lowrank = lowrank_of();
  Pair pair(with(lowrank));
  pair.world.network.set_frame_filter([&](NodeId, NodeId, std::span<std::byte> frame) {
    const AllowAllocScope test;
    if (wire::peek_type(frame) != wire::MessageType::offer) return false;
    wire::Offer offer;
    REQUIRE(wire::decode(frame, offer).ok());
    std::vector<std::byte> tokens(offer.token_bytes.begin(), offer.token_bytes.end());
    offer.token_bytes = tokens;
    for (wire::Candidate& candidate : offer.candidates) candidate.block_bytes += 2;
    CHECK(wire::encode(offer, frame) == frame.size());
    return false;
  });
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.send("doc", kLowRank).status.code == Code::protocol_error);
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
  pair.finish();
}

TEST_CASE("core / lowrank / there is no part of it to deliver at a deadline") {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 625'000;
  link.latency_ns = 100 * kMicrosecondNs;
  const LowRankBasisPtr lowrank = lowrank_of();
  Pair pair(with(lowrank), TestAgent::base_info(), TestAgent::base_info(), link);
  REQUIRE(pair.sender->commit("doc", 7, 1500).ok());
  const SendOptions late{.deadline_ns = 100 * kMillisecondNs, .medium = Medium::lowrank};  // it takes 240 ms
  CHECK(pair.send("doc", late).status.code == Code::timed_out);
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
  pair.finish();
}

TEST_CASE("core / lowrank / is chosen on a slow link where it loses little, and not below the floor") {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 1'250'000;
  NodeOptions options = with(lowrank_of());
  options.lane_rate_hint_bytes_per_s = 1'250'000;
  options.store.agent_arena_bytes = 4U << 20;
  options.store.receive_arena_bytes = 8U << 20;
  Pair pair(options, TestAgent::base_info(), TestAgent::base_info(), link);
  REQUIRE(pair.sender->commit("doc", 7, 1500).ok());
  const AgentEvent sent = pair.send("doc");
  CHECK(sent.status == Status{});
  CHECK(sent.medium == Medium::lowrank);
  (void)pair.delivered();
  REQUIRE(pair.sender->commit("other", 8, 1500).ok());
  CHECK(pair.send("other", {.fidelity_floor_ppm = 999'999}).medium != Medium::lowrank);
  (void)pair.delivered();
  pair.finish();
}

TEST_CASE("core / lowrank / rows that it can't code go another way, or not where it is forced") {
  NodeOptions options = with(lowrank_of());
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 7, 48, 64).ok());
  const Extent extent = pair.sender->contexts["doc"].extent;
  std::byte* slot = pair.a->node->store().arena(extent.arena)->base() + extent.offset + 3 * small_layout().block_bytes();
  std::memset(slot, 0xFF, small_layout().block_bytes());  // NaN
  pair.sender->contexts["doc"].written = 64;
  REQUIRE(pair.sender->commit("doc", 7, 64).ok());
  CHECK(pair.send("doc", kLowRank).status.code == Code::rejected);
  CHECK(pair.send("doc", {.medium = Medium::full}).status == Status{});
  (void)pair.delivered();
  pair.finish();
}
