#include "perf/calibrate/basis_fit.h"

#include <algorithm>

#include "codec/lowrank.h"
#include "perf/codec/errors.h"
#include "perf/codec/lowrank_medium.h"

namespace kvrail::calibrate {
namespace {

// Most components of a segment that have bits at this rate.
std::uint32_t components_at(const codec::Basis& basis, double bits) {
  const float theta = codec::theta_of(codec::theta_for_rate(basis, bits));
  std::uint32_t most = 1;
  for (std::uint32_t layer = 0; layer < basis.shape().layers; ++layer) {
    for (const codec::Side side : {codec::Side::k, codec::Side::v}) {
      for (std::uint32_t s = 0; s < basis.shape().segments(); ++s) {
        const float* const gains = basis.segment(layer, side, s).gains;
        for (std::uint32_t c = 0; c < basis.shape().components; ++c)
          if (gains[c * codec::kMaxComponentBits] >= theta) most = std::max(most, c + 1);
      }
    }
  }
  return most;
}

void keep_components(codec::BasisContent& content, std::uint32_t components) {
  content.shape.components = components;
  for (codec::BasisSegmentContent& segment : content.segments) {
    segment.steps.resize(std::size_t{components} * codec::kMaxComponentBits);
    segment.gains.resize(segment.steps.size());
    segment.matrix.resize(std::size_t{components} * content.shape.segment_values());
  }
}

std::span<std::byte> layer_of(fidelity::KvSet& set, codec::Side side, std::uint32_t layer) {
  std::vector<std::byte>& all = side == codec::Side::k ? set.k : set.v;
  return std::span(all).subspan(set.row_offset(layer, 0), set.tokens * set.row_bytes());
}

// KL that this side alone costs over the power of its error.
Result<double> weight_of(const fidelity::KvSet& exact, fidelity::KvSet& coded, codec::Side side,
                         std::uint32_t layer, fidelity::ModelTrial& trial) {
  fidelity::KvSet mixed = exact;
  const std::span<std::byte> to = layer_of(mixed, side, layer);
  const std::span<std::byte> from = layer_of(coded, side, layer);
  const double error = fidelity::squared_error(exact.dtype, to, coded.dtype, from).error;
  std::copy(from.begin(), from.end(), to.begin());
  auto sums = trial.answer(mixed, {});
  if (!sums.ok()) return std::move(sums).error();
  return sums->logit_kl() * static_cast<double>(exact.tokens) / std::max(error, 1e-30);
}

}  // namespace

std::unique_ptr<fidelity::MediumUnderTest> FittedBasis::medium() const {
  return std::make_unique<fidelity::LowRankMedium>("lowrank", bits,
                                                   fidelity::MediumContext{basis.get(), {}});
}

void add_rows(KltFit& fit, const fidelity::KvSet& set, std::uint32_t first, std::uint32_t count) {
  const std::uint32_t position = (set.rope ? set.rope->first_position : 0) + first;
  std::vector<float> rows(count * set.row_values());
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    const codec::RunView run = set.run(layer, first, count);
    fidelity::to_floats(set.dtype, run.k, rows);
    fit.add(layer, codec::Side::k, rows, position);
    fidelity::to_floats(set.dtype, run.v, rows);
    fit.add(layer, codec::Side::v, rows, position);
  }
}

KltOptions klt_options(const Options& options, const fidelity::KvSet& set,
                       const Hash128& model_id) {
  KltOptions klt;
  klt.model_id = model_id;
  klt.layers = set.layers;
  klt.kv_heads = set.kv_heads;
  klt.head_dim = set.head_dim;
  if (set.rope) klt.rope = set.rope->rule;
  klt.layers_per_group = options.layers_per_group;
  klt.most_segment_values = options.most_segment_values;
  return klt;
}

Result<FittedBasis> finish_basis(codec::BasisContent content, const Options& options) {
  auto whole = codec::Basis::parse(basis_file(content));
  if (!whole.ok()) return std::move(whole).error();
  keep_components(content, components_at(*whole, options.most_bits));
  FittedBasis out;
  out.file = basis_file(content);
  auto kept = codec::Basis::parse(out.file);
  if (!kept.ok()) return std::move(kept).error();
  out.bits = options.bits;
  out.theta = codec::theta_for_rate(*kept, options.bits);
  out.basis = std::make_shared<const codec::Basis>(std::move(*kept));
  return out;
}

Result<std::vector<double>> measured_weights(const FittedBasis& coarse, fidelity::ModelTrial& trial,
                                             std::uint32_t contexts) {
  const std::unique_ptr<fidelity::MediumUnderTest> medium = coarse.medium();
  std::vector<double> weights(std::size_t{coarse.basis->shape().layers} * 2);
  for (std::uint32_t i = 0; i < contexts; ++i) {
    auto context = trial.next();
    if (!context.ok()) return std::move(context).error();
    if (auto ready = medium->prepare(context->kv); !ready.ok()) return std::move(ready).error();
    fidelity::KvSet coded = context->kv.empty_like(context->kv.dtype);
    if (const Status status = medium->encode(context->kv); !status.ok()) return status;
    if (const Status status = medium->decode(coded); !status.ok()) return status;
    for (std::uint32_t layer = 0; layer < context->kv.layers; ++layer) {
      for (const codec::Side side : {codec::Side::k, codec::Side::v}) {
        auto weight = weight_of(context->kv, coded, side, layer, trial);
        if (!weight.ok()) return std::move(weight).error();
        weights[layer * 2 + static_cast<std::size_t>(side)] += *weight / contexts;
      }
    }
  }
  // A side that cost nothing in these contexts may in others: it keeps a hundredth of the largest.
  const double least = 0.01 * *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::max({weight, least, 1e-30});
  return weights;
}

}  // namespace kvrail::calibrate
