// Coordinator: reads a document, hands it to the executors and the clerk, tells them what to do,
// lets it grow, and collects the verdicts. It takes its tasks line by line from the demo:
//   task NUMBER SEED MEDIUM        answered by   done NUMBER TASK_ID LATENCY_NS RIGHT ASKED
//                                  or by         failed NUMBER TASK_ID what happened
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

#include "perf/demo/role.h"
#include "perf/demo/task_plan.h"

namespace kvrail::demo {
namespace {

constexpr TimeNs kTaskLimitNs = 30 * kSecondNs;
constexpr std::uint32_t kClerkAskedEvery =
    8;  // tasks; its reading takes long and is not waited for

struct Order {
  std::uint32_t number = 0;
  std::uint64_t seed = 0;
  Medium medium = Medium::automatic;
};

class TaskRun {
 public:
  TaskRun(Role& role, const AgentOptions& options, Reader& reader, const Order& order)
      : role_(role),
        options_(options),
        reader_(reader),
        order_(order),
        plan_(make_plan(role.world(), order.seed)) {}

  Result<void> run() {
    if (auto ready = prepare(); !ready.ok()) return ready;
    const SteadyClock clock;
    const TimeNs begin_ns = clock.now_ns();
    deadline_ns_ = begin_ns + kTaskLimitNs;
    auto task = role_.agent().begin_task({"demo-" + std::string(medium_name(order_.medium))});
    if (!task.ok()) return std::move(task).error();
    task_ = *task;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      if (auto done = run_round(round); !done.ok()) return done;
    }
    latency_ns_ = clock.now_ns() - begin_ns;
    return finish();
  }

  [[nodiscard]] TaskId task() const noexcept { return task_.id; }
  [[nodiscard]] TimeNs latency_ns() const noexcept { return latency_ns_; }
  [[nodiscard]] std::uint32_t right() const noexcept { return right_; }
  [[nodiscard]] std::uint32_t asked() const noexcept { return asked_; }

 private:
  [[nodiscard]] std::span<const model::Fact> facts(std::uint32_t round) const {
    return std::span(plan_.facts).first(kFactsAtRound[round]);
  }

  // The first part of the document was read before the task begins.
  Result<void> prepare() {
    reader_.forget();
    if (auto done = reader_.read_ahead(role_.world().document(facts(0))); !done.ok()) return done;
    const Layout& layout = role_.agent().layout();
    const std::uint32_t most = 1 + model::kFactTokens * kFactsAtRound.back();
    auto blocks =
        role_.agent().allocate(layout, (most + layout.block_tokens - 1) / layout.block_tokens);
    if (!blocks.ok()) return std::move(blocks).error();
    blocks_ = std::move(blocks).value();
    return write_rows(reader_.session(), layout, 0, blocks_);
  }

  Result<void> grow(std::uint32_t round) {
    const std::uint32_t before = reader_.length();
    const auto more = facts(round).subspan(kFactsAtRound[round - 1]);
    if (auto done = reader_.read(role_.world().continuation(more)); !done.ok()) return done;
    return write_rows(reader_.session(), role_.agent().layout(), before, blocks_);
  }

  Result<void> run_round(std::uint32_t round) {
    const bool grown = round == 0 || kFactsAtRound[round] > kFactsAtRound[round - 1];
    if (round > 0 && grown) {
      if (auto done = grow(round); !done.ok()) return done;
    }
    if (grown) {
      auto committed =
          role_.agent().commit(document_name(order_.number), reader_.tokens(), blocks_);
      if (!committed.ok()) return std::move(committed).error();
      document_ = *committed;
    }
    if (auto done = hand_over(round, grown); !done.ok()) return done;
    return collect([&] { return verdicts_ == (round + 1) * options_.executors.size(); });
  }

  // Bulk first, then the critical notes, which overtake it.
  Result<void> hand_over(std::uint32_t round, bool grown) {
    SendOptions options;
    options.task = task_;
    options.medium = order_.medium;
    const std::vector<std::string_view> receivers(options_.executors.begin(),
                                                  options_.executors.end());
    if (auto sent = send(receivers, options); !sent.ok()) return sent;
    for (std::uint32_t i = 0; i < receivers.size(); ++i) {
      const Note go = go_note(round, i);
      if (auto told = role_.tell(receivers[i], go, task_); !told.ok()) return told;
    }
    if (options_.clerk.empty() || !grown) return {};
    // Another layout leaves tokens, whatever the policy; the engine finds that out by itself.
    options.medium = Medium::automatic;
    options.background = true;
    const std::array<std::string_view, 1> clerk{options_.clerk};
    if (auto sent = send(clerk, options); !sent.ok()) return sent;
    Note go{NoteKind::go, order_.number, round, {static_cast<std::uint32_t>(document_.version)}};
    if (round == 0 && order_.number % kClerkAskedEvery == 0) {
      go.words.insert(go.words.end(), {plan_.facts.front().name, plan_.facts.front().thing});
    }
    ++clerk_due_;
    return role_.tell(options_.clerk, go, task_, false);
  }

  Result<void> send(std::span<const std::string_view> receivers, const SendOptions& options) {
    auto ticket = role_.agent().send(document_, receivers, options);
    if (!ticket.ok()) return std::move(ticket).error();
    tickets_.push_back(*ticket);
    return {};
  }

