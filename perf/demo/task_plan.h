// What a task of the demo consists of: a document that grows from round to round, and whom to ask.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "perf/model/facts.h"

namespace kvrail::demo {

/// Facts in the document at each round. The last round hands over what the round before did.
inline constexpr std::array<std::uint32_t, 4> kFactsAtRound{64, 80, 96, 96};
inline constexpr std::uint32_t kRounds = kFactsAtRound.size();

struct TaskPlan {
  std::vector<model::Fact> facts;  // of the whole document; the rounds take leading parts
  std::vector<std::size_t> order;  // indices of facts, the order in which they are asked

  /// The question of an executor in a round: a fact the document holds by then.
  [[nodiscard]] const model::Fact& question(std::uint32_t round, std::uint32_t executor,
                                            std::uint32_t index, std::uint32_t executors,
                                            std::uint32_t per_round) const;
};

/// The same seed gives the same plan.
[[nodiscard]] TaskPlan make_plan(const model::FactWorld& world, std::uint64_t seed);

/// Answers to check: the facts of a document and the questions that follow it, read back from the
/// tokens of a context.
struct Transcript {
  std::uint32_t document_tokens = 0;
  std::vector<model::Fact> facts;
  struct Entry {
    model::Fact fact;  // the question's key with the document's value
    model::Answer answer;
    bool known = false;  // the key is in the document
    [[nodiscard]] bool right() const noexcept { return known && answer.right(fact); }
  };
  std::vector<Entry> entries;
};
/// invalid_argument for tokens that are no document with answered questions.
[[nodiscard]] Result<Transcript> read_transcript(const model::FactWorld& world,
                                                 std::span<const TokenId> tokens);

}  // namespace kvrail::demo
