// The words of a recall model. One token is one word, so encoding is splitting at blanks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::model {

/// What a word is for. The letters are those of the model file.
enum class WordKind : char { special = 's', name = 'n', thing = 'a', shade = 'm', colour = 'v' };

class Vocabulary {
 public:
  Vocabulary() = default;

  /// Lines of "<kind letter> <word>", in the order of the token ids; empty lines at the end are
  /// padding.
  [[nodiscard]] static Result<Vocabulary> parse(std::string_view text);

  [[nodiscard]] std::size_t size() const noexcept { return words_.size(); }
  /// The word of a token; the token must be < size().
  [[nodiscard]] const std::string& word(TokenId token) const;
  /// All tokens of one kind, ascending.
  [[nodiscard]] std::vector<TokenId> of_kind(WordKind kind) const;
  /// The token of a word, or not_found.
  [[nodiscard]] Result<TokenId> find(const std::string& word) const;
  /// Words separated by blanks, to tokens; not_found names the first unknown word.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text) const;

 private:
  std::vector<std::string> words_;
  std::vector<WordKind> kinds_;
  std::unordered_map<std::string, TokenId> by_word_;
};

}  // namespace kvrail::model
