#include "perf/calibrate/klt.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/Dense>

#include "kvrail/base/assert.h"

namespace kvrail::calibrate {
namespace {

using codec::kMaxComponentBits;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr std::size_t kMostSamples = 8192;  // that a quantiser is searched with
constexpr int kStepCandidates = 24;
constexpr double kLeastStep = 1e-12;

std::uint32_t heads_per_segment(const KltOptions& options) {
  std::uint32_t best = 1;
  for (std::uint32_t heads = 1; heads <= options.kv_heads; ++heads) {
    const bool divides = options.kv_heads % heads == 0;
    if (divides && heads * options.head_dim <= options.most_segment_values) best = heads;
  }
  return best;
}

// Mean squared error of the uniform quantiser with 2^bits levels around zero.
double error_of(std::span<const float> samples, double step, std::uint32_t bits) {
  const auto inverse = static_cast<float>(1.0 / step);
  const auto width = static_cast<float>(step);
  const auto half = static_cast<float>(1U << (bits - 1));
  double sum = 0;
  for (const float y : samples) {
    const float level = std::min(std::max(std::floor(y * inverse), -half), half - 1.0F);
    const float error = y - (level + 0.5F) * width;
    sum += static_cast<double>(error * error);
  }
  return sum / static_cast<double>(samples.size());
}

struct Quantiser {
  double step = 1;
  double error = 0;
};

// From the step that clips nothing down to a few per cent of it, in a geometric row.
Quantiser best_quantiser(std::span<const float> samples, float greatest, double variance,
                         std::uint32_t bits) {
  const double most =
      std::max(double{greatest} / std::ldexp(1.0, static_cast<int>(bits) - 1), kLeastStep);
  Quantiser best{most, std::numeric_limits<double>::infinity()};
  // Far tails let little of the deviation be left in the finest of them.
  const double least = std::max(
      most * 0.02, 0.25 * std::sqrt(variance) / std::ldexp(1.0, static_cast<int>(bits) - 1));
  for (int i = 0; i <= kStepCandidates; ++i) {
    const double step = std::max(
        most * std::pow(std::min(least / most, 1.0), double{1} * i / kStepCandidates), kLeastStep);
    const double error = error_of(samples, step, bits);
    if (error < best.error) best = {step, error};
  }
  return best;
}

// The nearest row that never rises: neighbours that do are replaced by their mean.
void flatten(std::span<double> gains) {
  struct Run {
    double sum;
    std::size_t count;
    [[nodiscard]] double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Run> runs;
  for (const double gain : gains) {
    runs.push_back({gain, 1});
    while (runs.size() > 1 && runs[runs.size() - 2].mean() < runs.back().mean()) {
      runs[runs.size() - 2].sum += runs.back().sum;
      runs[runs.size() - 2].count += runs.back().count;
      runs.pop_back();
    }
  }
  std::size_t at = 0;
  for (const Run& run : runs)
    for (std::size_t i = 0; i < run.count; ++i) gains[at++] = std::max(run.mean(), 0.0);
}

void append_quantisers(std::span<const float> samples, double weight,
                       codec::BasisSegmentContent& out) {
  float greatest = 0;
  double square = 0;
  for (const float y : samples) {
    greatest = std::max(greatest, std::abs(y));
    square += static_cast<double>(y) * y;
  }
  const double variance = square / static_cast<double>(samples.size());
  double left = variance;
  std::vector<double> gains;
  for (std::uint32_t bits = 1; bits <= kMaxComponentBits; ++bits) {
    const Quantiser best = best_quantiser(samples, greatest, variance, bits);
    out.steps.push_back(static_cast<float>(best.step));
    gains.push_back(left - best.error);
    left = best.error;
  }
  flatten(gains);
  for (const double gain : gains) out.gains.push_back(static_cast<float>(gain * weight));
}

}  // namespace

KltFit::KltFit(const KltOptions& options)
    : options_(options),
      frequencies_(options.rope.rotary_dims / 2),
      rows_(std::size_t{options.layers} * 2) {
  shape_.model_id = options.model_id;
  shape_.layers = options.layers;
  shape_.kv_heads = options.kv_heads;
  shape_.head_dim = options.head_dim;
  shape_.heads_per_segment = heads_per_segment(options);
  shape_.components =
      std::min(options.components == 0 ? shape_.segment_values() : options.components,
               shape_.segment_values());
  shape_.groups = (options.layers + options.layers_per_group - 1) / options.layers_per_group;
  shape_.rope = options.rope;
  codec::rope_frequencies(options.rope, frequencies_);
}

void KltFit::add(std::uint32_t layer, codec::Side side, std::span<const float> rows,
                 std::uint32_t first_position) {
  const std::size_t width = std::size_t{options_.kv_heads} * options_.head_dim;
  KVRAIL_ASSERT(layer < options_.layers && rows.size() % width == 0);
  std::vector<float>& all = rows_[index(layer, side)];
  const std::size_t before = all.size();
  all.insert(all.end(), rows.begin(), rows.end());
  if (side == codec::Side::v || frequencies_.empty()) return;
  codec::RopeAngles angles(frequencies_, first_position);
  for (std::size_t at = before; at < all.size(); at += width, angles.advance())
    undo_rope(angles, options_.rope.pairing, options_.head_dim, {all.data() + at, width});
}

double KltFit::power(std::uint32_t layer, codec::Side side) const {
  double sum = 0;
  const std::vector<float>& all = rows_[index(layer, side)];
  for (const float value : all) sum += static_cast<double>(value) * value;
  return sum / static_cast<double>(std::max<std::size_t>(all.size(), 1));
}

codec::BasisSegmentContent KltFit::fit_segment(std::uint32_t group, codec::Side side,
                                               std::uint32_t segment, double weight) const {
  const Eigen::Index width = Eigen::Index{options_.kv_heads} * options_.head_dim;
  const auto values = static_cast<Eigen::Index>(shape_.segment_values());
  const std::uint32_t first = group * options_.layers_per_group;
  const std::uint32_t last = std::min(first + options_.layers_per_group, options_.layers);
  std::vector<Rows> parts;
  Eigen::VectorXd mean = Eigen::VectorXd::Zero(values);
  Eigen::Index count = 0;
  for (std::uint32_t layer = first; layer < last; ++layer) {
    const std::vector<float>& all = rows_[index(layer, side)];
    const auto tokens = static_cast<Eigen::Index>(all.size()) / width;
    KVRAIL_ASSERT_MSG(tokens > 0, "rows of every layer and side were added");
    parts.emplace_back(Eigen::Map<const Rows>(all.data(), tokens, width)
                           .middleCols(static_cast<Eigen::Index>(segment) * values, values));
    mean += parts.back().cast<double>().colwise().sum().transpose();
    count += tokens;
  }
  mean /= static_cast<double>(count);
  Eigen::MatrixXd covariance = Eigen::MatrixXd::Zero(values, values);
  for (Rows& part : parts) {
    part.rowwise() -= mean.cast<float>().transpose();
    const Eigen::MatrixXd centred = part.cast<double>();
    covariance.noalias() += centred.transpose() * centred;
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solved(covariance);
  codec::BasisSegmentContent out;
  for (Eigen::Index i = 0; i < values; ++i) out.mean.push_back(static_cast<float>(mean[i]));
  const Eigen::Index stride =
      std::max<Eigen::Index>(1, (count + static_cast<Eigen::Index>(kMostSamples) - 1) /
                                    static_cast<Eigen::Index>(kMostSamples));
  std::vector<float> samples;
  for (std::uint32_t c = 0; c < shape_.components; ++c) {
    // Eigenvalues come in rising order.
    const Eigen::VectorXf direction =
        solved.eigenvectors().col(values - 1 - static_cast<Eigen::Index>(c)).cast<float>();
    out.matrix.insert(out.matrix.end(), direction.data(), direction.data() + values);
    samples.clear();
    for (const Rows& part : parts)
      for (Eigen::Index t = 0; t < part.rows(); t += stride)
        samples.push_back(part.row(t).dot(direction));
    append_quantisers(samples, weight, out);
  }
  return out;
}

codec::BasisContent KltFit::fit(std::span<const double> weights) const {
  KVRAIL_ASSERT(weights.empty() || weights.size() == rows_.size());
  codec::BasisContent content;
  content.shape = shape_;
  content.frequencies = frequencies_;
  for (std::uint32_t layer = 0; layer < options_.layers; ++layer)
    content.group_of_layer.push_back(static_cast<std::uint16_t>(layer / options_.layers_per_group));
  for (std::uint32_t group = 0; group < shape_.groups; ++group) {
    for (const codec::Side side : {codec::Side::k, codec::Side::v}) {
      // Layers of a group share quantisers and gains, so they share a weight.
      const std::uint32_t first = group * options_.layers_per_group;
      const std::uint32_t last = std::min(first + options_.layers_per_group, options_.layers);
      double weight = 0;
      for (std::uint32_t layer = first; layer < last; ++layer) {
        weight += weights.empty() ? 1.0 / std::max(power(layer, side), 1e-30)
                                  : weights[index(layer, side)];
      }
      weight /= last - first;
      for (std::uint32_t segment = 0; segment < shape_.segments(); ++segment)
        content.segments.push_back(fit_segment(group, side, segment, weight));
    }
  }
  return content;
}

}  // namespace kvrail::calibrate
