#include "engine/store/hash_index.h"

#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "kvrail/base/prng.h"

using namespace kvrail;
using namespace kvrail::engine;

TEST_CASE("the index agrees with a map, with hashes that collide and homes that wrap") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Prng prng(seed);
    constexpr std::uint32_t kEntries = 60;
    std::vector<std::uint64_t> cells(HashIndex::cells_for(kEntries));
    HashIndex index;
    index.attach(cells);
    std::map<std::uint32_t, std::uint64_t> model;  // position -> hash
    const auto some_hash = [&] {
      // Few homes, most of them at the end of the cells, and few different upper halves.
      const std::uint64_t home = cells.size() - 4 + prng.uniform(6);
      return (home + prng.uniform(2) * cells.size()) << 32 | prng.uniform(3);
    };
    for (int step = 0; step < 2'000; ++step) {
      const auto position = static_cast<std::uint32_t>(prng.uniform(kEntries));
      const auto present = model.find(position);
      if (present == model.end()) {
        model[position] = some_hash();
        index.insert(model[position], position);
      } else if (prng.chance(0.6)) {
        index.erase(present->second, position);
        model.erase(present);
      }
      REQUIRE(index.size() == model.size());
      for (std::uint32_t at = 0; at < kEntries; ++at) {
        const auto entry = model.find(at);
        const std::uint64_t hash = entry == model.end() ? some_hash() : entry->second;
        const std::uint32_t found = index.find(hash, [&](std::uint32_t p) { return p == at; });
        REQUIRE((found == at) == (entry != model.end()));
      }
    }
  }
}
