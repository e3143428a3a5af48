// A Worker: one thread and all that it polls. A duty cycle is one pass of its loop (worker.cc, one
// screen): the clock is read once, everything is polled in a fixed order, each bounded.
//
// Threads    the worker's own thread runs the loop (or the caller of run_once(), in inline mode);
//            ONE other thread, the Conductor, may call() and stop(); wake() may come from any thread.
// State      calls_ : queue Conductor -> worker. parked_: set by the worker around poll(2).
//            heartbeat_: time of the last cycle, written by the worker, read by the watchdog.
// Invariant  a call pushed while the worker is parked or about to park is run: either the worker sees
//            it in its last look, or the caller sees parked_ and signals the eventfd.
// Edges      W1 parked_.exchange(1, acq_rel), then the last look  <->  C1 push, C2 parked_.fetch_add(0,
//            acq_rel). Both touch parked_ by read-modify-write, so one comes first: if C2, then W1
//            reads from it and the look sees the push; if W1, then C2 sees 1 and signals.
//            D1 Call::done store(release) -> D2 load(acquire): effects of the call are visible.
// Relaxed    heartbeat_: a watchdog a cycle late is as good.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "engine/config/config.h"
#include "engine/runtime/pollable.h"
#include "kvrail/base/result.h"
#include "kvrail/base/spin_budget.h"
#include "kvrail/base/spsc_queue.h"
#include "kvrail/base/time.h"

namespace kvrail::engine {

struct WorkerOptions {
  std::string name = "kvrail-worker";  // thread name, at most 15 bytes are shown
  IdlePolicy idle = IdlePolicy::adaptive;
  TimeNs spin_ns = 0;                  // adaptive: polls at least so long before parking,
  TimeNs most_spin_ns = 0;             // and up to this while news come that soon; not below spin_ns
  int core = -1;                       // pin there; -1: float
  std::string core_key = "runtime.core";   // what messages call the setting of `core`
};

struct WorkerStats {
  std::uint64_t cycles = 0;
  std::uint64_t parks = 0;
  TimeNs longest_cycle_ns = 0;         // of cycles that found work
};

class Worker {
 public:
  Worker(const WorkerOptions& options, const Clock& clock);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // Before start(); polled in the order of adding. The pollable outlives the worker's running.
  void add(Pollable& pollable);
  [[nodiscard]] Result<void> start();
  // Runs the rest of the current cycle, then ends the thread. Idempotent.
  void stop();

  // Inline mode: one duty cycle on the caller's thread; returns the work done.
  std::size_t run_once() noexcept;

  // Runs `function` on the worker's thread between two cycles (it may allocate) and returns when it
  // has run. Conductor only, never from the worker itself.
  template <class F>
  void call(F&& function) {
    Call request{[](void* context) { (*static_cast<std::remove_reference_t<F>*>(context))(); }, &function, {}};
    submit(request);
  }

  void wake() noexcept;
  // For the watchdog: time since the last cycle began, 0 while parked.
  [[nodiscard]] TimeNs stalled_for_ns(TimeNs now_ns) const noexcept;
  [[nodiscard]] WorkerStats stats() const noexcept;

 private:
  static constexpr std::size_t kMaxPollables = 8;
  static constexpr std::size_t kMaxWaitFds = 4096;
  static constexpr std::size_t kMaxCalls = 16;

  struct Call {
    void (*run)(void*);
    void* context;
    std::atomic<bool> done{false};
  };

  void submit(Call& call);
  std::size_t cycle(TimeNs now_ns) noexcept;
  void loop();
  void note_cycle(TimeNs took_ns) noexcept;
  std::size_t run_calls();
  void idle(TimeNs now_ns, TimeNs idle_since_ns);
  void park(TimeNs now_ns);
  [[nodiscard]] bool arm_all() noexcept;
  [[nodiscard]] std::size_t gather_fds() noexcept;

  WorkerOptions options_;
  const Clock& clock_;
  SpinBudget spin_;
  std::array<Pollable*, kMaxPollables> pollables_{};
  std::size_t pollable_count_ = 0;
  std::array<pollfd, kMaxWaitFds> fds_{};
  SpscQueue<Call*, kMaxCalls> calls_;
  int wake_fd_ = -1;
  std::atomic<int> parked_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<TimeNs> heartbeat_{0};
  std::atomic<std::uint64_t> cycles_{0};
  std::atomic<std::uint64_t> parks_{0};
  std::atomic<TimeNs> longest_cycle_ns_{0};
  std::thread thread_;
};

// Whether this process may pin a thread there, tried on one of its own; `key` is what a refusal names.
[[nodiscard]] Result<void> probe_core(int core, const std::string& key);

}  // namespace kvrail::engine
