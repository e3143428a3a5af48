#include "perf/model/bpe_tokenizer.h"

#include <bit>
#include <cstdlib>
#include <optional>

#include "kvrail/base/byte_order.h"
#include "perf/model/model_file.h"

namespace kvrail::model {
namespace {

constexpr TokenId kBegin = 1;
constexpr TokenId kFirstByte = 3;  // Pieces 3 to 258 stand for single bytes, "<0x00>" to "<0xFF>".
constexpr std::size_t kMaxPieceBytes = 1024;

std::size_t character_bytes(std::string_view text) {
  std::size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) {
    ++bytes;
  }
  return bytes;
}

std::optional<char> byte_of(const std::string& piece) {
  if (piece.size() != 6 || piece.compare(0, 3, "<0x") != 0 || piece[5] != '>') {
    return std::nullopt;
  }
  return static_cast<char>(std::strtol(piece.c_str() + 3, nullptr, 16));
}

}  // namespace

Result<BpeTokenizer> BpeTokenizer::load(const std::filesystem::path& path, std::size_t vocabulary) {
  auto file = read_file(path);
  if (!file) {
    return std::move(file).error();
  }
  ByteReader reader(*file);
  [[maybe_unused]] const std::uint32_t longest = reader.u32();
  BpeTokenizer tokenizer;
  for (std::size_t i = 0; i < vocabulary; ++i) {
    const float score = std::bit_cast<float>(reader.u32());
    const std::uint32_t length = reader.u32();
    if (!reader.ok() || length > kMaxPieceBytes || length > reader.remaining()) {
      return bad_file(path, "truncated or damaged at piece " + std::to_string(i) + " of " +
                                std::to_string(vocabulary));
    }
    const std::span<const std::byte> bytes = reader.bytes(length);
    std::string piece(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    tokenizer.by_piece_.emplace(piece, static_cast<TokenId>(i));
    tokenizer.pieces_.push_back(std::move(piece));
    tokenizer.scores_.push_back(score);
  }
  if (!reader.done()) {
    return bad_file(path,
                    "has more than the " + std::to_string(vocabulary) + " pieces of the model");
  }
  return tokenizer;
}

Result<std::vector<TokenId>> BpeTokenizer::encode(std::string_view text) const {
  std::vector<TokenId> tokens{kBegin};
  if (const auto blank = by_piece_.find(" "); !text.empty() && blank != by_piece_.end()) {
    tokens.push_back(blank->second);
  }
  while (!text.empty()) {
    const std::string character(text.substr(0, character_bytes(text)));
    if (const auto found = by_piece_.find(character); found != by_piece_.end()) {
      tokens.push_back(found->second);
    } else {
      for (const char byte : character) {
        const TokenId token = kFirstByte + static_cast<unsigned char>(byte);
        if (token >= pieces_.size()) {
          return Error{{Code::unsupported}, "the tokenizer has no piece for a byte of the text"};
        }
        tokens.push_back(token);
      }
    }
    text = text.substr(character.size());
  }
  // Join the neighbours whose union has the best score, until no union is a piece.
  while (true) {
    std::size_t best = tokens.size();
    TokenId joined = 0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = by_piece_.find(pieces_[tokens[i]] + pieces_[tokens[i + 1]]);
      if (found != by_piece_.end() &&
          (best == tokens.size() || scores_[found->second] > scores_[joined])) {
        best = i;
        joined = found->second;
      }
    }
    if (best == tokens.size()) {
      return tokens;
    }
    tokens[best] = joined;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::string BpeTokenizer::decode(std::span<const TokenId> tokens) const {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= pieces_.size() || tokens[i] == kBegin) {
      continue;
    }
    const std::string& piece = pieces_[tokens[i]];
    if (const auto byte = byte_of(piece)) {
      text += *byte;
    } else if (i > 0 && tokens[i - 1] == kBegin && piece.starts_with(' ')) {
      text += piece.substr(1);
    } else {
      text += piece;
    }
  }
  return text;
}

}  // namespace kvrail::model
