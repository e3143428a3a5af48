// The basis of lowrank that nodes of the simulation share.
#pragma once

#include "tests/support/node_world.h"

namespace kvrail::testing {

// Directions are the values themselves, quantised over all that a row can hold: the first layer at 7 bits, the
// second at 5, so that its runs are smaller.
inline LowRankBasisPtr sim_basis() {
  constexpr std::uint16_t kTheta = 51 * 16;  // 2^-13
  codec::BasisContent content;
  content.shape = {small_layout().model_id, 2, 2, 32, 1, 32, 2, {}};
  content.group_of_layer = {0, 1};
  for (int segment = 0; segment < 8; ++segment) {
    codec::BasisSegmentContent of;
    of.mean.assign(32, 0.0F);
    of.matrix.assign(32UL * 32, 0.0F);
    for (std::size_t c = 0; c < 32; ++c) {
      of.matrix[33 * c] = 1.0F;
      for (std::uint32_t bit = 0; bit < codec::kMaxComponentBits; ++bit) {
        of.steps.push_back(4.25F / static_cast<float>(2U << bit));
        of.gains.push_back(1.0F / static_cast<float>(1ULL << 2 * (bit + (segment < 4 ? 0 : 2))));
      }
    }
    content.segments.push_back(std::move(of));
  }
  auto basis = codec::Basis::parse(codec::basis_file(content));
  KVRAIL_ASSERT_MSG(basis.ok(), basis.ok() ? "" : basis.error().message.c_str());
  return std::make_shared<const LowRankBasis>(std::move(basis).value(), kTheta);
}

}  // namespace kvrail::testing
