// One sequence being read and continued by a Model: its KV cache, and the logits of the last token.
//
// An agent that computes:                  session.append(document);
//                                          session.export_kv(layout, 0, 64, block);
// One that got the KV from elsewhere:      session.import_kv(layout, 0, 64, block);
//                                          session.append(question);
//                                          TokenId answer = session.greedy();
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"
#include "perf/model/model.h"

namespace kvrail::model {

/// For import_kv: the rows' positions equal their indices.
inline constexpr std::uint32_t kPositionIsIndex = 0xFFFF'FFFFU;

/// Thread: its owner. All memory is taken at construction. The arithmetic of a token does not
/// depend on how the tokens were cut into append() calls, nor on the machine's vector width: same
/// input, same bits.
class Session {
 public:
  /// `capacity_tokens` is at most the model's max_tokens. The model must outlive the session.
  Session(const Model& model, std::uint32_t capacity_tokens);

  [[nodiscard]] const Model& model() const noexcept { return *model_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
  /// Tokens whose KV is held.
  [[nodiscard]] std::uint32_t length() const noexcept { return length_; }

  /// Computes the tokens on top of what is held: prefill and decode are the same call.
  /// `all_logits`, if not empty, has room for tokens.size() x vocabulary values. Fails without a
  /// change of length() on an unknown token or a full session, and with Code::corrupt where KV that
  /// was imported drives a logit to NaN or Inf.
  [[nodiscard]] Result<void> append(std::span<const TokenId> tokens,
                                    std::span<float> all_logits = {});

  /// Called by append() for each layer and tile of tokens with the queries after RoPE,
  /// [token][head][dim], of the tokens whose rows begin at `first_row`. For measures of what
  /// attention makes of KV; empty: nobody listens.
  using QueryTap = std::function<void(std::uint32_t layer, std::uint32_t first_row,
                                      std::span<const float> queries)>;
  void tap_queries(QueryTap tap) { query_tap_ = std::move(tap); }

  /// Logits after the last token appended. Empty before the first append, and after import_kv or
  /// truncate: append at least one token to get them.
  [[nodiscard]] std::span<const float> logits() const noexcept;
  /// The token of the greatest logit, the lowest id among equals. logits() must not be empty.
  [[nodiscard]] TokenId greedy() const;

  /// Forgets all but the first `length` tokens, which must be held.
  void truncate(std::uint32_t length);

  /// Position that RoPE gives the next token appended: one past the last row's, 0 when nothing is
  /// held.
  [[nodiscard]] std::uint32_t next_position() const noexcept;

  /// Takes rows [first, first + count) from a block slot in the Layout's canonical order
  /// [layer][K|V][token][kv_head][dim], K after RoPE; count <= block_tokens rows from the slot's
  /// start. first <= length(); rows beyond length() extend it. With `first_position` the rows keep
  /// the positions they were computed at, as a window of a longer context needs. Refuses another
  /// model's layout, and NaN or Inf (Code::corrupt), before it changes anything.
  [[nodiscard]] Result<void> import_kv(const Layout& layout, std::uint32_t first,
                                       std::uint32_t count, std::span<const std::byte> block,
                                       std::uint32_t first_position = kPositionIsIndex);
  /// Writes rows [first, first + count) to the start of each (layer, K|V) of a block slot; other
  /// bytes of the slot stay as they are.
  [[nodiscard]] Result<void> export_kv(const Layout& layout, std::uint32_t first,
                                       std::uint32_t count, std::span<std::byte> block) const;

  /// KV of one layer as [length()][kv_head][dim], float32. Valid until the session changes.
  [[nodiscard]] std::span<const float> key(std::uint32_t layer) const;
  /// For rows that were imported, K before RoPE is the received K turned back.
  [[nodiscard]] std::span<const float> key_before_rope(std::uint32_t layer) const;
  [[nodiscard]] std::span<const float> value(std::uint32_t layer) const;

 private:
  struct LayerCache {
    std::vector<float> key_before, key, value;  // [capacity][kv_width]
    std::vector<float> key_by_dim;  // [kv_width][key_stride]: the form that scoring reads
  };

  Result<void> check_layout(const Layout& layout, std::uint32_t first, std::uint32_t count,
                            std::size_t block_bytes) const;
  bool block_is_finite(const Layout& layout, std::uint32_t count,
                       std::span<const std::byte> block) const;
  void import_row(const Layout& layout, std::uint32_t layer, std::uint32_t row,
                  const std::byte* key, const std::byte* value);
  void compute_tile(std::span<const TokenId> tokens, float* all_logits);
  void compute_kv(std::uint32_t layer, std::uint32_t tokens);
  void attention(std::uint32_t layer, std::uint32_t tokens);
  void attend_tile(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t begin,
                   std::uint32_t tokens);
  void feed_forward(const LayerWeights& weights, std::uint32_t tokens);
  void store_key(LayerCache& cache, std::uint32_t row);
  void rotate(float* heads, std::uint32_t head_count, std::uint32_t position,
              float direction) const;

  const Model* model_;
  std::uint32_t capacity_;
  std::uint32_t key_stride_;
  std::uint32_t length_ = 0;
  bool has_logits_ = false;
  std::vector<LayerCache> cache_;
  std::vector<std::uint32_t> position_;  // of each row held
  std::vector<float> logits_;
  QueryTap query_tap_;
  // Scratch of one tile of tokens.
  std::vector<float> hidden_, normed_, query_, mixed_, projected_, gate_, up_, scores_,
      tile_logits_;
};

}  // namespace kvrail::model
