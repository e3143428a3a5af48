// The figures of each medium, as JSON and as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/codec/errors.h"
#include "perf/codec/model_trial.h"
#include "perf/codec/speed.h"

namespace kvrail::fidelity {

struct MediumFigures {
  std::string name;
  std::uint64_t bits = 0;
  std::uint64_t values = 0;
  ErrorSum k, v;
  AttentionErrors attention;
  Speeds speeds;
  bool bit_exact = true;
  std::optional<AnswerSums> answers;  // with a model

  [[nodiscard]] double bits_per_value() const {
    return static_cast<double>(bits) / static_cast<double>(values);
  }
  /// 0 where all came back bit by bit, NaN and Inf too.
  [[nodiscard]] double attention_error() const { return bit_exact ? 0 : attention.both.ratio(); }
};

/// {"media":[{"name", "bits_per_value", …}]}; with a model four fields more. What is no finite
/// number is null.
[[nodiscard]] std::string json_report(const std::vector<MediumFigures>& media);
[[nodiscard]] std::string table_report(const std::vector<MediumFigures>& media);

}  // namespace kvrail::fidelity
