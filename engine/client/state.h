// What an Agent keeps: its session, open tickets, and what was reported but not yet asked for.
// Thread: the agent's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/client/session.h"
#include "kvrail/agent.h"

namespace kvrail::client {

using Connect = std::function<Result<std::shared_ptr<Session>>(const AttachOptions&)>;

struct TicketState {
  std::uint32_t expected = 1;
  std::vector<Outcome> outcomes;
  Status refused;        // not ok: the engine did not take the command
};

struct OpenClaim {
  std::uint64_t ticket = 0;
  std::weak_ptr<void> asker;  // the delivery; gone: nobody will take the answer
  ipc::CompletionRecord reply;
  bool answered = false;
};

struct State {
  State(AttachOptions attach_options, Connect connect_by, std::shared_ptr<Session> first)
      : options(std::move(attach_options)), connect(std::move(connect_by)), session(std::move(first)) {
    set_probe({});
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { session->leave(); }

  AttachOptions options;
  Connect connect;
  std::shared_ptr<Session> session;   // never null
  std::uint64_t last_ticket = 0;
  std::unordered_map<std::uint64_t, TicketState> tickets;
  std::deque<ipc::CompletionRecord> deliveries;
  std::deque<ipc::CompletionRecord> summaries;
  std::deque<ReservationEnd> ended_reservations;
  std::function<Summary(const SummaryRequest&)> make_summary;
  std::unordered_map<std::uint64_t, std::uint64_t> summary_replies;  // ticket -> request, until answered
  std::unordered_map<std::uint64_t, OpenClaim> claims;               // by delivery
  Probe probe;
  std::uint64_t copied_bytes = 0;
  bool in_callback = false;
  bool detaching = false;   // the engine has not let go yet
  // The one call that waits for its own completion.
  std::uint64_t call_ticket = 0;
  bool call_done = false;
  ipc::CompletionRecord call_reply;

  // Sends a command and waits for its completion; a refusal becomes the Error "`what`: code".
  [[nodiscard]] Result<ipc::CompletionRecord> call(ipc::SubmitRecord record, std::span<const Bytes> payload,
                                                   const Deadline& deadline, const char* what);
  // Sends a command whose outcomes come later.
  [[nodiscard]] Result<Ticket> post(ipc::SubmitRecord record, std::span<const Bytes> payload,
                                    std::uint32_t outcomes, const char* what);
  // Sends a command that nobody waits for.
  Status tell(const ipc::SubmitRecord& record);
  // Takes in all completions that are there. Returns how many.
  std::size_t take_all();
  // take_all() until `done` holds, which changes with completions of the `kinds` (ipc::kWakeOutcome …);
  // runs summary callbacks meanwhile.
  template <class Done>
  Status wait_until(const Deadline& deadline, std::uint32_t kinds, Done done);
  [[nodiscard]] Status submit_claim(std::uint64_t delivery, const std::shared_ptr<void>& asker, std::uint32_t most_tokens,
                                    const Deadline& deadline);
  // Answers whose delivery was given back meanwhile: a tail among them goes back to the engine.
  void drop_abandoned_claims();
  void run_summaries();
  void decline_summary(std::uint64_t request);
  [[nodiscard]] Result<Delivery> open(const ipc::CompletionRecord& record);
  [[nodiscard]] Result<Blocks> blocks_of(std::uint32_t arena, std::uint32_t count, std::uint64_t offset,
                                         const Deadline& deadline);
  [[nodiscard]] Result<Blocks> copy_pages(std::span<const std::byte> pages, const Deadline& deadline);
  [[nodiscard]] Result<Blocks> copy_fd(const ImportSource& source, const Deadline& deadline);
  [[nodiscard]] Result<Blocks> allocate(std::uint64_t count, const Deadline& deadline);
  void count_copied(std::uint64_t bytes) noexcept;
  // What the agent leaves open is as it was at attach.
  void set_probe(const Probe& news) noexcept;

  static void free_run(Session& session, std::uint32_t arena, std::uint64_t offset, std::uint32_t count) noexcept;
  // `may_wait`: the engine may have it back a little later, see Session::give_back().
  static void release(Session& session, std::uint64_t delivery, TimeNs recompute_ns, bool may_wait) noexcept;

 private:
  void on_completion(const ipc::CompletionRecord& record);
  void on_outcome(const ipc::CompletionRecord& record);
  void on_claimed(const ipc::CompletionRecord& record);
  void on_reserved(const ipc::CompletionRecord& record);
  void on_answer(const ipc::CompletionRecord& record);
  // The view that a summary request gives, and the manifest's bytes checked.
  [[nodiscard]] Status read_manifest(const ipc::CompletionRecord& record, Delivery& out);
  [[nodiscard]] Status hold_blocks(Delivery& out, const Deadline& deadline);
};

// An Error from a Status: what was tried, and the code's name.
[[nodiscard]] Error error_of(Status status, const char* what);

template <class Done>
Status State::wait_until(const Deadline& deadline, std::uint32_t kinds, Done done) {
  for (;;) {
    take_all();
    if (!in_callback) run_summaries();
    if (done()) return {};
    if (const Status waited = session->wait(deadline, kinds); !waited.ok()) {
      // What came with the last breath still counts.
      return take_all() != 0 && done() ? Status{} : waited;
    }
  }
}

}  // namespace kvrail::client
