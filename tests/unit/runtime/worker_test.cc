#include "engine/runtime/worker.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

namespace kvrail::engine {
namespace {

// Counts what another thread puts in, and sleeps by an eventfd, as real pollables do.
class Counter final : public Pollable {
 public:
  Counter() : fd_{::eventfd(0, EFD_NONBLOCK)} {}
  ~Counter() override { ::close(fd_[0]); }
  void put() {
    pending_.fetch_add(1);
    const std::uint64_t one = 1;
    CHECK(::write(fd_[0], &one, sizeof(one)) == sizeof(one));
  }
  std::size_t cycle(TimeNs) noexcept override {
    const std::uint64_t taken = pending_.exchange(0);
    seen_.fetch_add(taken);
    seen_.notify_all();
    return taken;
  }
  bool arm() noexcept override {
    std::uint64_t value = 0;
    [[maybe_unused]] const ssize_t got = ::read(fd_[0], &value, sizeof(value));
    return pending_.load() == 0;
  }
  std::span<const int> wait_fds() const noexcept override { return fd_; }
  TimeNs next_deadline_ns() const noexcept override { return kNever; }
  void wait_for(std::uint64_t count) {
    for (std::uint64_t now = seen_.load(); now < count; now = seen_.load()) seen_.wait(now);
  }

 private:
  std::array<int, 1> fd_;
  std::atomic<std::uint64_t> pending_{0};
  std::atomic<std::uint64_t> seen_{0};
};

TEST_CASE("worker / every idle policy sees all work and every call") {
  for (const IdlePolicy policy : {IdlePolicy::adaptive, IdlePolicy::yield, IdlePolicy::spin}) {
    const SteadyClock clock;
    Counter counter;
    Worker worker({.name = "test", .idle = policy, .spin_ns = 0, .most_spin_ns = 50'000, .core = -1}, clock);
    worker.add(counter);
    REQUIRE(worker.start().ok());
    std::uint64_t calls = 0;
    // Spinning for long on a machine with few cores starves the others.
    const std::uint64_t rounds = policy == IdlePolicy::spin ? 20 : 2000;
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      counter.put();
      if (i % 3 == 0) worker.call([&calls] { ++calls; });
      if (i % 7 == 0) counter.wait_for(i);  // the worker may park in between: a lost wake-up hangs here
    }
    counter.wait_for(rounds);
    CHECK(calls == rounds / 3);
    const TimeNs limit_ns = clock.now_ns() + 10 * kSecondNs;
    while (policy == IdlePolicy::adaptive && worker.stats().parks == 0 && clock.now_ns() < limit_ns) std::this_thread::yield();
    worker.stop();
    worker.stop();
    CHECK(worker.stats().cycles > 0);
    if (policy == IdlePolicy::adaptive) CHECK(worker.stats().parks > 0);
  }
}

TEST_CASE("spin budget / polls while news come soon, and stops when they do not") {
  SpinBudget budget(0, 50'000);
  CHECK(budget.ns() == 0);
  budget.learn(12'000);                 // slept, but not for long
  CHECK(budget.ns() == 24'000);
  budget.learn(3'000);                  // one short wait does not make the next one short
  CHECK(budget.ns() == 24'000);
  budget.learn(40'000);
  CHECK(budget.ns() == 50'000);
  budget.learn(50'001);
  CHECK(budget.ns() == 0);
  SpinBudget own_core(20'000, 50'000);
  own_core.learn(kSecondNs);
  CHECK(own_core.ns() == 20'000);
  SpinBudget fixed(7, 7);
  fixed.learn(5);
  CHECK(fixed.ns() == 7);
}

TEST_CASE("worker / created and destroyed without use, and started without work") {
  const SteadyClock clock;
  { const Worker unused({}, clock); }
  Worker started({}, clock);
  REQUIRE(started.start().ok());
}

TEST_CASE("worker / a core that is not there is refused with the key's name") {
  const SteadyClock clock;
  Worker worker({.core = 1000}, clock);
  const auto started = worker.start();
  REQUIRE_FALSE(started.ok());
  CHECK(started.error().message.find("runtime.core") != std::string::npos);
}

TEST_CASE("worker / inline mode: the caller's thread is the worker") {
  VirtualClock clock(5);
  Counter counter;
  Worker worker({}, clock);
  worker.add(counter);
  CHECK(worker.run_once() == 0);
  counter.put();
  counter.put();
  CHECK(worker.run_once() == 2);
  CHECK(worker.stalled_for_ns(105) == 100);
}

}  // namespace
}  // namespace kvrail::engine
