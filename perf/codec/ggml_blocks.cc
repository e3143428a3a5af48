#include "perf/codec/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "codec/float_convert.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::fidelity {
namespace {

using Block = std::array<float, kGgmlBlockValues>;

// Unlike codec/float_convert.h what is too large becomes Inf, as in ggml.
std::uint16_t to_fp16(float value) {
  if (std::abs(value) >= 65520.0F) return std::signbit(value) ? 0xFC00 : 0x7C00;
  return codec::float_to_fp16(value);
}

// 0 where all values are so small that the fp16 scale is 0 and they decode to 0 anyway.
float inverse_of(float scale) {
  const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
  return std::isfinite(inverse) ? inverse : 0.0F;
}

void encode_q8_0(const Block& values, std::byte* out) {
  float greatest = 0;
  for (const float value : values) greatest = std::max(greatest, std::abs(value));
  const float scale = greatest / 127.0F;
  const float inverse = inverse_of(scale);
  store_le16(out, to_fp16(scale));
  for (std::size_t i = 0; i < kGgmlBlockValues; ++i)
    out[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::round(values[i] * inverse)));
}

void decode_q8_0(const std::byte* in, Block& values) {
  const float scale = codec::fp16_to_float(load_le16(in));
  for (std::size_t i = 0; i < kGgmlBlockValues; ++i)
    values[i] = static_cast<float>(static_cast<std::int8_t>(in[2 + i])) * scale;
}

std::byte nibble(float value) {
  return static_cast<std::byte>(std::min(15, static_cast<int>(value + 8.5F)));
}

void encode_q4_0(const Block& values, std::byte* out) {
  float greatest = 0, extreme = 0;
  for (const float value : values) {
    if (std::abs(value) > greatest) {
      greatest = std::abs(value);
      extreme = value;
    }
  }
  const float scale = extreme / -8.0F;
  const float inverse = inverse_of(scale);
  store_le16(out, to_fp16(scale));
  if (scale != 0.0F && inverse == 0.0F) {  // too small for an inverse: libggml has codes of 0 here
    std::fill_n(out + 2, kGgmlBlockValues / 2, std::byte{0});
    return;
  }
  constexpr std::size_t kHalf = kGgmlBlockValues / 2;
  for (std::size_t i = 0; i < kHalf; ++i)
    out[2 + i] = nibble(values[i] * inverse) | nibble(values[kHalf + i] * inverse) << 4;
}

void decode_q4_0(const std::byte* in, Block& values) {
  const float scale = codec::fp16_to_float(load_le16(in));
  constexpr std::size_t kHalf = kGgmlBlockValues / 2;
  for (std::size_t i = 0; i < kHalf; ++i) {
    const auto both = static_cast<int>(in[2 + i]);
    values[i] = static_cast<float>((both & 15) - 8) * scale;
    values[kHalf + i] = static_cast<float>((both >> 4) - 8) * scale;
  }
}

}  // namespace

std::string_view ggml_name(GgmlFormat format) noexcept {
  return format == GgmlFormat::q8_0 ? "q8_0" : "q4_0";
}

std::size_t ggml_block_bytes(GgmlFormat format) noexcept {
  return format == GgmlFormat::q8_0 ? 34 : 18;
}

std::uint64_t ggml_bytes(GgmlFormat format, std::uint64_t values) noexcept {
  return (values + kGgmlBlockValues - 1) / kGgmlBlockValues * ggml_block_bytes(format);
}

void ggml_encode(GgmlFormat format, std::span<const float> values, std::span<std::byte> out) {
  KVRAIL_ASSERT(out.size() == ggml_bytes(format, values.size()));
  std::byte* to = out.data();
  for (std::size_t at = 0; at < values.size(); at += kGgmlBlockValues) {
    const auto part = values.subspan(at, std::min(kGgmlBlockValues, values.size() - at));
    Block block{};
    std::copy(part.begin(), part.end(), block.begin());
    format == GgmlFormat::q8_0 ? encode_q8_0(block, to) : encode_q4_0(block, to);
    to += ggml_block_bytes(format);
  }
}

void ggml_decode(GgmlFormat format, std::span<const std::byte> blocks, std::span<float> values) {
  KVRAIL_ASSERT(blocks.size() == ggml_bytes(format, values.size()));
  const std::byte* from = blocks.data();
  for (std::size_t at = 0; at < values.size(); at += kGgmlBlockValues) {
    Block block;
    format == GgmlFormat::q8_0 ? decode_q8_0(from, block) : decode_q4_0(from, block);
    std::copy_n(block.begin(), std::min(kGgmlBlockValues, values.size() - at),
                values.begin() + static_cast<std::ptrdiff_t>(at));
    from += ggml_block_bytes(format);
  }
}

}  // namespace kvrail::fidelity
