#include "engine/runtime/worker.h"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kvrail/base/assert.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {
namespace {

// A deadline-free park still ends now and then, so that a lost wake-up (a bug) costs latency, not life.
constexpr TimeNs kLongestParkNs = 10 * kSecondNs;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

Result<void> pin(pthread_t thread, int core, const std::string& key) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  const int error = ::pthread_setaffinity_np(thread, sizeof(cores), &cores);
  if (error == 0) return {};
  return Error{{Code::limit, Scope::engine, error},
               key + ": cannot pin to core " + std::to_string(core) + ": " + std::strerror(error) +
                   "; choose one that this process may use (taskset -p), or leave the key out"};
}

}  // namespace

Worker::Worker(const WorkerOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      spin_(options.spin_ns, std::max(options.spin_ns, options.most_spin_ns)),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  KVRAIL_ASSERT_MSG(wake_fd_ >= 0, "eventfd failed: out of file descriptors");
}

Worker::~Worker() {
  stop();
  ::close(wake_fd_);
}

void Worker::add(Pollable& pollable) {
  KVRAIL_ASSERT(!thread_.joinable() && pollable_count_ < kMaxPollables);
  pollables_[pollable_count_++] = &pollable;
}

Result<void> Worker::start() {
  KVRAIL_ASSERT(!thread_.joinable());
  stopping_.store(false, std::memory_order_relaxed);  // the thread's start publishes it
  thread_ = std::thread([this] { loop(); });
  ::pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
  if (options_.core < 0) return {};
  auto pinned = pin(thread_.native_handle(), options_.core, options_.core_key);
  if (!pinned.ok()) stop();
  return pinned;
}

Result<void> probe_core(int core, const std::string& key) {
  Result<void> pinned;
  std::thread thread([&] { pinned = pin(::pthread_self(), core, key); });
  thread.join();
  return pinned;
}

void Worker::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_relaxed);  // wake() orders it, as it does a push
  wake();
  thread_.join();
}

// ---- the duty cycle ------------------------------------------------------------------------------

std::size_t Worker::run_once() noexcept { return cycle(clock_.now_ns()); }

std::size_t Worker::cycle(TimeNs now_ns) noexcept {
  heartbeat_.store(now_ns, std::memory_order_relaxed);
  std::size_t work = 0;
  {
    const NoAllocScope no_alloc;
    for (std::size_t i = 0; i < pollable_count_; ++i) work += pollables_[i]->cycle(now_ns);
  }
  // Written here only, so no read-modify-write is needed.
  cycles_.store(cycles_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return work;
}

void Worker::loop() {
  TimeNs idle_since_ns = clock_.now_ns();
  TimeNs last_ns = idle_since_ns;
  bool worked = false;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const TimeNs now_ns = clock_.now_ns();
    if (worked) {
      note_cycle(now_ns - last_ns);
      idle_since_ns = now_ns;
    }
    last_ns = now_ns;
    worked = cycle(now_ns) + run_calls() != 0;
    if (!worked) {
      idle(now_ns, idle_since_ns);
    } else if (now_ns > idle_since_ns) {
      spin_.learn(now_ns - idle_since_ns);
    }
  }
  run_calls();  // a caller that came last still gets its answer
}

void Worker::note_cycle(TimeNs took_ns) noexcept {
  if (took_ns > longest_cycle_ns_.load(std::memory_order_relaxed)) {
    longest_cycle_ns_.store(took_ns, std::memory_order_relaxed);
  }
}

std::size_t Worker::run_calls() {
  std::size_t count = 0;
  Call* call = nullptr;
  while (calls_.pop(call)) {
    call->run(call->context);
    call->done.store(true, std::memory_order_release);  // D1 -> D2
    call->done.notify_one();
    ++count;
  }
  return count;
}

void Worker::idle(TimeNs now_ns, TimeNs idle_since_ns) {
  switch (options_.idle) {
    case IdlePolicy::spin:
      relax();
      return;
    case IdlePolicy::yield:
      ::sched_yield();
      return;
    case IdlePolicy::adaptive:
      if (now_ns - idle_since_ns >= spin_.ns()) {
        park(now_ns);
      } else if (options_.core >= 0) {
        relax();
      } else {
        ::sched_yield();  // whoever the news is to come from may need this very core
      }
      return;
  }
}

// ---- parking -------------------------------------------------------------------------------------

void Worker::park(TimeNs now_ns) {
  parked_.exchange(1, std::memory_order_acq_rel);  // W1, before the last look below
  if (calls_.read_available() == 0 && !stopping_.load(std::memory_order_relaxed) && arm_all()) {
    TimeNs until_ns = add_saturating(now_ns, kLongestParkNs);
    for (std::size_t i = 0; i < pollable_count_; ++i) {
      until_ns = std::min(until_ns, pollables_[i]->next_deadline_ns());
    }
    const TimeNs wait_ns = std::max<TimeNs>(until_ns - now_ns, 0);
    const timespec timeout{.tv_sec = wait_ns / kSecondNs, .tv_nsec = wait_ns % kSecondNs};
    const std::size_t count = gather_fds();
    parks_.fetch_add(1, std::memory_order_relaxed);
    if (wait_ns > 0 && ::ppoll(fds_.data(), count, &timeout, nullptr) > 0 && fds_[0].revents != 0) {
      std::uint64_t value = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_fd_, &value, sizeof(value));
    }
  }
  parked_.store(0, std::memory_order_relaxed);  // a signal that comes now is only a wake-up too many
}

bool Worker::arm_all() noexcept {
  bool quiet = true;
  for (std::size_t i = 0; i < pollable_count_; ++i) quiet &= pollables_[i]->arm();
  return quiet;
}

std::size_t Worker::gather_fds() noexcept {
  std::size_t count = 0;
  fds_[count++] = {.fd = wake_fd_, .events = POLLIN, .revents = 0};
  for (std::size_t i = 0; i < pollable_count_; ++i) {
    for (const int fd : pollables_[i]->wait_fds()) {
      KVRAIL_ASSERT(count < kMaxWaitFds);
      fds_[count++] = {.fd = fd, .events = POLLIN, .revents = 0};
    }
  }
  return count;
}

// ---- from other threads --------------------------------------------------------------------------

void Worker::submit(Call& call) {
  KVRAIL_ASSERT_MSG(thread_.joinable(), "call() needs a running worker; in inline mode call directly");
  KVRAIL_ASSERT(std::this_thread::get_id() != thread_.get_id());
  const bool pushed = calls_.push(&call);  // C1
  KVRAIL_ASSERT_MSG(pushed, "one caller waits for each call, so the queue cannot be full");
  wake();
  call.done.wait(false, std::memory_order_acquire);  // D2 <- D1
}

void Worker::wake() noexcept {
  if (parked_.fetch_add(0, std::memory_order_acq_rel) == 0) return;  // C2, after the push
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof(one));
}

TimeNs Worker::stalled_for_ns(TimeNs now_ns) const noexcept {
  if (parked_.load(std::memory_order_relaxed) != 0) return 0;
  const TimeNs last_ns = heartbeat_.load(std::memory_order_relaxed);
  return last_ns == 0 || last_ns > now_ns ? 0 : now_ns - last_ns;
}

WorkerStats Worker::stats() const noexcept {
  return {cycles_.load(std::memory_order_relaxed), parks_.load(std::memory_order_relaxed),
          longest_cycle_ns_.load(std::memory_order_relaxed)};
}

}  // namespace kvrail::engine
