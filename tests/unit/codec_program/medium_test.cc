// Media as kvrail-codec sees them: whole sets in, whole sets back.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "kvrail/base/byte_order.h"
#include "perf/codec/errors.h"
#include "perf/codec/learned_basis.h"
#include "perf/codec/medium_under_test.h"
#include "perf/codec/sparse_medium.h"
#include "perf/codec/speed.h"
#include "tests/unit/codec_program/files.h"
#include "tests/unit/codec_program/media.h"

namespace kvrail::fidelity {
namespace {

using fidelity_test::medium;
using fidelity_test::random_set;
using fidelity_test::there_and_back;

// Of kvrail, but for those that draw on a basis or leave tokens out.
std::vector<std::string> plain_names() {
  std::vector<std::string> names = medium_names();
  std::erase_if(names,
                [](const std::string& name) { return draws_on_basis(name) || is_sparse(name); });
  return names;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names = plain_names();
  for (const std::string& name : comparison_names()) names.push_back(name);
  return names;
}

TEST_CASE("media / full is there; an unknown name is refused with the list") {
  const auto names = medium_names();
  CHECK(std::find(names.begin(), names.end(), "full") != names.end());
  const auto refused = make_medium("zip", MediumContext{});
  REQUIRE_FALSE(refused.ok());
  for (const std::string& name : all_names())
    CHECK(refused.error().message.find(name) != std::string::npos);
}

TEST_CASE("media / each brings a set back, with a last run that is not full") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    const KvSet set = random_set(dtype, 2, 70, 2, 32);
    for (const std::string& name : all_names()) {
      CAPTURE(name);
      CAPTURE(dtype_name(dtype));
      const auto each = medium(name);
      CHECK(each->name() == name);
      if (!each->prepare(set).ok()) continue;  // exact has no fp32
      const KvSet out = there_and_back(*each, set);
      CHECK(squared_error(set.dtype, set.k, out.dtype, out.k).ratio() < 0.1);
      CHECK(squared_error(set.dtype, set.v, out.dtype, out.v).ratio() < 0.02);
      const double bits =
          static_cast<double>(each->encoded_bits()) / static_cast<double>(2 * set.side_values());
      CHECK(bits <= 8 * dtype_bytes(dtype) + 1);
      CHECK(bits >= 4);
      if (name == "full" || name == "lossless") CHECK((out.k == set.k && out.v == set.v));
      if (name == "full") CHECK(bits == 8 * dtype_bytes(dtype));
      if (name == "q8_0") CHECK(bits == 8.5);
      if (name == "q4_0") CHECK(bits == 4.5);
    }
  }
}

TEST_CASE("media / what is protected comes back as one plane more gives it, the rest as before") {
  const KvSet set = random_set(Dtype::bf16, 3, 200, 2, 32);  // four blocks, the last one of 8 tokens
  const codec::Protection rule{1, 0, 0, 1};
  const KvSet coarse = there_and_back(*medium("int4"), set);
  const KvSet fine = there_and_back(*medium("int8"), set);
  MediumContext context;
  context.protection = rule;
  auto made = make_medium("int4+protect", context);
  REQUIRE(made.ok());
  CHECK((*made)->name() == "int4+protect");
  const KvSet out = there_and_back(**made, set);
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    for (std::uint32_t first = 0; first < set.tokens; first += kRunTokens) {
      CAPTURE(layer);
      CAPTURE(first);
      const std::uint32_t tokens = std::min(kRunTokens, set.tokens - first);
      const KvSet& wanted = layer == 0 || first == 192 ? fine : coarse;
      const auto have = out.run(layer, first, tokens), want = wanted.run(layer, first, tokens);
      CHECK(std::equal(have.k.begin(), have.k.end(), want.k.begin(), want.k.end()));
      CHECK(std::equal(have.v.begin(), have.v.end(), want.v.begin(), want.v.end()));
    }
  }
  // Of 600 (layer, token)s, 200 and twice 8 have four bits more.
  const double bits =
      static_cast<double>((*made)->encoded_bits()) / static_cast<double>(2 * set.side_values());
  CHECK(bits == doctest::Approx(4.25 + 4.0 * 216 / 600));
}

TEST_CASE("media / a run with NaN comes back bit by bit, and the others are coded") {
  KvSet set = random_set(Dtype::bf16, 1, 128, 1, 64);
  store_le16(set.k.data() + 2 * 70 * 64, 0x7FC1);  // in the second run
  for (const std::string& name : plain_names()) {
    CAPTURE(name);
    const auto each = medium(name);
    const KvSet out = there_and_back(*each, set);
    const codec::RunView in_run = std::as_const(set).run(0, 64, 64), out_run = out.run(0, 64, 64);
    CHECK(std::equal(in_run.k.begin(), in_run.k.end(), out_run.k.begin()));
    CHECK(std::equal(in_run.v.begin(), in_run.v.end(), out_run.v.begin()));
  }
  for (const std::string& name : comparison_names()) {
    const auto each = medium(name);
    REQUIRE(each->prepare(set).ok());
    CHECK(each->encode(set).code == Code::unsupported);
  }
}

