// Small messages between the agents of the demo. kvrail hands contexts over and nothing else, so a
// message is a short context whose tokens are the words of the message, sent as tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvrail/types.h"

namespace kvrail::demo {

enum class NoteKind : std::uint32_t {
  go = 1,       // coordinator -> executor, clerk: answer these questions on that version
  answers = 2,  // executor -> coordinator: what it answered
  look = 3,     // executor -> verifier: its context is ready to be checked
  verdict = 4,  // verifier -> coordinator: so many answers are right
  kept = 5,     // clerk -> coordinator: it holds the text
};

/// Contexts of this prefix are notes.
inline constexpr std::string_view kNotePrefix = "note-";

struct Note {
  NoteKind kind{};
  std::uint32_t task = 0;  // number of the task in this run of the demo
  std::uint32_t round = 0;
  std::vector<std::uint32_t> words;
  friend bool operator==(const Note&, const Note&) = default;
};

[[nodiscard]] std::vector<TokenId> encode(const Note& note);
/// Nothing for tokens that are no note.
[[nodiscard]] std::optional<Note> decode_note(std::span<const TokenId> tokens);

}  // namespace kvrail::demo
