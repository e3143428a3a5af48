// The basis of lowrank for a model or for files of KV.
#pragma once

#include <memory>
#include <vector>

#include "codec/basis.h"
#include "perf/calibrate/klt.h"
#include "perf/calibrate/options.h"
#include "perf/codec/kv_set.h"
#include "perf/codec/medium_under_test.h"
#include "perf/codec/model_trial.h"

namespace kvrail::calibrate {

struct FittedBasis {
  std::vector<std::byte> file;
  std::shared_ptr<const codec::Basis> basis;
  double bits = 0;          // Options::bits
  std::uint16_t theta = 0;  // for that rate

  /// lowrank with this basis at this rate. This must outlive it.
  [[nodiscard]] std::unique_ptr<fidelity::MediumUnderTest> medium() const;
};

/// Rows [first, first + count) of every layer.
void add_rows(KltFit& fit, const fidelity::KvSet& set, std::uint32_t first, std::uint32_t count);
[[nodiscard]] KltOptions klt_options(const Options& options, const fidelity::KvSet& set,
                                     const Hash128& model_id);

/// A basis without the components that get no bits at Options::most_bits.
[[nodiscard]] Result<FittedBasis> finish_basis(codec::BasisContent content, const Options& options);

/// What an error of 1 in a value of [layer][side] costs in logit KL: each side alone is coded, and
/// the model answers. `coarse` is a basis at hand, `contexts` how many are tried.
[[nodiscard]] Result<std::vector<double>> measured_weights(const FittedBasis& coarse,
                                                           fidelity::ModelTrial& trial,
                                                           std::uint32_t contexts);

}  // namespace kvrail::calibrate
