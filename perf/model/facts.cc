#include "perf/model/facts.h"

#include <algorithm>
#include <utility>

#include "kvrail/base/assert.h"

namespace kvrail::model {
namespace {

TokenId one_of(Prng& random, const std::vector<TokenId>& tokens) {
  return tokens[random.uniform(tokens.size())];
}

void append_facts(std::span<const Fact> facts, std::vector<TokenId>& tokens) {
  for (const Fact& fact : facts) {
    tokens.insert(tokens.end(), {fact.name, fact.thing, fact.shade, fact.colour});
  }
}

}  // namespace

Result<FactWorld> FactWorld::of(const Model& model) {
  const Vocabulary& vocabulary = model.vocabulary();
  const auto document = vocabulary.find("<doc>");
  const auto question = vocabulary.find("?");
  FactWorld world;
  world.names = vocabulary.of_kind(WordKind::name);
  world.things = vocabulary.of_kind(WordKind::thing);
  world.shades = vocabulary.of_kind(WordKind::shade);
  world.colours = vocabulary.of_kind(WordKind::colour);
  if (!document || !question || world.key_count() == 0 || world.shades.empty() ||
      world.colours.empty()) {
    return Error{{Code::invalid_argument}, "the model's vocabulary has no words for facts"};
  }
  world.document_mark = *document;
  world.question_mark = *question;
  return world;
}

std::vector<TokenId> FactWorld::document(std::span<const Fact> facts) const {
  std::vector<TokenId> tokens{document_mark};
  append_facts(facts, tokens);
  return tokens;
}

std::vector<TokenId> FactWorld::continuation(std::span<const Fact> facts) const {
  std::vector<TokenId> tokens;
  append_facts(facts, tokens);
  return tokens;
}

std::array<TokenId, kQuestionTokens> FactWorld::question(const Fact& fact) const {
  return {question_mark, fact.name, fact.thing};
}

std::vector<Fact> FactSource::draw(std::size_t count, std::span<const Fact> taken) {
  return draw_from(world_->names, count, taken);
}

std::vector<Fact> FactSource::draw_close(std::size_t count) {
  std::vector<TokenId> names = world_->names;
  const std::size_t things = world_->things.size();
  const std::size_t wanted = std::min(names.size(), (count + things - 1) / things + 1);
  choose(wanted, names);
  return draw_from(names, count, {});
}

std::vector<Fact> FactSource::draw_from(std::span<const TokenId> names, std::size_t count,
                                        std::span<const Fact> taken) {
  std::vector<Fact> facts;
  facts.reserve(names.size() * world_->things.size());
  for (const TokenId name : names) {
    for (const TokenId thing : world_->things) {
      const auto same_key = [&](const Fact& f) { return f.name == name && f.thing == thing; };
      if (std::none_of(taken.begin(), taken.end(), same_key)) {
        facts.push_back({name, thing, 0, 0});
      }
    }
  }
  KVRAIL_ASSERT_MSG(count <= facts.size(), "there are not so many keys");
  choose(count, facts);
  for (Fact& fact : facts) {
    fact.shade = one_of(random_, world_->shades);
    fact.colour = one_of(random_, world_->colours);
  }
  return facts;
}

// Keeps `count` of the items, in random order: a shuffle that stops early.
template <class T>
void FactSource::choose(std::size_t count, std::vector<T>& items) {
  for (std::size_t i = 0; i < count; ++i) {
    std::swap(items[i], items[i + random_.uniform(items.size() - i)]);
  }
  items.resize(count);
}

std::vector<std::size_t> FactSource::order(std::size_t count) {
  std::vector<std::size_t> indices(count);
  for (std::size_t i = 0; i < count; ++i) {
    indices[i] = i;
  }
  choose(count, indices);
  return indices;
}

Result<Answer> ask(Session& session, const FactWorld& world, const Fact& fact) {
  const std::uint32_t length = session.length();
  if (auto asked = session.append(world.question(fact)); !asked) {
    return std::move(asked).error();
  }
  Answer answer;
  answer.shade = session.greedy();
  if (auto more = session.append(std::span(&answer.shade, 1)); !more) {
    session.truncate(length);
    return std::move(more).error();
  }
  answer.colour = session.greedy();
  session.truncate(length);
  return answer;
}

std::string key_text(const Vocabulary& vocabulary, const Fact& fact) {
  return vocabulary.word(fact.name) + "." + vocabulary.word(fact.thing);
}

std::string text_of(const Vocabulary& vocabulary, const Answer& answer) {
  return vocabulary.word(answer.shade) + " " + vocabulary.word(answer.colour);
}

std::string text_of(const Vocabulary& vocabulary, const Fact& fact) {
  return key_text(vocabulary, fact) + " = " + text_of(vocabulary, Answer{fact.shade, fact.colour});
}

}  // namespace kvrail::model
