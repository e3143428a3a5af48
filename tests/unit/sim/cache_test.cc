// kvrail-sim cache: every policy on traces that are replayed by hand in the comments, and the program's answers to bad input.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "kvrail/base/prng.h"
#include "perf/sim/cache_lists.h"
#include "perf/sim/cache_replay.h"

using namespace kvrail;
using namespace kvrail::simulation;
using nlohmann::json;

namespace {

class TempFolder {
 public:
  TempFolder() : path_((std::filesystem::temp_directory_path() / ("kvrail-cache-" + std::to_string(::getpid()))).string()) {
    std::filesystem::create_directories(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
    return path_ + "/" + name;
  }
  [[nodiscard]] std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// One request a second of whole blocks.
std::string trace_of(const std::vector<std::vector<int>>& requests) {
  std::string text;
  int at_ms = 0;
  for (const auto& blocks : requests) {
    text += json{{"timestamp", at_ms}, {"input_length", 512 * blocks.size()}, {"output_length", 1}, {"hash_ids", blocks}}.dump() + "\n";
    at_ms += 1000;
  }
  return text;
}

std::map<std::string, std::uint64_t> hits_of(const std::string& text, double size_fraction, double score_from = 0) {
  const TempFolder folder;
  CacheOptions options;
  options.trace = folder.file("trace.jsonl", text);
  options.size_fraction = size_fraction;
  options.score_from = score_from;
  const auto report = simulate_caches(options);
  REQUIRE(report.ok());
  std::map<std::string, std::uint64_t> hits;
  for (const CacheScore& score : report->scores) hits[score.policy] = score.hit_blocks;
  return hits;
}

struct Ended {
  int code = -1;
  std::string out, err;
};
std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
Ended run(const TempFolder& folder, const std::string& arguments) {
  const std::string out = folder.at("out"), err = folder.at("err");
  const std::string command = std::string(KVRAIL_SIM_PATH).append(" ").append(arguments).append(" >").append(out).append(
      " 2>").append(err).append(" </dev/null");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(out), contents(err)};
}

}  // namespace

TEST_CASE("cache / eight requests of one block, worked out by hand for every policy") {
  // A A B C A B D A, room for two of the four. [x y]: what is held, where it matters in the policy's order.
  const std::string text = trace_of({{1}, {1}, {2}, {3}, {1}, {2}, {4}, {1}});
  const auto hits = hits_of(text, 0.5);
  // [A] hit [A], [B A], C for A [C B], A for B [A C], B for C [B A], D for A [D B], A for B.
  CHECK(hits.at("lru") == 1);
  // Uses of all time: A1, A2 hit, B1, C1 for B1, A3 hit, B2 for C1, D1 for B2, A4 hit.
  CHECK(hits.at("lfu") == 3);
  // Head first, * visited: [A], hit [A*], [B A*], the hand clears A and takes B: [C A]; hit [C A*]; the hand is at the tail
  // again, clears A and takes C: [B A]; takes A: [D B], stands at B and takes it: [A D].
  CHECK(hits.at("sieve") == 2);
  // Small queue of one, main queue and ghosts of one. [A] hit once, which is not twice: [B A], A goes, ghost A: [C B];
  // B goes and its ghost drives out A's before A is looked for: [A C]; the same with C, B: [B A]; A, D: [D B]; B, A.
  CHECK(hits.at("s3fifo") == 1);
  // Window of one, main part of one, nothing protected. [A] hit, A2. B in the window, A in the main part. C1 pushes B1 out
  // of the window, which loses against A2. A3 hit. B2 pushes out C1, D1 pushes out B2: both lose against A3. A hit.
  CHECK(hits.at("wtinylfu") == 3);
  // C and D never come again and are passed over: all that comes again is there.
  CHECK(hits.at("belady") == 4);
  CHECK(hits.at("unlimited") == 4);
  // Knowing nothing yet, all within one age: it is as LRU.
  CHECK(hits.at("kvrail") == 1);
}

TEST_CASE("cache / only blocks whose whole prefix is there are hits") {
  // 1 2 3, then 1 2 4 (2 hits), then 9 2 3 (none, though 2 and 3 are there), then 1 2 3 5 (3), with room for all six.
  const auto hits = hits_of(trace_of({{1, 2, 3}, {1, 2, 4}, {9, 2, 3}, {1, 2, 3, 5}}), 1);
  for (const auto& of : hits) {
    const auto& policy = of.first;
    const auto& count = of.second;
    CAPTURE(policy);
    CHECK(count == 5);
  }
}

TEST_CASE("cache / what only warms the cache is not counted") {
  const std::string text = trace_of({{1}, {1}, {2}, {3}, {1}, {2}, {4}, {1}});
  const auto hits = hits_of(text, 0.5, 0.5);  // A B D A of the eight above
  CHECK(hits.at("lru") == 0);
  CHECK(hits.at("lfu") == 2);
  CHECK(hits.at("sieve") == 1);
  CHECK(hits.at("belady") == 3);
}

TEST_CASE("cache / no policy ever holds more than it has room for, or loses what it says it holds") {
  Prng prng(3);
  std::vector<std::vector<int>> requests;
  for (int i = 0; i < 600; ++i) {
    std::vector<int> path{0};
    const int conversation = static_cast<int>(prng.uniform(60)) + 1;
    for (std::uint64_t depth = prng.uniform(8); depth-- > 0;) path.push_back(conversation * 100 + static_cast<int>(path.size()));
    requests.push_back(path);
  }
  const TempFolder folder;
  const auto loaded = load_requests(folder.file("trace.jsonl", trace_of(requests)));
  REQUIRE(loaded.ok());
  const auto trace = CacheTrace::create(*loaded, "trace");
  REQUIRE(trace.ok());
  for (const std::string& name : cache_policy_names()) {
    for (const std::uint32_t capacity : {1U, 2U, 7U, 50U}) {
      CAPTURE(name);
      CAPTURE(capacity);
      const auto policy = make_cache_policy(name, {trace->blocks(), capacity});
      for (std::size_t r = 0; r < trace->requests(); ++r) {
        policy->serve(trace->request(r));
        std::uint32_t held = 0;
        for (std::uint32_t block = 0; block < trace->blocks(); ++block) held += policy->holds(block) ? 1 : 0;
        REQUIRE(held == policy->size());
        if (name != "unlimited") REQUIRE(held <= capacity);
      }
    }
  }
}

TEST_CASE("cache / lists keep order and size") {
  BlockLists lists(4, 2);
  for (std::uint32_t block = 0; block < 3; ++block) lists.push_front(0, block);
  lists.move_front(0, 0);
  CHECK(lists.back(0) == 1);
  CHECK(lists.before(1) == 2);
  lists.move_front(1, 2);
  CHECK(lists.size(0) == 2);
  CHECK(lists.list_of(2) == 1);
  lists.remove(2);
  CHECK(lists.list_of(2) == BlockLists::kNone);
  CHECK(lists.back(1) == BlockLists::kNone);
}

TEST_CASE("cache / the program prints the rates as JSON, and the same twice") {
  const TempFolder folder;
  const std::string trace = folder.file("trace.jsonl", trace_of({{1}, {1}, {2}, {3}, {1}, {2}, {4}, {1}}));
  const Ended ended = run(folder, "cache --trace " + trace + " --size-fraction 0.5 --policies lfu,kvrail --json");
  CHECK(ended.code == 0);
  CHECK(ended.err.empty());
  const json report = json::parse(ended.out, nullptr, false);
  REQUIRE(report.is_object());
  CHECK(report["trace"] == trace);
  CHECK(report["size_fraction"] == 0.5);
  CHECK(report["score_from"] == 0.0);
  CHECK(report["blocks"] == 4);
  CHECK(report["capacity_blocks"] == 2);
  CHECK(report["policies"].size() == 2);
  CHECK(report["policies"]["lfu"]["token_hit_rate"] == 3.0 / 8);
  CHECK(report["policies"]["kvrail"]["token_hit_rate"] == 1.0 / 8);
  CHECK(run(folder, "cache --trace " + trace + " --size-fraction 0.5 --policies lfu,kvrail --json").out == ended.out);
  const Ended table = run(folder, "cache --trace " + trace + " --size-fraction 0.5");
  CHECK(table.code == 0);
  CHECK(table.out.find("room for 2 of 4 blocks") != std::string::npos);
  for (const std::string& name : cache_policy_names()) CHECK(table.out.find("\n" + name + " ") != std::string::npos);
  CHECK(run(folder, "cache --help").code == 0);
}

TEST_CASE("cache / bad input is one line and exit status 2") {
  const TempFolder folder;
  const std::string good = folder.file("good.jsonl", trace_of({{1}, {2}}));
  const std::string empty = folder.file("empty.jsonl", ""), text = folder.file("text.jsonl", "not a trace\n");
  const std::string azure = folder.file(
      "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5,6\n");
  const std::string no_ids = folder.file("none.jsonl", "{\"timestamp\": 0, \"input_length\": 5}\n");
  const std::string odd = folder.file("odd.jsonl", "{\"timestamp\": 0, \"input_length\": 5, \"hash_ids\": [1, -2]}\n");
  const std::string huge = folder.file("huge.jsonl", "{\"timestamp\": 0, \"input_length\": 1e99, \"hash_ids\": [1]}\n");
  const std::string later = folder.file("later.jsonl", trace_of({{1}}) + "{\"timestamp\": 5000, \"input_length\": 5}\n");
  std::string packed("\xfd" "7zXZ\0\0\4", 8);
  const std::string cut = folder.file("cut.jsonl.xz", packed);
  const struct {
    std::string arguments, says;
  } cases[] = {
      {"", "--trace is required"},
      {"--trace " + good, "--size-fraction is required"},
      {"--trace " + good + " --size-fraction 0", "over 0"},
      {"--trace " + good + " --size-fraction -0.1", "over 0"},
      {"--trace " + good + " --size-fraction 1.01", "over 0"},
      {"--trace " + good + " --size-fraction nan", "over 0"},
      {"--trace " + good + " --size-fraction inf", "over 0"},
      {"--trace " + good + " --size-fraction 0.5x", "over 0"},
      {"--trace " + good + " --size-fraction 1e999", "over 0"},
      {"--trace " + good + " --size-fraction 0.1", "is not one block"},
      {"--trace " + good + " --size-fraction 1 --score-from 1", "under 1"},
      {"--trace " + good + " --size-fraction 1 --score-from nan", "under 1"},
      {"--trace " + good + " --size-fraction 1 --policies lru,mru", "no cache policy \"mru\"; there are kvrail, lru"},
      {"--trace " + good + " --size-fraction 1 --nothing", "--help"},
      {"--trace " + folder.at("absent") + " --size-fraction 1", "cannot be opened"},
      {"--trace / --size-fraction 1", "is not a regular file"},
      {"--trace " + empty + " --size-fraction 1", "holds no request"},
      {"--trace " + text + " --size-fraction 1", "text.jsonl:1: is neither"},
      {"--trace " + azure + " --size-fraction 1", "has no \"hash_ids\""},
      {"--trace " + no_ids + " --size-fraction 1", "has no \"hash_ids\""},
      {"--trace " + odd + " --size-fraction 1", "odd.jsonl:1: \"hash_ids\""},
      {"--trace " + huge + " --size-fraction 1", "huge.jsonl:1: \"input_length\""},
      {"--trace " + later + " --size-fraction 1 --score-from 0.5", "no request after --score-from"},
      {"--trace " + cut + " --size-fraction 1", "ends too early"},
  };
  for (const auto& one : cases) {
    CAPTURE(one.arguments);
    const Ended ended = run(folder, "cache " + one.arguments);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(ended.err.starts_with("kvrail-sim: "));
    CHECK(ended.err.find('\n') == ended.err.size() - 1);
    CHECK_MESSAGE(ended.err.find(one.says) != std::string::npos, ended.err);
  }
}

TEST_CASE("cache / the conversation trace, where it is: the known rates, and kvrail above every other") {
  const char* const data = std::getenv("KVRAIL_DATA");
  const std::filesystem::path root = data != nullptr ? data : KVRAIL_SOURCE_ROOT "/../shared/data";
  CacheOptions options;
  options.trace = (root / "traces/mooncake_conversation_trace.jsonl.xz").string();
  if (!std::filesystem::exists(options.trace)) {
    MESSAGE("SKIP: no ", options.trace, " (set KVRAIL_DATA)");
    return;
  }
  const struct {
    double size_fraction, lru, lfu, belady;
  } known[] = {{0.01, .052, .100, .246}, {0.03, .125, .147, .348}, {0.1, .278, .240, .366}};
  for (const auto& one : known) {
    CAPTURE(one.size_fraction);
    options.size_fraction = one.size_fraction;
    options.score_from = 0;
    options.policies = {"lru", "lfu", "belady", "unlimited"};
    const auto whole = simulate_caches(options);
    REQUIRE(whole.ok());
    CHECK(std::abs(whole->scores[0].token_hit_rate() - one.lru) < 0.0006);
    CHECK(std::abs(whole->scores[1].token_hit_rate() - one.lfu) < 0.0006);
    CHECK(std::abs(whole->scores[2].token_hit_rate() - one.belady) < 0.0006);
    CHECK(std::abs(whole->scores[3].token_hit_rate() - .366) < 0.0006);
    options.score_from = 0.5;
    options.policies = {"kvrail", "lru", "lfu", "sieve", "s3fifo", "wtinylfu"};
    const auto half = simulate_caches(options);
    REQUIRE(half.ok());
    for (std::size_t i = 1; i < half->scores.size(); ++i)
      CHECK(half->scores[0].hit_blocks > half->scores[i].hit_blocks);
  }
}
