// The media int4, int8 and exact: nesting, exactness, what is refused, the estimate of the error,
// and golden vectors of the format (docs/codecs.md).
#include "codec/planes_codec.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "codec/float_convert.h"
#include "codec/hash.h"
#include "codec/planes_run.h"
#include "kvrail/base/prng.h"
#include "tests/unit/codec/runs.h"

using namespace kvrail;
using namespace kvrail::codec;
using namespace kvrail::codec_test;

namespace {

float value_at(const Run& run, std::uint64_t index) {
  float value = 0;
  std::uint16_t bits = 0;
  if (run.shape.dtype == Dtype::fp32) {
    std::memcpy(&value, run.bytes.data() + index * 4, 4);
    return value;
  }
  std::memcpy(&bits, run.bytes.data() + index * 2, 2);
  return run.shape.dtype == Dtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

template <class Value>
Run run_of(const RunShape& shape, const Value& value) {
  Run run{shape, std::vector<std::byte>(shape.raw_bytes())};
  for (std::uint64_t i = 0; i < 2 * shape.side_values(); ++i) {
    const float v = value(i);
    const std::uint16_t bits = shape.dtype == Dtype::bf16 ? float_to_bf16(v) : float_to_fp16(v);
    if (shape.dtype == Dtype::fp32) {
      std::memcpy(run.bytes.data() + i * 4, &v, 4);
    } else {
      std::memcpy(run.bytes.data() + i * 2, &bits, 2);
    }
  }
  return run;
}

double nmse(const Run& exact, const Run& other) {
  double noise = 0;
  double energy = 0;
  for (std::uint64_t i = 0; i < 2 * exact.shape.side_values(); ++i) {
    const double x = static_cast<double>(value_at(exact, i));
    const double e = x - static_cast<double>(value_at(other, i));
    noise += e * e;
    energy += x * x;
  }
  return energy > 0 ? noise / energy : noise;
}

Coded first_planes(const Coded& coded, std::uint8_t planes) {
  Coded cut = coded;
  cut.meta.planes = planes;
  return cut;
}

std::string hex_of(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    for (const unsigned nibble :
         {static_cast<unsigned>(byte) >> 4, static_cast<unsigned>(byte) & 15U})
      text += "0123456789abcdef"[nibble];
  }
  return text;
}
std::string hex_of(const Hash128& hash) {
  std::vector<std::byte> bytes(16);
  std::memcpy(bytes.data(), &hash.high, 8);
  std::memcpy(bytes.data() + 8, &hash.low, 8);
  return hex_of(bytes);
}

void put_bits(Run& run, std::uint64_t index, std::uint16_t bits) {
  std::memcpy(run.bytes.data() + index * 2, &bits, 2);
}

}  // namespace

TEST_CASE("planes / int4 is the first plane of int8 and both are those of exact") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    for (const std::uint32_t dim : {8U, 80U, 128U, 192U}) {
      const RunShape shape{dtype, 2, dim, 9};
      const Run in = random_run(shape, 31);
      const Coded int4 = encode(*codec_for(Medium::int4), shape, in);
      const Coded int8 = encode(*codec_for(Medium::int8), shape, in);
      const Coded exact = encode(*codec_for(Medium::exact), shape, in);
      CHECK(int4.planes[0] == int8.planes[0]);
      CHECK(encoding_id(int8.planes[0]) == encoding_id(exact.planes[0]));
      CHECK(int8.planes[1] == exact.planes[1]);
      // Cut after any plane: the best so far, with the error that is told.
      const Codec& codec = *codec_for(Medium::exact);
      const Decoded one = decode(codec, shape, first_planes(exact, 1));
      const Decoded two = decode(codec, shape, first_planes(exact, 2));
      const Decoded all = decode(codec, shape, exact);
      CHECK(one.run.bytes == decode(*codec_for(Medium::int4), shape, int4).run.bytes);
      CHECK(two.run.bytes == decode(*codec_for(Medium::int8), shape, int8).run.bytes);
      CHECK(all.run.bytes == in.bytes);
      CHECK(one.report.epsilon_ppm > two.report.epsilon_ppm);
      CHECK(two.report.epsilon_ppm > 0);
      CHECK(all.report.epsilon_ppm == 0);
    }
  }
}

