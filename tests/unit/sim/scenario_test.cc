// Scenario files, and the classes of models behind them.
#include <doctest/doctest.h>

#include <filesystem>

#include "perf/sim/scenario.h"
#include "perf/sim/simulate.h"

using namespace kvrail;
using namespace kvrail::simulation;

TEST_CASE("scenario / the 8B class as computed by hand") {
  const ModelClass& model = *find(built_in_models(), "8b");
  const GpuClass& gpu = *find(built_in_gpus(), "datacenter");
  CHECK(layout_of(model, 64, 1).token_bytes() == 2 * 32 * 8 * 128 * 2);
  const ComputeProfile compute = compute_of(model, gpu);
  CHECK(compute.prefill_per_token_ns == 40'000);  // 2 x 8e9 / 400e12 s
  // 2 x 32 x 4096 / 400e12 s = 0.65536 ns, in 2^-20: 687,194.8
  CHECK(compute.prefill_quadratic_ns_q20 == 687'195);
  CHECK(compute.decode_per_token_ns == 10'000'000);  // 16 GB / 1.6 TB/s
}

TEST_CASE("scenario / what it doesn't name is as in steady") {
  const auto scenario = parse_scenario("", "some/where/quiet.toml");
  REQUIRE(scenario.ok());
  CHECK(scenario->name == "quiet");
  CHECK(scenario->traffic.per_second == 6);
  CHECK(scenario->cluster.link_bytes_per_s == 1'250'000'000);
  CHECK(scenario->cluster.receivers == 8);
  CHECK(scenario->models == std::vector<std::string>{"8b"});
}

TEST_CASE("scenario / values, units, classes and paths") {
  const auto scenario = parse_scenario(
      "links = \"l.csv\"\nmodels = [\"tiny\", \"foreign:8b\"]\n"
      "[cluster]\nlink = \"50 Mbit/s\"\nround_trip = \"40 ms\"\n"
      "[model.tiny]\nparameters = 1e6\nlayers = 2\nkv_heads = 1\nhead_dim = 8\nhidden = 64\n"
      "[medium.int4]\nratio = 3.5\nextra_tokens_milli = 100\n",
      "some/where/s.toml");
  REQUIRE(scenario.ok());
  CHECK(scenario->links == "some/where/l.csv");
  CHECK(scenario->cluster.link_bytes_per_s == 6'250'000);
  CHECK(scenario->cluster.round_trip_ns == 40 * kMillisecondNs);
  CHECK(find(scenario->model_classes, "tiny")->hidden == 64);
  CHECK(scenario->profile.media[static_cast<std::size_t>(Medium::int4)].ratio == 3.5);
}

TEST_CASE("scenario / faults name the file, the line and the key") {
  const auto message = [](const char* text) { return parse_scenario(text, "s.toml").error().message; };
  CHECK(message("[traffic]\nper_secnd = 3\n").find("s.toml:2: traffic.per_secnd: no such key; there are arrivals") == 0);
  CHECK(message("\n[cluster]\nlink = \"10 Gbit\"\n").find("s.toml:3: cluster.link: ") == 0);
  CHECK(message("[traffic]\ntransfers = 0\n").find("s.toml:2: traffic.transfers: must be a whole number") == 0);
  CHECK(message("media = [\"int5\"]\n").find("s.toml:1: media: ") == 0);
  CHECK(message("a = [\n").find("s.toml:") == 0);
  CHECK(message("models = [\"9b\"]\n") == "s.toml: models: no class \"9b\"");
  CHECK(message("[model.x]\nlayers = 2\n").find("s.toml: model.x needs") == 0);
  CHECK(message("least_chunk = \"5 KiB\"\n").find("s.toml: least_chunk must be a power of two") == 0);
}

TEST_CASE("scenario / those of the repository load") {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVRAIL_SOURCE_ROOT "/perf/scenarios")) {
    if (entry.path().extension() != ".toml") continue;
    const auto scenario = load_scenario(entry.path().string());
    const std::string why = scenario.ok() ? std::string() : scenario.error().message;
    CHECK_MESSAGE(scenario.ok(), why);
    ++count;
  }
  CHECK(count >= 12);
}

TEST_CASE("scenario / a simulation refuses what is not there") {
  Options options;
  options.scenario = "/nowhere.toml";
  CHECK(simulate(options).error().message == "/nowhere.toml: cannot be opened");
  options.scenario = KVRAIL_SOURCE_ROOT "/perf/scenarios/steady.toml";
  options.policies = {"fastest"};
  CHECK(simulate(options).error().message.find("no policy \"fastest\"; there are tokens, full") == 0);
  options.policies = {"tokens"};
  options.trace = "/nowhere.jsonl";
  CHECK(simulate(options).error().message == "/nowhere.jsonl: cannot be opened");
}
