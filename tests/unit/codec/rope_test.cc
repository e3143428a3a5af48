// RoPE undone and redone: against the model's own K before and after it, and against the library's
// cosine.
#include "codec/rope.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kvrail/base/prng.h"
#include "tests/unit/model/model_fixture.h"

using namespace kvrail;
using namespace kvrail::codec;

namespace {

std::vector<double> frequencies_of(const RopeRule& rule) {
  std::vector<double> out(rule.rotary_dims / 2);
  rope_frequencies(rule, out);
  return out;
}

std::vector<float> random_row(std::size_t count, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<float> row(count);
  for (float& value : row)
    value = static_cast<float>(static_cast<double>(prng.next_u64() >> 11) * 0x1p-53 - 0.5);
  return row;
}

double greatest_difference(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, static_cast<double>(std::abs(a[i] - b[i])));
  return most;
}

}  // namespace

TEST_CASE("RoPE undone gives the model's K before it, and redone the K after it") {
  const auto& shape = model::recall_model().shape();
  model::FactSource source(model::recall_world(), 3);
  model::Session session(model::recall_model(), 600);
  REQUIRE(session.append(model::recall_world().document(source.draw(128))).ok());
  const RopeRule rule{shape.rope_base, 1.0F, shape.head_dim, RopePairing::interleaved};
  const std::vector<double> frequencies = frequencies_of(rule);
  const std::size_t width = shape.kv_width();
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::span<const float> before = session.key_before_rope(layer);
    const std::span<const float> after = session.key(layer);
    const float greatest = std::abs(*std::ranges::max_element(
        after, [](float a, float b) { return std::abs(a) < std::abs(b); }));
    // From the middle of the context on, as a run of some later block is.
    RopeAngles angles(frequencies, 100);
    for (std::uint32_t t = 100; t < session.length(); ++t, angles.advance()) {
      std::vector<float> row(after.begin() + static_cast<std::ptrdiff_t>(t * width),
                             after.begin() + static_cast<std::ptrdiff_t>((t + 1) * width));
      undo_rope(angles, rule.pairing, shape.head_dim, row);
      REQUIRE(greatest_difference(row, before.subspan(t * width, width)) < 3e-7 * greatest);
      redo_rope(angles, rule.pairing, shape.head_dim, row);
      REQUIRE(greatest_difference(row, after.subspan(t * width, width)) < 3e-7 * greatest);
    }
  }
}

TEST_CASE("the angles are those of the library's cosine, at far positions too") {
  const std::vector<double> frequencies = frequencies_of({500000.0F, 4.0F, 128});
  for (const std::uint32_t first : {0U, 1U, 63U, 64U, 4095U, 131071U, 1000003U, 16000001U}) {
    RopeAngles angles(frequencies, first);
    for (std::uint32_t p = first; p < first + 130; ++p, angles.advance()) {
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double angle = p * frequencies[i];
        REQUIRE(std::abs(angles.cos()[i] - std::cos(angle)) < 7e-8);
        REQUIRE(std::abs(angles.sin()[i] - std::sin(angle)) < 7e-8);
      }
    }
  }
}

TEST_CASE("an angle depends on the position, not on where the run began") {
  const std::vector<double> frequencies = frequencies_of({10000.0F, 1.0F, 64});
  RopeAngles whole(frequencies, 0);
  for (std::uint32_t p = 0; p < 200; ++p, whole.advance()) {
    const RopeAngles alone(frequencies, p);
    REQUIRE(std::ranges::equal(whole.cos(), alone.cos()));
    REQUIRE(std::ranges::equal(whole.sin(), alone.sin()));
  }
}

TEST_CASE("pairings are what they say, and values beyond the rotary dims stay") {
  const std::vector<double> frequencies = frequencies_of({100.0F, 1.0F, 4});
  const RopeAngles angles(frequencies, 3);
  const std::vector<float> row = random_row(12, 1);  // 2 heads of 6, of which 4 turn
  for (const RopePairing pairing : {RopePairing::interleaved, RopePairing::half_split}) {
    std::vector<float> turned = row;
    redo_rope(angles, pairing, 6, turned);
    for (std::size_t head = 0; head < 12; head += 6) {
      for (std::size_t i = 0; i < 2; ++i) {
        const bool split = pairing == RopePairing::half_split;
        const std::size_t a = head + (split ? i : 2 * i);
        const std::size_t b = split ? a + 2 : a + 1;
        const double angle = 3 * frequencies[i];
        CHECK(turned[a] ==
              doctest::Approx(row[a] * std::cos(angle) - row[b] * std::sin(angle)).epsilon(1e-6));
        CHECK(turned[b] ==
              doctest::Approx(row[a] * std::sin(angle) + row[b] * std::cos(angle)).epsilon(1e-6));
      }
      CHECK(turned[head + 4] == row[head + 4]);
      CHECK(turned[head + 5] == row[head + 5]);
    }
    undo_rope(angles, pairing, 6, turned);
    CHECK(greatest_difference(turned, row) < 3e-7);
  }
}

TEST_CASE("RoPE rules that no head can follow are refused") {
  const RopeRule good{10000.0F, 1.0F, 64, RopePairing::half_split};
  CHECK(validate(good, 64).ok());
  CHECK(validate(RopeRule{}, 1).ok());  // no RoPE at all
  const auto refused = [&](auto change) {
    RopeRule rule = good;
    change(rule);
    return validate(rule, 64).status().code == Code::invalid_argument;
  };
  CHECK(refused([](RopeRule& r) { r.rotary_dims = 66; }));
  CHECK(refused([](RopeRule& r) { r.rotary_dims = 63; }));
  CHECK(refused([](RopeRule& r) { r.base = 0; }));
  CHECK(refused([](RopeRule& r) { r.base = std::nanf(""); }));
  CHECK(refused([](RopeRule& r) { r.scale = 0; }));
  CHECK(refused([](RopeRule& r) { r.scale = std::nanf(""); }));
  CHECK(refused([](RopeRule& r) { r.pairing = static_cast<RopePairing>(2); }));
}
