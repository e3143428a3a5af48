// Session's exchange of KV with block slots in the canonical order.
#include <algorithm>
#include <cstring>
#include <string>

#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "perf/model/bf16.h"
#include "perf/model/session.h"

namespace kvrail::model {
namespace {

void decode_row(Dtype dtype, const std::byte* from, std::size_t count, float* to) {
  if (dtype == Dtype::fp32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = from_bf16(load_le16(from + 2 * i));
  }
}

void encode_row(Dtype dtype, const float* from, std::size_t count, std::byte* to) {
  if (dtype == Dtype::fp32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    store_le16(to + 2 * i, to_bf16(from[i]));
  }
}

bool is_finite(Dtype dtype, const std::byte* row, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const bool finite = dtype == Dtype::fp32
                            ? (load_le32(row + 4 * i) & 0x7F80'0000U) != 0x7F80'0000U
                            : (load_le16(row + 2 * i) & 0x7F80U) != 0x7F80U;
    if (!finite) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<void> Session::check_layout(const Layout& layout, std::uint32_t first, std::uint32_t count,
                                   std::size_t block_bytes) const {
  Layout own = model_->layout(layout.block_tokens, Dtype::bf16);
  own.dtype = layout.dtype;
  if (layout != own || (layout.dtype != Dtype::bf16 && layout.dtype != Dtype::fp32)) {
    return Error{{Code::layout_mismatch},
                 "the KV is not this model's, or its values are neither bf16 nor fp32"};
  }
  if (count > layout.block_tokens || block_bytes < layout.block_bytes()) {
    return Error{{Code::invalid_argument},
                 std::to_string(count) + " rows, a slot of " + std::to_string(block_bytes) +
                     " bytes: a block has at most " + std::to_string(layout.block_tokens) +
                     " rows and " + std::to_string(layout.block_bytes()) + " bytes"};
  }
  if (first > length_) {
    return Error{{Code::invalid_argument},
                 "rows from " + std::to_string(first) +
                     " would leave a gap: " + std::to_string(length_) + " are held"};
  }
  return {};
}

Result<void> Session::import_kv(const Layout& layout, std::uint32_t first, std::uint32_t count,
                                std::span<const std::byte> block, std::uint32_t first_position) {
  if (auto fine = check_layout(layout, first, count, block.size()); !fine) {
    return fine;
  }
  const ModelShape& s = model_->shape();
  const std::uint32_t position = first_position == kPositionIsIndex ? first : first_position;
  if (count > capacity_ - first || position > s.max_tokens || count > s.max_tokens - position) {
    return Error{{Code::too_large},
                 std::to_string(count) + " rows from " + std::to_string(first) +
                     " don't fit the session's " + std::to_string(capacity_) + " tokens"};
  }
  if (!block_is_finite(layout, count, block)) {
    return Error{
        {Code::corrupt},
        "NaN or Inf among rows " + std::to_string(first) + " to " + std::to_string(first + count)};
  }
  for (std::uint32_t t = 0; t < count; ++t) {
    position_[first + t] = position + t;
    for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
      import_row(layout, layer, first + t, block.data() + layout.row_offset(layer, 0, t),
                 block.data() + layout.row_offset(layer, 1, t));
    }
  }
  length_ = std::max(length_, first + count);
  has_logits_ = false;
  return {};
}

bool Session::block_is_finite(const Layout& layout, std::uint32_t count,
                              std::span<const std::byte> block) const {
  const std::size_t width = model_->shape().kv_width();
  for (std::uint32_t run = 0; run < 2 * layout.layers; ++run) {
    const std::byte* rows = block.data() + layout.row_offset(run / 2, run % 2, 0);
    if (!is_finite(layout.dtype, rows, count * width)) {
      return false;
    }
  }
  return true;
}

// position_[row] is set already.
void Session::import_row(const Layout& layout, std::uint32_t layer, std::uint32_t row,
                         const std::byte* key, const std::byte* value) {
  const ModelShape& s = model_->shape();
  LayerCache& cache = cache_[layer];
  const std::size_t offset = std::size_t{row} * s.kv_width();
  decode_row(layout.dtype, key, s.kv_width(), cache.key.data() + offset);
  decode_row(layout.dtype, value, s.kv_width(), cache.value.data() + offset);
  std::copy_n(cache.key.data() + offset, s.kv_width(), cache.key_before.data() + offset);
  rotate(cache.key_before.data() + offset, s.kv_heads, position_[row], -1.0F);
  store_key(cache, row);
}

Result<void> Session::export_kv(const Layout& layout, std::uint32_t first, std::uint32_t count,
                                std::span<std::byte> block) const {
  if (auto fine = check_layout(layout, first, count, block.size()); !fine) {
    return fine;
  }
  if (count > length_ - first) {
    return Error{{Code::invalid_argument},
                 "rows " + std::to_string(first) + " to " + std::to_string(first + count) +
                     " were asked for, " + std::to_string(length_) + " are held"};
  }
  const std::size_t width = model_->shape().kv_width();
  for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
    for (std::uint32_t t = 0; t < count; ++t) {
      const std::size_t offset = (first + t) * width;
      encode_row(layout.dtype, cache_[layer].key.data() + offset, width,
                 block.data() + layout.row_offset(layer, 0, t));
      encode_row(layout.dtype, cache_[layer].value.data() + offset, width,
                 block.data() + layout.row_offset(layer, 1, t));
    }
  }
  return {};
}

}  // namespace kvrail::model
