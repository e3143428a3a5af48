#include <doctest/doctest.h>

#include <array>
#include <limits>

#include "kvrail/base/bits.h"
#include "kvrail/base/byte_order.h"
#include "kvrail/base/checked.h"

namespace kvrail {
namespace {

TEST_CASE("byte order / stores little-endian at odd addresses") {
  std::array<std::uint8_t, 16> bytes{};
  store_le16(&bytes[1], 0x0102);
  store_le32(&bytes[3], 0x03040506);
  store_le64(&bytes[7], 0x0708090A0B0C0D0EULL);
  const std::array<std::uint8_t, 16> expected{0,    0x02, 0x01, 0x06, 0x05, 0x04, 0x03, 0x0E,
                                              0x0D, 0x0C, 0x0B, 0x0A, 0x09, 0x08, 0x07, 0};
  CHECK(bytes == expected);
  CHECK(load_le16(&bytes[1]) == 0x0102);
  CHECK(load_le32(&bytes[3]) == 0x03040506);
  CHECK(load_le64(&bytes[7]) == 0x0708090A0B0C0D0EULL);
}

TEST_CASE("byte reader / reads back what the writer wrote, to the last byte") {
  std::array<std::byte, 64> buffer{};
  ByteWriter writer(buffer);
  writer.u8(0xAB);
  writer.u16(0xBEEF);
  writer.u32(0xDEADBEEF);
  writer.u64(0x0123456789ABCDEFULL);
  writer.i32(-7);
  writer.i64(std::numeric_limits<std::int64_t>::min());
  writer.f32(1.5F);
  writer.f64(-0.25);
  const std::array<std::byte, 3> tail{std::byte{1}, std::byte{2}, std::byte{3}};
  writer.bytes(tail);
  REQUIRE(writer.ok());

  ByteReader reader(writer.written());
  CHECK(reader.u8() == 0xAB);
  CHECK(reader.u16() == 0xBEEF);
  CHECK(reader.u32() == 0xDEADBEEF);
  CHECK(reader.u64() == 0x0123456789ABCDEFULL);
  CHECK(reader.i32() == -7);
  CHECK(reader.i64() == std::numeric_limits<std::int64_t>::min());
  CHECK(reader.f32() == 1.5F);
  CHECK(reader.f64() == -0.25);
  CHECK(!reader.done());
  std::array<std::byte, 3> out{};
  reader.copy_to(out);
  CHECK(out == tail);
  CHECK(reader.done());
}

TEST_CASE("byte reader / a read past the end fails for good and moves nothing") {
  const std::array<std::byte, 4> bytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  ByteReader reader(bytes);
  CHECK(reader.u16() == 0x0201);
  CHECK(reader.u32() == 0);
  CHECK(!reader.ok());
  CHECK(reader.u8() == 0);  // Two bytes are left, but the frame is known to be bad.
  CHECK(reader.bytes(1).empty());
  CHECK(!reader.done());
}

TEST_CASE("byte reader / a length near 2^64 does not wrap into the buffer") {
  const std::array<std::byte, 4> bytes{};
  ByteReader reader(bytes);
  reader.skip(2);
  CHECK(reader.bytes(std::numeric_limits<std::size_t>::max()).empty());
  CHECK(!reader.ok());
}

TEST_CASE("byte reader / an empty frame is done at once") {
  ByteReader reader({});
  CHECK(reader.done());
  CHECK(reader.bytes(0).empty());
  CHECK(reader.ok());
}

TEST_CASE("byte writer / stops at the end without touching what follows") {
  std::array<std::byte, 8> buffer{};
  ByteWriter writer(std::span<std::byte>(buffer).first(6));
  writer.u32(0xFFFFFFFF);
  writer.u32(0xFFFFFFFF);
  CHECK(!writer.ok());
  CHECK(writer.offset() == 4);
  writer.u8(0xFF);
  CHECK(writer.offset() == 4);
  CHECK(buffer[4] == std::byte{0});
  CHECK(buffer[6] == std::byte{0});
  CHECK(writer.reserve(1).empty());
}

TEST_CASE("bits / powers of two, logarithms and set bits at their edges") {
  CHECK(next_power_of_two(0) == 1);
  CHECK(next_power_of_two(1) == 1);
  CHECK(next_power_of_two(65) == 128);
  CHECK(next_power_of_two(std::uint64_t{1} << 63) == std::uint64_t{1} << 63);
  CHECK(log2_floor(1) == 0);
  CHECK(log2_floor(~std::uint64_t{0}) == 63);
  CHECK(find_first_set(0) == 64);
  CHECK(find_first_set(0x80) == 7);
  CHECK(find_last_set(0) == 64);
  CHECK(find_last_set(0x81) == 7);
  CHECK(div_ceil(0, 5) == 0);
  CHECK(div_ceil(~std::uint64_t{0}, 2) == std::uint64_t{1} << 63);
}

TEST_CASE("bits / aligning up tells when it does not fit") {
  CHECK(align_up(0, 4096).value() == 0);
  CHECK(align_up(1, 4096).value() == 4096);
  CHECK(align_up(4096, 4096).value() == 4096);
  CHECK(!align_up(~std::uint64_t{0}, 2).has_value());
  CHECK(align_up(~std::uint64_t{0}, 1).value() == ~std::uint64_t{0});
  CHECK(align_down(4097, 4096) == 4096);
  CHECK(is_aligned(8192, 4096));
  CHECK(!is_aligned(8193, 4096));
}

TEST_CASE("checked / sums and products that do not fit are nothing") {
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  CHECK(checked_add(kMax, 0).value() == kMax);
  CHECK(!checked_add(kMax, 1).has_value());
  CHECK(checked_mul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1).has_value());
  CHECK(!checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32).has_value());
  CHECK(checked_product(2, 3, 4).value() == 24);
  CHECK(!checked_product(std::uint64_t{1} << 40, 32, 8, 128, std::uint64_t{1} << 10).has_value());
  CHECK(checked_product(kMax, 2, 0) == std::nullopt);  // A step too large is not undone by a zero.
}

TEST_CASE("checked / ranges and narrowing") {
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  CHECK(range_fits(0, 10, 10));
  CHECK(range_fits(10, 0, 10));
  CHECK(!range_fits(10, 1, 10));
  CHECK(!range_fits(11, 0, 10));
  CHECK(!range_fits(5, kMax, 10));
  CHECK(checked_narrow<std::uint16_t>(65535).value() == 65535);
  CHECK(!checked_narrow<std::uint16_t>(65536).has_value());
}

}  // namespace
}  // namespace kvrail