TEST_CASE("planes / bits a value where groups have 64 values") {
  const RunShape shape{Dtype::bf16, 8, 128, 16};
  const auto values = static_cast<double>(2 * shape.side_values());
  const Codec& codec = *codec_for(Medium::int8);
  CHECK(static_cast<double>(codec.bound(shape, 0)) * 8 / values == 4.25);
  CHECK(static_cast<double>(codec.bound(shape, 0) + codec.bound(shape, 1)) * 8 / values == 8.25);
}

TEST_CASE(
    "planes / kept planes are the same after every hop, and refine what was delivered before") {
  const RunShape shape{Dtype::bf16, 4, 64, 16};
  const Run in = random_run(shape, 8);
  const Codec& codec = *codec_for(Medium::exact);
  const Coded origin = encode(codec, shape, in);
  Coded here = origin;
  for (int hop = 0; hop < 5; ++hop) {
    const Decoded used = decode(codec, shape, first_planes(here, 1));  // a holder uses what it has
    REQUIRE(used.report.status.ok());
    Coded next;  // and forwards the planes, not what it decoded
    next.meta = here.meta;
    next.planes = here.planes;
    here = next;
  }
  CHECK(here.planes == origin.planes);
  CHECK(decode(codec, shape, here).run.bytes == in.bytes);
}

// Docs state: the measured error is at most 3 times the estimate (all values at the edges of their
// codes) plus what rounding to the type adds, and on KV-like data within 15 % of it.
TEST_CASE("planes / the estimate is near the measured error") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    for (const std::uint32_t dim : {8U, 64U, 80U, 128U, 256U}) {
      const RunShape shape{dtype, 3, dim, 33};
      const Run in = random_run(shape, 77);
      const Codec& codec = *codec_for(Medium::int8);
      const Coded coded = encode(codec, shape, in);
      CAPTURE(dim);
      for (const std::uint8_t planes : {std::uint8_t{1}, std::uint8_t{2}}) {
        const double measured = nmse(in, decode(codec, shape, first_planes(coded, planes)).run);
        const double estimate = coded.meta.epsilon_ppm[planes - 1U] * 1e-6;
        CHECK(measured < estimate * 1.15);
        CHECK(measured > estimate / 1.15 - 1e-6);  // it is rounded up to a millionth
      }
    }
  }
}

TEST_CASE("planes / the error never exceeds three times the estimate, whatever the values") {
  const RunShape shape{Dtype::fp16, 2, 64, 16};
  const std::vector<std::pair<const char*, float (*)(std::uint64_t)>> shapes{
      {"constant", [](std::uint64_t) { return 3.14F; }},
      {"zeros", [](std::uint64_t) { return 0.0F; }},
      {"alternating at the limit",
       [](std::uint64_t i) { return i % 2 == 0 ? 65504.0F : -65504.0F; }},
      {"one outlier", [](std::uint64_t i) { return i % 2048 == 77 ? 1e4F : 1.0F; }},
      {"subnormal", [](std::uint64_t i) { return static_cast<float>(i % 7) * 0x1p-24F; }},
      {"ramp", [](std::uint64_t i) { return static_cast<float>(i % 64); }},
      {"edges of codes", [](std::uint64_t i) { return i % 64 == 0 ? 127.0F : 0.001F; }}};
  for (const auto& of : shapes) {
    const char* const name = of.first;
    const Run in = run_of(shape, of.second);
    const Coded coded = encode(*codec_for(Medium::exact), shape, in);
    CAPTURE(name);
    REQUIRE(coded.report.status.ok());
    CHECK(decode(*codec_for(Medium::exact), shape, coded).run.bytes == in.bytes);
    for (const std::uint8_t planes : {std::uint8_t{1}, std::uint8_t{2}}) {
      const Decoded out = decode(*codec_for(Medium::exact), shape, first_planes(coded, planes));
      const double rounding = 0x1p-11;  // of fp16
      const double estimate = std::sqrt(3.0 * coded.meta.epsilon_ppm[planes - 1U] * 1e-6);
      // Subnormal values are as coarse as their distance.
      const bool tiny = std::string(name) == "subnormal";
      CHECK(std::sqrt(nmse(in, out.run)) <= (estimate + rounding) * 1.05 + (tiny ? 0.5 : 0.0));
    }
  }
}

