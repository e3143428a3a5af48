// What the simulator reads: plain and compressed text, request and link traces, agent graphs.
#include <doctest/doctest.h>
#include <lzma.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/config/agent_graph.h"
#include "perf/sim/text_input.h"
#include "perf/sim/traces.h"

using namespace kvrail;
using namespace kvrail::simulation;

namespace {

class TempFile {
 public:
  TempFile(const std::string& name, const std::string& bytes)
      : path_((std::filesystem::temp_directory_path() / ("kvrail-sim-" + std::to_string(::getpid()) + name)).string()) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string packed(const std::string& text) {
  std::vector<std::uint8_t> out(lzma_stream_buffer_bound(text.size()));
  std::size_t used = 0;
  REQUIRE(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const std::uint8_t*>(text.data()),
                                  text.size(), out.data(), &used, out.size()) == LZMA_OK);
  return {reinterpret_cast<const char*>(out.data()), used};
}

}  // namespace

TEST_CASE("inputs / text is the same plain and compressed") {
  const std::string text(300'000, 'k');
  const TempFile plain("a.txt", text), xz("b.xz", packed(text));
  CHECK(*read_text(plain.path()) == text);
  CHECK(*read_text(xz.path()) == text);
}

TEST_CASE("inputs / damaged, cut and missing files are told apart") {
  const std::string whole = packed("some text that is long enough to be cut");
  const TempFile cut("c.xz", whole.substr(0, whole.size() / 2)), no("d.xz", "not xz at all");
  CHECK(read_text(cut.path()).error().message.find("ends too early") != std::string::npos);
  CHECK(read_text(no.path()).error().message.find("is not xz data") != std::string::npos);
  CHECK(read_text("/nowhere/at/all").error().message == "/nowhere/at/all: cannot be opened");
  CHECK(read_text("/").error().message == "/: is not a regular file");
  CHECK(read_text("/dev/zero").error().message == "/dev/zero: is not a regular file");
}

TEST_CASE("inputs / Mooncake requests: times from the first on, in order, with their blocks") {
  const auto trace = parse_requests(
      "{\"timestamp\": 3000, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [4, 9]}\n"
      "{\"timestamp\": 1000, \"input_length\": 512, \"hash_ids\": [4]}\n",
      "t.jsonl");
  REQUIRE(trace.ok());
  REQUIRE(trace->requests.size() == 2);
  CHECK(trace->requests[0].at_ns == 0);
  CHECK(trace->requests[0].tokens == 512);
  CHECK(trace->requests[1].at_ns == 2 * kSecondNs);
  CHECK(trace->requests[1].tokens == 700);
  CHECK(trace->requests[1].hash_count == 2);
  CHECK(trace->hashes[trace->requests[1].first_hash + 1] == 9);
}

TEST_CASE("inputs / Azure requests: seven digits of a second, and over midnight and a leap day") {
  const auto trace = parse_requests(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2024-02-28 23:59:59.5000000,4808,10\r\n"
      "2024-03-01 00:00:00.2500000,3180,8\r\n",
      "t.csv");
  REQUIRE(trace.ok());
  // 29 February lies between: a day and 0.75 s.
  CHECK(trace->requests[1].at_ns == (86'400 + 0) * kSecondNs + 750 * kMillisecondNs);
  CHECK(trace->requests[1].tokens == 3180);
}

TEST_CASE("inputs / what is wrong with a request is said with its line") {
  const auto message = [](const char* text) { return parse_requests(text, "t").error().message; };
  CHECK(message("") == "t: holds no request");
  CHECK(message("a,b\n").find("t:1: ") == 0);
  CHECK(message("{\"timestamp\": 0, \"input_length\": 1}\n{\"timestamp\": 0}\n").find("t:2: \"input_length\"") == 0);
  CHECK(message("{\"timestamp\": 0, \"input_length\": 1}\nnonsense\n") == "t:2: is no JSON object");
  CHECK(message("{\"timestamp\": 0, \"input_length\": 1, \"hash_ids\": [-1]}\n").find("t:1: \"hash_ids\"") == 0);
  CHECK(message("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03,1,1\n").find("t:2: the timestamp") == 0);
  CHECK(message("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,0,1\n").find("t:2: ContextTokens") == 0);
}

TEST_CASE("inputs / link traces have the mean that was asked for") {
  // 1 Mbit/s for 2 s, 4 for 2 s (as long as the one before): mean 2.5. To a mean of 10: times 4.
  const auto links = parse_links("trace,t_s,mbit_s\n0,5,1\n0,7,4\n1,0,8\n", "l.csv", 10);
  REQUIRE(links.ok());
  REQUIRE(links->size() == 2);
  CHECK((*links)[0].starts_ns == std::vector<TimeNs>{0, 2 * kSecondNs});
  CHECK((*links)[0].length_ns == 4 * kSecondNs);
  CHECK((*links)[0].rates[0] == doctest::Approx(4e6 / 8));
  CHECK((*links)[0].rates[1] == doctest::Approx(16e6 / 8));
  CHECK((*links)[1].rates[0] == doctest::Approx(10e6 / 8));
}

TEST_CASE("inputs / what is wrong with a link trace is said with its line") {
  const auto message = [](const char* text) { return parse_links(text, "l", 10).error().message; };
  CHECK(message("x\n") == "l:1: must be the header trace,t_s,mbit_s");
  CHECK(message("trace,t_s,mbit_s\n") == "l: holds no trace");
  CHECK(message("trace,t_s,mbit_s\n0,1\n") == "l:2: needs three fields");
  CHECK(message("trace,t_s,mbit_s\n0,1,1\n0,1,1\n") == "l:3: t_s must rise within a trace");
  CHECK(message("trace,t_s,mbit_s\n0,1,-1\n").find("l:2: mbit_s") == 0);
  CHECK(message("trace,t_s,mbit_s\n0,1,0\n1,1,1\n").find("l:2: the trace that ends here") == 0);
}

TEST_CASE("inputs / an agent graph loses its loops and what computes nothing") {
  // start -> a -> counter -> b -> a (back) and b -> c: a hands to b through the counter, b to c.
  const auto graph = engine::parse_graph(
      "graph:\n  nodes:\n"
      "  - {id: start, type: literal}\n  - {id: a, type: agent}\n  - {id: n, type: loop_counter}\n"
      "  - {id: b, type: agent}\n  - {id: c, type: agent}\n"
      "  edges:\n"
      "  - {from: start, to: a}\n  - {from: a, to: n}\n  - {from: n, to: b}\n  - {from: b, to: a}\n  - {from: b, to: c}\n",
      "g.yaml");
  REQUIRE(graph.ok());
  CHECK(graph->agents == std::vector<std::string>{"a", "b", "c"});
  CHECK(graph->edges == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {1, 2}});
}

TEST_CASE("inputs / a graph of one agent hands nothing over") {
  const auto graph = engine::parse_graph("graph:\n  nodes:\n  - {id: t, type: literal}\n  - {id: a, type: agent}\n  edges:\n  - {from: t, to: a}\n", "g");
  REQUIRE(graph.ok());
  CHECK(graph->agents == std::vector<std::string>{"a"});
  CHECK(graph->edges.empty());
}

TEST_CASE("inputs / what is wrong with a graph is said with its line") {
  const auto message = [](const char* text) { return engine::parse_graph(text, "g").error().message; };
  CHECK(message("graph: 1\n").find("g:1: ") == 0);
  CHECK(message("graph:\n  nodes:\n  - {id: a, type: agent}\n  edges:\n  - {from: a, to: b}\n").find("g:5: an edge") == 0);
  CHECK(message("graph:\n  nodes:\n  - {id: a}\n  - {id: a}\n").find("g:4: a second node") == 0);
  CHECK(message("graph:\n  nodes: [\n").find("g:") == 0);
}
