// Media as kvrail-codec sees them: whole sets in, whole sets back.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "kvrail/base/byte_order.h"
#include "perf/codec/errors.h"
#include "perf/codec/medium_under_test.h"
#include "perf/codec/speed.h"
#include "tests/unit/codec_program/files.h"

namespace kvrail::fidelity {
namespace {

using fidelity_test::random_set;

std::unique_ptr<MediumUnderTest> medium(const std::string& name) {
  auto made = make_medium(name, MediumContext{});
  REQUIRE(made.ok());
  return std::move(*made);
}

std::vector<std::string> all_names() {
  std::vector<std::string> names = medium_names();
  for (const std::string& name : comparison_names()) names.push_back(name);
  return names;
}

KvSet there_and_back(MediumUnderTest& medium, const KvSet& set) {
  REQUIRE(medium.prepare(set).ok());
  REQUIRE(medium.encode(set).ok());
  KvSet out = set.empty_like(medium.decoded_dtype(set));
  std::fill(out.k.begin(), out.k.end(), std::byte{0x5A});
  REQUIRE(medium.decode(out).ok());
  return out;
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

TEST_CASE("media / a run with NaN comes back bit by bit, and the others are coded") {
  KvSet set = random_set(Dtype::bf16, 1, 128, 1, 64);
  store_le16(set.k.data() + 2 * 70 * 64, 0x7FC1);  // in the second run
  for (const std::string& name : medium_names()) {
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
