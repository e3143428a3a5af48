#include "perf/demo/campaign.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <unordered_set>

#include "kvrail/base/bits.h"

namespace kvrail::demo {
namespace {

constexpr std::uint32_t kWarmUpTasks = 2;  // of each policy; the engine learns the link meanwhile
constexpr TimeNs kTaskLimitNs = 60 * kSecondNs;
constexpr TimeNs kEmulatedTaskLimitNs = 300 * kSecondNs;  // in a guest without KVM
constexpr int kLookMs = 40;                               // how often the status pages are read
constexpr std::size_t kMostFailures = 5;
constexpr TimeNs kTerminalNs = 500 * kMillisecondNs, kFileNs = 15 * kSecondNs;

}  // namespace

Progress::Progress(std::size_t total_tasks)
    : total_(total_tasks),
      terminal_(::isatty(STDOUT_FILENO) != 0),
      begin_ns_(SteadyClock().now_ns()) {}

void Progress::show(const std::string& rate, std::size_t done_before, std::size_t done) {
  const TimeNs now_ns = SteadyClock().now_ns();
  if (now_ns - last_ns_ < (terminal_ ? kTerminalNs : kFileNs)) return;
  last_ns_ = now_ns;
  const std::size_t all = done_before + done;
  const auto seconds = static_cast<double>(now_ns - begin_ns_) / 1e9;
  std::printf("%s[%4.0fs] %s: task %zu of %zu in all, %.0f %%%s", terminal_ ? "\r\033[K" : "",
              seconds, rate.c_str(), all, total_,
              100.0 * static_cast<double>(all) / static_cast<double>(total_),
              terminal_ ? "" : "\n");
  shown_ = terminal_;
  std::fflush(stdout);
}

void Progress::clear() {
  if (shown_) std::fputs("\r\033[K", stdout);
  shown_ = false;
  std::fflush(stdout);
}

std::size_t tasks_at_a_rate(const DemoOptions& options) {
  std::size_t sum = 0;
  for (const Policy& policy : kPolicies) {
    if (runs_policy(options, policy.name))
      sum += div_ceil(options.tasks + kWarmUpTasks, policy.every);
  }
  return sum;
}

Campaign::Campaign(const DemoOptions& options, Stage& stage, std::string rate,
                   std::uint64_t rate_bytes_per_s, Progress& progress, std::size_t done_before)
    : options_(options),
      stage_(stage),
      rate_(std::move(rate)),
      rate_bytes_per_s_(rate_bytes_per_s),
      progress_(progress),
      done_before_(done_before) {}

std::vector<Campaign::Order> Campaign::schedule() const {
  std::vector<Order> orders;
  std::uint32_t number = 0;
  for (std::uint32_t i = 0; i < options_.tasks + kWarmUpTasks; ++i) {
    for (std::size_t k = 0; k < kPolicies.size(); ++k) {
      // Another policy begins each turn, so that none always follows the same one.
      const std::size_t policy = (k + i) % kPolicies.size();
      if (!runs_policy(options_, kPolicies[policy].name)) continue;
      if (i % kPolicies[policy].every == 0) orders.push_back({policy, ++number, i >= kWarmUpTasks});
    }
  }
  return orders;
}

Result<CampaignResult> Campaign::run() {
  for (const Order& order : schedule()) {
    progress_.show(rate_, done_before_, done_);
    if (auto done = run_task(order); !done.ok()) return std::move(done).error();
    ++done_;
    if (failures_.size() >= kMostFailures) break;
  }
  // The last rows, and what releases add to them, come with the next refreshes of the pages.
  for (int i = 0; i < 5; ++i) {
    ::usleep(kLookMs * 1000);
    stage_.collect(log_);
  }
  return finish();
}

Result<void> Campaign::run_task(const Order& order) {
  const Policy& policy = kPolicies[order.policy];
  // The documents of a turn differ by policy: the nodes must not hold one from the policy before.
  const std::uint64_t seed = options_.seed * 1'000'003 + (rate_bytes_per_s_ << 16) + order.number;
  const bool told = stage_.coordinator().tell(
      fmt::format("task {} {} {}", order.number, seed, static_cast<unsigned>(policy.medium)));
  if (!told) {
    auto alive = stage_.check();
    return alive.ok() ? Result<void>(Error{{Code::peer_down}, "the coordinator takes no tasks"})
                      : alive;
  }
  auto line = wait_for_line(order);
  if (!line.ok()) return std::move(line).error();
  TaskResult result;
  result.policy = order.policy;
  std::uint32_t number = 0;
  if (std::sscanf(line->c_str(), "done %" SCNu32 " %" SCNu64 " %" SCNd64 " %" SCNu32 " %" SCNu32,
                  &number, &result.task, &result.latency_ns, &result.right, &result.asked) == 5 &&
      number == order.number) {
    if (to_print_ != 0) print_transfers(std::exchange(to_print_, 0));
    if (order.counted) tasks_.push_back(result);
    if (order.counted && policy.medium == Medium::automatic && !printed_) to_print_ = result.task;
    return {};
  }
  progress_.clear();
  failures_.push_back(fmt::format("{}, policy {}: {}", rate_, policy.name, *line));
  std::printf("  FAILED: %s\n", failures_.back().c_str());
  return {};
}

Result<std::string> Campaign::wait_for_line(const Order& order) {
  const SteadyClock clock;
  const TimeNs deadline_ns =
      clock.now_ns() + (options_.half < 0 ? kTaskLimitNs : kEmulatedTaskLimitNs);
  for (;;) {
    stage_.collect(log_);
    if (auto line = stage_.coordinator().next_line()) return std::move(*line);
    if (interrupted()) return Error{{Code::cancelled}, "interrupted"};
    if (auto alive = stage_.check(); !alive.ok()) return std::move(alive).error();
    if (clock.now_ns() > deadline_ns)
      return Error{{Code::timed_out}, fmt::format("task {} does not end", order.number)};
    progress_.show(rate_, done_before_, done_);
    pollfd wait{stage_.coordinator().output(), POLLIN, 0};
    static_cast<void>(::poll(&wait, 1, kLookMs));
  }
}

void Campaign::print_transfers(std::uint64_t task) {
  printed_ = true;
  progress_.clear();
  std::printf("\n  %s: all transfers of one task under the adaptive policy\n%s\n", rate_.c_str(),
              line_header().c_str());
  // Both nodes read the same clock, that of the machine.
  std::vector<const TransferRow*> rows;
  for (const TransferRow& row : log_.rows()) {
    if (row.data.task == task) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const TransferRow* a, const TransferRow* b) {
    return a->data.ended_ns < b->data.ended_ns;
  });
  for (const TransferRow* row : rows) std::printf("%s\n", line_of(*row).c_str());
  std::printf("\n");
  std::fflush(stdout);
}

