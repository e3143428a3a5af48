// What becomes of rows and tasks: quantiles, tables, JSON, the plot.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "perf/demo/options.h"
#include "perf/demo/report.h"
#include "perf/demo/svg.h"
#include "scheduler/medium_choice.h"

namespace kvrail::demo {
namespace {

using engine::StatusDirection;
using engine::StatusTransfer;

StatusTransfer row(std::uint64_t serial, std::uint64_t task, StatusDirection direction,
                   std::uint64_t bytes) {
  StatusTransfer out;
  out.serial = serial;
  out.task = task;
  out.direction = direction;
  out.bytes = bytes;
  out.medium = Medium::int8;
  out.from = *make_name("coordinator");
  out.to = *make_name("executor-1");
  out.context = *make_name("document-1");
  out.version = 2;
  out.predicted_ns = 10'000'000;
  out.observed_ns = 9'000'000;
  out.reason = static_cast<std::uint8_t>(scheduler::PickReason::least_cost);
  out.line_count = 2;
  out.lines[0].medium = Medium::int8;
  out.lines[0].allowed = out.lines[0].chosen = 1;
  out.lines[0].cost_ns = 10'000'000;
  out.lines[1].medium = Medium::tokens;
  out.lines[1].allowed = 1;
  out.lines[1].cost_ns = 130'000'000;
  return out;
}

// A page whose ring holds these rows.
void put(engine::StatusData& page, const StatusTransfer& data) {
  page.transfers[data.serial % engine::kStatusTransfers] = data;
  page.transfer_count = std::max(page.transfer_count, data.serial);
}

TEST_CASE("quantiles are nearest rank") {
  CHECK(quantile({}, 0.5) == 0);
  CHECK(quantile({3}, 0.95) == 3);
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  CHECK(quantile(values, 0.5) == 50);
  CHECK(quantile(values, 0.95) == 95);
  CHECK(quantile(values, 1) == 100);
  CHECK(quantile(values, 0) == 1);
}

TEST_CASE("the log takes each transfer once, follows its changes, and counts what it missed") {
  auto page = std::make_unique<engine::StatusData>();
  TransferLog log;
  put(*page, row(1, 7, StatusDirection::in, 100));
  put(*page, row(2, 7, StatusDirection::out, 1000));  // the receiver's row is the one that counts
  log.collect(1, *page);
  log.collect(1, *page);
  REQUIRE(log.rows().size() == 1);
  StatusTransfer changed = row(1, 7, StatusDirection::in, 100);
  changed.recompute_ns = 5'000'000;
  put(*page, changed);
  StatusTransfer failed = row(3, 7, StatusDirection::out, 0);
  failed.status = Status{Code::timed_out};
  put(*page, failed);
  log.collect(1, *page);
  REQUIRE(log.rows().size() == 2);
  CHECK(observed_ms(log.rows()[0].data) == doctest::Approx(14.0));
  CHECK(reason_of(log.rows()[1].data) == "FAILED: timed_out");
  CHECK(log.missed() == 0);
  put(*page, row(4 + engine::kStatusTransfers, 8, StatusDirection::in, 1));
  log.collect(1, *page);
  CHECK(log.missed() == 1);
  log.clear();
  CHECK(log.rows().empty());
}

TEST_CASE("a line tells who, what, how long and why") {
  const TransferRow received{1, row(1, 7, StatusDirection::in, 250'000)};
  CHECK(place_of(received, true) == "coordinator@A");
  CHECK(place_of(received, false) == "executor-1@B");
  CHECK(reason_of(received.data) == "least cost: int8 10.0 ms against tokens 130.0");
  const std::string line = line_of(received);
  for (const char* part : {"document-1@2", "int8", "250.0 kB", "10.0 ms", "9.0 ms"}) {
    CHECK_MESSAGE(line.find(part) != std::string::npos, part);
  }
  const TransferRow local{1, row(1, 7, StatusDirection::local, 0)};
  CHECK(place_of(local, true) == "coordinator@B");
  CHECK(place_of(local, false) == "executor-1@B");
  const TransferRow sent{0, row(1, 7, StatusDirection::out, 0)};
  CHECK(place_of(sent, true) == "coordinator@A");
  CHECK(place_of(sent, false) == "executor-1@B");
}

RateResult sample_rate(TransferLog& log, std::vector<TaskResult>& tasks) {
  auto page = std::make_unique<engine::StatusData>();
  for (std::uint64_t i = 1; i <= 2 * kPolicies.size(); ++i) {  // two of each policy, in turn
    tasks.push_back(
        {(i - 1) % kPolicies.size(), i, static_cast<std::int64_t>(i) * 1'000'000, 9, 10});
    put(*page, row(i, i, StatusDirection::in, 1000 * i));
  }
  put(*page, row(99, 99, StatusDirection::in, 5000));  // of a task that does not count
  log.collect(1, *page);
  return summarise("50 Mbit/s", 6'250'000, tasks, log);
}

TEST_CASE("a summary divides tasks and bytes among the policies") {
  TransferLog log;
  std::vector<TaskResult> tasks;
  const RateResult rate = sample_rate(log, tasks);
  CHECK(rate.policies[0].n == 2);
  CHECK(rate.policies[0].p50_ms == doctest::Approx(1.0));
  constexpr std::size_t kTurn = kPolicies.size();
  CHECK(rate.policies[0].p95_ms == doctest::Approx(1.0 + kTurn));
  CHECK(rate.policies[0].bytes == 1000 * (1 + 1 + kTurn));
  CHECK(rate.policies[3].bytes == 1000 * (4 + 4 + kTurn));
  CHECK(rate.policies[1].accuracy() == doctest::Approx(0.9));
  CHECK(rate.adaptive_media[static_cast<std::size_t>(Medium::int8)] == 2);
  const std::string table = table_of(rate);
  for (const Policy& policy : kPolicies) CHECK(table.find(policy.name) != std::string::npos);
  CHECK(table.find("int8 2") != std::string::npos);
  CHECK(forecast_line(log, {1, 5}).find("median 0.90") != std::string::npos);
  CHECK(forecast_line(log, {}).empty());
}

TEST_CASE("result.json has the promised shape") {
  TransferLog log;
  std::vector<TaskResult> tasks;
  const RateResult rate = sample_rate(log, tasks);
  const auto json = nlohmann::json::parse(result_json({rate}, {{rate.name, log.rows()[0]}}));
  CHECK(json.size() == 2);
  REQUIRE(json["rates"].size() == 1);
  CHECK(json["rates"][0]["name"] == "50 Mbit/s");
  CHECK(json["rates"][0]["rate_bytes_per_s"] == 6'250'000);
  for (const Policy& policy : kPolicies) {
    const auto& it = json["rates"][0]["policies"][std::string(policy.name)];
    for (const char* key : {"n", "p50_ms", "p95_ms", "bytes", "accuracy"}) CHECK(it.contains(key));
  }
  REQUIRE(json["transfers"].size() == 1);
  CHECK(json["transfers"][0]["medium"] == "int8");
  CHECK(json["transfers"][0]["from"] == "coordinator@A");
}

TEST_CASE("the plot holds every policy and its text is escaped") {
  TransferLog log;
  std::vector<TaskResult> tasks;
  const RateResult rate = sample_rate(log, tasks);
  const std::string svg = result_svg({rate, rate, rate}, {"a < b & c"});
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("a &lt; b &amp; c") != std::string::npos);
  std::size_t bars = 0;
  for (std::size_t at = svg.find("<rect x="); at != std::string::npos;
       at = svg.find("<rect x=", at + 1))
    ++bars;
  CHECK(bars == 3 * 2 * kPolicies.size());
  CHECK(result_svg({}, {}).ends_with("</svg>\n"));
  CHECK(escaped("\"<>&x") == "&quot;&lt;&gt;&amp;x");
}

TEST_CASE("an axis ends at a round number that holds the value") {
  for (const double value : {0.3, 1.0, 7.7, 19.0, 99.9, 100.0, 4321.0}) {
    CHECK(axis_end(value) >= value);
    CHECK(axis_end(value) <= 2.5 * value);
  }
  CHECK(axis_end(0) == 1);
  CHECK(axis_end(41) == doctest::Approx(50));
}

TEST_CASE("rates are read and named") {
  const auto rates = parse_rates("1Gbit/s,50 Mbit/s,512 kbit/s");
  REQUIRE(rates.ok());
  CHECK(*rates == std::vector<std::uint64_t>{125'000'000, 6'250'000, 64'000});
  CHECK(rate_name((*rates)[0]) == "1 Gbit/s");
  CHECK(rate_name((*rates)[1]) == "50 Mbit/s");
  CHECK(rate_name((*rates)[2]) == "512 kbit/s");
  for (const char* bad : {"", "50", "50Mbit/s,x", "fast"}) CHECK_FALSE(parse_rates(bad).ok());
}

}  // namespace
}  // namespace kvrail::demo
