// K and V of all layers of one context: what kvrail-codec codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/rope.h"
#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::fidelity {

/// How the positions of tokens are in K: what a medium needs that turns K back before it codes it.
struct Rope {
  codec::RopeRule rule;
  std::uint32_t first_position = 0;  // of the first token
};

struct KvSet {
  Dtype dtype = Dtype::bf16;
  std::uint32_t layers = 0;
  std::uint32_t tokens = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::vector<std::byte> k, v;    // each [layer][token][kv_head][dim]
  std::optional<Rope> rope;       // empty: not known, K is taken as it is
  std::vector<float> importance;  // of each token, from the agent; empty: it gives none

  [[nodiscard]] std::uint64_t row_values() const noexcept {
    return std::uint64_t{kv_heads} * head_dim;
  }
  [[nodiscard]] std::uint64_t row_bytes() const noexcept {
    return row_values() * dtype_bytes(dtype);
  }
  /// Of K or of V alone.
  [[nodiscard]] std::uint64_t side_values() const noexcept {
    return layers * tokens * row_values();
  }
  [[nodiscard]] std::uint64_t side_bytes() const noexcept { return layers * tokens * row_bytes(); }
  /// Where a token's row begins in k and v.
  [[nodiscard]] std::uint64_t row_offset(std::uint32_t layer, std::uint32_t token) const noexcept {
    return (std::uint64_t{layer} * tokens + token) * row_bytes();
  }
  [[nodiscard]] codec::RunShape run_shape(std::uint32_t run_tokens) const noexcept {
    return {dtype, kv_heads, head_dim, run_tokens};
  }
  /// Tokens [first, first + count) of a layer.
  [[nodiscard]] codec::RunView run(std::uint32_t layer, std::uint32_t first,
                                   std::uint32_t count) const noexcept;
  [[nodiscard]] codec::MutableRun run(std::uint32_t layer, std::uint32_t first,
                                      std::uint32_t count) noexcept;
  /// A set of the same form, all zero, of `of` values.
  [[nodiscard]] KvSet empty_like(Dtype of) const;
  /// The first layers and tokens.
  [[nodiscard]] KvSet head(std::uint32_t of_layers, std::uint32_t of_tokens) const;
  /// Tokens [first, end) of all layers; positions go on from where they were.
  [[nodiscard]] KvSet part(std::uint32_t first, std::uint32_t end) const;
};

/// Values as float32; every bf16 and fp16 has one. Spans of the same number of values.
void to_floats(Dtype dtype, std::span<const std::byte> from, std::span<float> to);
/// Rounded to nearest, ties to even; finite values only for bf16 and fp16.
void from_floats(Dtype dtype, std::span<const float> from, std::span<std::byte> to);

/// "bf16", "fp16", "fp32".
[[nodiscard]] std::string_view dtype_name(Dtype dtype) noexcept;
[[nodiscard]] Result<Dtype> parse_dtype(const std::string& name);

struct KvFiles {
  std::string k, v;            // .npy or .safetensors, each of [layer][token][kv_head][dim]
  std::string k_name, v_name;  // the tensors in .safetensors files; empty: see safetensors_place
  std::optional<Dtype> dtype;  // of .npy files that cannot say it
};
/// Both files; invalid_argument in one line where they are not K and V of one context.
[[nodiscard]] Result<KvSet> load_kv(const KvFiles& files);

/// RoPE data from a TOML file with the keys rope_base, rope_scale, rotary ("interleaved" or
/// "half"), rotary_dims and positions_start, each of which may be left out; heads of `head_dim`.
[[nodiscard]] Result<Rope> load_layout(const std::string& path, std::uint32_t head_dim);

}  // namespace kvrail::fidelity
