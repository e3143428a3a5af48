// A store with two tenants' worth of room, and short ways to fill it. Calls that belong to the
// worker are wrapped so that an allocation inside one aborts.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/store/store.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine::testing {

inline Layout small_layout() {
  Layout layout;
  layout.model_id = {1, 2};
  layout.layers = 2;
  layout.kv_heads = 2;
  layout.head_dim = 8;
  layout.block_tokens = 16;
  layout.dtype = Dtype::bf16;
  return layout;
}

inline StoreOptions small_options() {
  StoreOptions options;
  options.max_tenants = 4;
  options.max_agents = 8;
  options.max_blocks = 512;
  options.max_versions = 64;
  options.max_stagings = 16;
  options.max_deliveries = 64;
  options.table_bytes = 1 << 20;
  options.receive_arena_bytes = 256 * 1024;
  options.agent_arena_bytes = 128 * 1024;
  return options;
}

inline Name name(std::string_view text) {
  return make_name(text).value();
}

// Token ids first, first + 1, ...
inline std::vector<TokenId> ids(std::size_t count, TokenId first = 100) {
  std::vector<TokenId> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = first + static_cast<TokenId>(i);
  }
  return out;
}

inline AgentHandle agent_handle(std::uint32_t index, std::uint32_t generation = 1) {
  return {index, generation};
}

struct Fixture {
  explicit Fixture(const StoreOptions& options = small_options())
      : store(Store::create(options, clock).value()) {
    tenant = store->ensure_tenant(name("team")).value();
  }
  ~Fixture() { store->check(); }

  AgentHandle attach(std::uint32_t index, std::string_view who) {
    return attach(index, who, tenant);
  }
  AgentHandle attach(std::uint32_t index, std::string_view who, TenantHandle of) {
    const AgentHandle handle = agent_handle(index, ++generation);
    REQUIRE(store->add_agent(handle, name(who), of, layout, 0).ok());
    return handle;
  }

  Extent allocate(AgentHandle agent, std::uint32_t count) {
    NoAllocScope worker;
    const auto extent = store->allocate(agent, count);
    KVRAIL_ASSERT(extent.ok());
    return *extent;
  }
  std::byte* at(const Extent& extent) const {
    return store->arena(extent.arena)->base() + extent.offset;
  }
  void fill(const Extent& extent, std::uint8_t value) const {
    std::memset(at(extent), value, extent.count * layout.block_bytes());
  }

  Result<VersionHandle> commit(AgentHandle agent, std::string_view context,
                               const std::vector<TokenId>& tokens, const std::vector<Extent>& slots,
                               DeliveryHandle prefix = {}, std::uint32_t first_block = 0) {
    const Name context_name = name(context);
    NoAllocScope worker;
    return store->commit({agent, context_name, tokens, slots, first_block, prefix});
  }

  // The coding of a medium; runs of a varying size are as large as they can be.
  [[nodiscard]] Coding coding(Medium medium) const {
    Coding out{.medium = medium};
    if (has_plane(out.planes(), kVaryingPlane)) {
      out.varying_full_bytes = out.varying_tail_bytes = varying_bound(layout, medium, layout.block_tokens);
    }
    return out;
  }
  StageRequest request(std::string_view owner, std::string_view context,
                       const std::vector<TokenId>& tokens, std::uint64_t version = 1,
                       Medium medium = Medium::full, std::uint32_t epsilon_ppm = 0) {
    StageRequest out;
    out.tenant = tenant;
    out.owner = name(owner);
    out.context = name(context);
    out.version = version;
    out.layout = layout;
    out.tokens = kept_tokens.emplace_back(tokens);
    out.coding = coding(medium);
    out.epsilon_ppm = epsilon_ppm;
    return out;
  }
  Result<StagingHandle> stage(const StageRequest& wanted) {
    NoAllocScope worker;
    return store->stage(wanted);
  }
  Result<VersionHandle> publish(StagingHandle staging) {
    NoAllocScope worker;
    return store->publish(staging);
  }
  // A context of another node, all of whose missing raw rows are set to `value`.
  VersionHandle receive(const StageRequest& wanted, std::uint8_t value) {
    const auto staging = stage(wanted);
    REQUIRE(staging.ok());
    Store::StagingView view;
    REQUIRE(store->view(*staging, view));
    for (std::uint32_t i = 0; i < view.block_count; ++i) {
      if (view.missing[i] != 0) {
        const std::uint32_t from = i == view.tail_block ? view.tail_from_row : 0;
        write_rows(view.blocks[i], from, value);
      }
    }
    const auto version = publish(*staging);
    REQUIRE(version.ok());
    return *version;
  }
  void write_rows(BlockHandle block, std::uint32_t from, std::uint8_t value) const {
    const BlockView view = store->block(block);
    for (std::uint32_t half = 0; half < 2 * layout.layers; ++half) {
      for (std::uint32_t row = from; row < view.tokens; ++row) {
        std::memset(view.raw + layout.row_offset(half / 2, half % 2, row), value,
                    layout.row_bytes());
      }
    }
  }
  std::uint8_t row_value(BlockHandle block, std::uint32_t row) const {
    return static_cast<std::uint8_t>(store->block(block).raw[layout.row_offset(1, 1, row)]);
  }

  VersionView view(VersionHandle version) const {
    VersionView out;
    REQUIRE(store->view(version, out));
    return out;
  }

  VirtualClock clock{1};
  Layout layout = small_layout();
  std::unique_ptr<Store> store;
  TenantHandle tenant;
  std::uint32_t generation = 0;
  std::deque<std::vector<TokenId>> kept_tokens;  // requests only refer to theirs
};

inline StoreRule rule_of(const Status& status) {
  return status.code == Code::invalid_argument ? static_cast<StoreRule>(status.detail)
                                               : StoreRule::none;
}

}  // namespace kvrail::engine::testing
