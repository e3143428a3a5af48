// A model's session, and KV in and out of it as sets. Internal to this folder.
#pragma once

#include <span>
#include <vector>

#include "perf/codec/errors.h"
#include "perf/codec/kv_set.h"
#include "perf/model/model.h"
#include "perf/model/session.h"

namespace kvrail::fidelity {

class TrialSession {
 public:
  TrialSession(const model::Model& model, std::uint32_t capacity);

  [[nodiscard]] model::Session& session() noexcept { return session_; }
  /// All rows held, rounded to `dtype`.
  [[nodiscard]] KvSet kv(Dtype dtype) const;
  /// Holds these rows alone, each at its own position; `kept` as in attention_errors().
  [[nodiscard]] Result<void> hold(const KvSet& set, std::span<const std::uint32_t> kept);
  /// Logits [token][vocabulary] of tokens appended to what is held, which then are forgotten again.
  [[nodiscard]] Result<std::vector<float>> logits_of(std::span<const TokenId> tokens);
  /// The same, and the queries of every `step`th token.
  [[nodiscard]] Result<std::vector<float>> logits_of(std::span<const TokenId> tokens,
                                                     std::uint32_t step, Queries& queries);
  /// Of each token held, should the session read them all once more: the greatest weight that any
  /// head gives it while it does, times the length of its V there. Needs no question, and finds
  /// what any question about the text would need (after KVzip, arXiv 2505.23416). `tokens` are
  /// those held, from position 0 on; the session needs room for as many again.
  [[nodiscard]] Result<std::vector<float>> importance(std::span<const TokenId> tokens);

 private:
  Result<void> import_rows(const KvSet& set, std::uint32_t row, std::uint32_t token,
                           std::uint32_t count);

  model::Session session_;
  Layout layout_;  // in fp32: sets of any dtype go through it
  std::vector<float> slot_;
};

}  // namespace kvrail::fidelity
