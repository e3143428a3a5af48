// The model's side: what comes back unchanged costs nothing, and what does not shows.
#include "perf/codec/model_trial.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/unit/codec_program/files.h"

namespace kvrail::fidelity {
namespace {

std::unique_ptr<ModelTrial> trial(const std::string& path, std::uint32_t positions) {
  TrialOptions options;
  options.path = path;
  options.facts = 96;
  options.positions = positions;
  auto opened = ModelTrial::open(options);
  REQUIRE(opened.ok());
  return std::move(*opened);
}

Context next(ModelTrial& trial) {
  auto context = trial.next();
  REQUIRE(context.ok());
  return std::move(*context);
}

AnswerSums answer(ModelTrial& trial, const KvSet& kv, std::span<const std::uint32_t> kept = {}) {
  const auto sums = trial.answer(kv, kept);
  REQUIRE(sums.ok());
  return *sums;
}

// Only the two most significant mantissa bits of bf16 are left.
KvSet coarse(KvSet kv) {
  for (auto* side : {&kv.k, &kv.v}) {
    for (std::size_t i = 0; i < side->size(); i += 2) (*side)[i] &= std::byte{0xE0};
  }
  return kv;
}

TEST_CASE("trial / unchanged KV answers as exact KV does, coarse KV does not, none knows nothing") {
  const auto facts = trial(KVRAIL_MODEL_WEIGHTS, 192);
  CHECK(facts->contexts() == 1);
  const Context context = next(*facts);
  CHECK(context.kv.tokens == 1 + 4 * 96);
  CHECK(context.queries.heads == 4);
  CHECK(context.queries.count >= 64);
  CHECK(context.queries.of_layer.size() == context.kv.layers);

  const AnswerSums same = answer(*facts, context.kv);
  CHECK(same.positions == 192);
  CHECK(same.answers == 96);
  CHECK(same.logit_kl() == 0.0);
  CHECK(same.top1() == 1.0);
  CHECK(same.accuracy() >= 0.98);
  CHECK(same.extra_tokens() == 0.0);

  const AnswerSums lossy = answer(*facts, coarse(context.kv));
  CHECK(lossy.logit_kl() > 0.0);

  const AnswerSums none = answer(*facts, context.kv.empty_like(Dtype::bf16));
  CHECK(none.accuracy() < 0.2);
  CHECK(none.logit_kl() > 1.0);
  // Every lost answer has two words.
  CHECK(none.again_tokens == 2 * none.again);
  CHECK(none.again + none.right >= same.right);
}

TEST_CASE("trial / of tokens that were kept the model knows, of others it does not") {
  const auto facts = trial(KVRAIL_MODEL_WEIGHTS, 192);
  const Context context = next(*facts);
  std::vector<std::uint32_t> second_half;
  for (std::uint32_t token = context.kv.tokens / 2; token < context.kv.tokens; ++token)
    second_half.push_back(token);
  const AnswerSums half = answer(*facts, context.kv, second_half);
  CHECK(half.accuracy() > 0.3);
  CHECK(half.accuracy() < 0.7);
  std::vector<std::uint32_t> all;
  for (std::uint32_t token = 0; token < context.kv.tokens; ++token) all.push_back(token);
  CHECK(answer(*facts, context.kv, all).logit_kl() == 0.0);
}

TEST_CASE("trial / the same seed gives the same contexts, and as many as the positions need") {
  const auto one = trial(KVRAIL_MODEL_WEIGHTS, 400), other = trial(KVRAIL_MODEL_WEIGHTS, 400);
  CHECK(one->contexts() == 3);
  const Context first = next(*one), again = next(*other), second = next(*one);
  CHECK(first.kv.k == again.kv.k);
  CHECK(first.kv.k != second.kv.k);
}

TEST_CASE("trial / a file that is no model is refused in one line") {
  const fidelity_test::Folder folder;
  for (const std::string& bytes : {std::string(), std::string("KVRMODEL"), std::string(100, 'x')}) {
    TrialOptions options;
    options.path = folder.file("bad", bytes);
    const auto refused = ModelTrial::open(options);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message.find('\n') == std::string::npos);
    CHECK_FALSE(refused.error().message.empty());
  }
}

TEST_CASE("trial / a llama2.c checkpoint: every next-token position is an answer") {
  const char* data = std::getenv("KVRAIL_DATA");
  const std::filesystem::path root = data != nullptr ? data : KVRAIL_SOURCE_ROOT "/../shared/data";
  const std::filesystem::path path = root / "models/stories260K/stories260K.bin";
  if (!std::filesystem::exists(path)) {
    MESSAGE("SKIP: no ", path.string(), " (set KVRAIL_DATA)");
    return;
  }
  const auto texts = trial(path.string(), 255);
  CHECK(texts->contexts() == 1);
  const Context context = next(*texts);
  CHECK(context.kv.tokens == 256);
  CHECK(context.queries.heads == 8);
  const AnswerSums same = answer(*texts, context.kv);
  CHECK(same.positions == 255);
  CHECK(same.answers == 255);
  CHECK(same.logit_kl() == 0.0);
  CHECK(same.accuracy() > 0.3);
  const AnswerSums lossy = answer(*texts, coarse(context.kv));
  CHECK(lossy.logit_kl() > 0.0);
  CHECK(lossy.top1() < 1.0);
  CHECK(lossy.extra_tokens() == doctest::Approx(1.0 - lossy.top1()));
}

}  // namespace
}  // namespace kvrail::fidelity
