// The figures and the report.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "perf/sim/figures.h"
#include "perf/sim/report.h"
#include "perf/sim/simulate.h"

using namespace kvrail;
using namespace kvrail::simulation;

TEST_CASE("figures / percentiles and Jain's index by hand") {
  std::vector<double> values{5, 1, 4, 2, 3};
  CHECK(percentile(values, 0.5) == 3);
  CHECK(percentile(values, 0.99) == 5);
  CHECK(percentile(values, 0) == 1);
  CHECK(jain_index({2, 2, 2}) == doctest::Approx(1));
  CHECK(jain_index({1, 0, 0, 0}) == doctest::Approx(0.25));
  CHECK(jain_index({3, 1}) == doctest::Approx(16.0 / 20));  // (3 + 1)² / (2 · (9 + 1))
}

TEST_CASE("figures / latency, share in time, fidelity and queues of two contexts and a critical one") {
  Scenario scenario;
  Workload workload;
  workload.nodes = 2;
  workload.receivers = {{1, 0}};
  workload.models = {{layout_of(built_in_models()[0], 64, 1), {}, false}};
  workload.jobs.resize(3);
  for (Job& job : workload.jobs) job.tokens = 64;
  workload.jobs[2].critical = true;
  RunResult result;
  result.end_ns = 4 * kSecondNs;
  result.jobs = {{0, 500 * kMillisecondNs, 100 * kMillisecondNs, Medium::int4},
                 {0, 1500 * kMillisecondNs, 300 * kMillisecondNs, Medium::full},
                 {0, 7 * kMillisecondNs, 0, Medium::full}};
  const Figures figures = make_figures(scenario, workload, result, "p");
  CHECK(figures.mean_ms == 1000);
  CHECK(figures.p99_ms == 1500);
  CHECK(figures.slo == 0.5);  // within a second
  CHECK(figures.queue_ms == 200);
  CHECK(figures.per_second == 0.5);
  CHECK(figures.critical_p99_ms == 7);
  CHECK(figures.fidelity == doctest::Approx((0.990545 + 1) / 2));  // exp(-0.0095)
}

TEST_CASE("figures / the JSON has the keys that programs rely on") {
  Report report;
  report.scenario = "s";
  report.seed = 9;
  report.main.policies.push_back({});
  report.main.policies[0].policy = "kvrail";
  nlohmann::json json = nlohmann::json::parse(json_report(report));
  CHECK(json["scenario"] == "s");
  CHECK(json["seed"] == 9);
  CHECK(json["best_choice_mean_ms"].is_null());
  CHECK(json["clairvoyant_mean_ms"].is_null());
  for (const char* key : {"mean_ms", "p50_ms", "p99_ms", "critical_p99_ms", "bytes", "recompute_s", "fidelity", "jain", "slo"})
    CHECK(json["policies"]["kvrail"].contains(key));
  CHECK(json["policies"]["kvrail"]["critical_p99_ms"].is_null());
  report.main.bounds = Bounds{10, 8};
  json = nlohmann::json::parse(json_report(report));
  CHECK(json["best_choice_mean_ms"] == 10);
  CHECK(json["clairvoyant_mean_ms"] == 8);
}
