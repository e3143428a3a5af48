#include <doctest/doctest.h>

#include <cstring>
#include <set>
#include <vector>

#include "kvrail/base/no_alloc.h"
#include "kvrail/base/prng.h"
#include "mempool/fixed_memory.h"
#include "mempool/pool_class.h"
#include "mempool/region_table.h"

using namespace kvrail;
using namespace kvrail::mempool;

TEST_CASE("fixed memory serves pmr containers without the heap and takes everything back") {
  auto memory = FixedMemory::create(1 << 20, true);
  REQUIRE(memory.ok());
  FixedMemory& fixed = **memory;
  CHECK(fixed.bytes_total() == 1 << 20);
  const std::uint64_t before = fixed.bytes_free();
  {
    NoAllocScope no_alloc;
    std::pmr::vector<std::uint64_t> numbers(&fixed);
    for (std::uint64_t i = 0; i < 10'000; ++i) {
      numbers.push_back(i);
    }
    KVRAIL_ASSERT(numbers[9'999] == 9'999);
  }
  CHECK(fixed.bytes_free() == before);
  CHECK(fixed.consistent(true));
}

TEST_CASE("fixed memory that is exhausted says so, and is whole again after returns") {
  auto memory = FixedMemory::create(256 * 1024, false);
  REQUIRE(memory.ok());
  FixedMemory& fixed = **memory;
  CHECK(fixed.try_allocate(1 << 20) == nullptr);
  CHECK(fixed.try_allocate(UINT64_MAX) == nullptr);
  std::vector<void*> pieces;
  while (void* piece = fixed.try_allocate(1000)) {
    std::memset(piece, 0xee, 1000);
    pieces.push_back(piece);
  }
  CHECK(pieces.size() > 200);
  CHECK(fixed.try_array<std::uint64_t>(1'000).data() == nullptr);
  for (std::size_t i = 0; i < pieces.size(); i += 2) {
    fixed.give_back(pieces[i]);
  }
  CHECK(fixed.consistent());
  for (std::size_t i = 1; i < pieces.size(); i += 2) {
    fixed.give_back(pieces[i]);
  }
  fixed.give_back(nullptr);
  CHECK(fixed.consistent(true));
}

TEST_CASE("arrays are value-initialised and aligned, absurd counts are refused") {
  auto memory = FixedMemory::create(256 * 1024, false);
  REQUIRE(memory.ok());
  FixedMemory& fixed = **memory;
  const auto dirty = fixed.try_array<std::byte>(4096);
  std::memset(dirty.data(), 0xff, dirty.size());
  fixed.give_back(dirty.data());
  const auto clean = fixed.try_array<std::uint64_t>(100);
  REQUIRE(clean.size() == 100);
  for (const std::uint64_t value : clean) {
    CHECK(value == 0);
  }
  CHECK(fixed.try_array<std::uint64_t>(UINT64_MAX / 4).empty());
  CHECK(fixed.try_array<std::uint64_t>(0).empty());
  void* line = fixed.try_allocate(10, 64);
  CHECK(reinterpret_cast<std::uintptr_t>(line) % 64 == 0);
  fixed.give_back(line);
  fixed.give_back(clean.data());
  CHECK(fixed.consistent(true));
  CHECK_FALSE(FixedMemory::create(10, false).ok());
}

TEST_CASE("region ids are never given out twice") {
  RegionTable table(4);
  std::byte memory[64];
  std::set<RegionId> seen;
  for (int i = 0; i < 100; ++i) {
    const auto id = table.try_add(memory, sizeof(memory), 3);
    REQUIRE(id.has_value());
    CHECK(*id != 0);
    CHECK(seen.insert(*id).second);
    REQUIRE(table.find(*id) != nullptr);
    CHECK(table.find(*id)->fd == 3);
    CHECK(table.remove(*id));
    CHECK_FALSE(table.remove(*id));
    CHECK(table.find(*id) == nullptr);
  }
  CHECK(table.find(0) == nullptr);
}

TEST_CASE("a full region table refuses; look-up by address finds the least region around") {
  RegionTable table(3);
  std::byte memory[100];
  const auto all = table.try_add(memory, 100, -1);
  const auto part = table.try_add(memory + 20, 30, -1);
  const auto other = table.try_add(memory + 60, 10, -1);
  REQUIRE((all && part && other));
  CHECK_FALSE(table.try_add(memory, 1, -1));
  CHECK(table.find_range(memory + 25, 5)->id == *part);
  CHECK(table.find_range(memory + 45, 10)->id == *all);
  CHECK(table.find_range(memory, 100)->id == *all);
  CHECK(table.find_range(memory, 101) == nullptr);
  CHECK(table.find_range(memory + 99, UINT64_MAX) == nullptr);
  CHECK(table.remove(*all));
  CHECK(table.find_range(memory + 45, 10) == nullptr);
  CHECK(table.size() == 2);
}

TEST_CASE("pool classes account apart") {
  PoolUsage usage;
  usage.take(PoolClass::raw, 100);
  usage.take(PoolClass::plane1, 50);
  usage.give_back(PoolClass::raw, 40);
  CHECK(usage.used(PoolClass::raw) == 60);
  CHECK(usage.used(PoolClass::plane0) == 0);
  CHECK(usage.total() == 110);
}
