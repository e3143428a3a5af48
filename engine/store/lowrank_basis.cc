#include "engine/store/lowrank_basis.h"

#include <algorithm>
#include <utility>

#include "codec/lowrank.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"

namespace kvrail::engine {

LowRankBasis::LowRankBasis(codec::Basis basis, std::uint16_t theta) : basis_(std::move(basis)), theta_(theta) {
  KVRAIL_ASSERT(theta <= codec::kMaxTheta);
  before_.resize(layers() + 1);
  for (std::uint32_t layer = 0; layer < layers(); ++layer) {
    for (std::uint32_t n = 0; n < 8; ++n) {
      const std::uint64_t bytes = codec::lowrank_bytes(basis_, layer, theta_, n == 0 ? 8 : n) - codec::kLowRankHeaderBytes;
      before_[layer + 1][n] = before_[layer][n] + bytes;
      if (n == 0) most_of_eight_ = std::max(most_of_eight_, bytes);
    }
  }
}

bool LowRankBasis::takes(const Layout& layout) const noexcept {
  const codec::BasisShape& of = basis_.shape();
  return layout.layers == of.layers && layout.kv_heads == of.kv_heads && layout.head_dim == of.head_dim &&
         dtype_bytes(layout.dtype) >= 2;
}

bool LowRankBasis::fits(const Layout& layout) const noexcept {
  return takes(layout) && basis_.difference(layout) == nullptr;
}

std::uint64_t LowRankBasis::headers(std::uint64_t count) noexcept { return count * codec::kLowRankHeaderBytes; }

// K and V each end in a byte of their own.
std::uint64_t LowRankBasis::most_run_bytes(std::uint32_t rows) const noexcept {
  return rows == 0 ? 0 : codec::kLowRankHeaderBytes + div_ceil(most_of_eight_ * rows, 8) + 1;
}

}  // namespace kvrail::engine
