#include "perf/model/vocabulary.h"

#include "kvrail/base/assert.h"

namespace kvrail::model {
namespace {

constexpr std::string_view kKindLetters = "snamv";

Error malformed(std::size_t line, const char* what) {
  return Error{{Code::corrupt, Scope::transfer, static_cast<std::int32_t>(line)},
               "vocabulary line " + std::to_string(line) + ": " + what};
}

}  // namespace

Result<Vocabulary> Vocabulary::parse(std::string_view text) {
  Vocabulary vocabulary;
  std::size_t line_number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    ++line_number;
    if (line.empty()) {
      continue;
    }
    if (line.size() < 3 || line[1] != ' ' || kKindLetters.find(line[0]) == std::string_view::npos) {
      return malformed(line_number, "expected a kind letter of \"snamv\", a blank and a word");
    }
    std::string word(line.substr(2));
    const auto token = static_cast<TokenId>(vocabulary.words_.size());
    if (!vocabulary.by_word_.emplace(word, token).second) {
      return malformed(line_number, "the word stands twice");
    }
    vocabulary.words_.push_back(std::move(word));
    vocabulary.kinds_.push_back(static_cast<WordKind>(line[0]));
  }
  return vocabulary;
}

const std::string& Vocabulary::word(TokenId token) const {
  KVRAIL_ASSERT(token < words_.size());
  return words_[token];
}

std::vector<TokenId> Vocabulary::of_kind(WordKind kind) const {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] == kind) {
      tokens.push_back(static_cast<TokenId>(i));
    }
  }
  return tokens;
}

Result<TokenId> Vocabulary::find(const std::string& word) const {
  const auto found = by_word_.find(word);
  if (found == by_word_.end()) {
    return Error{{Code::not_found}, "the model has no word \"" + word + "\""};
  }
  return found->second;
}

Result<std::vector<TokenId>> Vocabulary::encode(std::string_view text) const {
  std::vector<TokenId> tokens;
  while (true) {
    const std::size_t begin = text.find_first_not_of(" \n\t");
    if (begin == std::string_view::npos) {
      return tokens;
    }
    text = text.substr(begin);
    const std::size_t end = text.find_first_of(" \n\t");
    auto token = find(std::string(text.substr(0, end)));
    if (!token) {
      return std::move(token).error();
    }
    tokens.push_back(*token);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end);
  }
}

}  // namespace kvrail::model
