#include <doctest/doctest.h>

#include <vector>

#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"
#include "transport/payload_ops.h"

using namespace kvrail;
using namespace kvrail::transport;
using kvrail::test::PayloadBuilder;

TEST_CASE("parts of a range cover it once, in order, piece by piece") {
  std::vector<std::byte> memory(10'000);
  PayloadBuilder builder;
  builder.add(memory.data(), 100);
  builder.add(memory.data() + 5'000, 1);
  builder.add(memory.data() + 200, 3'000);
  const Payload payload = builder.payload();
  REQUIRE(is_consistent(payload));
  for (std::uint64_t offset = 0; offset < payload.total_bytes; offset += 37) {
    for (std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{120}, payload.total_bytes - offset}) {
      bytes = std::min(bytes, payload.total_bytes - offset);
      std::uint64_t seen = 0;
      for_each_part(payload, offset, bytes, [&](std::byte* address, std::uint64_t count) {
        REQUIRE(count > 0);
        const std::uint64_t at = offset + seen;
        const std::byte* expected = at < 100    ? memory.data() + at
                                    : at == 100 ? memory.data() + 5'000
                                                : memory.data() + 200 + (at - 101);
        REQUIRE(address == expected);
        seen += count;
        return true;
      });
      CHECK(seen == bytes);
    }
  }
}

TEST_CASE("completed units: every unit exactly once however the stream is cut") {
  const std::vector<std::uint64_t> sizes{1, kDigestUnitBytes, kDigestUnitBytes + 1, 3, 200'000,
                                         7, 65'535,           2 * kDigestUnitBytes};
  std::vector<std::byte> memory(1'000'000);
  PayloadBuilder builder;
  std::byte* at = memory.data();
  for (const std::uint64_t size : sizes) {
    builder.add(at, size);
    at += size;
  }
  const Payload payload = builder.payload();
  REQUIRE(is_consistent(payload));
  Prng prng(1);
  for (int round = 0; round < 200; ++round) {
    std::uint64_t offset = 0;
    std::uint32_t next = 0;
    while (offset < payload.total_bytes) {
      const std::uint64_t bytes =
          std::min<std::uint64_t>(1 + prng.uniform(100'000), payload.total_bytes - offset);
      const UnitRange units = completed_units(payload, offset, bytes);
      if (units.count != 0) REQUIRE(units.first == next);
      next += units.count;
      offset += bytes;
    }
    REQUIRE(next == payload.total_units);
  }
}

TEST_CASE("verification finds every flipped bit it can see and misses no unit") {
  std::vector<std::byte> memory(kDigestUnitBytes * 2 + 100);
  Prng prng(2);
  for (auto& b : memory) b = static_cast<std::byte>(prng.next_u64());
  PayloadBuilder builder;
  builder.add(memory.data(), kDigestUnitBytes + 50);
  builder.add(memory.data() + kDigestUnitBytes + 50, kDigestUnitBytes + 50);
  const Payload payload = builder.with_digests().payload();
  REQUIRE(payload.total_units == 4);
  CHECK(verify_units(payload, 0, payload.total_bytes, payload.digests));
  CHECK_FALSE(verify_units(payload, 0, payload.total_bytes, payload.digests.first(3)));
  for (int i = 0; i < 300; ++i) {
    const std::size_t bit = prng.uniform(memory.size() * 8);
    memory[bit / 8] ^= std::byte{1} << (bit % 8);
    CHECK_FALSE(verify_units(payload, 0, payload.total_bytes, payload.digests));
    memory[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  CHECK(verify_units(payload, 10, 20, {}));
}
