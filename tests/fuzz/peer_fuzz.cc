// A hostile peer that has passed the handshake: well-formed and bent messages, chunks and leases in any order
// against a real node with two agents, on the simulated network. The node lives through all inputs, its agents'
// requests all end, and when the peer is gone nothing of it is left: no transfer, no staged memory, no lease.
//
// Each input is a script: a byte chooses a step, the following ones what it is about. Fields keep the bounds that
// the codec demands, which the target wire is about; one frame in eight is bent afterwards.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kvrail/base/assert.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/node_world.h"
#include "transport/wire/codec.h"
#include "transport/wire/frame.h"

namespace {

using kvrail::test::Bytes;
using namespace kvrail;
using namespace kvrail::testing;
using transport::ChunkPost;
using transport::Event;
using transport::EventKind;
using transport::LaneId;
using transport::LeaseId;
using transport::wire::MessageType;
namespace wire = transport::wire;

constexpr NodeId kNode = 1;
constexpr NodeId kPeer = 2;
constexpr std::size_t kMostSteps = 256;
constexpr std::uint64_t kTokenBytes = 512;   // of small_layout()

NodeOptions node_options() {
  NodeOptions options = World::small_options(kNode, 1);
  options.store.table_bytes = 2U << 20;
  options.store.receive_arena_bytes = 256U << 10;
  options.store.agent_arena_bytes = 256U << 10;
  options.eager_limit_bytes = 16 * 1024;
  return options;
}

class Attack {
 public:
  explicit Attack(Bytes bytes) : bytes_(bytes), options_(node_options()), host_(world_.add(kNode, &options_)), memory_(64 * 1024) {
    AgentInfo info = TestAgent::base_info();
    info.arena_bytes = 256U << 10;
    info.accepted = kAllMedia | mask_of(Medium::split);
    info.summary_bytes = 64;
    alice_ = std::make_unique<TestAgent>(host_, "alice", info);
    bob_ = std::make_unique<TestAgent>(host_, "bob", info);
    KVRAIL_ASSERT(alice_->commit("doc", 1, 60, 100).ok());
    KVRAIL_ASSERT(bob_->commit("small", 2, 5).ok());
    const std::vector<float> importance(60, 1.0F);  // topk is offered of it
    KVRAIL_ASSERT(host_.node->set_importance(alice_->handle, name_of("doc"), 0, 0, importance).ok());
    pieces_[0] = {memory_.data(), memory_.size()};
    rise();
    announce();
    pass(5 * kMillisecondNs);
  }

  void run() {
    for (std::size_t step = 0; !bytes_.empty() && step < kMostSteps; ++step) one_step();
    finish();
  }

 private:
  void rise() {
    peer_ = world_.network.add_node(kPeer, ++life_);
    lane_ = LaneId{};
    exposed_.clear();
    dial();
  }
  void dial() {
    auto opened = peer_->open_lane("sim:1", 7);
    if (opened.ok()) lane_ = *opened;
  }
  void announce() {
    wire::AgentUp up;
    up.tenant = name_of("tenant");
    up.agent = name_of("mallory");
    up.accepted = kAllMedia | mask_of(Medium::split);
    up.tokenizer = {5, 5};
    up.layout = small_layout();
    post(up);
  }

