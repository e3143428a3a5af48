// Manifests: what agents read of a version, in the tenant's receive arena. The engine reads its own
// copy of the token ids there too, as nobody else can write that memory.
#include <cstring>
#include <new>

#include "engine/store/state.h"

namespace kvrail::engine {

static_assert(sizeof(ManifestHeader) % alignof(ManifestBlock) == 0 &&
              sizeof(ManifestBlock) % alignof(TokenId) == 0);

bool Store::State::take_manifest(VersionRecord& version) noexcept {
  KVRAIL_ASSERT(version.manifest_offset == kNoOffset);
  const std::uint64_t bytes = sizeof(ManifestHeader) +
                              std::uint64_t{version.kv_blocks} * sizeof(ManifestBlock) +
                              version.token_count * sizeof(TokenId) + version.summary_bytes +
                              version.kept_tokens * sizeof(std::uint32_t);
  const auto offset = take(version.tenant, bytes, mempool::PoolClass::manifest);
  if (!offset) {
    return false;
  }
  version.manifest_offset = *offset;
  version.manifest_bytes = bytes;
  return true;
}

void Store::State::drop_manifest_blocks(VersionRecord& version) noexcept {
  const std::byte* tokens = manifest_tail(version);
  version.kv_blocks = 0;
  std::memmove(manifest_tail(version), tokens, version.token_count * sizeof(TokenId));
  const std::uint64_t before = granules(version.manifest_bytes);
  version.manifest_bytes = sizeof(ManifestHeader) + version.token_count * sizeof(TokenId);
  const std::uint64_t after = granules(version.manifest_bytes);
  if (after == before) {
    return;
  }
  StoreMemory& from = *receive_of(version.tenant);
  from.extents->give_back(version.manifest_offset / kGranuleBytes + after, before - after, 0);
  from.usage.give_back(mempool::PoolClass::manifest, (before - after) * kGranuleBytes);
}

std::byte* Store::State::manifest_tail(const VersionRecord& version) const noexcept {
  KVRAIL_ASSERT(version.manifest_offset != kNoOffset);
  return receive_of(version.tenant)->arena->base() + version.manifest_offset +
         sizeof(ManifestHeader) + std::uint64_t{version.kv_blocks} * sizeof(ManifestBlock);
}

std::span<const TokenId> Store::State::tokens_of(const VersionRecord& version) const noexcept {
  return {reinterpret_cast<const TokenId*>(manifest_tail(version)), version.token_count};
}

std::span<std::uint32_t> Store::State::positions_of(const VersionRecord& version) const noexcept {
  if (version.kept_tokens == 0 || version.manifest_offset == kNoOffset) {
    return {};
  }
  std::byte* at = manifest_tail(version) + version.token_count * sizeof(TokenId);
  return {reinterpret_cast<std::uint32_t*>(at), version.kept_tokens};
}

bool Store::State::take_positions_room(VersionRecord& version, std::uint64_t total) noexcept {
  const std::uint64_t bytes = positions_room(version.kept_tokens, total);
  const auto offset = take(version.tenant, bytes, mempool::PoolClass::manifest);
  if (!offset) {
    return false;
  }
  version.positions_offset = *offset;
  version.positions_bytes = bytes;
  return true;
}

void Store::State::give_back_positions(VersionRecord& version) noexcept {
  if (version.positions_offset == kNoOffset) {
    return;
  }
  give_back(version.tenant, version.positions_offset, version.positions_bytes, mempool::PoolClass::manifest);
  version.positions_offset = kNoOffset;
  version.positions_bytes = 0;
}

void Store::State::write_manifest_header(const VersionRecord& version) noexcept {
  std::byte* at = receive_of(version.tenant)->arena->base() + version.manifest_offset;
  // Padding is zeroed too: the memory is shared with other processes and held other data before.
  std::memset(at, 0, sizeof(ManifestHeader));
  auto* header = new (at) ManifestHeader;
  header->owner = version.owner;
  header->context = version.name;
  header->version = version.number;
  header->token_count = version.token_count;
  header->block_count = version.kv_blocks;
  header->first_token = version.window_first_block * version.layout.block_tokens;
  header->medium = version.medium;
  header->summary_kind = version.summary_kind;
  header->epsilon_ppm = version.epsilon_ppm;
  header->summary_bytes = version.summary_bytes;
  header->layout = version.layout;
  header->position_count = static_cast<std::uint32_t>(version.kept_tokens);
}

void Store::State::write_manifest_block(const VersionRecord& version, std::uint32_t i) noexcept {
  const BlockRecord* block = blocks.get(version.blocks[i]);
  if (block == nullptr) {
    return;  // Left out of a window.
  }
  const SlotRecord& slot = *slots.get(block->slot);
  ManifestBlock entry;
  entry.arena = slot.arena;
  entry.tokens = block->tokens;
  entry.offset = slot.offset;
  entry.position = i * version.layout.block_tokens;
  if (version.medium == Medium::topk) entry.position = positions_of(version)[entry.position];
  entry.epsilon_ppm = block->epsilon_ppm;
  // A window has block 0 and those from its first one on; a split what was held, and its tail.
  const std::uint32_t left_out =
      i < version.left_out_from || version.window_first_block == 0 ? 0 : version.window_first_block - version.left_out_from;
  KVRAIL_ASSERT(i - left_out < version.kv_blocks);
  std::byte* entries = manifest_tail(version) - std::uint64_t{version.kv_blocks} * sizeof(ManifestBlock);
  std::memcpy(entries + (i - left_out) * sizeof(entry), &entry, sizeof(entry));
}

ManifestRef Store::State::manifest_ref(const VersionRecord& version) const noexcept {
  return {tenants.get(version.tenant)->receive, version.manifest_offset, version.manifest_bytes};
}

}  // namespace kvrail::engine
