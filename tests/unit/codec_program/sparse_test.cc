// topk and window in the program: names, what comes back, and what the recall model still knows.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "kvrail/base/prng.h"
#include "perf/codec/medium_under_test.h"
#include "perf/codec/model_trial.h"
#include "perf/codec/sparse_medium.h"
#include "tests/support/mode.h"
#include "tests/unit/codec_program/files.h"
#include "tests/unit/codec_program/media.h"

namespace kvrail::fidelity {
namespace {

using fidelity_test::medium;
using fidelity_test::random_set;
using fidelity_test::there_and_back;

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

double bits_per_value(const MediumUnderTest& medium, const KvSet& set) {
  return static_cast<double>(medium.encoded_bits()) / static_cast<double>(2 * set.side_values());
}

TEST_CASE("sparse media / kept rows come back, the others are zero, positions are counted") {
  const KvSet set = random_set(Dtype::bf16, 3, 250, 2, 32);
  for (const char* name : {"topk@50", "leverage@20", "window@40", "topk@100", "window@1"}) {
    CAPTURE(name);
    const auto each = medium(name);
    CHECK(each->name() == name);
    const KvSet out = there_and_back(*each, set);
    const auto kept = each->kept_tokens();
    std::uint32_t next = 0;
    for (std::uint32_t token = 0; token < set.tokens; ++token) {
      const bool has = next < kept.size() && kept[next] == token;
      next += has ? 1 : 0;
      for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
        const codec::RunView in = set.run(layer, token, 1);
        const codec::RunView got = std::as_const(out).run(layer, token, 1);
        CHECK((has ? std::equal(in.k.begin(), in.k.end(), got.k.begin()) : is_zero(got.k)));
        CHECK((has ? std::equal(in.v.begin(), in.v.end(), got.v.begin()) : is_zero(got.v)));
      }
    }
    CHECK(next == kept.size());
    const double share = static_cast<double>(kept.size()) / set.tokens;
    CHECK(bits_per_value(*each, set) > 16 * share);
    CHECK(bits_per_value(*each, set) < 16 * share + 0.1);
  }
}

TEST_CASE("sparse media / go by the set's importance, but leverage and window do not") {
  KvSet set = random_set(Dtype::bf16, 1, 200, 1, 32);
  const auto kept_of = [&](const char* name) {
    const auto each = medium(name);
    there_and_back(*each, set);
    return std::vector<std::uint32_t>(each->kept_tokens().begin(), each->kept_tokens().end());
  };
  const auto leverage = kept_of("leverage@30"), window = kept_of("window@30");
  CHECK(kept_of("topk@30") == leverage);
  set.importance.assign(200, 0.0F);
  std::fill_n(set.importance.begin() + 50, 30, 1.0F);
  const auto topk = kept_of("topk@30");
  CHECK(topk.size() == 60);
  for (std::uint32_t token = 50; token < 80; ++token)
    CHECK(std::binary_search(topk.begin(), topk.end(), token));
  CHECK(kept_of("leverage@30") == leverage);
  CHECK(kept_of("window@30") == window);
}

TEST_CASE("sparse media / names that say no rule") {
  for (const char* name : {"topk", "topk@", "topk@0", "topk@101", "topk@5x", "window@50+zip",
                           "window@50+", "leverage@50+lowrank", "topk@+full"}) {
    CAPTURE(name);
    const auto refused = make_medium(name, MediumContext{});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code == Code::invalid_argument);
    CHECK(refused.error().message.find("topk@50") != std::string::npos);
  }
}

struct Point {
  double bits = 0;
  AnswerSums sums;
};

Point point(ModelTrial& trial, const std::string& name, const KvSet& kv) {
  const auto each = medium(name);
  const KvSet out = there_and_back(*each, kv);
  const auto sums = trial.answer(out, each->kept_tokens());
  REQUIRE(sums.ok());
  return {bits_per_value(*each, kv), *sums};
}

TEST_CASE("sparse media / accuracy against bits on the recall model") {
  TrialOptions options;
  options.path = KVRAIL_MODEL_WEIGHTS;
  options.positions = test::by_mode(256U, 512U, 4096U);
  options.importance = true;
  auto trial = ModelTrial::open(options);
  REQUIRE(trial.ok());
  std::vector<std::pair<std::string, Point>> curve;
  for (const char* choice : {"topk", "random", "leverage", "window"}) {
    for (const char* percent : {"75", "50", "25"})
      curve.push_back({std::string(choice) + "@" + percent, {}});
  }
  Prng random(1);
  for (std::uint32_t i = 0; i < (*trial)->contexts(); ++i) {
    auto context = (*trial)->next();
    REQUIRE(context.ok());
    REQUIRE(context->kv.importance.size() == context->kv.tokens);
    KvSet shuffled = context->kv;
    for (float& value : shuffled.importance) value = static_cast<float>(random.uniform01());
    for (auto& [name, total] : curve) {
      const bool drawn = name.starts_with("random");
      const Point one = drawn ? point(**trial, "topk" + name.substr(6), shuffled)
                              : point(**trial, name, context->kv);
      total.bits = one.bits;
      total.sums.add(one.sums);
    }
  }
  const auto accuracy = [&](const std::string& name) {
    const auto found = std::find_if(curve.begin(), curve.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    REQUIRE(found != curve.end());
    return found->second.sums.accuracy();
  };
  for (const auto& [name, total] : curve) {
    MESSAGE(name, ": ", total.bits, " bits/value, accuracy ", total.sums.accuracy(), ", top-1 ",
            total.sums.top1(), ", KL ", total.sums.logit_kl());
  }
  // What the agent knows of its tokens is worth more than what K alone shows, and that more than
  // chance; with three quarters of the tokens nothing is lost.
  CHECK(accuracy("topk@75") > 0.98);
  CHECK(accuracy("topk@50") > accuracy("random@50") + 0.2);
  CHECK(accuracy("topk@50") > accuracy("leverage@50"));
  CHECK(accuracy("leverage@50") > accuracy("random@50") + 0.1);
  CHECK(accuracy("leverage@75") > accuracy("window@75"));
}

}  // namespace
}  // namespace kvrail::fidelity