  [[nodiscard]] Note go_note(std::uint32_t round, std::uint32_t executor) const {
    Note go{
        NoteKind::go,
        order_.number,
        round,
        {static_cast<std::uint32_t>(document_.version), static_cast<std::uint32_t>(order_.medium)}};
    const auto executors = static_cast<std::uint32_t>(options_.executors.size());
    for (std::uint32_t i = 0; i < kQuestionsPerRound; ++i) {
      const model::Fact& fact = plan_.question(round, executor, i, executors, kQuestionsPerRound);
      go.words.insert(go.words.end(), {fact.name, fact.thing});
    }
    return go;
  }

  // Takes notes in until `done` holds.
  template <class Done>
  Result<void> collect(Done done) {
    while (!done()) {
      const TimeNs left_ns = deadline_ns_ - SteadyClock().now_ns();
      if (left_ns <= 0 || asked_to_end()) return Error{{Code::timed_out}, "answers are missing"};
      auto delivery = role_.agent().receive(std::min<Nanoseconds>(kLook, Nanoseconds(left_ns)));
      if (!delivery.ok()) {
        if (delivery.status().code == Code::timed_out) continue;
        return std::move(delivery).error();
      }
      if (const auto note = decode_note(delivery->tokens()); note && note->task == order_.number)
        take(*note);
    }
    return {};
  }

  void take(const Note& note) {
    if (note.kind == NoteKind::verdict && note.words.size() == 3) {
      ++verdicts_;
      verified_ += note.words[0];
      right_ += note.words[0] + note.words[2];  // the last: the question that the verifier asked
      asked_ += note.words[1] + 1;
    } else if (note.kind == NoteKind::answers) {
      ++answers_;
      for (std::size_t i = 0; i + 3 < note.words.size(); i += 4)
        own_count_ += is_right(&note.words[i]) ? 1U : 0U;
    } else if (note.kind == NoteKind::kept && !note.words.empty()) {
      ++clerk_done_;
      if (note.words.size() != 3) return;
      ++asked_;
      right_ += model::Answer{note.words[1], note.words[2]}.right(plan_.facts.front()) ? 1U : 0U;
    }
  }

  [[nodiscard]] bool is_right(const std::uint32_t* words) const {
    return std::any_of(plan_.facts.begin(), plan_.facts.end(), [words](const model::Fact& fact) {
      return fact == model::Fact{words[0], words[1], words[2], words[3]};
    });
  }

  // After the clock has stopped: what nobody waits for in the task must still have ended well.
  Result<void> finish() {
    const std::size_t answers = kRounds * options_.executors.size();
    auto all = collect([&] { return clerk_done_ == clerk_due_ && answers_ == answers; });
    if (!all.ok()) return all;
    if (verified_ != own_count_)
      return Error{{Code::corrupt}, "verifiers count other right answers than the coordinator"};
    for (const Ticket ticket : tickets_) {
      auto outcomes = role_.agent().wait(ticket, std::chrono::seconds(10));
      if (!outcomes.ok()) return std::move(outcomes).error();
      for (const Outcome& outcome : *outcomes) {
        if (!outcome.status.ok())
          return Error{outcome.status, "a hand-over of the document failed"};
      }
    }
    static_cast<void>(role_.agent().drop_context(document_name(order_.number)));
    role_.drop_notes();
    return role_.agent().end_task(task_);
  }

  Role& role_;
  const AgentOptions& options_;
  Reader& reader_;
  const Order order_;
  const TaskPlan plan_;
  Blocks blocks_;
  Context document_;
  Task task_;
  std::vector<Ticket> tickets_;
  TimeNs deadline_ns_ = 0;
  TimeNs latency_ns_ = 0;
  std::size_t verdicts_ = 0, answers_ = 0;
  std::uint32_t clerk_due_ = 0, clerk_done_ = 0;
  std::uint32_t right_ = 0, asked_ = 0;
  std::uint32_t verified_ = 0;   // right answers of executors, by the verifiers
  std::uint32_t own_count_ = 0;  // the same, by the notes of the executors
};

std::optional<Order> parse_order(const std::string& line) {
  Order order;
  unsigned medium = 0;
  if (std::sscanf(line.c_str(), "task %" SCNu32 " %" SCNu64 " %u", &order.number, &order.seed,
                  &medium) != 3 ||
      medium >= kMediumCount) {
    return std::nullopt;
  }
  order.medium = static_cast<Medium>(medium);
  return order;
}

}  // namespace

int run_coordinator(const AgentOptions& options) {
  auto role = Role::attach(options);
  if (!role.ok()) return fail(options, "attach", role.error());
  Reader reader(role->model(), kContextTokens, role->pace());
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; !asked_to_end() && std::getline(std::cin, line);) {
    const auto order = parse_order(line);
    if (!order) return fail(options, "order", Error{{Code::invalid_argument}, line});
    TaskRun run(*role, options, reader, *order);
    if (auto done = run.run(); done.ok()) {
      std::printf("done %" PRIu32 " %" PRIu64 " %" PRId64 " %" PRIu32 " %" PRIu32 "\n",
                  order->number, run.task(), run.latency_ns(), run.right(), run.asked());
    } else {
      const Error& error = done.error();
      std::printf("failed %" PRIu32 " %" PRIu64 " %s (%s)\n", order->number, run.task(),
                  error.message.c_str(), name(error.status.code));
    }
    std::fflush(stdout);
  }
  static_cast<void>(role->agent().detach());
  return 0;
}

}  // namespace kvrail::demo
