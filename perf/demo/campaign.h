// The run at one rate: tasks of all policies in turn, so that whatever else happens on the machine
// happens to all of them alike.
#pragma once

#include <string>
#include <vector>

#include "perf/demo/options.h"
#include "perf/demo/report.h"
#include "perf/demo/stage.h"

namespace kvrail::demo {

/// One line that is rewritten on a terminal, and printed now and then elsewhere.
class Progress {
 public:
  Progress(std::size_t total_tasks);
  void show(const std::string& rate, std::size_t done_before, std::size_t done);
  void clear();

 private:
  std::size_t total_;
  bool terminal_;
  bool shown_ = false;
  TimeNs begin_ns_;
  TimeNs last_ns_ = 0;
};

struct CampaignResult {
  RateResult rate;
  std::vector<JsonTransfer> transfers;
  std::vector<std::string> failures;
};

class Campaign {
 public:
  Campaign(const DemoOptions& options, Stage& stage, std::string rate,
           std::uint64_t rate_bytes_per_s, Progress& progress, std::size_t done_before);
  /// Tasks that fail are in the result; an Error means that the rest could not be run.
  [[nodiscard]] Result<CampaignResult> run();

 private:
  struct Order {
    std::size_t policy = 0;
    std::uint32_t number = 0;
    bool counted = false;
  };
  [[nodiscard]] std::vector<Order> schedule() const;
  [[nodiscard]] Result<void> run_task(const Order& order);
  [[nodiscard]] Result<std::string> wait_for_line(const Order& order);
  void print_transfers(std::uint64_t task);
  [[nodiscard]] CampaignResult finish();

  const DemoOptions& options_;
  Stage& stage_;
  std::string rate_;
  std::uint64_t rate_bytes_per_s_;
  Progress& progress_;
  std::size_t done_before_;
  std::size_t done_ = 0;
  TransferLog log_;
  std::vector<TaskResult> tasks_;
  std::vector<std::string> failures_;
  std::uint64_t to_print_ = 0;  // an adaptive task whose transfers are to be printed
  bool printed_ = false;
};

/// Tasks at each rate, those included that warm up and do not count.
[[nodiscard]] std::size_t tasks_at_a_rate(const DemoOptions& options);

/// Whether the demo was asked to end (Ctrl-C).
[[nodiscard]] bool interrupted() noexcept;

}  // namespace kvrail::demo
