// Positions and masks from a stranger: refused with a sentence, or ascending, below the total, and
// of the very bytes that they encode to. Input: what, total (u16), places (u16), then the bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "codec/sparse.h"
#include "kvrail/base/assert.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/memory.h"
#include "tests/fuzz/seeds.h"

using namespace kvrail;
using kvrail::test::Bytes;
using kvrail::test::Memory;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHead = 5;
  if (size < kHead) return 0;
  Bytes input(data, size);
  const bool mask = input.u8() % 2 == 1;
  const auto u16 = [&] {
    const std::uint32_t high = input.u8();
    return high << 8 | input.u8();
  };
  const std::uint32_t total = u16(), places = u16();
  const Memory in(size - kHead);
  if (size > kHead) std::memcpy(in.data, data + kHead, size - kHead);
  const Memory room(places * sizeof(std::uint32_t));
  const std::span<std::uint32_t> out(reinterpret_cast<std::uint32_t*>(room.data), places);
  const auto got = mask ? codec::decode_mask(in.bytes, total, out)
                        : codec::decode_positions(in.bytes, total, out);
  if (!got.ok()) {
    KVRAIL_ASSERT(got.status().code == Code::protocol_error && !got.error().message.empty());
    return 0;
  }
  KVRAIL_ASSERT(got->size() <= places && (got->empty() || got->back() < total));
  // The encoders check that they ascend. Each set has one form.
  const Memory again(mask ? codec::mask_bytes(total) : codec::positions_bytes(*got));
  if (mask) codec::encode_mask(*got, total, again.bytes);
  if (!mask) KVRAIL_ASSERT(codec::encode_positions(*got, total, again.bytes) == again.bytes.size());
  KVRAIL_ASSERT(again.bytes.size() == in.bytes.size());
  KVRAIL_ASSERT(in.bytes.empty() || std::memcmp(again.data, in.data, again.bytes.size()) == 0);
  return 0;
}

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  return {
      {0, 0, 20, 0, 20, 4, 0, 0, 3, 9},                           // 0, 1, 5, 15
      {0, 0xFF, 0xFF, 0, 9, 2, 0xA8, 0x02, 0xF2, 0x99, 0x01},     // beyond the total
      {0, 0xFF, 0xFF, 0, 9, 2, 5, 0xFD, 0xFF, 0xFF, 0xFF, 0x0F},  // would wrap
      {0, 0, 20, 0, 2, 3, 0, 0, 0},                               // too many
      {0, 0, 20, 0, 20, 1, 0x80, 0},                              // padded
      {0, 0, 0, 0, 0, 0},                                         // none of none
      {1, 0, 10, 0, 10, 0x09, 0x03},
      {1, 0, 10, 0, 10, 0x09, 0x07},  // behind the last token
      {1, 0, 10, 0, 2, 0x09, 0x03},   // too many
      {1, 0, 16, 0, 16, 0, 0},        // none
  };
}
