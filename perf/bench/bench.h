// The frame that all benchmarks of kvrail share: alternating runs of our way and of a named
// baseline in the same process, at least nine pairs, medians with spread, a table or JSON.
//
// Machines are shared and noisy, so what is compared is the ratio within a pair: both runs of a
// pair see about the same neighbours. The figure of a case is the median of those ratios.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrail::bench {

inline constexpr int kPairs = 9;

struct Samples {
  std::vector<double> values;
  [[nodiscard]] double quantile(double q) const;   // of the sorted values, nearest rank
  [[nodiscard]] double median() const { return quantile(0.5); }
};

// One line of the report. `ratio` is > 1 where ours is better, whatever the unit's direction.
struct Case {
  std::string name;
  std::string unit;
  double value = 0;                    // ours, median
  double low = 0, high = 0;            // ours, 10th and 90th percentile
  std::string baseline;                // empty: none
  double baseline_value = 0;
  double ratio = 0;                    // median of the pairs
  double ratio_low = 0, ratio_high = 0;
  std::string to_reach;                // the goal in words, as ">= 0.95"; empty: reported only
  std::optional<bool> reached;
  std::string note;
};

enum class Better : std::uint8_t { higher, lower };

class Report {
 public:
  void add(Case line);
  // Runs ours and base in turn, `pairs` times, the first of a pair alternating; each returns its
  // figure in `unit`. `goal`: the ratio to reach, none for a reported one.
  void compare(std::string name, std::string unit, Better better, std::string baseline,
               std::optional<double> goal, const std::function<double()>& ours,
               const std::function<double()>& base, int pairs = kPairs);
  // A figure without a baseline; `most`: it must not be above.
  void measure(std::string name, std::string unit, std::optional<double> most,
               const std::function<double()>& ours, int runs = kPairs);
  // A case that cannot run here, with the reason; it is printed, and it is not in the JSON's cases.
  void skip(std::string name, std::string reason);
  // A case that should have run and did not.
  void fail(std::string name, std::string reason);
  // An absolute goal for the value of the last line, in place of one for its ratio.
  void at_most(double limit);
  void at_least(double limit);
  // Adds to the note of the last line.
  void note(const std::string& text);
  // At most so many pairs and runs: quick looks while developing, not figures to quote.
  void limit_pairs(int most) { most_pairs_ = most; }

  [[nodiscard]] const std::vector<Case>& cases() const { return cases_; }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string json() const;

 private:
  void require(const char* relation, double limit, bool reached);
  std::vector<Case> cases_;
  std::vector<std::pair<std::string, std::string>> skipped_;
  int most_pairs_ = 1000;
  bool failed_ = false;
};

// A benchmark: its name on the command line, what it measures, and the function that runs it.
struct Benchmark {
  std::string_view name;
  std::string_view about;
  void (*run)(Report&);
};
[[nodiscard]] const std::vector<Benchmark>& all_benchmarks();

// Pins the calling thread to the n-th core that this process may use (modulo their number).
void pin_to_core(unsigned n);
[[nodiscard]] unsigned core_count();
[[nodiscard]] int core_number(unsigned n);  // that core, as the system numbers it
[[nodiscard]] std::int64_t now_ns();
// One line: processor, cores, kernel, load.
[[nodiscard]] std::string machine_card();

}  // namespace kvrail::bench
