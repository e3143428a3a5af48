// The calibrated basis that a node codes lowrank in, at the threshold of its profile, and how large the runs of
// such a plane are.
//
// A run of lowrank (codec/lowrank.h) is a header and then K and V, each in whole bytes: its size follows from layer
// and rows, and is another one in each layer. Eight rows take whole bytes in any case, so the bytes before a run are
// a multiple of those before eight rows, and a sum that there is for each remainder: both are added up here, once.
//
// Threads: immutable; any number may read it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec/basis.h"
#include "kvrail/types.h"

namespace kvrail::engine {

class LowRankBasis {
 public:
  // theta: at most codec::kMaxTheta.
  LowRankBasis(codec::Basis basis, std::uint16_t theta);

  [[nodiscard]] const codec::Basis& basis() const noexcept { return basis_; }
  [[nodiscard]] std::uint16_t theta() const noexcept { return theta_; }
  [[nodiscard]] std::uint32_t layers() const noexcept { return basis_.shape().layers; }

  // Whether rows of this form can be coded in it, whatever they mean.
  [[nodiscard]] bool takes(const Layout& layout) const noexcept;
  // Whether it was made for them: their model and RoPE too.
  [[nodiscard]] bool fits(const Layout& layout) const noexcept;

  // Where the run of `layer` begins in the plane of a block of `rows`; of layer layers(): the plane's bytes.
  [[nodiscard]] std::uint64_t offset(std::uint32_t rows, std::uint32_t layer) const noexcept {
    const Sums& sums = before_[layer];
    return rows == 0 ? 0 : headers(layer) + rows / 8 * sums[0] + (rows % 8 == 0 ? 0 : sums[rows % 8]);
  }
  [[nodiscard]] std::uint64_t run_bytes(std::uint32_t rows, std::uint32_t layer) const noexcept {
    return offset(rows, layer + 1) - offset(rows, layer);
  }
  // No run of so many rows takes more.
  [[nodiscard]] std::uint64_t most_run_bytes(std::uint32_t rows) const noexcept;

 private:
  // Of all layers before one, without headers: [0] bytes of eight rows, [n] of n.
  using Sums = std::array<std::uint64_t, 8>;
  [[nodiscard]] static std::uint64_t headers(std::uint64_t count) noexcept;

  codec::Basis basis_;
  std::uint16_t theta_;
  std::vector<Sums> before_;        // layers() + 1
  std::uint64_t most_of_eight_ = 0; // bytes of eight rows of the largest layer
};

using LowRankBasisPtr = std::shared_ptr<const LowRankBasis>;

}  // namespace kvrail::engine
