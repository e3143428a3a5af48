#include "tests/unit/codec/runs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <numbers>
#include <span>

#include "codec/float_convert.h"
#include "kvrail/base/prng.h"

namespace kvrail::codec_test {
namespace {

constexpr std::size_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};

// Memory at an odd address with guards around it; `poison` fills what is between.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::byte poison)
      : memory_(bytes + 2 * kGuard + 1, kGuardByte), bytes_(bytes) {
    std::fill_n(memory_.begin() + kGuard + 1, bytes, poison);
  }
  [[nodiscard]] std::span<std::byte> span() {
    return std::span(memory_).subspan(kGuard + 1, bytes_);
  }
  [[nodiscard]] bool intact() const {
    const auto same = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard + 1, same) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), same);
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_;
};

struct Scratch {
  explicit Scratch(std::size_t bytes)
      : size(bytes),
        data(static_cast<std::byte*>(::operator new (bytes + 1, std::align_val_t{64}))) {}
  ~Scratch() { ::operator delete (data, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] std::span<std::byte> span() const { return {data, size}; }
  std::size_t size;
  std::byte* data;
};

double gauss(Prng& prng) {
  const auto unit = [&] { return (static_cast<double>(prng.next_u64() >> 11) + 0.5) * 0x1p-53; };
  return std::sqrt(-2.0 * std::log(unit())) * std::cos(2.0 * std::numbers::pi * unit());
}

void put(Dtype dtype, float value, std::byte* at) {
  if (dtype == Dtype::fp32) {
    std::memcpy(at, &value, 4);
  } else if (dtype_bytes(dtype) == 2) {
    const std::uint16_t bits =
        dtype == Dtype::bf16 ? codec::float_to_bf16(value) : codec::float_to_fp16(value);
    std::memcpy(at, &bits, 2);
  } else {
    *at = static_cast<std::byte>(static_cast<int>(value * 8.0F) & 0x3f);  // any fp8 code but NaN
  }
}

}  // namespace

codec::RunView Run::view() const {
  const std::span<const std::byte> all(bytes);
  return {all.first(shape.side_bytes()), all.subspan(shape.side_bytes())};
}

Run random_run(const codec::RunShape& shape, std::uint64_t seed) {
  Run run{shape, std::vector<std::byte>(shape.raw_bytes())};
  Prng prng(seed);
  const std::uint32_t step = dtype_bytes(shape.dtype);
  for (std::uint64_t i = 0; i < 2 * shape.side_values(); ++i) {
    const bool wide = i < shape.side_values() && i % shape.head_dim % 29 == 3;
    put(shape.dtype, static_cast<float>(gauss(prng) * (wide ? 10.0 : 1.0)),
        run.bytes.data() + i * step);
  }
  return run;
}

Coded encode(const codec::Codec& codec, const codec::RunShape& shape, const Run& in) {
  std::vector<std::byte> shifted(in.bytes.size() + 1);
  std::copy(in.bytes.begin(), in.bytes.end(), shifted.begin() + 1);
  const std::span<const std::byte> all = std::span(shifted).subspan(1);
  Coded coded;
  std::vector<Guarded> room;
  codec::MutablePlanes out;
  for (std::size_t plane = 0; plane < codec.planes(); ++plane) {
    room.emplace_back(codec.bound(shape, plane), std::byte{0xee});
  }
  for (std::size_t plane = 0; plane < codec.planes(); ++plane) out[plane] = room[plane].span();
  const Scratch scratch(codec.scratch_bytes(shape));
  coded.report =
      codec.encode(shape, {all.first(shape.side_bytes()), all.subspan(shape.side_bytes())}, out,
                   scratch.span(), coded.meta);
  for (std::size_t plane = 0; plane < codec.planes(); ++plane) {
    CHECK(room[plane].intact());
    REQUIRE(coded.meta.bytes[plane] <= out[plane].size());
    const std::span<const std::byte> used = out[plane].first(coded.meta.bytes[plane]);
    coded.planes[plane].assign(used.begin(), used.end());
  }
  return coded;
}

Decoded decode(const codec::Codec& codec, const codec::RunShape& shape, const Coded& coded) {
  Decoded result;
  result.written = true;
  codec::Planes in;
  for (std::size_t plane = 0; plane < codec::kMaxPlanes; ++plane) in[plane] = coded.planes[plane];
  const Scratch scratch(codec.scratch_bytes(shape));
  for (const std::byte poison : {std::byte{0x00}, std::byte{0xff}}) {
    Guarded k(shape.side_bytes(), poison);
    Guarded v(shape.side_bytes(), poison);
    result.report = codec.decode(shape, coded.meta, in, {k.span(), v.span()}, scratch.span());
    std::vector<std::byte> bytes(k.span().begin(), k.span().end());
    bytes.insert(bytes.end(), v.span().begin(), v.span().end());
    const bool first = poison == std::byte{0x00};
    result.written =
        result.written && k.intact() && v.intact() && (first || bytes == result.run.bytes);
    result.run = Run{shape, std::move(bytes)};
  }
  return result;
}

std::vector<codec::RunShape> shapes_for(const codec::Codec& codec) {
  std::vector<codec::RunShape> shapes;
  for (const Dtype dtype :
       {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp8_e4m3, Dtype::fp8_e5m2}) {
    for (const std::uint32_t dim :
         {1U, 8U, 63U, 64U, 80U, 96U, 112U, 127U, 128U, 192U, 224U, 256U, 576U}) {
      for (const std::uint32_t tokens : {1U, 5U, 64U}) {
        const codec::RunShape shape{dtype, dim == 576 ? 1U : 3U, dim, tokens};
        if (codec.can_encode(shape).ok()) shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

}  // namespace kvrail::codec_test