  // ---- the peer's ends ----
  template <class M>
  void post(const M& message) {
    frame_.resize(wire::kMaxMessageBytes);
    frame_.resize(wire::encode(message, frame_));
    if (frame_.empty()) return;
    if (bytes_.one_in(8)) {
      for (std::size_t n = 1 + bytes_.u8() % 3U; n > 0; --n) frame_[bytes_.u64() % frame_.size()] = std::byte{bytes_.u8()};
    }
    static_cast<void>(peer_->try_post_frame(lane_, frame_));
  }
  void pass(TimeNs ns) {
    const TimeNs until_ns = world_.network.now_ns() + ns;
    while (world_.network.now_ns() < until_ns) {
      world_.step(until_ns);
      listen();
    }
    collect();
  }
  void listen() {
    std::array<Event, 32> events;
    for (std::size_t count = SIZE_MAX; count != 0;) {
      count = peer_->poll(world_.network.now_ns(), events);
      for (std::size_t i = 0; i < count; ++i) hear(events[i]);
    }
  }
  void hear(const Event& event) {
    if (event.kind == EventKind::lane_up) lane_ = event.lane;
    if (event.kind == EventKind::lease_withdrawn) exposed_.erase(event.lease.slot);
    if (event.kind != EventKind::frame) return;
    wire::Offer offer;
    wire::Accept accept;
    wire::Fetch fetch;
    if (wire::decode(event.bytes, offer).ok()) {
      heard_transfer_ = offer.transfer;
      heard_tokens_ = offer.total_tokens;
    }
    if (wire::decode(event.bytes, accept).ok()) heard_lease_ = accept.lease;
    if (wire::decode(event.bytes, fetch).ok()) heard_fetch_ = fetch.fetch_id;
  }
  // What the agents are told: every ticket ends once, deliveries are kept for a step to release.
  void collect() {
    for (TestAgent* agent : {alice_.get(), bob_.get()}) {
      auto& queue = host_.events[agent->handle.packed()];
      for (; !queue.empty(); queue.pop_front()) {
        const AgentEvent& event = queue.front();
        if (event.kind == AgentEventKind::delivery) {
          KVRAIL_ASSERT(read_delivery(host_, event).header.magic == kManifestMagic);
          held_.push_back({agent->handle, event.delivery});
          if (event.medium == Medium::split) claim(*agent, event.delivery);
        } else if (event.kind == AgentEventKind::claimed) {
          take_claimed(*agent, event);
        } else if (event.kind == AgentEventKind::summary_request) {
          request_ = event.transfer;
        } else {
          KVRAIL_ASSERT_MSG(open_.erase({agent->handle.packed(), event.ticket}) == 1, "a ticket ends once");
        }
      }
    }
  }
  // A split's agent computes at once, block by block, until it gets the tail or hears why not.
  void claim(TestAgent& agent, DeliveryHandle first) {
    const TicketId ticket = agent.next_ticket++;
    if (host_.node->claim(agent.handle, ticket, first, 16).ok()) claims_[{agent.handle.packed(), ticket}] = first;
  }
  void take_claimed(TestAgent& agent, const AgentEvent& event) {
    const auto claimed = claims_.find({agent.handle.packed(), event.ticket});
    KVRAIL_ASSERT_MSG(claimed != claims_.end(), "a claim is answered once");
    const DeliveryHandle first = claimed->second;
    claims_.erase(claimed);
    if (event.delivery.valid()) {
      KVRAIL_ASSERT(read_delivery(host_, event).header.magic == kManifestMagic);
      held_.push_back({agent.handle, event.delivery});
    } else if (event.status.ok()) {
      claim(agent, first);
    }
  }
  void release() {
    for (const auto& [agent, delivery] : held_) static_cast<void>(host_.node->release(agent, delivery, 0));
    held_.clear();
  }

  // ---- what messages are about ----
  // Ids that are in use here, were, or never were.
  TransferId transfer() {
    switch (bytes_.u8() % 4) {
      case 0: return heard_transfer_;
      case 1: return std::max<TransferId>(own_transfer_, 1);
      case 2: return std::max<TransferId>(own_transfer_, 2) - 1;
      default: return std::max<TransferId>(bytes_.u64(), 1);
    }
  }
  LeaseId lease() {
    if (bytes_.one_in(4)) return {bytes_.u8() % 64U, static_cast<std::uint32_t>(bytes_.number(3))};
    return heard_lease_;
  }
  Status status() {
    return {static_cast<Code>(bytes_.u8() % kCodeCount), static_cast<Scope>(bytes_.u8() % kScopeCount), bytes_.u8()};
  }
  Medium medium() { return static_cast<Medium>(1 + bytes_.u8() % (kMediumCount - 1)); }
  Name agent() {
    constexpr std::string_view kNames[] = {"alice", "bob", "mallory", "nobody"};
    return name_of(kNames[bytes_.u8() % 4]);
  }
  Name context() { return name_of(bytes_.one_in(3) ? "doc" : "evil"); }

