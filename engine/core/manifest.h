// A manifest describes one version of a context to the agents that may read it: token ids and where
// each block lies. The engine writes it once, when the version is committed or published, into the
// tenant's receive arena, which agents map read-only; a delivery is then a reference to it, at the
// same cost for any size. Layout (all little-endian, the header 8-byte aligned):
//   ManifestHeader | ManifestBlock[block_count] | TokenId[token_count] | u32 position[position_count]
#pragma once

#include <cstdint>

#include "kvrail/types.h"

namespace kvrail::engine {

inline constexpr std::uint32_t kManifestMagic = 0x464d564bU;  // "KVMF"

struct ManifestHeader {
  std::uint32_t magic = kManifestMagic;
  std::uint32_t header_bytes = sizeof(ManifestHeader);
  Name owner;                  // agent that committed it
  Name context;
  std::uint64_t version = 0;   // the owner's version number
  std::uint64_t token_count = 0;
  std::uint32_t block_count = 0;   // blocks that have KV here; tokens: what was held of the start; 0 for a summary
  std::uint32_t first_token = 0;   // window: position of the first token that has KV
  Medium medium = Medium::full;    // how it came here; full for a local commit
  std::uint8_t summary_kind = 0;   // medium summary: bytes follow instead of blocks and tokens
  std::uint16_t reserved = 0;
  std::uint32_t epsilon_ppm = 0;   // loss in these blocks
  std::uint64_t summary_bytes = 0;
  Layout layout;
  std::uint32_t position_count = 0;  // topk: of each row, blocks being packed; else 0
  std::uint32_t reserved2 = 0;
};

struct ManifestBlock {
  std::uint32_t arena = 0;
  std::uint32_t tokens = 0;        // valid rows, < block_tokens only for the tail
  std::uint64_t offset = 0;        // of the slot in the arena
  std::uint32_t position = 0;      // position of the block's first token in the context; the rows that follow are
                                   // neighbours, but for topk
  std::uint32_t epsilon_ppm = 0;
};

}  // namespace kvrail::engine
