// Nodes in one thread on a simulated network with virtual time: what the tests of engine/core and
// the simulation are written in. Nothing here sleeps; run_until() moves time to the next event.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/node.h"
#include "engine/tier/memory_tier.h"
#include "kvrail/base/no_alloc.h"
#include "kvrail/base/prng.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"

namespace kvrail::testing {

using namespace kvrail::engine;

inline Name name_of(std::string_view text) {
  auto name = make_name(text);
  KVRAIL_ASSERT(name.ok());
  return name.value();
}

// 16 tokens of 2 layers, 2 heads of 32: rows of 128 bytes, 512 bytes a token, 8 KiB a block.
inline Layout small_layout() {
  Layout layout;
  layout.model_id = {11, 22};
  layout.layers = 2;
  layout.kv_heads = 2;
  layout.head_dim = 32;
  layout.block_tokens = 16;
  return layout;
}

inline constexpr MediumMask kAllMedia = mask_of(Medium::tokens) | mask_of(Medium::full) | mask_of(Medium::lossless) |
                                        mask_of(Medium::int8) | mask_of(Medium::int4) | mask_of(Medium::exact) |
                                        mask_of(Medium::lowrank) | mask_of(Medium::topk) | mask_of(Medium::window) |
                                        mask_of(Medium::reference) |
                                        mask_of(Medium::summary);

// One node with its transport, and the completion rings of its agents (unbounded unless `ring` says).
struct Host final : AgentSink {
  [[nodiscard]] bool try_push(AgentHandle agent, const AgentEvent& event) noexcept override {
    const AllowAllocScope allow;  // a real sink writes to a ring
    auto& queue = events[agent.packed()];
    if (queue.size() >= ring) return false;
    queue.push_back(event);
    return true;
  }
  // Takes the first event of that kind (and ticket, when not 0) out of the agent's ring.
  bool take(AgentHandle agent, AgentEventKind kind, AgentEvent& out, TicketId ticket = 0) {
    auto& queue = events[agent.packed()];
    for (auto it = queue.begin(); it != queue.end(); ++it) {
      if (it->kind != kind || (ticket != 0 && it->ticket != ticket)) continue;
      out = *it;
      queue.erase(it);
      return true;
    }
    return false;
  }
  [[nodiscard]] std::size_t count(AgentHandle agent, AgentEventKind kind) {
    std::size_t n = 0;
    for (const AgentEvent& event : events[agent.packed()]) n += event.kind == kind ? 1 : 0;
    return n;
  }

  NodeId id = 0;
  std::size_t ring = SIZE_MAX;
  std::unique_ptr<transport::sim::SimTransport> transport;
  std::unique_ptr<Node> node;
  std::unique_ptr<MemoryTier> tier;  // goes first
  std::map<std::uint64_t, std::deque<AgentEvent>> events;
};

class World {
 public:
  explicit World(std::uint64_t seed = 1, const transport::sim::LinkModel& link = {})
      : network(transport::sim::NetworkOptions{.seed = seed, .link = link}) {}

  // Small tables: a test makes many nodes.
  static NodeOptions small_options(NodeId id, Incarnation incarnation) {
    NodeOptions options;
    options.node_id = id;
    options.incarnation = incarnation;
    options.limits = {.max_out = 128, .max_in = 64, .max_peers = 16, .max_lanes = 16, .max_dials = 16,
                      .max_remote_agents = 64, .max_chunks = 1024, .max_events = 1024, .max_tasks = 16,
                      .max_ended = 1024, .scratch_bytes = 4U << 20};
    options.store.max_tenants = 4;
    options.store.max_agents = 16;
    options.store.max_blocks = 1024;
    options.store.max_versions = 256;
    options.store.max_stagings = 32;
    options.store.max_deliveries = 256;
    options.store.table_bytes = 4U << 20;
    options.store.receive_arena_bytes = 2U << 20;
    options.store.agent_arena_bytes = 1U << 20;
    options.scheduler.max_lanes = 16;
    options.scheduler.max_flows = 128;
    options.eager_limit_bytes = 0;  // tests that want it say so
    return options;
  }

  Host& add(NodeId id, const NodeOptions* wanted = nullptr, Incarnation incarnation = 0) {
    NodeOptions options = wanted != nullptr ? *wanted : small_options(id, 1);
    options.node_id = id;
    if (incarnation != 0) options.incarnation = incarnation;
    auto host = std::make_unique<Host>();
    host->id = id;
    host->transport = network.add_node(id, options.incarnation);
    auto node = Node::create(options, network.clock());
    KVRAIL_ASSERT_MSG(node.ok(), node.ok() ? "" : node.error().message.c_str());
    host->node = std::move(node).value();
    host->node->add_transport(*host->transport);
    host->node->set_sink(*host);
    Host& made = *host;
    hosts[id] = std::move(host);
    return made;
  }
  // On the world's clock, for blocks of small layouts.
  MemoryTier& give_tier(Host& host, MemoryTierOptions options = {}) {
    options.clock = &network.clock();
    options.most_block_bytes = small_layout().block_bytes();
    host.tier = std::make_unique<MemoryTier>(options);
    host.node->set_tier(*host.tier);
    return *host.tier;
  }
  void dial(Host& from, NodeId to) {
    KVRAIL_ASSERT(from.node->connect("sim:" + std::to_string(to), 0).ok());
  }
  // The node disappears; its transport crashes with it.
  void kill(NodeId id, bool silent = false) {
    network.crash(id, silent);
    hosts.erase(id);
  }

