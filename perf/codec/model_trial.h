// What a model makes of KV that was coded: its contexts, and its answers on top of them.
//
// A context is read by the model once; its KV, rounded to the dtype in question, is what media
// code. The answers on the uncoded KV are the reference. Two kinds of work:
//   recall models   documents of facts with near-identical two-word keys; every fact is asked once,
//                   and both words of each answer are answer positions
//   llama2.c        texts that the model itself has drawn, token by token, from a seed; the first
//                   half is the context, and every next-token position of the second half counts
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "perf/codec/errors.h"
#include "perf/codec/kv_set.h"

namespace kvrail::fidelity {

struct TrialOptions {
  std::string path;  // a recall model or a checkpoint of llama2.c; told apart by their first bytes
  Dtype dtype = Dtype::bf16;
  std::uint32_t facts = 128;       // of a document, 96 to 128
  std::uint32_t positions = 1024;  // answer positions, at least
  std::uint64_t seed = 1;
  bool importance = false;  // contexts say which tokens matter: TrialSession::importance()
};

/// Sums over answer positions; docs/codecs.md has the formulas of the figures.
struct AnswerSums {
  std::uint64_t positions = 0;
  std::uint64_t answers = 0;
  double divergence = 0;           // Σ KL(exact ‖ coded), nats
  std::uint64_t same_top = 0;      // positions
  std::uint64_t right = 0;         // answers
  std::uint64_t again = 0;         // answers that were lost to the coding
  std::uint64_t again_tokens = 0;  // that they have
  void add(const AnswerSums& other);
  [[nodiscard]] double logit_kl() const { return divergence / static_cast<double>(positions); }
  [[nodiscard]] double top1() const { return share(same_top, positions); }
  [[nodiscard]] double accuracy() const { return share(right, answers); }
  [[nodiscard]] double extra_tokens() const { return share(again_tokens, answers); }

 private:
  static double share(std::uint64_t part, std::uint64_t of) {
    return static_cast<double>(part) / static_cast<double>(of);
  }
};

/// A context of the model, and the queries of its answers.
struct Context {
  KvSet kv;
  Queries queries;
};

class ModelTrial {
 public:
  [[nodiscard]] static Result<std::unique_ptr<ModelTrial>> open(const TrialOptions& options);
  virtual ~ModelTrial() = default;

  /// One line for people: the model and the work.
  [[nodiscard]] virtual std::string description() const = 0;
  [[nodiscard]] virtual std::uint32_t contexts() const = 0;
  /// Reads the next context and answers on its KV: the reference for answer().
  [[nodiscard]] virtual Result<Context> next() = 0;
  /// The same answers on top of KV that was decoded; `kept` as in attention_errors().
  [[nodiscard]] virtual Result<AnswerSums> answer(const KvSet& decoded,
                                                  std::span<const std::uint32_t> kept) = 0;
};

}  // namespace kvrail::fidelity