TEST_CASE("planes / NaN, Inf and values too large are refused, whatever their bits and place") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    for (const std::uint32_t dim : {64U, 80U}) {
      const RunShape shape{dtype, 1, dim, 40};
      const std::uint16_t inf = dtype == Dtype::bf16 ? 0x7f80 : 0x7c00;
      for (const std::uint32_t special : {0U, 1U, 0x40U, 0x8000U, 0x8001U}) {
        for (const std::uint64_t at : {std::uint64_t{0}, shape.side_values() - 1,
                                       shape.side_values() + 1234, 2 * shape.side_values() - 1}) {
          Run in = random_run(shape, 6);
          put_bits(in, at, static_cast<std::uint16_t>(inf | special));
          for (const Medium medium : {Medium::int4, Medium::int8, Medium::exact}) {
            const Coded coded = encode(*codec_for(medium), shape, in);
            CHECK(coded.report.status.code == Code::unsupported);
          }
        }
      }
    }
  }
  const RunShape shape{Dtype::bf16, 1, 64, 8};
  for (const float huge : {1e36F, 3e38F}) {
    Run in = run_of(shape, [&](std::uint64_t i) { return i % 2 == 0 ? huge : -huge; });
    CHECK(encode(*codec_for(Medium::int8), shape, in).report.status.code == Code::unsupported);
  }
  Run million = random_run({Dtype::bf16, 8, 64, 1000}, 6);  // one Inf in 10^6
  put_bits(million, 654321, 0xff80);
  CHECK(encode(*codec_for(Medium::int4), million.shape, million).report.status.code ==
        Code::unsupported);
}

TEST_CASE("exact / every finite bit pattern comes back, -0 and subnormals too") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    const std::uint32_t exponent = dtype == Dtype::bf16 ? 0x7f80 : 0x7c00;
    const RunShape shape{dtype, 4, 64, 128};
    Run in = random_run(shape, 1);
    std::uint64_t at = 0;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      if ((bits & exponent) == exponent) continue;
      if (dtype == Dtype::bf16 && (bits & 0x7fffU) > 0x7700U) continue;  // too large to rotate
      put_bits(in, at++ % (2 * shape.side_values()), static_cast<std::uint16_t>(bits));
    }
    const Coded coded = encode(*codec_for(Medium::exact), shape, in);
    REQUIRE(coded.report.status.ok());
    CHECK(coded.meta.bytes[2] <= codec_for(Medium::exact)->bound(shape, 2));
    CHECK(decode(*codec_for(Medium::exact), shape, coded).run.bytes == in.bytes);
  }
}

TEST_CASE("exact / a residual plane of any bytes is refused or decodes within bounds") {
  const RunShape shape{Dtype::bf16, 2, 64, 7};
  const Codec& codec = *codec_for(Medium::exact);
  const Coded good = encode(codec, shape, random_run(shape, 2));
  REQUIRE(good.planes[2].front() == std::byte{1});  // coded, not raw
  Prng prng(5);
  std::size_t refused = 0;
  for (int round = 0; round < 400; ++round) {
    Coded bad = good;
    std::vector<std::byte>& plane = bad.planes[2];
    if (round % 2 == 0) {  // a few bytes, the header more often
      for (int i = 0; i < 3; ++i) {
        const std::size_t room = round % 4 == 0 ? 25 : plane.size();
        plane[prng.next_u64() % room] = static_cast<std::byte>(prng.next_u64());
      }
    } else {
      plane.resize(prng.next_u64() % (plane.size() * 2));
      for (std::byte& byte : plane) byte = static_cast<std::byte>(prng.next_u64() % 3);
      bad.meta.bytes[2] = plane.size();
    }
    const Decoded out = decode(codec, shape, bad);  // guards are checked inside
    CHECK(out.written);
    refused += out.report.status.ok() ? 0 : 1;
  }
  CHECK(refused > 200);
}

