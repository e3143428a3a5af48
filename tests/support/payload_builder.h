// Builds transport Payloads for tests: keeps the arrays that a Payload views.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <vector>

#include "transport/payload_ops.h"

namespace kvrail::test {

// The most of `bytes` at `offset` that complete at most `max_units` units. The engine needs no such cut,
// because it takes no Layout whose chunks could have too many; tests have smaller pieces.
[[nodiscard]] inline std::uint32_t clip_to_units(const transport::Payload& payload, std::uint64_t offset,
                                                 std::uint32_t bytes, std::uint32_t max_units) {
  std::uint32_t fits = 1;
  std::uint32_t beyond = bytes + 1;
  while (beyond - fits > 1) {
    const std::uint32_t middle = fits + (beyond - fits) / 2;
    (transport::completed_units(payload, offset, middle).count <= max_units ? fits : beyond) = middle;
  }
  return fits;
}

class PayloadBuilder {
 public:
  PayloadBuilder& add(std::byte* address, std::uint64_t bytes) {
    pieces_.push_back({address, bytes});
    starts_.push_back(total_bytes_);
    first_unit_.push_back(total_units_);
    total_bytes_ += bytes;
    total_units_ += transport::units_in(bytes);
    return *this;
  }
  // Computes the digests from what the pieces hold now.
  PayloadBuilder& with_digests() {
    digests_.clear();
    for (std::uint32_t unit = 0; unit < total_units_; ++unit) {
      const auto memory = transport::unit_memory(payload(), unit);
      digests_.push_back(XXH3_64bits(memory.data(), memory.size()));
    }
    return *this;
  }
  std::vector<std::uint64_t>& digests() { return digests_; }
  // Valid as long as the builder and until the next change to it.
  [[nodiscard]] transport::Payload payload() const {
    transport::Payload view;
    view.pieces = pieces_;
    view.starts = starts_;
    view.first_unit = first_unit_;
    view.total_bytes = total_bytes_;
    view.total_units = total_units_;
    view.digests = digests_.size() == total_units_ ? std::span<const std::uint64_t>(digests_)
                                                   : std::span<const std::uint64_t>{};
    return view;
  }

 private:
  std::vector<transport::Piece> pieces_;
  std::vector<std::uint64_t> starts_;
  std::vector<std::uint32_t> first_unit_;
  std::vector<std::uint64_t> digests_;
  std::uint64_t total_bytes_ = 0;
  std::uint32_t total_units_ = 0;
};

}  // namespace kvrail::test
