// A small message between two agents of an embedded engine: send() of a committed context of one block
// until the receiver has it, and its release. With a worker, a message crosses to the other core and back,
// as one round trip over a pair of rings does; inline, it crosses once, from one agent's core to the other's.
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "engine/core/node.h"
#include "engine/ipc/embedded_port.h"
#include "engine/ipc/node_host.h"
#include "engine/ipc/sessions.h"
#include "engine/runtime/worker.h"
#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"

namespace kvrail::bench {
namespace {

using engine::ipc::EmbeddedPort;

constexpr int kMessages = 20'000;
constexpr std::uint64_t kArena = 1 << 20;
constexpr double kMostRounds = 3.0;  // of the ring

// A node without lanes, with what agents need to attach. Driven by a worker or by whoever has it.
class Engine {
 public:
  explicit Engine(SteadyClock& clock) {
    engine::NodeOptions options;
    options.node_id = 1;
    options.incarnation = 1;
    options.store.receive_arena_bytes = 16 << 20;
    options.store.agent_arena_bytes = kArena;
    options.store.table_bytes = 32 << 20;
    options.store.max_blocks = 1 << 12;
    node_ = must(engine::Node::create(options, clock), "no node");
    host_ = std::make_unique<engine::ipc::NodeHost>(*node_);
    sessions_ = must(engine::ipc::Sessions::create({.max_agents = 16}, *host_), "no sessions");
    node_->set_sink(*sessions_);
  }
  [[nodiscard]] engine::ipc::Sessions& sessions() { return *sessions_; }
  void cycle(TimeNs now) {
    static_cast<void>(sessions_->cycle(now));
    static_cast<void>(node_->cycle(now));
  }

  // The node as a worker polls it.
  class Poll final : public engine::Pollable {
   public:
    explicit Poll(Engine& engine) : node_(*engine.node_) {}
    std::size_t cycle(TimeNs now_ns) noexcept override { return node_.cycle(now_ns); }
    bool arm() noexcept override { return node_.arm(); }
    std::span<const int> wait_fds() const noexcept override { return node_.wait_fds(); }
    TimeNs next_deadline_ns() const noexcept override { return node_.next_deadline_ns(); }

   private:
    engine::Node& node_;
  };

 private:
  std::unique_ptr<engine::Node> node_;
  std::unique_ptr<engine::ipc::NodeHost> host_;
  std::unique_ptr<engine::ipc::Sessions> sessions_;
};

AttachOptions busy_options(const std::string& name) {
  AttachOptions options = agent_options(name, small_layout(), kArena);
  options.spin = std::chrono::seconds(10);  // a core of its own: looks until something comes
  return options;
}

// One message, sent and taken by one thread.
void pass(Agent& from, const Context& context, Agent& to, std::string_view name) {
  const Ticket ticket = must(from.send(context, {name}), "cannot send");
  const Delivery delivery = must(to.receive(kPatience), "no delivery");
  from.forget(ticket);
}

// Both agents on the first core, the engine's worker on the second: agent, engine, agent.
class WithWorker {
 public:
  WithWorker() : engine_(clock_), poll_(engine_) {
    engine::WorkerOptions options;
    options.idle = engine::IdlePolicy::spin;
    options.core = core_number(1);
    worker_ = std::make_unique<engine::Worker>(options, clock_);
    worker_->add(engine_.sessions());
    worker_->add(poll_);
    must(worker_->start(), "no worker");
  }
  ~WithWorker() { worker_->stop(); }
  WithWorker(const WithWorker&) = delete;
  WithWorker& operator=(const WithWorker&) = delete;

  double message_ns() {
    double took = 0;
    std::string failure;
    std::thread thread([&] {
      pin_to_core(0);
      try {
        EmbeddedPort port = must(EmbeddedPort::create(engine_.sessions()), "no port");
        Agent a = must(port.attach(busy_options("a")), "cannot attach");
        Agent b = must(port.attach(busy_options("b")), "cannot attach");
        const NewContext made = commit_new(a, "note", 1, 7, true);
        for (int i = 0; i < kMessages / 10; ++i) pass(a, made.context, b, "b");
        const std::int64_t start = now_ns();
        for (int i = 0; i < kMessages; ++i) pass(a, made.context, b, "b");
        took = static_cast<double>(now_ns() - start);
      } catch (const Failure& f) {
        failure = f.what();
      }
    });
    thread.join();
    if (!failure.empty()) throw Failure(failure);
    return took / kMessages;
  }

 private:
  SteadyClock clock_;
  Engine engine_;
  Engine::Poll poll_;
  std::unique_ptr<engine::Worker> worker_;
};

// One agent drives the engine on the first core, the other one lives on the second: there and back.
double inline_round_trip_ns() {
  SteadyClock clock;
  Engine engine(clock);
  std::atomic<bool> ready{false};
  std::atomic<bool> over{false};
  std::string failure;
  double took = 0;
  std::thread other([&] {
    pin_to_core(1);
    try {
      EmbeddedPort port = must(EmbeddedPort::create(engine.sessions()), "no port");
      Agent b = must(port.attach(busy_options("b")), "cannot attach");
      const NewContext made = commit_new(b, "answer", 1, 8, true);
      ready.store(true, std::memory_order_release);
      for (int i = 0; i < kMessages + kMessages / 10; ++i) {
        const Delivery delivery = must(b.receive(kPatience), "no delivery");
        b.forget(must(b.send(made.context, {"a"}), "cannot send"));
      }
      while (!over.load(std::memory_order_acquire)) {
      }
    } catch (const Failure& f) {
      failure = f.what();
      over.store(true, std::memory_order_release);
    }
  });
  std::thread driver([&] {
    pin_to_core(0);
    try {
      EmbeddedPort port = must(EmbeddedPort::create(engine.sessions(), [&] { engine.cycle(clock.now_ns()); }), "no port");
      AttachOptions options = busy_options("a");
      options.spin = Nanoseconds(0);  // its waits drive the engine
      Agent a = must(port.attach(options), "cannot attach");
      const NewContext made = commit_new(a, "note", 1, 7, true);
      while (!ready.load(std::memory_order_acquire)) engine.cycle(clock.now_ns());
      const auto round = [&] { pass(a, made.context, a, "b"); };
      for (int i = 0; i < kMessages / 10; ++i) round();
      const std::int64_t start = now_ns();
      for (int i = 0; i < kMessages; ++i) round();
      took = static_cast<double>(now_ns() - start);
    } catch (const Failure& f) {
      failure = f.what();
    }
    over.store(true, std::memory_order_release);
    // The other one's leaving needs the engine still.
    const std::int64_t until = now_ns() + 200'000'000;
    while (now_ns() < until) engine.cycle(clock.now_ns());
  });
  driver.join();
  other.join();
  if (!failure.empty()) throw Failure(failure);
  return took / kMessages;
}

}  // namespace

void run_message(Report& report) {
  if (core_count() < 2) return report.skip("message", "two cores are needed, this process may use one");
  const std::string base = "boost ring round trip, 32 B";
  // An engine of its own for each run: a spinning worker would take half of the baseline's core.
  report.compare("message, worker on the other core", "ns", Better::lower, base, 1.0 / kMostRounds,
                 [] { return WithWorker().message_ns(); }, boost_round_trip_ns);
  report.compare("message, inline engine", "ns", Better::lower, base, 1.0 / kMostRounds,
                 [] { return inline_round_trip_ns() / 2; }, boost_round_trip_ns);
  report.note("half of there and back");
}

}  // namespace kvrail::bench
