// Notes between agents, and the plan of a task.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "perf/demo/note.h"
#include "perf/demo/task_plan.h"
#include "perf/model/model.h"

namespace kvrail::demo {
namespace {

struct World {
  World() : model(model::Model::load(KVRAIL_MODEL_WEIGHTS)), facts(model::FactWorld::of(*model)) {}
  Result<model::Model> model;
  Result<model::FactWorld> facts;
};

TEST_CASE("a note survives the way, and nothing else passes for one") {
  const Note note{NoteKind::answers, 17, 2, {4, 0, 0xFFFF'FFFFU}};
  const std::vector<TokenId> tokens = encode(note);
  CHECK(decode_note(tokens) == note);
  CHECK(decode_note(encode({NoteKind::go, 0, 0, {}})) == Note{NoteKind::go, 0, 0, {}});
  for (std::size_t length = 0; length < tokens.size(); ++length) {
    CHECK_FALSE(decode_note(std::span(tokens).first(length)).has_value());
  }
  std::vector<TokenId> wrong = tokens;
  wrong.push_back(1);
  CHECK_FALSE(decode_note(wrong).has_value());
  wrong = tokens;
  wrong[0] ^= 1U;
  CHECK_FALSE(decode_note(wrong).has_value());
  for (const TokenId kind : {0U, 6U}) {
    wrong = tokens;
    wrong[1] = kind;
    CHECK_FALSE(decode_note(wrong).has_value());
  }
}

TEST_CASE("a plan depends on its seed alone, and asks only what the document holds by then") {
  const World world;
  REQUIRE(world.facts.ok());
  const TaskPlan plan = make_plan(*world.facts, 7);
  const TaskPlan same = make_plan(*world.facts, 7);
  CHECK(plan.facts == same.facts);
  CHECK(plan.order == same.order);
  CHECK(make_plan(*world.facts, 8).facts != plan.facts);
  REQUIRE(plan.facts.size() == kFactsAtRound.back());
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    std::set<std::size_t> asked;
    for (std::uint32_t executor = 0; executor < 2; ++executor) {
      for (std::uint32_t i = 0; i < 3; ++i) {
        const auto at =
            static_cast<std::size_t>(&plan.question(round, executor, i, 2, 3) - plan.facts.data());
        CHECK(at < kFactsAtRound[round]);
        asked.insert(at);
      }
    }
    CHECK(asked.size() == 6);  // no question twice in a round
  }
}

TEST_CASE("a transcript gives back document, questions and answers") {
  const World world;
  REQUIRE(world.facts.ok());
  const model::FactWorld& facts = *world.facts;
  const TaskPlan plan = make_plan(facts, 3);
  const auto document = std::span(plan.facts).first(5);
  std::vector<TokenId> tokens = facts.document(document);
  const auto ask = [&](const model::Fact& fact, TokenId shade, TokenId colour) {
    const auto question = facts.question(fact);
    tokens.insert(tokens.end(), question.begin(), question.end());
    tokens.insert(tokens.end(), {shade, colour});
  };
  ask(plan.facts[1], plan.facts[1].shade, plan.facts[1].colour);
  ask(plan.facts[2], plan.facts[2].shade, plan.facts[2].colour == 100 ? 101 : 100);
  ask(plan.facts[9], plan.facts[9].shade, plan.facts[9].colour);  // not in this document
  const auto read = read_transcript(facts, tokens);
  REQUIRE(read.ok());
  CHECK(read->document_tokens == 21);
  CHECK(std::equal(read->facts.begin(), read->facts.end(), document.begin(), document.end()));
  REQUIRE(read->entries.size() == 3);
  CHECK(read->entries[0].right());
  CHECK_FALSE(read->entries[1].right());
  CHECK_FALSE(read->entries[2].known);
  CHECK_FALSE(read->entries[2].right());
  for (const std::size_t cut : {std::size_t{0}, std::size_t{20}, tokens.size() - 1}) {
    CHECK_FALSE(read_transcript(facts, std::span(tokens).first(cut)).ok());
  }
  const auto alone = read_transcript(facts, std::span(tokens).first(21));
  REQUIRE(alone.ok());
  CHECK(alone->entries.empty());
}

}  // namespace
}  // namespace kvrail::demo
