// Verifier: fetches the context an executor has committed, checks its answers against the document
// in that context, and asks one of the questions again on top of the KV that it fetched.
#include <string>

#include "perf/demo/role.h"
#include "perf/demo/task_plan.h"

namespace kvrail::demo {
namespace {

constexpr std::chrono::seconds kFetchLimit{20};

class Verifier {
 public:
  Verifier(Role& role, const AgentOptions& options)
      : role_(role), options_(options), reader_(role.model(), kContextTokens, role.pace()) {}

  Result<void> handle(const Delivery& delivery) {
    const std::optional<Note> note = decode_note(delivery.tokens());
    if (!note || note->kind != NoteKind::look || note->words.size() != 2) {
      return Error{{Code::protocol_error}, "a delivery that no verifier understands"};
    }
    if (note->task != current_) role_.drop_notes();
    current_ = note->task;
    auto work = fetch(std::string(delivery.owner()), *note, delivery.task());
    if (!work.ok()) return std::move(work).error();
    auto verdict = judge(*work, *note);
    if (!verdict.ok()) return std::move(verdict).error();
    const Task task = delivery.task();
    return role_.tell(options_.coordinator, *verdict, task);
  }

 private:
  Result<Delivery> fetch(const std::string& owner, const Note& look, Task task) {
    FetchOptions wish;
    wish.task = task;
    wish.version = look.words[0];
    // On one node a hand-over is a reference; the policies are about what moves between nodes.
    wish.medium = options_.same_node ? Medium::automatic : static_cast<Medium>(look.words[1]);
    auto ticket = role_.agent().fetch(owner, work_name(look.task, owner), wish);
    if (!ticket.ok()) return std::move(ticket).error();
    auto outcomes = role_.agent().wait(*ticket, kFetchLimit);
    if (!outcomes.ok()) return std::move(outcomes).error();
    if (!outcomes->front().status.ok()) return Error{outcomes->front().status, "the fetch failed"};
    // Looks of another executor may be queued before it.
    for (;;) {
      auto delivery = role_.agent().receive(kFetchLimit);
      if (!delivery.ok() || !delivery->context().starts_with(kNotePrefix)) return delivery;
      if (auto done = handle(*delivery); !done.ok()) return std::move(done).error();
    }
  }

  Result<Note> judge(Delivery& work, const Note& look) {
    auto transcript = read_transcript(role_.world(), work.tokens());
    if (!transcript.ok()) return std::move(transcript).error();
    if (transcript->entries.empty())
      return Error{{Code::invalid_argument}, "a context without answers"};
    std::uint32_t right = 0;
    for (const auto& entry : transcript->entries) right += entry.right() ? 1U : 0U;
    auto taken = reader_.take(work, role_.agent());
    if (!taken.ok()) return std::move(taken).error();
    if (taken->recomputed > 0) work.set_recompute(Nanoseconds(taken->recompute_ns));
    reader_.truncate(transcript->document_tokens);
    const model::Fact& fact = transcript->entries[look.round % transcript->entries.size()].fact;
    auto again = reader_.answer(role_.world(), fact);
    if (!again.ok()) return std::move(again).error();
    const auto asked = static_cast<std::uint32_t>(transcript->entries.size());
    return Note{
        NoteKind::verdict, look.task, look.round, {right, asked, again->right(fact) ? 1U : 0U}};
  }

  Role& role_;
  const AgentOptions& options_;
  Reader reader_;
  std::uint32_t current_ = 0;
};

}  // namespace

int run_verifier(const AgentOptions& options) {
  auto role = Role::attach(options);
  if (!role.ok()) return fail(options, "attach", role.error());
  Verifier verifier(*role, options);
  return serve(options, *role, [&](Delivery delivery) { return verifier.handle(delivery); });
}

}  // namespace kvrail::demo
