// What the trained weights can do, with exact KV and with KV that was quantised on its way.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/unit/model/model_fixture.h"

namespace kvrail::model {
namespace {

// Symmetric, one scale for each group of a head's values of one token: what a plain KV codec would
// do.
void quantise(std::span<float> values, std::size_t group, int bits) {
  const float top = static_cast<float>((1 << (bits - 1)) - 1);
  for (std::size_t begin = 0; begin < values.size(); begin += group) {
    const auto part = values.subspan(begin, group);
    float greatest = 0;
    for (const float value : part) {
      greatest = std::max(greatest, std::abs(value));
    }
    const float scale = greatest > 0 ? greatest / top : 1.0F;
    for (float& value : part) {
      value = std::round(value / scale) * scale;
    }
  }
}

std::vector<double> log_softmax(std::span<const float> logits) {
  const double greatest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - greatest);
  }
  std::vector<double> result;
  for (const float logit : logits) {
    result.push_back(logit - greatest - std::log(sum));
  }
  return result;
}

double divergence(std::span<const float> exact, std::span<const float> lossy) {
  const std::vector<double> p = log_softmax(exact);
  const std::vector<double> q = log_softmax(lossy);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum += std::exp(p[i]) * (p[i] - q[i]);
  }
  return sum;
}

TokenId best(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

// All questions about a document in one sitting, on top of the document's KV. `answers` receives
// the logits at the places of both answer words, fed with the right words (the decoding of a right
// answer is the same run).
struct Sitting {
  std::vector<TokenId> tokens;
  std::vector<Fact> asked;

  Sitting(const std::vector<Fact>& facts, FactSource& source) {
    tokens.push_back(recall_world().question_mark);
    for (const std::size_t i : source.order(facts.size())) {
      asked.push_back(facts[i]);
      const auto more = recall_world().continuation(std::span(&facts[i], 1));
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
  }

  [[nodiscard]] std::vector<float> logits(Session& session) const {
    std::vector<float> all(tokens.size() * recall_model().shape().vocabulary);
    const std::uint32_t length = session.length();
    REQUIRE(session.append(tokens, all).ok());
    session.truncate(length);
    return all;
  }
  /// Logits that predict word 0 or 1 of an answer.
  [[nodiscard]] static std::span<const float> at(const std::vector<float>& all,
                                                 std::size_t question, std::size_t word) {
    const std::size_t vocabulary = recall_model().shape().vocabulary;
    return std::span(all).subspan((2 + 4 * question + word) * vocabulary, vocabulary);
  }
  [[nodiscard]] std::size_t right(const std::vector<float>& all) const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      count += Answer{best(at(all, i, 0)), best(at(all, i, 1))}.right(asked[i]) ? 1 : 0;
    }
    return count;
  }
};

struct Lossy {
  int bits;
  double divergence_sum = 0;
  std::size_t right = 0;
};

// The document's KV through quantisation and back into a session of its own.
void measure(const Session& exact_session, const Sitting& sitting, const std::vector<float>& exact,
             Session& session, Lossy& lossy) {
  const Layout layout = recall_model().layout(64, Dtype::fp32);
  std::vector<std::byte> bytes = exported(exact_session, layout);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  quantise(values, recall_model().shape().head_dim, lossy.bits);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  session.truncate(0);
  import_all(session, layout, bytes, exact_session.length());
  const std::vector<float> logits = sitting.logits(session);
  lossy.right += sitting.right(logits);
  for (std::size_t i = 0; i < sitting.asked.size(); ++i) {
    for (const std::size_t word : {0U, 1U}) {
      lossy.divergence_sum += divergence(Sitting::at(exact, i, word), Sitting::at(logits, i, word));
    }
  }
}

struct Measured {
  double accuracy = 0;
  double divergence_int8 = 0;
  double divergence_int4 = 0;
};

Measured measured(std::size_t documents, std::size_t facts_per_document, bool close_keys) {
  FactSource source(recall_world(), 2024);
  Session session(recall_model(), 1200);
  Session other(recall_model(), 1200);
  std::size_t right = 0;
  Lossy int8{8};
  Lossy int4{4};
  for (std::size_t d = 0; d < documents; ++d) {
    const std::vector<Fact> facts =
        close_keys ? source.draw_close(facts_per_document) : source.draw(facts_per_document);
    session.truncate(0);
    REQUIRE(session.append(recall_world().document(facts)).ok());
    const Sitting sitting(facts, source);
    const std::vector<float> exact = sitting.logits(session);
    right += sitting.right(exact);
    measure(session, sitting, exact, other, int8);
    measure(session, sitting, exact, other, int4);
  }
  const auto answers = static_cast<double>(documents * facts_per_document);
  const Measured result{static_cast<double>(right) / answers, int8.divergence_sum / (2 * answers),
                        int4.divergence_sum / (2 * answers)};
  MESSAGE(facts_per_document, " facts, ", std::string(close_keys ? "close" : "any"), " keys, ",
          documents, " documents: accuracy ", result.accuracy, "; int8 KV: KL ",
          result.divergence_int8, ", accuracy ", static_cast<double>(int8.right) / answers,
          "; int4 KV: KL ", result.divergence_int4, ", accuracy ",
          static_cast<double>(int4.right) / answers);
  return result;
}

TEST_CASE("recall model / 96 facts with two-word keys are answered from exact KV") {
  CHECK(measured(20, 96, false).accuracy >= 0.98);
}

TEST_CASE("recall model / near-identical keys are answered too, and feel quantised KV") {
  const Measured result = measured(16, 128, true);
  CHECK(result.accuracy >= 0.98);
  CHECK(result.divergence_int4 >= 1e-3);
  CHECK(result.divergence_int8 < result.divergence_int4 / 10);
}

TEST_CASE("recall model / single questions are answered greedily, and grown documents too") {
  const FactWorld& world = recall_world();
  FactSource source(world, 7);
  Session session(recall_model(), 512);
  std::size_t right = 0;
  std::size_t asked = 0;
  for (int document = 0; document < 8; ++document) {
    std::vector<Fact> facts = source.draw(32);
    session.truncate(0);
    REQUIRE(session.append(world.document(facts)).ok());
    while (true) {
      for (std::size_t question = 0; question < 8; ++question) {
        const std::size_t i = source.order(facts.size()).front();
        const std::uint32_t length = session.length();
        const auto answer = ask(session, world, facts[i]);
        REQUIRE(answer.ok());
        CHECK(session.length() == length);
        right += answer->right(facts[i]) ? 1 : 0;
        ++asked;
      }
      if (facts.size() == 96) {
        break;
      }
      const std::vector<Fact> more = source.draw(32, facts);
      REQUIRE(session.append(world.continuation(more)).ok());
      facts.insert(facts.end(), more.begin(), more.end());
    }
  }
  MESSAGE(right, " of ", asked, " single questions answered right");
  CHECK(static_cast<double>(right) / static_cast<double>(asked) >= 0.98);
}

TEST_CASE("recall model / answers come from the document, not from the weights") {
  const FactWorld& world = recall_world();
  FactSource source(world, 11);
  const std::vector<Fact> facts = source.draw(32);
  const std::vector<Fact> others = source.draw(32, facts);
  Session session(recall_model(), 256);
  REQUIRE(session.append(world.document(others)).ok());
  std::size_t right = 0;
  for (const Fact& fact : facts) {
    right += ask(session, world, fact)->right(fact) ? 1 : 0;
  }
  CHECK(right <= 3);
}

}  // namespace
}  // namespace kvrail::model
