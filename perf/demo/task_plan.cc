#include "perf/demo/task_plan.h"

namespace kvrail::demo {

TaskPlan make_plan(const model::FactWorld& world, std::uint64_t seed) {
  model::FactSource source(world, seed);
  TaskPlan plan;
  plan.facts = source.draw(kFactsAtRound.back());
  plan.order = source.order(plan.facts.size());
  return plan;
}

const model::Fact& TaskPlan::question(std::uint32_t round, std::uint32_t executor,
                                      std::uint32_t index, std::uint32_t executors,
                                      std::uint32_t per_round) const {
  KVRAIL_ASSERT(round < kRounds && executor < executors && index < per_round);
  // The next in order whose fact is in the document already; the sequence goes round.
  std::uint32_t skip = (round * executors + executor) * per_round + index;
  for (std::size_t i = 0;; i = (i + 1) % order.size()) {
    if (order[i] >= kFactsAtRound[round]) continue;
    if (skip-- == 0) return facts[order[i]];
  }
}

namespace {

Error no_transcript(const char* why) {
  return Error{{Code::invalid_argument},
               std::string("not a document with answered questions: ") + why};
}

const model::Fact* find(const std::vector<model::Fact>& facts, TokenId name, TokenId thing) {
  for (const model::Fact& fact : facts) {
    if (fact.name == name && fact.thing == thing) return &fact;
  }
  return nullptr;
}

}  // namespace

Result<Transcript> read_transcript(const model::FactWorld& world, std::span<const TokenId> tokens) {
  if (tokens.empty() || tokens.front() != world.document_mark) return no_transcript("no document");
  Transcript out;
  std::size_t at = 1;
  for (; at < tokens.size() && tokens[at] != world.question_mark; at += model::kFactTokens) {
    if (tokens.size() - at < model::kFactTokens) return no_transcript("a fact is cut off");
    out.facts.push_back({tokens[at], tokens[at + 1], tokens[at + 2], tokens[at + 3]});
  }
  out.document_tokens = static_cast<std::uint32_t>(at);
  constexpr std::size_t kEntryTokens = model::kQuestionTokens + model::kAnswerTokens;
  for (; at < tokens.size(); at += kEntryTokens) {
    if (tokens.size() - at < kEntryTokens || tokens[at] != world.question_mark) {
      return no_transcript("a question is cut off");
    }
    Transcript::Entry entry;
    const model::Fact* const fact = find(out.facts, tokens[at + 1], tokens[at + 2]);
    entry.known = fact != nullptr;
    entry.fact = entry.known ? *fact : model::Fact{tokens[at + 1], tokens[at + 2], 0, 0};
    entry.answer = {tokens[at + 3], tokens[at + 4]};
    out.entries.push_back(entry);
  }
  return out;
}

}  // namespace kvrail::demo
