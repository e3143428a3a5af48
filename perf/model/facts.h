// Documents of random facts and questions about them: the work that agents do in tests and demo.
//
// A fact has four tokens, "alice kite pale teal": a two-word key and a two-word value. Values are
// drawn at random, so a right answer can come only from the exact context. The distribution is that
// of the training.
//
//   auto world = FactWorld::of(model);
//   FactSource source(*world, seed);
//   auto facts = source.draw(96);                    // draw(n, facts): n more, with other keys
//   session.append(world->document(facts));          // continuation(more): to grow what was read
//   auto answer = ask(session, *world, facts[3]);    // "? name thing", then two tokens
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvrail/base/prng.h"
#include "kvrail/base/result.h"
#include "kvrail/types.h"
#include "perf/model/model.h"
#include "perf/model/session.h"

namespace kvrail::model {

struct Fact {
  TokenId name = 0;
  TokenId thing = 0;
  TokenId shade = 0;
  TokenId colour = 0;
  friend bool operator==(const Fact&, const Fact&) noexcept = default;
};

inline constexpr std::uint32_t kFactTokens = 4;
inline constexpr std::uint32_t kQuestionTokens = 3;  // "?", name, thing
inline constexpr std::uint32_t kAnswerTokens = 2;

/// The words that facts are made of, and the marks between them.
class FactWorld {
 public:
  /// invalid_argument for a model that wasn't trained on facts.
  [[nodiscard]] static Result<FactWorld> of(const Model& model);

  [[nodiscard]] std::size_t key_count() const noexcept { return names.size() * things.size(); }

  /// "<doc>" and the facts: 1 + 4 x facts tokens.
  [[nodiscard]] std::vector<TokenId> document(std::span<const Fact> facts) const;
  /// The facts alone, to grow a document that was read before.
  [[nodiscard]] std::vector<TokenId> continuation(std::span<const Fact> facts) const;
  /// "? name thing". Further questions of one sitting may leave the "?" out, as in training.
  [[nodiscard]] std::array<TokenId, kQuestionTokens> question(const Fact& fact) const;

  TokenId document_mark = 0;
  TokenId question_mark = 0;
  std::vector<TokenId> names, things, shades, colours;
};

/// Draws facts. The same seed gives the same facts on every machine.
class FactSource {
 public:
  FactSource(const FactWorld& world, std::uint64_t seed) : world_(&world), random_(seed) {}

  /// `count` facts whose keys differ from each other and from those of `taken`; together at most
  /// key_count().
  [[nodiscard]] std::vector<Fact> draw(std::size_t count, std::span<const Fact> taken = {});
  /// The same with keys as near-identical as can be: of the fewest names that give enough keys,
  /// plus one. The hardest documents, at which lossy KV shows first.
  [[nodiscard]] std::vector<Fact> draw_close(std::size_t count);
  /// Indices 0 to count - 1 in random order: whom to ask next.
  [[nodiscard]] std::vector<std::size_t> order(std::size_t count);

 private:
  std::vector<Fact> draw_from(std::span<const TokenId> names, std::size_t count,
                              std::span<const Fact> taken);
  template <class T>
  void choose(std::size_t count, std::vector<T>& items);

  const FactWorld* world_;
  Prng random_;
};

struct Answer {
  TokenId shade = 0;
  TokenId colour = 0;
  [[nodiscard]] bool right(const Fact& fact) const noexcept {
    return shade == fact.shade && colour == fact.colour;
  }
};

/// Asks for one fact on top of what the session holds, and answers greedily. Leaves the session as
/// it was before the question, without logits; the session needs room for 4 tokens more.
[[nodiscard]] Result<Answer> ask(Session& session, const FactWorld& world, const Fact& fact);

/// "alice.kite = pale teal"
[[nodiscard]] std::string text_of(const Vocabulary& vocabulary, const Fact& fact);
/// "alice.kite"
[[nodiscard]] std::string key_text(const Vocabulary& vocabulary, const Fact& fact);
/// "pale teal"
[[nodiscard]] std::string text_of(const Vocabulary& vocabulary, const Answer& answer);

}  // namespace kvrail::model
