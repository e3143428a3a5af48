#include "perf/demo/note.h"

namespace kvrail::demo {
namespace {

constexpr TokenId kMark = 0x4E4F5445;  // "NOTE", no token of the model
constexpr std::size_t kHeadWords = 5;
constexpr std::uint32_t kLastKind = static_cast<std::uint32_t>(NoteKind::kept);

}  // namespace

std::vector<TokenId> encode(const Note& note) {
  std::vector<TokenId> tokens{kMark, static_cast<TokenId>(note.kind), note.task, note.round,
                              static_cast<TokenId>(note.words.size())};
  tokens.insert(tokens.end(), note.words.begin(), note.words.end());
  return tokens;
}

std::optional<Note> decode_note(std::span<const TokenId> tokens) {
  if (tokens.size() < kHeadWords || tokens[0] != kMark || tokens[1] == 0 || tokens[1] > kLastKind ||
      tokens[4] != tokens.size() - kHeadWords) {
    return std::nullopt;
  }
  const auto words = tokens.subspan(kHeadWords);
  return Note{static_cast<NoteKind>(tokens[1]), tokens[2], tokens[3], {words.begin(), words.end()}};
}

}  // namespace kvrail::demo
