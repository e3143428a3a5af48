// Executor: takes the document over in whatever form it comes, answers the questions of a go note
// on it, and commits document, questions and answers as a context of its own, for the verifier to
// fetch.
#include <optional>
#include <string>

#include "perf/demo/role.h"

namespace kvrail::demo {
namespace {

class Executor {
 public:
  Executor(Role& role, const AgentOptions& options)
      : role_(role), options_(options), reader_(role.model(), kContextTokens, role.pace()) {}

  Result<void> handle(Delivery delivery) {
    if (!delivery.context().starts_with(kNotePrefix)) {
      document_.emplace(std::move(delivery));
    } else if (std::optional<Note> note = decode_note(delivery.tokens());
               note && note->kind == NoteKind::go) {
      go_ = std::move(note);
      coordinator_ = delivery.owner();
      task_ = delivery.task();
    } else {
      return Error{{Code::protocol_error}, "a note that no executor understands"};
    }
    return start();
  }

 private:
  // The go note is critical and overtakes the document, so either may come first.
  Result<void> start() {
    if (!go_ || !document_ || go_->words.size() < kGoWords) return {};
    if (document_->context() != document_name(go_->task) || document_->version() != go_->words[0])
      return {};
    const Note go = std::move(*go_);
    go_.reset();
    if (go.task != current_) begin(go.task);
    auto taken = reader_.take(*document_, role_.agent());
    if (!taken.ok()) return std::move(taken).error();
    if (taken->recomputed > 0) document_->set_recompute(Nanoseconds(taken->recompute_ns));
    Note answers{NoteKind::answers, go.task, go.round, {}};
    for (std::size_t at = kGoWords; at + 1 < go.words.size(); at += 2) {
      auto answer = reader_.answer(role_.world(), {go.words[at], go.words[at + 1], 0, 0});
      if (!answer.ok()) return std::move(answer).error();
      answers.words.insert(answers.words.end(),
                           {go.words[at], go.words[at + 1], answer->shade, answer->colour});
    }
    return publish(go, answers);
  }

  void begin(std::uint32_t task) {
    static_cast<void>(role_.agent().drop_context(work_name(current_, options_.name)));
    role_.drop_notes();
    current_ = task;
  }

  Result<void> publish(const Note& go, const Note& answers) {
    // What came without loss is without loss here, too; tokens carry none.
    const Delivery* const prefix = document_->blocks().empty() ? nullptr : &*document_;
    auto work = role_.commit_all(work_name(go.task, options_.name), reader_, prefix);
    if (!work.ok()) return std::move(work).error();
    document_.reset();  // tells the engine what the recompute has cost
    const Note look{NoteKind::look,
                    go.task,
                    go.round,
                    {static_cast<std::uint32_t>(work->version), go.words[1]}};
    if (auto told = role_.tell(options_.verifier, look, task_); !told.ok()) return told;
    return role_.tell(coordinator_, answers, task_);
  }

  static constexpr std::size_t kGoWords =
      2;  // version, medium; then name and thing of each question
  Role& role_;
  const AgentOptions& options_;
  Reader reader_;
  std::optional<Delivery> document_;
  std::optional<Note> go_;
  std::string coordinator_;
  Task task_;
  std::uint32_t current_ = 0;
};

}  // namespace

int run_executor(const AgentOptions& options) {
  auto role = Role::attach(options);
  if (!role.ok()) return fail(options, "attach", role.error());
  Executor executor(*role, options);
  return serve(options, *role,
               [&](Delivery delivery) { return executor.handle(std::move(delivery)); });
}

}  // namespace kvrail::demo
