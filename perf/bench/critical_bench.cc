// A critical message of 4 KiB while at least 64 MiB of bulk wait for the same lane, on a link shaped to
// 1 Gbit/s: two kvraild in two network namespaces, four agents in processes of their own. p99 from send()
// until the receiver has the delivery, and the rate of bulk meanwhile; against one FIFO connection.
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"
#include "perf/bench/fifo_link.h"

namespace kvrail::bench {
namespace {

constexpr std::int64_t kRunNs = 2'500'000'000;
constexpr std::int64_t kWarmUpNs = 1'000'000'000;
constexpr std::uint32_t kBulkBlocks = 1024;         // of 64 KiB: 64 MiB
constexpr std::size_t kBulkQueued = 2;              // contexts: one that moves, one that waits
constexpr std::size_t kMostNotes = 8192;
constexpr double kMostMs = 1.2, kMostPacedMs = 0.4;
constexpr double kLeastMbit = 940;

struct Board {
  std::atomic<bool> bulk_on{false};
  std::atomic<std::uint64_t> bulk_sent{0};          // contexts that have arrived
  std::atomic<std::uint32_t> notes{0};              // messages that have arrived
  std::array<std::atomic<std::int64_t>, kMostNotes> arrived_ns{};
};

SendOptions full_only() {
  SendOptions options;
  options.medium = Medium::full;
  return options;
}

// The bulk's agents fill and check 64 MiB at a time, which on a machine of two cores would keep messages
// waiting for a core, and that is not what is measured here.
void let_others_first() {
  if (::setpriority(PRIO_PROCESS, 0, 8) != 0) throw Failure("a lower priority is refused");
}

// Keeps two contexts of 64 MiB on their way as long as the board says so.
void send_bulk(const std::string& socket, Board& board) {
  let_others_first();
  Agent agent = attach(socket, agent_options("bulk-tx", large_layout(), 512ULL << 20));
  struct OnItsWay {
    NewContext made;
    Ticket ticket;
  };
  std::deque<OnItsWay> queue;
  for (std::uint64_t seed = 1;;) {
    if (board.bulk_on && queue.size() < kBulkQueued) {
      NewContext made = commit_new(agent, "bulk-" + std::to_string(seed % (kBulkQueued + 1)), kBulkBlocks, seed, true);
      const Ticket ticket = must(agent.send(made.context, {"bulk-rx"}, full_only()), "cannot send bulk");
      queue.push_back({std::move(made), ticket});
      ++seed;
    } else if (!queue.empty()) {
      const auto outcomes = must(agent.wait(queue.front().ticket, kPatience), "bulk does not end");
      if (!outcomes[0].status.ok()) throw Failure(std::string("bulk: ") + name(outcomes[0].status.code));
      must(agent.drop_context(queue.front().made.context.name.view()), "cannot drop bulk");
      queue.pop_front();
      ++board.bulk_sent;
    } else {
      ::usleep(1000);
    }
  }
}

void receive_bulk(const std::string& socket) {
  let_others_first();
  Agent agent = attach(socket, agent_options("bulk-rx", large_layout(), 1 << 20));
  for (;;) {
    const Delivery delivery = must(agent.receive(10 * kPatience), "no bulk");
    verify(delivery, kBulkBlocks, seed_of(delivery));
  }
}

void receive_notes(const std::string& socket, Board& board) {
  Agent agent = attach(socket, agent_options("note-rx", small_layout(), 1 << 20));
  for (;;) {
    const Delivery delivery = must(agent.receive(10 * kPatience), "no message");
    const std::int64_t at = now_ns();
    board.arrived_ns[seed_of(delivery) % kMostNotes].store(at, std::memory_order_relaxed);
    board.notes.fetch_add(1, std::memory_order_release);
  }
}

// Two nodes on the link, with or without pacing of bulk.
class Stage {
 public:
  Stage(const ShapedLink& link, const std::string& name, std::uint16_t port, const std::string& pacing)
      : there_(folder_, name + "-b", config(port, pacing, false), link.name(1)),
        here_(folder_, name + "-a", config(port, pacing, true), link.name(0)),
        bulk_receiver_([this] { receive_bulk(there_.socket()); }),
        note_receiver_([this] { receive_notes(there_.socket(), *board_); }),
        bulk_sender_([this] { send_bulk(here_.socket(), *board_); }) {
    here_.await(1, 3);
    sender_ = std::make_unique<Agent>(attach(here_.socket(), agent_options("note-tx", small_layout(), 16 << 20)));
    here_.await(1, 4);
  }