  void offer() {
    static std::vector<TokenId> tokens;
    wire::Offer message;
    message.transfer = bytes_.one_in(4) ? transfer() : ++own_transfer_;
    message.fetch_id = bytes_.one_in(2) ? heard_fetch_ : 0;
    message.tenant = name_of(bytes_.one_in(16) ? "other" : "tenant");
    message.from_agent = bytes_.one_in(8) ? agent() : name_of("mallory");
    message.to_agent = bytes_.one_in(8) ? agent() : name_of(bytes_.one_in(2) ? "alice" : "bob");
    message.context = context();
    message.version = 1 + bytes_.number(3);
    message.layout = small_layout();
    if (bytes_.one_in(16)) message.layout.layers = 1 + bytes_.u8();
    message.tokenizer = {5, 5};
    message.total_tokens = 1 + bytes_.number(120) % wire::kMaxContextTokens;
    own_tokens_ = message.total_tokens;
    message.base_tokens = bytes_.one_in(16) ? std::min(bytes_.number(4), message.total_tokens / 16) * 16 : 0;
    message.remaining_ns = bytes_.one_in(4) ? bytes_.u64() : 0;
    message.weight = 2;
    message.critical = bytes_.one_in(4);
    message.wish = bytes_.one_in(2) ? medium() : Medium::automatic;
    message.eager = bytes_.one_in(8);
    const std::uint64_t rest = message.total_tokens - message.base_tokens;
    tokens = TestAgent::tokens_of(1 + bytes_.u8() % 2U, std::min<std::uint64_t>(rest, 200));
    message.token_count_here = static_cast<std::uint32_t>(bytes_.one_in(8) ? tokens.size() / 2 : tokens.size());
    message.token_bytes = std::as_bytes(std::span(tokens)).first(std::size_t{message.token_count_here} * 4);
    message.candidate_count = static_cast<std::uint8_t>(1 + bytes_.u8() % 3);
    for (std::size_t i = 0; i < message.candidate_count; ++i) {
      wire::Candidate& candidate = message.candidates[i];
      candidate.medium = i == 0 ? (bytes_.one_in(4) ? Medium::tokens : Medium::full) : medium();
      candidate.block_bytes = bytes_.one_in(8) ? bytes_.u64() : small_layout().block_bytes();
      candidate.tail_bytes = bytes_.number(200) * 128;
      candidate.rate_bytes_per_s = 1'000'000'000;
      candidate.epsilon_ppm = static_cast<std::uint32_t>(bytes_.number(100));
      if (candidate.medium == Medium::int4) {
        candidate.first_blocks = static_cast<std::uint16_t>(bytes_.one_in(4) ? 0xffff : bytes_.number(4));
        candidate.last_blocks = static_cast<std::uint16_t>(bytes_.one_in(4) ? 0xffff : bytes_.number(4));
      }
      if (!is_sparse(candidate.medium)) continue;
      candidate.rows = static_cast<std::uint32_t>(1 + bytes_.number(60));
      candidate.fixed_bytes = bytes_.number(200) * 128;
      if (bytes_.one_in(3)) candidate.values = medium();
    }
    post(message);
  }
  void fetch() {
    wire::Fetch message;
    message.fetch_id = 1 + bytes_.number(8);   // below 2^33
    message.tenant = name_of(bytes_.one_in(8) ? "other" : "tenant");
    message.requester = name_of("mallory");
    message.owner = agent();
    message.context = context();
    message.version = bytes_.number(2);
    message.wish = bytes_.one_in(2) ? medium() : Medium::automatic;
    post(message);
  }
  void accept() {
    wire::Accept message;
    message.transfer = transfer();
    message.medium = medium();
    message.lease = lease();
    message.lease_remaining_ns = bytes_.one_in(4) ? bytes_.u64() : 10 * kSecondNs;
    message.tail_from_row = bytes_.u8() % 17U;
    message.tail_first = bytes_.one_in(3);
    message.range_count = bytes_.u8() % 4;
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < message.range_count; ++i) {
      message.missing[i] = {at + static_cast<std::uint32_t>(bytes_.number(2) % 1000), 1 + bytes_.u8() % 3U};
      at = message.missing[i].first + message.missing[i].count + 1;
    }
    post(message);
  }
  void outcome() {
    wire::Outcome message;
    message.transfer = transfer();
    message.state = static_cast<wire::TransferState>(bytes_.u8() % 4);
    if (message.state == wire::TransferState::ended) message.status = status();
    message.lease = lease();
    message.range_count = bytes_.u8() % 3;
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < message.range_count; ++i) {
      message.missing[i] = {at + bytes_.number(200) * 64, 1 + bytes_.number(200) * 64};
      at = message.missing[i].offset + message.missing[i].bytes + 1;
    }
    post(message);
  }
  void workflow() {  // with circles now and then, which are refused further in
    wire::Workflow message;
    message.tenant = name_of("tenant");
    message.workflow = name_of("flow");
    message.step_count = static_cast<std::uint8_t>(1 + bytes_.u8() % 5);
    for (std::size_t i = 0; i < message.step_count; ++i) message.steps[i] = {agent(), bytes_.number(100) * kMillisecondNs};
    message.edge_count = bytes_.u8() % 8;
    for (std::size_t i = 0; i < message.edge_count; ++i) {
      message.edges[i] = {static_cast<std::uint8_t>(bytes_.u8() % message.step_count),
                          static_cast<std::uint8_t>(bytes_.u8() % message.step_count)};
    }
    post(message);
  }
  void raw_bytes() {
    std::array<std::byte, 300> raw{};
    const std::size_t size = bytes_.u64() % raw.size();
    for (std::size_t i = 0; i < size; ++i) raw[i] = std::byte{bytes_.u8()};
    const auto part = std::span<const std::byte>(raw).first(std::max<std::size_t>(size / 16 * 16, 16));
    switch (bytes_.u8() % 4) {
      case 0: post(wire::Eager{transfer(), bytes_.one_in(2) ? bytes_.u64() : 0, part}); break;
      case 1: post(wire::Summary{transfer(), static_cast<std::uint8_t>(bytes_.u8() % 3), part}); break;
      case 2: post(wire::Tokens{transfer(), bytes_.number(100) % (1U << 20), part}); break;
      default: {
        const auto count = static_cast<std::uint32_t>(part.size() / 16);
        post(wire::Encodings{transfer(), static_cast<std::uint32_t>(bytes_.number(10) % 1000), count, part});
      }
    }
  }
  void message() {
    switch (bytes_.u8() % 19) {
      case 0: post(wire::Keepalive{bytes_.u64()}); break;
      case 1: announce(); break;
      case 2: post(wire::AgentDown{name_of("tenant"), agent()}); break;
      case 3: post(wire::Later{transfer(), bytes_.number(100) * kMicrosecondNs, bytes_.u64()}); break;
      case 4: post(wire::Reject{bytes_.one_in(3) ? 0 : transfer(), heard_fetch_, status()}); break;
      case 5: post(wire::Done{transfer(), status(), medium(), bytes_.u64(), bytes_.number(200)}); break;
      case 6: post(wire::Cancel{transfer(), status()}); break;
      case 7: post(wire::Query{transfer(), bytes_.one_in(4) ? 1 + bytes_.u8() : life_}); break;
      case 8: outcome(); break;
      case 9: fetch(); break;
      case 10: {
        const std::uint64_t total = bytes_.u64();
        post(wire::State{bytes_.one_in(2) ? total : 0, total, bytes_.u64(), bytes_.u64(), bytes_.u64()});
        break;
      }
      case 11:
      case 12: accept(); break;
      case 13: raw_bytes(); break;
      case 14: workflow(); break;
      case 15:
        post(wire::TaskNotice{1 + bytes_.u64() % 4, name_of("tenant"), name_of("flow"), bytes_.number(200) * kMillisecondNs});
        break;
      case 16:
        post(wire::TurnNotice{name_of("tenant"), name_of("flow"), agent(), bytes_.number(200) * kMillisecondNs,
                              bytes_.number(20) * kMillisecondNs, static_cast<std::uint32_t>(bytes_.u64() % 1'000'001)});
        break;
      default: offer();
    }
  }
  void post_chunk(LeaseId lease, TransferId transfer, std::uint64_t offset, std::uint32_t bytes) {
    if (offset >= memory_.size() || bytes > memory_.size() - offset) return;
    ChunkPost post;
    post.lease = lease;
    post.transfer = transfer;
    post.offset = offset;
    post.bytes = bytes;
    post.source = &payload_;
    post.critical = bytes_.one_in(4);
    static_cast<void>(peer_->try_post_chunk(lane_, post));
  }
  void chunk() {
    const LeaseId to = lease();
    const TransferId of = transfer();
    const std::uint64_t offset = bytes_.number(200) * 64;
    post_chunk(to, of, offset, static_cast<std::uint32_t>(64 * (1 + bytes_.u8())));
  }
  LeaseId expose() {
    const LeaseId id{bytes_.u8() % 8U, 1};
    if (exposed_.insert(id.slot).second) peer_->expose(id, kNode, payload_);
    return id;
  }
  // What a correct peer would do next, so that what follows finds transfers in every state.
  void behave() {
    switch (bytes_.u8() % 4) {
      case 0: {   // takes what was offered
        wire::Accept message;
        message.transfer = heard_transfer_;
        message.medium = std::array{Medium::tokens, Medium::full, Medium::topk}[bytes_.u8() % 3];
        message.lease = expose();
        message.lease_remaining_ns = 10 * kSecondNs;
        message.range_count = message.medium == Medium::tokens ? 0 : 1;
        message.tail_first = bytes_.one_in(3);
        const std::uint64_t rows = message.medium == Medium::topk ? heard_tokens_ / 2 : heard_tokens_;
        message.missing[0] = {0, static_cast<std::uint32_t>(std::clamp<std::uint64_t>((rows + 15) / 16, 1, 100))};
        post(message);
        break;
      }
      case 1: post(wire::Done{heard_transfer_, {}, Medium::full, heard_tokens_ * kTokenBytes, 1000}); break;
      case 2: {   // sends all of what it has offered
        for (std::uint64_t at = 0; at < std::min<std::uint64_t>(own_tokens_ * kTokenBytes, memory_.size());) {
          const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(4096, own_tokens_ * kTokenBytes - at));
          post_chunk(heard_lease_, std::max<TransferId>(own_transfer_, 1), at, bytes);
          at += bytes;
        }
        break;
      }
      default: pass(static_cast<TimeNs>(1 + bytes_.u8() % 8) * kMillisecondNs);
    }
  }

  // ---- steps ----
  void one_step() {
    TestAgent& agent = bytes_.one_in(3) ? *bob_ : *alice_;
    switch (bytes_.u8() % 16) {
      case 0:
      case 1: pass(static_cast<TimeNs>(1 + bytes_.u8()) * 100 * kMicrosecondNs); break;
      case 2: {
        SendOptions options;
        options.medium = bytes_.one_in(2) ? medium() : Medium::automatic;
        const TicketId ticket = agent.send(&agent == alice_.get() ? "doc" : "small", {"mallory"}, options);
        if (agent.last_status.ok()) open_.insert({agent.handle.packed(), ticket});
        break;
      }
      case 3: {
        const TicketId ticket = agent.next_ticket++;
        if (host_.node->fetch(agent.handle, ticket, name_of("mallory"), name_of("evil"), 0, {}).ok()) open_.insert({agent.handle.packed(), ticket});
        break;
      }
      case 4: static_cast<void>(host_.node->cancel(agent.handle, agent.next_ticket - 1)); break;
      case 5: release(); break;
      case 6: static_cast<void>(host_.node->summary(agent.handle, request_, 0, std::as_bytes(std::span("text")))); break;
      case 7:
        if (!bytes_.one_in(4)) break;
        if (bytes_.one_in(2)) peer_->close_lane(lane_);
        dial();
        break;
      case 8:
        if (!bytes_.one_in(8)) break;
        world_.network.crash(kPeer, bytes_.one_in(2));
        rise();
        announce();
        break;
      case 9: chunk(); break;
      case 10: heard_lease_ = expose(); break;
      case 11:
      case 12: behave(); break;
      default: message();
    }
    if (bytes_.one_in(4)) pass(100 * kMicrosecondNs);
  }

  void finish() {
    world_.network.crash(kPeer, false);
    const TimeNs limit_ns = world_.network.now_ns() + 40 * kSecondNs;
    while (world_.network.now_ns() < limit_ns && (!open_.empty() || host_.node->open_transfers() != 0)) {
      world_.run_for(500 * kMillisecondNs);
      collect();
    }
    KVRAIL_ASSERT_MSG(open_.empty(), "a ticket never ended");
    KVRAIL_ASSERT_MSG(host_.node->open_transfers() == 0, "a transfer outlives its peer");
    release();
    KVRAIL_ASSERT(host_.node->store().counters().stagings == 0);
    KVRAIL_ASSERT(host_.node->store().counters().deliveries == 0);
    host_.node->check();
    // And the agents still hand over to each other.
    const TicketId ticket = alice_->send("doc", {"bob"});
    KVRAIL_ASSERT(alice_->last_status.ok());
    AgentEvent event;
    KVRAIL_ASSERT(world_.run_until([&] { return alice_->take(AgentEventKind::sent, event, ticket); }));
    KVRAIL_ASSERT(event.status.ok());
  }

  Bytes bytes_;
  World world_;
  NodeOptions options_;
  Host& host_;
  std::unique_ptr<TestAgent> alice_, bob_;
  std::unique_ptr<transport::sim::SimTransport> peer_;
  Incarnation life_ = 10;
  LaneId lane_;
  std::vector<std::byte> frame_;
  std::vector<std::byte> memory_;
  std::array<transport::Piece, 1> pieces_;
  std::array<std::uint64_t, 1> starts_{0};
  std::array<std::uint32_t, 1> first_unit_{0};
  transport::Payload payload_{.pieces = pieces_, .starts = starts_, .first_unit = first_unit_, .total_bytes = 64 * 1024, .total_units = 1, .digests = {}};
  std::set<std::uint32_t> exposed_;
  std::set<std::pair<std::uint64_t, TicketId>> open_;
  std::map<std::pair<std::uint64_t, TicketId>, DeliveryHandle> claims_;
  std::vector<std::pair<AgentHandle, DeliveryHandle>> held_;
  TransferId heard_transfer_ = 1, own_transfer_ = 0, request_ = 0;
  std::uint64_t heard_tokens_ = 60, own_tokens_ = 0;
  std::uint64_t heard_fetch_ = 1;
  LeaseId heard_lease_{0, 1};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Attack(Bytes(data, size)).run();
  return 0;
}

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  // Scripts of random steps reach further than hand-written ones: each byte is a choice that is always valid.
  std::vector<FuzzInput> seeds;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    Prng prng(seed);
    FuzzInput input(200 + prng.uniform(400));
    for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(prng.uniform(256));
    seeds.push_back(std::move(input));
  }
  return seeds;
}