CampaignResult Campaign::finish() {
  progress_.clear();
  CampaignResult out;
  out.rate = summarise(rate_, rate_bytes_per_s_, tasks_, log_);
  out.rate.failed_tasks = failures_.size();
  std::vector<std::uint64_t> adaptive;
  for (const TaskResult& task : tasks_) {
    if (kPolicies[task.policy].medium == Medium::automatic) adaptive.push_back(task.task);
  }
  const std::unordered_set<std::uint64_t> ids(adaptive.begin(), adaptive.end());
  for (const TransferRow& row : log_.rows()) {
    if (ids.contains(row.data.task)) out.transfers.push_back({rate_, row});
    if (!row.data.status.ok()) failures_.push_back(rate_ + ": a transfer failed:" + line_of(row));
  }
  std::printf("%s%s", table_of(out.rate).c_str(), forecast_line(log_, adaptive).c_str());
  if (log_.missed() > 0)
    std::printf("  %" PRIu64 " transfers were not seen in time\n", log_.missed());
  for (std::size_t i = 0; i < kPolicies.size(); ++i) {
    const PolicyResult& policy = out.rate.policies[i];
    if (kPolicies[i].exact && policy.asked > 0 && policy.accuracy() < 0.95) {
      failures_.push_back(fmt::format("{}: {} answers only {:.4f} right", rate_, kPolicies[i].name,
                                      policy.accuracy()));
    }
  }
  out.failures = failures_;
  std::fflush(stdout);
  return out;
}

}  // namespace kvrail::demo
