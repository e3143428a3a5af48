#include "codec/leverage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "codec/rows.h"
#include "kvrail/base/assert.h"

namespace kvrail::codec {
namespace {

// δ as a part of the mean variance: directions with less are noise.
constexpr double kDamping = 0.01;
// Bits of the magnitude from which on turning a pair may overflow; NaN and Inf lie above.
constexpr std::uint32_t kUsable = 0x7e000000U;

}  // namespace

std::size_t Leverage::memory_doubles(std::uint32_t kv_heads, std::uint32_t head_dim) noexcept {
  const std::size_t row = std::size_t{kv_heads} * head_dim;
  return row * head_dim + row + head_dim + (row + 1) / 2;
}

Leverage::Leverage(std::uint32_t kv_heads, std::uint32_t head_dim,
                   std::span<const double> frequencies, RopePairing pairing,
                   std::span<double> memory) noexcept
    : kv_heads_(kv_heads), head_dim_(head_dim), frequencies_(frequencies), pairing_(pairing) {
  KVRAIL_ASSERT(memory.size() >= memory_doubles(kv_heads, head_dim));
  KVRAIL_ASSERT(frequencies.size() <= std::min(head_dim / 2, kMaxRopePairs));
  const std::size_t row = std::size_t{kv_heads} * head_dim;
  matrices_ = memory.first(row * head_dim);
  means_ = memory.subspan(matrices_.size(), row);
  solved_ = memory.subspan(matrices_.size() + row, head_dim);
  row_ = {reinterpret_cast<float*>(solved_.data() + head_dim), row};
  std::fill(matrices_.begin(), matrices_.end(), 0.0);
  std::fill(means_.begin(), means_.end(), 0.0);
}

std::span<double> Leverage::matrix(std::uint32_t head) const noexcept {
  const std::size_t size = std::size_t{head_dim_} * head_dim_;
  return matrices_.subspan(head * size, size);
}

std::span<double> Leverage::mean(std::uint32_t head) const noexcept {
  return means_.subspan(std::size_t{head} * head_dim_, head_dim_);
}

// Calls use(token, row before RoPE, whether it is finite) for each token.
template <class Use>
void Leverage::each_row(const RunShape& shape, std::span<const std::byte> k,
                        std::uint32_t first_position, Use&& use) const noexcept {
  KVRAIL_ASSERT(shape.kv_heads == kv_heads_ && shape.head_dim == head_dim_ &&
                k.size() == shape.side_bytes() && dtype_bytes(shape.dtype) > 1);
  std::optional<RopeAngles> angles;
  if (!frequencies_.empty()) angles.emplace(frequencies_, first_position);
  for (std::uint32_t token = 0; token < shape.tokens; ++token) {
    const std::uint32_t greatest =
        load_row(shape.dtype, k.data() + token * shape.row_bytes(), row_.size(), row_.data());
    if (angles) {
      if (token > 0) angles->advance();
      undo_rope(*angles, pairing_, head_dim_, row_);
    }
    use(token, greatest < kUsable);
  }
}

void Leverage::add(const RunShape& shape, std::span<const std::byte> k,
                   std::uint32_t first_position) noexcept {
  each_row(shape, k, first_position, [&](std::uint32_t, bool finite) {
    if (!finite) return;
    ++rows_;
    for (std::uint32_t head = 0; head < kv_heads_; ++head) {
      const float* key = row_.data() + std::size_t{head} * head_dim_;
      double* sum = mean(head).data();
      double* line = matrix(head).data();
      for (std::uint32_t i = 0; i < head_dim_; ++i, line += head_dim_) {
        const double x = key[i];
        sum[i] += x;
        for (std::uint32_t j = 0; j <= i; ++j) line[j] += x * key[j];
      }
    }
  });
}

void Leverage::close() noexcept {
  for (std::uint32_t head = 0; head < kv_heads_; ++head) close_head(head);
}

// Sums become the mean, and the matrix its factor L of XᵀX + δI = LLᵀ, with 1 / L[i][i] on the
// diagonal. Without any variance L is infinite, and so leverage 0.
void Leverage::close_head(std::uint32_t head) noexcept {
  const std::size_t dim = head_dim_;
  const std::span<double> mu = mean(head), a = matrix(head);
  const double rows = std::max<double>(1.0, static_cast<double>(rows_));
  for (double& value : mu) value /= rows;
  double trace = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j <= i; ++j) a[i * dim + j] -= rows * mu[i] * mu[j];
    trace += a[i * dim + i];
  }
  const double damping = kDamping * trace / static_cast<double>(dim);
  for (std::size_t i = 0; i < dim; ++i) {
    a[i * dim + i] += damping;
    for (std::size_t j = 0; j <= i; ++j) {
      double x = a[i * dim + j];
      for (std::size_t c = 0; c < j; ++c) x -= a[i * dim + c] * a[j * dim + c];
      // Rounding may leave less than the damping, which is the least that can be there.
      if (i == j) a[i * dim + i] = trace > 0 ? 1.0 / std::sqrt(std::max(x, damping)) : 0.0;
      if (i != j) a[i * dim + j] = x * a[j * dim + j];
    }
  }
}

double Leverage::of_row(std::uint32_t head, std::span<const float> key) const noexcept {
  const std::size_t dim = head_dim_;
  const std::span<const double> mu = mean(head), factor = matrix(head);
  double leverage = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    double x = double{key[i]} - mu[i];
    for (std::size_t c = 0; c < i; ++c) x -= factor[i * dim + c] * solved_[c];
    solved_[i] = x * factor[i * dim + i];
    leverage += solved_[i] * solved_[i];
  }
  return leverage;
}

void Leverage::score(const RunShape& shape, std::span<const std::byte> k,
                     std::uint32_t first_position, std::span<float> importance) const noexcept {
  KVRAIL_ASSERT(importance.size() == shape.tokens);
  each_row(shape, k, first_position, [&](std::uint32_t token, bool finite) {
    double sum = finite ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    for (std::uint32_t head = 0; finite && head < kv_heads_; ++head)
      sum += of_row(head, row_.subspan(std::size_t{head} * head_dim_, head_dim_));
    importance[token] += static_cast<float>(sum);
  });
}

}  // namespace kvrail::codec