  // Every node runs until it has nothing to do at this moment.
  void settle() {
    for (int round = 0; round < 200; ++round) {
      std::size_t work = 0;
      for (auto& [id, host] : hosts) work += host->node->cycle(network.now_ns());
      if (work == 0) return;
    }
  }
  void step(TimeNs limit_ns) {
    settle();
    TimeNs next = std::min(limit_ns, network.next_event_ns());
    for (auto& [id, host] : hosts) next = std::min(next, host->node->next_deadline_ns());
    // A deadline in the past is one that a full queue holds up: time must go on all the same.
    network.advance_to(std::max(next, network.now_ns() + 10 * kMicrosecondNs));
  }
  bool run_until(const std::function<bool()>& done, TimeNs within_ns = 20 * kSecondNs) {
    const TimeNs limit = network.now_ns() + within_ns;
    while (network.now_ns() < limit) {
      settle();
      if (done()) return true;
      step(limit);
    }
    settle();
    return done();
  }
  void run_for(TimeNs ns) {
    run_until([] { return false; }, ns);
  }
  bool idle() {
    for (auto& [id, host] : hosts) {
      if (host->node->open_transfers() != 0) return false;
    }
    return true;
  }
  void check() {
    for (auto& [id, host] : hosts) host->node->check();
  }

  transport::sim::SimNetwork network;
  std::map<NodeId, std::unique_ptr<Host>> hosts;
};

// An agent with a context that grows: tokens and KV are functions of `seed`, so any copy can be checked.
class TestAgent {
 public:
  TestAgent(Host& host, std::string_view name, AgentInfo info = base_info()) : host_(&host) {
    info.name = name_of(name);
    layout = info.layout;
    tenant = info.tenant;
    auto attached = host.node->attach(info);
    KVRAIL_ASSERT(attached.ok());
    handle = attached.value();
  }
  static AgentInfo base_info() {
    AgentInfo info;
    info.tenant = name_of("tenant");
    info.layout = small_layout();
    info.accepted = kAllMedia & ~mask_of(Medium::summary);
    info.tokenizer = {5, 5};
    info.compute.prefill_per_token_ns = 1'000'000;
    info.compute.decode_per_token_ns = 1'000'000;
    return info;
  }

