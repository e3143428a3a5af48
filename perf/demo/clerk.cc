// Clerk: an agent whose blocks have another size, so that KV from the others means nothing to it.
// It can only be given tokens. It keeps the text, and reads it itself when a question comes.
#include <optional>
#include <string>

#include "perf/demo/role.h"

namespace kvrail::demo {
namespace {

class Clerk {
 public:
  explicit Clerk(Role& role) : role_(role), reader_(role.model(), kContextTokens, role.pace()) {}

  Result<void> handle(Delivery delivery) {
    if (!delivery.context().starts_with(kNotePrefix)) {
      if (delivery.medium() != Medium::tokens || !delivery.blocks().empty()) {
        return Error{{Code::layout_mismatch}, "KV of another layout was delivered"};
      }
      document_.emplace(std::move(delivery));
    } else if (std::optional<Note> note = decode_note(delivery.tokens());
               note && note->kind == NoteKind::go) {
      go_ = std::move(note);
      coordinator_ = delivery.owner();
      task_ = delivery.task();
    } else {
      return Error{{Code::protocol_error}, "a note that no clerk understands"};
    }
    return start();
  }

 private:
  Result<void> start() {
    if (!go_ || !document_ || go_->words.empty()) return {};
    if (document_->context() != document_name(go_->task) || document_->version() < go_->words[0])
      return {};
    const Note go = std::move(*go_);
    go_.reset();
    if (go.task != current_) role_.drop_notes();
    current_ = go.task;
    Note kept{NoteKind::kept,
              go.task,
              go.round,
              {static_cast<std::uint32_t>(document_->tokens().size())}};
    if (go.words.size() == 3) {
      auto taken = reader_.take(*document_, role_.agent());
      if (!taken.ok()) return std::move(taken).error();
      document_->set_recompute(Nanoseconds(taken->recompute_ns));
      auto answer = reader_.answer(role_.world(), {go.words[1], go.words[2], 0, 0});
      if (!answer.ok()) return std::move(answer).error();
      kept.words.insert(kept.words.end(), {answer->shade, answer->colour});
    }
    document_.reset();
    return role_.tell(coordinator_, kept, task_, false);
  }

  Role& role_;
  Reader reader_;
  std::optional<Delivery> document_;
  std::optional<Note> go_;  // words: version, and the key of a question if there is one
  std::string coordinator_;
  Task task_;
  std::uint32_t current_ = 0;
};

}  // namespace

int run_clerk(const AgentOptions& options) {
  auto role = Role::attach(options);
  if (!role.ok()) return fail(options, "attach", role.error());
  Clerk clerk(*role);
  return serve(options, *role,
               [&](Delivery delivery) { return clerk.handle(std::move(delivery)); });
}

}  // namespace kvrail::demo