// Rows that are made of three directions, K turned by RoPE.
KvSet low_rank_set(std::uint32_t tokens) {
  const KvSet drawn = random_set(Dtype::fp32, 1, tokens, 1, 3 + 3 * 16);
  KvSet set{Dtype::fp32, 1, tokens, 1, 16, {}, {}, Rope{{10000.0F, 1.0F, 16}, 5}, {}};
  set = set.empty_like(Dtype::fp32);
  std::vector<double> frequencies(8);
  codec::rope_frequencies(set.rope->rule, frequencies);
  codec::RopeAngles angles(frequencies, set.rope->first_position);
  std::vector<float> values(drawn.side_values());
  to_floats(Dtype::fp32, drawn.v, values);
  const float* directions = values.data() + 3;  // of the first token
  for (std::uint32_t token = 0; token < tokens; ++token) {
    std::vector<float> row(16);
    for (std::size_t direction = 0; direction < 3; ++direction) {
      for (std::size_t d = 0; d < row.size(); ++d)
        row[d] += values[token * drawn.row_values() + direction] * directions[16 * direction + d];
    }
    const codec::MutableRun run = set.run(0, token, 1);
    from_floats(Dtype::fp32, row, run.v);
    codec::redo_rope(angles, set.rope->rule.pairing, 16, row);
    from_floats(Dtype::fp32, row, run.k);
    angles.advance();
  }
  return set;
}

TEST_CASE(
    "lowrank / a basis from some tokens codes others in few bits; without RoPE data K cannot") {
  // Of fewer tokens the quantisers clip too much that they have not seen.
  const KvSet set = low_rank_set(1024);
  const KvSet first = set.part(0, 512), second = set.part(512, 1024);
  CHECK(second.rope->first_position == 517);
  const auto error_of_k = [&](KvSet learned_from, KvSet coded, double& bits) {
    const auto basis = learn_basis(std::span(&learned_from, 1));
    REQUIRE(basis.ok());
    auto made = make_medium("lowrank@2", MediumContext{&*basis, ""});
    REQUIRE(made.ok());
    const KvSet out = there_and_back(**made, coded);
    bits =
        static_cast<double>((*made)->encoded_bits()) / static_cast<double>(2 * coded.side_values());
    CHECK(squared_error(coded.dtype, coded.v, out.dtype, out.v).ratio() < 0.02);
    return squared_error(coded.dtype, coded.k, out.dtype, out.k).ratio();
  };
  double bits = 0;
  CHECK(error_of_k(first, second, bits) < 1e-3);
  CHECK(bits <= 2.0);
  CHECK(bits > 1.0);
  KvSet first_as_is = first, second_as_is = second;
  first_as_is.rope.reset();
  second_as_is.rope.reset();
  CHECK(error_of_k(first_as_is, second_as_is, bits) > 1e-2);
}

TEST_CASE("lowrank / too few tokens, NaN, another form, a rate that is none: one line") {
  const KvSet set = low_rank_set(128);
  const KvSet few = set.part(0, 63);
  CHECK(learn_basis(std::span(&few, 1)).status().code == Code::unsupported);
  KvSet broken = set;
  store_le32(broken.v.data(), 0x7FC00000U);
  CHECK(learn_basis(std::span(&broken, 1)).status().code == Code::unsupported);
  const auto basis = learn_basis(std::span(&set, 1));
  REQUIRE(basis.ok());
  auto other = make_medium("lowrank", MediumContext{&*basis, ""});
  REQUIRE(other.ok());
  CHECK((*other)->prepare(random_set(Dtype::fp32, 1, 64, 2, 16)).status().code ==
        Code::unsupported);
  auto none = make_medium("lowrank", MediumContext{nullptr, "no basis here"});
  REQUIRE(none.ok());
  const auto refused = (*none)->prepare(set);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message == "no basis here");
  for (const char* name : {"lowrank@", "lowrank@0", "lowrank@2x", "lowrank@nan", "lowrank@11"})
    CHECK_FALSE(make_medium(name, MediumContext{}).ok());
}

TEST_CASE("media / blocks of ggml run on over tokens where a row is no multiple of 32") {
  const KvSet set = random_set(Dtype::bf16, 2, 3, 1, 8);  // 24 values a side
  const auto each = medium("q8_0");
  there_and_back(*each, set);
  CHECK(each->encoded_bits() == 4 * 34 * 8);
}

TEST_CASE("speed / the working set is whole runs that fit a cache, or what there is") {
  const KvSet wide = random_set(Dtype::bf16, 2, 200, 8, 128);
  const KvSet one_run = working_set(wide);
  CHECK(one_run.layers == 1);
  CHECK(one_run.tokens == 64);
  CHECK(std::equal(one_run.k.begin(), one_run.k.end(), wide.k.begin()));
  const KvSet small = random_set(Dtype::bf16, 3, 10, 1, 8);
  CHECK(working_set(small).k == small.k);
  const KvSet deep = random_set(Dtype::bf16, 40, 64, 2, 64);
  CHECK(working_set(deep).layers == 8);
}

TEST_CASE("speed / every medium has three rates") {
  const KvSet set = random_set(Dtype::bf16, 1, 64, 1, 64);
  for (const std::string& name : all_names()) {
    const auto speeds = measure_speeds(*medium(name), set, 3);
    REQUIRE(speeds.ok());
    CHECK(speeds->encode > 0);
    CHECK(speeds->decode > 0);
    CHECK(speeds->memcpy > 0);
  }
}

}  // namespace
}  // namespace kvrail::fidelity
