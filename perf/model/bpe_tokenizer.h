// The byte-pair tokenizer of llama2.c (its tokenizer.bin format), for checkpoints that load_llama2c
// reads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::model {

class BpeTokenizer {
 public:
  /// The file doesn't say how many pieces it has: it is the model's vocabulary, and all of it must
  /// be there.
  [[nodiscard]] static Result<BpeTokenizer> load(const std::filesystem::path& path,
                                                 std::size_t vocabulary);

  /// Begins with the token of the beginning of a text, and treats the text as if it began with a
  /// blank. unsupported where a character is neither a piece nor made of byte pieces.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text) const;
  [[nodiscard]] std::string decode(std::span<const TokenId> tokens) const;

 private:
  std::vector<std::string> pieces_;
  std::vector<float> scores_;
  std::unordered_map<std::string, TokenId> by_piece_;
};

}  // namespace kvrail::model
