// What only the machine knows of a configuration, as kvraild and --check-config ask it.
#include "engine/runtime/preflight.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/config/agent_graph.h"
#include "engine/runtime/worker.h"
#include "engine/store/table_size.h"
#include "mempool/system_memory.h"
#include "tests/daemon/process.h"

namespace kvrail::engine {
namespace {

// Beyond what any kernel has.
constexpr int kNoSuchCore = 4095;

MachineReport report(const std::string& text) {
  const auto config =
      parse_config("[memory]\ntables = \"64 MiB\"\nreceive_arena = \"1 MiB\"\n" + text, "k.toml");
  REQUIRE_MESSAGE(config.ok(), (config.ok() ? "" : config.error().message));
  return check_machine(*config);
}

bool refuses(const std::string& text, std::initializer_list<const char*> parts) {
  const MachineReport found = report(text);
  if (found.errors.size() != 1) return false;
  const std::string& message = found.errors[0].message;
  INFO(message);
  return std::all_of(parts.begin(), parts.end(),
                     [&](const char* part) { return message.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("preflight / what this machine has is good") {
  const MachineReport found = report("");
  CHECK(found.errors.empty());
  CHECK(found.warnings.empty());
}

TEST_CASE("preflight / a core that does not exist is refused under the name of its own key") {
  CHECK(refuses("[runtime]\ncore = 4095\n",
                {"k.toml:5: runtime.core: cannot pin to core 4095", "taskset"}));
  CHECK(refuses("[runtime]\nmode = \"dedicated\"\nlane_core = 4095\n",
                {"k.toml:6: runtime.lane_core: cannot pin"}));
  CHECK(report("[runtime]\nmode = \"dedicated\"\ncore = 4095\nlane_core = 4094\n").errors.size() ==
        2);
  SteadyClock clock;
  WorkerOptions options;
  options.core = kNoSuchCore;
  options.core_key = "runtime.lane_core";
  Worker worker(options, clock);
  const auto started = worker.start();
  REQUIRE_FALSE(started.ok());
  CHECK(started.error().message.starts_with("runtime.lane_core: cannot pin to core 4095"));
}

TEST_CASE(
    "preflight / tables too small for the blocks are refused with both keys, their lines and the "
    "least size") {
  CHECK(refuses(
      "max_blocks = 67108864\n",
      {"k.toml:2: memory.tables: 64 MiB are too small for memory.max_blocks = 67108864",
       "needs 2048 MiB", "raise memory.tables or lower memory.max_blocks", "(see line 4 too)"}));
  Config config;
  config.table_bytes = least_table_bytes(store_options(config));
  CHECK(check_machine(config).errors.empty());
  config.table_bytes -= 1;
  CHECK(check_machine(config).errors.size() == 1);
}

TEST_CASE("preflight / arenas larger than what the machine has left are refused with the figures") {
  if (!mempool::memory_room()) {
    MESSAGE("SKIP: this machine does not tell what memory it has");
    return;
  }
  Config config;
  config.receive_arena_bytes = 1ULL << 40;
  config.table_bytes = 64 << 20;
  const MachineReport found = check_machine(config);
  if (mempool::memory_room()->bytes > config.receive_arena_bytes) {
    MESSAGE("SKIP: this machine has more than 1 TiB");
    return;
  }
  REQUIRE(found.errors.size() == 1);
  const std::string& message = found.errors[0].message;
  CHECK(message.find(
            "memory.receive_arena: it and memory.agent_arena are 1048576 MiB and 64 MiB, but ") ==
        0);
  CHECK(message.find("left; lower it or raise that limit") != std::string::npos);
}

TEST_CASE("preflight / a key file: absent, short, open to others") {
  const test::TempDir dir;
  CHECK(refuses("[tcp]\npsk_file = \"" + dir.path("none") + "\"\n",
                {"k.toml:5: tcp.psk_file ", "No such file"}));
  CHECK(refuses("[tcp]\npsk_file = \"" + dir.write("short", "five!") + "\"\n",
                {"holds 5 bytes; a key has 16"}));
  const std::string open = dir.write("open", std::string(32, 'k'));
  REQUIRE(::chmod(open.c_str(), 0644) == 0);
  const MachineReport found = report("[tcp]\npsk_file = \"" + open + "\"\n");
  CHECK(found.errors.empty());
  REQUIRE(found.warnings.size() == 1);
  CHECK(found.warnings[0].find("other users can open it; run chmod 600") != std::string::npos);
}

TEST_CASE("preflight / a congestion control that the kernel does not have") {
  CHECK(refuses("[tcp]\ncongestion = \"warp\"\n",
                {"k.toml:5: tcp.congestion: ", "'warp' is not available"}));
}

namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string codec_profile(const std::string& path) { return "[codec]\nprofile = \"" + path + "\"\n"; }

}  // namespace

TEST_CASE("preflight / a profile whose basis is missing, damaged, foreign or without figures") {
  const std::string profile = contents(KVRAIL_RECALL_PROFILE);
  const std::string basis = contents(std::filesystem::path(KVRAIL_RECALL_PROFILE).parent_path() / "recall.basis");
  REQUIRE(profile.size() > 1000);
  REQUIRE(basis.size() > 1000);
  CHECK(report(codec_profile(KVRAIL_RECALL_PROFILE)).errors.empty());
  CHECK(refuses(codec_profile("/nonexistent/profile"), {"k.toml:5: codec.profile: /nonexistent/profile: No such file"}));
  const test::TempDir dir;
  const std::string copy = dir.write("p.toml", profile);
  CHECK(refuses(codec_profile(copy), {"k.toml:5: codec.profile: ", "recall.basis: No such file"}));
  (void)dir.write("recall.basis", basis.substr(0, basis.size() / 2));
  CHECK(refuses(codec_profile(copy), {"codec.profile: ", "recall.basis: ", "has ", "bytes, its sizes ask for"}));
  std::string flipped = basis;
  flipped[basis.size() / 2] = static_cast<char>(flipped[basis.size() / 2] ^ 1);
  (void)dir.write("recall.basis", flipped);
  CHECK(refuses(codec_profile(copy), {"recall.basis: ", "its content does not have its id; get it again"}));
  (void)dir.write("recall.basis", basis);
  CHECK(report(codec_profile(copy)).errors.empty());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = profile;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return dir.write("q.toml", text.replace(at, from.size(), to));
  };
  CHECK(refuses(codec_profile(with("id = \"3", "id = \"4")), {"recall.basis: is another basis than ", "one calibration"}));
  CHECK(refuses(codec_profile(with("[depth.media.lowrank]", "[depth.media.window]")),
                {"q.toml: names a basis of lowrank, but up to 129 tokens it does not say what lowrank loses"}));
}

TEST_CASE("preflight / lowrank as the policy needs a profile with a basis") {
  const std::string policy = "[transfer]\nmedium = \"lowrank\"\n";
  CHECK(refuses(policy, {"k.toml:5: transfer.medium: lowrank needs a calibrated basis", "codec.profile"}));
  CHECK(report(policy + codec_profile(KVRAIL_RECALL_PROFILE)).errors.empty());
}

TEST_CASE("preflight / the folder of a tier is asked, and nothing is left in it") {
  const test::TempDir dir;
  const auto at = [](const std::string& path) { return "[offload]\ndirectory = \"" + path + "\"\n"; };
  const std::string folder = dir.path("tier");
  REQUIRE(std::filesystem::create_directory(folder));
  CHECK(report(at(folder)).errors.empty());
  CHECK(std::filesystem::is_empty(folder));
  CHECK(refuses(at(dir.path("absent")), {"k.toml:5: offload.directory: ", "/absent does not exist; create it"}));
  CHECK(refuses(at(dir.write("file", "x")), {"k.toml:5: offload.directory: ", "is not a directory"}));
}

TEST_CASE("preflight / the agent graph of a workflow is read, and one that is of no use is refused with its line") {
  const test::TempDir dir;
  const std::string path = dir.path("graph.yaml");
  const auto graph = [&](const std::string& text) {
    std::ofstream(path) << text;
    return "[[workflow]]\nname = \"review\"\nfile = \"" + path + "\"\n";
  };
  const std::string nodes = "graph:\n  nodes:\n  - {id: The Lead, type: agent}\n  - {id: b, type: agent}\n";
  CHECK(report(graph(nodes + "  edges:\n  - {from: The Lead, to: b}\n")).errors.empty());
  const auto loaded = load_workflow("review", path);
  REQUIRE(loaded.ok());
  CHECK(loaded->steps.size() == 2);
  CHECK(loaded->steps[0].agent.view() == "The-Lead");
  CHECK(loaded->edges.size() == 1);
  CHECK(refuses(graph(nodes), {"k.toml:6: workflow.file: ", "no agent hands anything"}));
  CHECK(refuses(graph("graph: 1\n"), {"workflow.file: ", "graph.yaml:1: needs a map"}));
  CHECK(refuses(graph(nodes + "  edges:\n  - {from: b, to: c}\n"), {"graph.yaml:6: an edge must lead"}));
  std::string many = "graph:\n  nodes:\n", edges = "  edges:\n";
  for (int i = 0; i < 66; ++i) many.append("  - {id: n").append(std::to_string(i)).append(", type: agent}\n");
  for (int i = 0; i < 65; ++i) edges.append("  - {from: n").append(std::to_string(i)).append(", to: n65}\n");
  CHECK(refuses(graph(many + edges), {"more than 64 agents"}));
  CHECK(refuses(graph("graph:\n  nodes:\n  - {id: \"a\\tb\", type: agent}\n  - {id: b, type: agent}\n  edges:\n"
                      "  - {from: \"a\\tb\", to: b}\n"),
                {"agent \"a\tb\": "}));
  CHECK(refuses("[[workflow]]\nname = \"review\"\nfile = \"/nonexistent/graph\"\n", {"workflow.file: /nonexistent/graph: is not a regular file"}));
}

}  // namespace kvrail::engine
