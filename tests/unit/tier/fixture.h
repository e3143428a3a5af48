// Blocks whose rows are a function of a number, and a tier that is polled until it has answered.
#pragma once

#include <cstring>
#include <vector>

#include "codec/hash.h"
#include "engine/core/flat_map.h"
#include "engine/core/tier_port.h"
#include "engine/tier/rows.h"
#include "kvrail/base/prng.h"

namespace kvrail::engine::testing {

// 2 layers, 2 heads of 32 bf16: 512 bytes a token, 8 KiB a block.
inline Layout small_layout() {
  Layout layout;
  layout.model_id = {11, 22};
  layout.layers = 2;
  layout.kv_heads = 2;
  layout.head_dim = 32;
  layout.block_tokens = 16;
  return layout;
}

inline Hash128 hash_of(std::uint64_t number) { return {mix_bits(number + 1), mix_bits(~number)}; }

// A slot with the block's rows; the room behind them is zero.
inline std::vector<std::byte> rows_of(std::uint64_t number, const Layout& layout, std::uint32_t tokens) {
  std::vector<std::byte> packed(packed_bytes(layout, tokens));
  Prng random(number);
  for (std::byte& byte : packed) byte = static_cast<std::byte>(random.next_u32());
  std::vector<std::byte> slot(layout.block_bytes());
  unpack_rows(layout, tokens, packed.data(), slot.data());
  return slot;
}

}  // namespace kvrail::engine::testing
