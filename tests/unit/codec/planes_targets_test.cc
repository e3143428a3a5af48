// Every instruction set gives the bits of the plain code, whatever the form of the run.
#include <doctest/doctest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "codec/planes_codec.h"
#include "kvrail/base/prng.h"
#include "tests/unit/codec/runs.h"
#include "tests/unit/codec/targets.h"

using namespace kvrail;
using namespace kvrail::codec;
using namespace kvrail::codec_test;

namespace {

struct Form {
  std::uint32_t kv_heads, head_dim;
};
// Orders of 8 to 512, tiles alone and with a rest, rows shorter than a tile, and no tiles at all.
constexpr Form kForms[] = {{1, 64}, {2, 64},  {3, 128}, {1, 256}, {1, 512}, {8, 8},
                           {2, 8},  {1, 16},  {4, 16},  {2, 96},  {4, 80},  {1, 80},
                           {5, 24}, {1, 192}, {1, 576}, {3, 32}};

struct Outcome {
  Coded coded;
  std::vector<std::byte> whole, first;  // decoded from both planes and from one
  bool operator==(const Outcome& other) const {
    return coded.planes == other.coded.planes && whole == other.whole && first == other.first &&
           coded.meta.epsilon_ppm == other.coded.meta.epsilon_ppm;
  }
};

Outcome outcome_of(const Codec& codec, const RunShape& shape, const Run& in) {
  Outcome result{encode(codec, shape, in), {}, {}};
  REQUIRE(result.coded.report.status.ok());
  result.whole = decode(codec, shape, result.coded).run.bytes;
  Coded cut = result.coded;
  cut.meta.planes = 1;
  result.first = decode(codec, shape, cut).run.bytes;
  return result;
}

// A stranger's planes: any bits.
std::vector<std::byte> decoded_noise(const Codec& codec, const RunShape& shape) {
  Prng prng(17);
  Coded noise = encode(codec, shape, random_run(shape, 4));
  for (std::size_t plane = 0; plane < 2; ++plane) {
    for (std::byte& byte : noise.planes[plane]) byte = static_cast<std::byte>(prng.next_u64());
  }
  return decode(codec, shape, noise).run.bytes;
}

// The plain code, which runs where there is no vector unit, gives what all others must equal.
template <class Make>
auto by_plain_code(const Make& make) {
  hwy::GetChosenTarget().Update(0);
  auto result = make();
  hwy::GetChosenTarget().DeInit();
  return result;
}

}  // namespace

TEST_CASE("planes / every instruction set gives the bits of the plain code") {
  const Codec& codec = *planes_codec(Medium::int8, Rotation::k_and_v);
  std::vector<RunShape> shapes;
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    for (const Form& form : kForms) {
      for (const std::uint32_t tokens : {1U, 5U, 13U})
        shapes.push_back({dtype, form.kv_heads, form.head_dim, tokens});
    }
  }
  const auto outcomes = [&] {
    std::vector<std::pair<Outcome, std::vector<std::byte>>> all;
    for (const RunShape& shape : shapes) {
      all.emplace_back(outcome_of(codec, shape, random_run(shape, 23)),
                       decoded_noise(codec, shape));
    }
    return all;
  };
  const auto plain = by_plain_code(outcomes);
  for_each_target([&] {
    const auto here = outcomes();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      CAPTURE(shapes[i].head_dim);
      CAPTURE(shapes[i].kv_heads);
      CAPTURE(shapes[i].tokens);
      CHECK(here[i].first == plain[i].first);
      CHECK(here[i].second == plain[i].second);
    }
  });
}

TEST_CASE("planes / special values are refused or coded alike on every instruction set") {
  const RunShape shape{Dtype::fp16, 2, 64, 4};
  const Codec& codec = *planes_codec(Medium::int8);
  const auto outcomes = [&] {
    std::vector<Coded> all;
    for (std::uint32_t special = 0; special < 0x10000; special += 0x3ff) {
      Run in = random_run(shape, 5);
      const auto bits = static_cast<std::uint16_t>(special);
      for (const std::size_t at : {6U, 700U, 1500U}) std::memcpy(in.bytes.data() + at, &bits, 2);
      all.push_back(encode(codec, shape, in));
      CHECK(all.back().report.status.ok() == ((bits & 0x7c00U) != 0x7c00U));
    }
    return all;
  };
  const auto plain = by_plain_code(outcomes);
  for_each_target([&] {
    const auto here = outcomes();
    for (std::size_t i = 0; i < here.size(); ++i)
      if (plain[i].report.status.ok()) CHECK(here[i].planes == plain[i].planes);
  });
}