TEST_CASE("planes / steps that no encoder writes and unknown forms are refused") {
  const RunShape shape{Dtype::bf16, 1, 64, 2};
  const Codec& codec = *codec_for(Medium::int8);
  const Coded good = encode(codec, shape, random_run(shape, 2));
  for (const std::uint32_t bits : {0x7f80U, 0x7fc1U, 0x8000U, 0xbf80U, 0x0001U, 0x7700U}) {
    Coded bad = good;
    const auto step = static_cast<std::uint16_t>(bits);
    std::memcpy(bad.planes[0].data() + 4, &step, 2);
    CHECK(decode(codec, shape, bad).report.status.code == Code::corrupt);
  }
  Coded other = good;
  other.meta.form = 2;
  CHECK(decode(codec, shape, other).report.status.code == Code::corrupt);
}

TEST_CASE("planes / V rotated too: another form, told by the meta") {
  const RunShape shape{Dtype::bf16, 2, 128, 8};
  const Run in = random_run(shape, 12);
  const Codec& both = *planes_codec(Medium::exact, Rotation::k_and_v);
  const Coded coded = encode(both, shape, in);
  CHECK(coded.meta.form == 1);
  // Any codec of the medium decodes it.
  CHECK(decode(*codec_for(Medium::exact), shape, coded).run.bytes == in.bytes);
}

TEST_CASE("planes / what cannot be coded is refused with the reason") {
  const Codec& int8 = *codec_for(Medium::int8);
  CHECK(int8.can_encode({Dtype::bf16, 1, 127, 1}).error().message.find("multiple of 8") !=
        std::string::npos);
  CHECK(int8.can_encode({Dtype::fp8_e4m3, 1, 64, 1}).error().message.find("full") !=
        std::string::npos);
  CHECK(int8.can_encode({Dtype::fp32, 1, 64, 1}).ok());
  CHECK(
      codec_for(Medium::exact)->can_encode({Dtype::fp32, 1, 64, 1}).error().message.find("fp32") !=
      std::string::npos);
  CHECK(planes_codec(Medium::full) == nullptr);
}

TEST_CASE("planes / golden vectors pin the format") {
  // One token, one head of eight: K zero, V 1 to 8. docs/codecs.md walks through it.
  const RunShape tiny{Dtype::bf16, 1, 8, 1};
  const Run eight =
      run_of(tiny, [](std::uint64_t i) { return i < 8 ? 0.0F : static_cast<float>(i - 7); });
  const Coded small = encode(*codec_for(Medium::int8), tiny, eight);
  CHECK(hex_of(small.planes[0]) == "0000813d88888888c8d9eafb");
  CHECK(hex_of(small.planes[1]) == "00000000ffffffff");

  const RunShape shape{Dtype::bf16, 2, 64, 3};
  const Run in = run_of(
      shape, [](std::uint64_t i) { return (static_cast<float>(i * 37 % 101) - 50.0F) / 16.0F; });
  const Coded coded = encode(*codec_for(Medium::exact), shape, in);
  const Decoded one = decode(*codec_for(Medium::exact), shape, first_planes(coded, 1));
  const Decoded two = decode(*codec_for(Medium::exact), shape, first_planes(coded, 2));
  CHECK(hex_of(encoding_id(coded.planes[0])) == "768d2a27608dc6843aebec39cce2c358");
  CHECK(hex_of(encoding_id(coded.planes[1])) == "bbac7ce73354997050f11344806a1085");
  CHECK(hex_of(encoding_id(coded.planes[2])) == "ae250da84139efc08d969e86550385f3");
  CHECK(hex_of(encoding_id(one.run.bytes)) == "54ae01bded4c6b0de8e8449f94157dab");
  CHECK(hex_of(encoding_id(two.run.bytes)) == "095796ec76b144626577eda0c027f51f");
  CHECK(coded.meta.epsilon_ppm[1] == 38);
}
