// XXH3-64 by the vector unit that the CPU has, where libxxhash was built to choose it at run time:
// two to three times as fast as the baseline's. The sums are the same.
#include "codec/hash.h"

#if KVRAIL_XXH_DISPATCH
#include <xxh_x86dispatch.h>  // takes the place of XXH3_64bits()
#else
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

namespace kvrail::codec {

std::uint64_t digest(std::span<const std::byte> unit) noexcept {
  return XXH3_64bits(unit.data(), unit.size());
}

std::uint64_t digest(std::span<const std::byte> unit, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(unit.data(), unit.size(), seed);
}

}  // namespace kvrail::codec