  UnderLoad run() {
    const std::uint64_t sent = board_->bulk_sent;
    board_->bulk_on = true;
    ::usleep(kWarmUpNs / 1000);
    wait_for("bulk to move", 30'000'000'000, [&] { return alive() && board_->bulk_sent > sent; });
    const auto [bytes, at] = received();
    Samples took;
    const std::int64_t end = now_ns() + kRunNs;
    for (std::uint64_t i = 0; now_ns() < end; ++i) {
      ::usleep(static_cast<useconds_t>(note_pause_ns(i) / 1000));
      took.values.push_back(note_ms());
    }
    const auto [more, then] = received();
    board_->bulk_on = false;
    UnderLoad out;
    out.p50_ms = took.median();
    out.p95_ms = took.quantile(0.95);
    out.p99_ms = took.quantile(0.99);
    out.bulk_bytes_per_s = static_cast<double>(more - bytes) * 1e9 / static_cast<double>(then - at);
    return out;
  }

 private:
  static std::string config(std::uint16_t port, const std::string& pacing, bool dials) {
    const std::string address = std::string(ShapedLink::address(1)) + ":" + std::to_string(port);
    std::string text = "[memory]\nreceive_arena = \"1 GiB\"\n[tcp]\ncongestion = \"cubic\"\ninsecure = true\n";
    if (!pacing.empty()) text += "pacing = \"" + pacing + "\"\n";
    return text + (dials ? "[[peer]]\naddress = \"" + address + "\"\n" : "listen = \"" + address + "\"\n");
  }

  // One message of new content; its time from send() to the receiver's hands.
  double note_ms() {
    const std::uint64_t seed = ++notes_;
    const std::uint32_t before = board_->notes.load(std::memory_order_acquire);
    const NewContext made = commit_new(*sender_, "note", 1, seed, true);
    SendOptions options = full_only();
    options.critical = true;
    const std::int64_t start = now_ns();
    sender_->forget(must(sender_->send(made.context, {"note-rx"}, options), "cannot send a message"));
    wait_for("a critical message", 20'000'000'000,
             [&] { return alive() && board_->notes.load(std::memory_order_acquire) != before; });
    return static_cast<double>(board_->arrived_ns[seed % kMostNotes].load(std::memory_order_relaxed) - start) / 1e6;
  }
  // Payload bytes that node b has received, and when its page said so.
  std::pair<std::uint64_t, std::int64_t> received() {
    const engine::StatusData& now = there_.status();
    return {now.counters.payload_bytes_in, now.refreshed_ns};
  }
  bool alive() {
    if (!bulk_sender_.running() || !bulk_receiver_.running() || !note_receiver_.running()) {
      throw Failure("an agent ended");
    }
    return true;
  }

  Folder folder_;
  Shared<Board> board_;
  Daemon there_, here_;
  Child bulk_receiver_, note_receiver_, bulk_sender_;
  std::unique_ptr<Agent> sender_;
  std::uint64_t notes_ = 0;
};

void compare_stage(Report& report, const ShapedLink& link, Stage& stage, const std::string& name, double most_ms,
                   std::optional<double> least_mbit) {
  Samples rates, medians, p95s, base_rates;
  const auto ours = [&] {
    const UnderLoad out = stage.run();
    rates.values.push_back(out.bulk_bytes_per_s * 8 / 1e6);
    medians.values.push_back(out.p50_ms);
    p95s.values.push_back(out.p95_ms);
    return out.p99_ms;
  };
  const auto base = [&] {
    const UnderLoad out = run_fifo(link, 256 << 10, kRunNs);
    base_rates.values.push_back(out.bulk_bytes_per_s * 8 / 1e6);
    return out.p99_ms;
  };
  report.compare("critical 4 KiB, p99, " + name, "ms", Better::lower, "FIFO, 256 KiB units", std::nullopt, ours, base);
  report.at_most(most_ms);
  char text[64];
  std::snprintf(text, sizeof(text), "p50 %.2f, p95 %.2f ms", medians.median(), p95s.median());
  report.note(text);
  std::size_t next = 0;
  report.measure("bulk meanwhile, " + name, "Mbit/s", std::nullopt, [&] { return rates.values[next++]; },
                 static_cast<int>(rates.values.size()));
  if (least_mbit) report.at_least(*least_mbit);
  std::snprintf(text, sizeof(text), "FIFO's %.0f", base_rates.median());
  report.note(text);
}

}  // namespace

void run_critical(Report& report) {
  const ShapedLink link("1gbit");
  if (!link.missing().empty()) return report.skip("critical", link.missing());
  report.measure("FIFO, 16 MiB units: p99", "ms", std::nullopt,
                 [&] { return run_fifo(link, 16 << 20, kRunNs).p99_ms; }, 3);
  {
    Stage stage(link, "plain", 7401, "");
    compare_stage(report, link, stage, "no pacing", kMostMs, kLeastMbit);
  }
  Stage stage(link, "paced", 7402, "110 MB/s");
  compare_stage(report, link, stage, "paced 110 MB/s", kMostPacedMs, std::nullopt);
}

}  // namespace kvrail::bench