  // Token ids of the context with that seed; a prefix of a longer one of the same seed.
  static std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t count) {
    Prng prng(seed);
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng.uniform(50'000));
    return tokens;
  }
  // One bf16 value of the KV of that context: normal numbers of moderate size.
  static std::uint16_t value_at(std::uint64_t seed, std::uint64_t token, std::uint64_t at) {
    std::uint64_t x = (seed * 0x9E3779B97F4A7C15ULL) ^ (token * 0xD6E8FEB86659FD93ULL) ^ (at * 0xCA5A826395121157ULL);
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ULL;
    x ^= x >> 32;
    const auto magnitude = static_cast<float>(x % 255) / 64.0F - 2.0F;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &magnitude, 4);
    return static_cast<std::uint16_t>(bits >> 16);
  }
  static void write_row(const Layout& layout, std::uint64_t seed, std::uint64_t token, std::byte* slot) {
    const auto row = static_cast<std::uint32_t>(token % layout.block_tokens);
    const std::uint64_t values = std::uint64_t{layout.kv_heads} * layout.head_dim;
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
      for (std::uint32_t kv = 0; kv < 2; ++kv) {
        std::byte* to = slot + layout.row_offset(layer, kv, row);
        for (std::uint64_t v = 0; v < values; ++v) {
          const std::uint16_t value = value_at(seed, token, (layer * 2 + kv) * values + v);
          std::memcpy(to + v * 2, &value, 2);
        }
      }
    }
  }

  // Commits (the next version of) a context of `count` tokens, growing its blocks in place.
  Status commit(std::string_view context, std::uint64_t seed, std::size_t count, std::size_t room_tokens = 0) {
    Grown& grown = contexts[std::string(context)];
    const std::size_t blocks = (std::max(count, room_tokens) + layout.block_tokens - 1) / layout.block_tokens;
    if (grown.extent.count == 0) {
      const TicketId ticket = next_ticket++;
      const Status status = host_->node->allocate(handle, ticket, static_cast<std::uint32_t>(blocks));
      if (!status.ok()) return status;
      host_->node->cycle(0);
      AgentEvent event;
      KVRAIL_ASSERT(host_->take(handle, AgentEventKind::allocated, event, ticket));
      if (!event.status.ok()) {
        contexts.erase(std::string(context));
        return event.status;
      }
      grown.extent = event.extent;
    }
    std::byte* base = host_->node->store().arena(grown.extent.arena)->base() + grown.extent.offset;
    for (std::size_t token = grown.written; token < count; ++token) {
      write_row(layout, seed, token, base + token / layout.block_tokens * layout.block_bytes());
    }
    grown.written = std::max(grown.written, count);
    const auto tokens = tokens_of(seed, count);
    Extent used = grown.extent;
    used.count = static_cast<std::uint32_t>((count + layout.block_tokens - 1) / layout.block_tokens);
    const TicketId ticket = next_ticket++;
    const Status status = host_->node->commit(handle, ticket, name_of(context), tokens, std::span(&used, 1), {}, 0);
    if (!status.ok()) return status;
    AgentEvent event;
    do {
      host_->node->cycle(0);  // as many as the blocks want
    } while (!host_->take(handle, AgentEventKind::committed, event, ticket));
    return event.status;
  }
  // Returns the ticket.
  TicketId send(std::string_view context, const std::vector<std::string>& receivers, const SendOptions& options = {}) {
    std::vector<Name> names;
    for (const std::string& receiver : receivers) names.push_back(name_of(receiver));
    const TicketId ticket = next_ticket++;
    last_status = host_->node->send(handle, ticket, name_of(context), 0, names, options);
    return ticket;
  }
  bool take(AgentEventKind kind, AgentEvent& out, TicketId ticket = 0) { return host_->take(handle, kind, out, ticket); }
  [[nodiscard]] std::size_t count(AgentEventKind kind) { return host_->count(handle, kind); }
  [[nodiscard]] Host& host() { return *host_; }

  struct Grown {
    Extent extent;
    std::size_t written = 0;
  };
  AgentHandle handle;
  Layout layout;
  Name tenant;
  Status last_status;
  TicketId next_ticket = 1;
  std::map<std::string, Grown> contexts;

 private:
  Host* host_;
};

// What a delivery holds, read through its manifest as an agent would.
struct Received {
  ManifestHeader header;
  std::vector<ManifestBlock> blocks;
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> positions;  // topk
  std::string summary;
};
inline Received read_delivery(Host& host, const AgentEvent& event) {
  const std::byte* at = host.node->store().arena(event.manifest.arena)->base() + event.manifest.offset;
  Received got;
  std::memcpy(&got.header, at, sizeof(got.header));
  KVRAIL_ASSERT(got.header.magic == kManifestMagic);
  at += sizeof(ManifestHeader);
  if (got.header.medium == Medium::summary) {
    got.summary.assign(reinterpret_cast<const char*>(at), got.header.summary_bytes);
    return got;
  }
  got.blocks.resize(got.header.block_count);
  if (!got.blocks.empty()) std::memcpy(got.blocks.data(), at, got.blocks.size() * sizeof(ManifestBlock));
  at += got.blocks.size() * sizeof(ManifestBlock);
  got.tokens.resize(got.header.token_count);
  if (!got.tokens.empty()) std::memcpy(got.tokens.data(), at, got.tokens.size() * sizeof(TokenId));
  at += got.tokens.size() * sizeof(TokenId);
  got.positions.resize(got.header.position_count);
  if (!got.positions.empty()) std::memcpy(got.positions.data(), at, got.positions.size() * sizeof(std::uint32_t));
  return got;
}

inline float to_float(std::uint16_t bf16) {
  const std::uint32_t bits = std::uint32_t{bf16} << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The largest difference of any value from the source context; 0 means equal bits everywhere.
inline float largest_error(Host& host, const Received& got, std::uint64_t seed) {
  const Layout& layout = got.header.layout;
  const std::uint64_t values = std::uint64_t{layout.kv_heads} * layout.head_dim;
  float worst = 0;
  std::size_t packed = 0;  // rows of topk so far
  for (const ManifestBlock& block : got.blocks) {
    const std::byte* slot = host.node->store().arena(block.arena)->base() + block.offset;
    for (std::uint32_t row = 0; row < block.tokens; ++row) {
      const std::uint64_t position = got.positions.empty() ? block.position + row : got.positions[packed++];
      for (std::uint32_t run = 0; run < 2 * layout.layers; ++run) {
        const std::byte* from = slot + layout.row_offset(run / 2, run % 2, row);
        for (std::uint64_t v = 0; v < values; ++v) {
          std::uint16_t value = 0;
          std::memcpy(&value, from + v * 2, 2);
          const std::uint16_t source = TestAgent::value_at(seed, position, run * values + v);
          const float error = to_float(value) - to_float(source);
          worst = std::max(worst, error < 0 ? -error : error);
        }
      }
    }
  }
  return worst;
}

}  // namespace kvrail::testing
