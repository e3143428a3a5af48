// The real binary: what it prints, and how it ends.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/unit/codec_program/files.h"

namespace kvrail::fidelity_test {
namespace {

using nlohmann::json;

struct Ended {
  int code = -1;
  std::string out, err;
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Ended run(const std::string& arguments) {
  const Folder folder;
  const std::string out = folder.path() + "/out", err = folder.path() + "/err";
  const std::string command = std::string(KVRAIL_CODEC_PATH)
                                  .append(" ")
                                  .append(arguments)
                                  .append(" >")
                                  .append(out)
                                  .append(" 2>")
                                  .append(err)
                                  .append(" </dev/null");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(out), contents(err)};
}

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

const std::vector<std::string> kFileKeys{
    "attention_error", "bit_exact", "bits_per_value", "decode_gb_s", "encode_gb_s",
    "memcpy_gb_s",     "name",      "nmse_k",         "nmse_v"};

struct KvOnDisk {
  Folder folder;
  std::string k, v;
  KvOnDisk() {
    const auto set = random_set(Dtype::fp16, 2, 140, 2, 64);
    const std::string header = npy_header("<f2", "(2, 140, 2, 64)");
    k = folder.file("k.npy", npy(header, text_of(set.k)));
    v = folder.file("v.npy", npy(header, text_of(set.v)));
  }
  [[nodiscard]] std::string options() const {
    return std::string("--k ").append(k).append(" --v ").append(v).append(" ");
  }
};

TEST_CASE("kvrail-codec / files, as JSON: the fields of every medium and nothing else") {
  const KvOnDisk kv;
  const Ended ended = run(kv.options() + "--json --compare");
  REQUIRE(ended.code == 0);
  CHECK(ended.err.empty());
  const json report = json::parse(ended.out);
  CHECK(keys(report) == std::vector<std::string>{"media"});
  bool full = false, q4_0 = false;
  for (const json& medium : report["media"]) {
    CHECK(keys(medium) == kFileKeys);
    CHECK(medium["bits_per_value"].get<double>() > 0);
    CHECK(medium["memcpy_gb_s"].get<double>() > 0);
    if (medium["name"] == "full") {
      full = true;
      CHECK(medium["bits_per_value"] == 16.0);
      CHECK(medium["bit_exact"] == true);
      for (const char* error : {"nmse_k", "nmse_v", "attention_error"}) CHECK(medium[error] == 0.0);
    }
    if (medium["name"] == "q4_0") {
      q4_0 = true;
      CHECK(medium["bits_per_value"] == 4.5);
      CHECK(medium["bit_exact"] == false);
      for (const char* error : {"nmse_k", "nmse_v", "attention_error"})
        CHECK(medium[error].get<double>() > 0.0);
    }
  }
  CHECK(full);
  CHECK(q4_0);
}

TEST_CASE("kvrail-codec / files with --media, a layout, and a table for people") {
  const KvOnDisk kv;
  const Ended one = run(kv.options() + "--json --media full,q8_0,full");
  REQUIRE(one.code == 0);
  const json report = json::parse(one.out);
  REQUIRE(report["media"].size() == 2);
  CHECK(report["media"][0]["name"] == "full");
  CHECK(report["media"][1]["name"] == "q8_0");
  const auto layout = kv.folder.file("l.toml", "rotary = \"half\"\n");
  const Ended table = run(kv.options() + "--layout " + layout);
  CHECK(table.code == 0);
  CHECK(table.out.find("bits/val") != std::string::npos);
  CHECK(table.out.find("full") != std::string::npos);
}

TEST_CASE("kvrail-codec / NaN in K: full keeps it bit by bit, what has no number is null") {
  const Folder folder;
  auto set = random_set(Dtype::fp32, 1, 3, 1, 8);
  const float nan = std::bit_cast<float>(0x7FC00123U);
  std::memcpy(set.k.data(), &nan, sizeof(nan));
  const std::string header = npy_header("<f4", "(1, 3, 1, 8)");
  const auto k = folder.file("k.npy", npy(header, text_of(set.k)));
  const auto v = folder.file("v.npy", npy(header, text_of(set.v)));
  const Ended ended = run("--json --media full,q8_0 --k " + k + " --v " + v);
  REQUIRE(ended.code == 0);
  CHECK(ended.err.find("q8_0") != std::string::npos);
  const json report = json::parse(ended.out);
  REQUIRE(report["media"].size() == 1);
  CHECK(report["media"][0]["bit_exact"] == true);
  CHECK(report["media"][0]["attention_error"] == 0.0);
  const Ended none = run("--json --media q8_0 --k " + k + " --v " + v);
  CHECK(none.code == 2);
  CHECK(none.out.empty());
}

TEST_CASE("kvrail-codec / the built-in model: four fields more, and ggml's formats beside ours") {
  const Ended ended = run("--json --facts 96");
  REQUIRE(ended.code == 0);
  std::vector<std::string> wanted = kFileKeys;
  wanted.insert(wanted.end(), {"accuracy", "extra_tokens", "logit_kl", "top1"});
  std::sort(wanted.begin(), wanted.end());
  std::vector<std::string> names;
  const json report = json::parse(ended.out);
  for (const json& medium : report["media"]) {
    CHECK(keys(medium) == wanted);
    names.push_back(medium["name"]);
    if (medium["name"] == "full") {
      CHECK(medium["logit_kl"] == 0.0);
      CHECK(medium["top1"] == 1.0);
      CHECK(medium["accuracy"].get<double>() >= 0.98);
      CHECK(medium["extra_tokens"] == 0.0);
    }
    if (medium["name"] == "q4_0") CHECK(medium["logit_kl"].get<double>() > 0.0);
  }
  for (const char* name : {"full", "lowrank", "topk@50", "window@25", "q8_0", "q4_0"})
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
}

TEST_CASE("kvrail-codec / a calibrated basis loses less than one that plain error was fitted to") {
  const std::string profile = std::string(KVRAIL_SOURCE_ROOT) + "/perf/model/recall.profile.toml";
  const auto kl = [](const Ended& ended) {
    REQUIRE(ended.code == 0);
    return json::parse(ended.out)["media"][0]["logit_kl"].get<double>();
  };
  const std::string ask = "--json --facts 96 --media lowrank";
  CHECK(2 * kl(run(ask + " --profile " + profile)) < kl(run(ask)));
}

TEST_CASE("kvrail-codec / protected parts cost bits and lose less") {
  const Ended ended = run("--json --facts 96 --media int4,int4+protect --protect 1,0,1,0");
  REQUIRE(ended.code == 0);
  const json report = json::parse(ended.out);
  REQUIRE(report["media"].size() == 2);
  const json &plain = report["media"][0], &protect = report["media"][1];
  CHECK(protect["name"] == "int4+protect");
  CHECK(protect["bits_per_value"].get<double>() > plain["bits_per_value"].get<double>());
  CHECK(protect["bits_per_value"].get<double>() < 8.25);
  for (const char* error : {"nmse_k", "nmse_v", "logit_kl"})
    CHECK(protect[error].get<double>() < plain[error].get<double>());
}

TEST_CASE("kvrail-codec / bad usage and bad input: exit status 2 and one line with the remedy") {
  const KvOnDisk kv;
  const auto cut = kv.folder.file("cut.npy", contents(kv.k).substr(0, 1000));
  const auto layout = kv.folder.file("bad.toml", "rope_base = -1\n");
  const std::string known = contents(std::string(KVRAIL_SOURCE_ROOT) + "/perf/model/recall.profile.toml");
  const auto profile = kv.folder.file("a.profile.toml", known);
  const auto without = kv.folder.file("b.profile.toml", known.substr(0, known.find("[lowrank]")) +
                                                            known.substr(known.find("[protection]")));
  const std::string other = contents(std::string(KVRAIL_SOURCE_ROOT) + "/perf/model/recall.basis");
  const Folder damaged;
  const auto cut_basis = damaged.file("c.profile.toml", known);
  (void)damaged.file("recall.basis", other.substr(0, other.size() / 2));
  const struct {
    std::string arguments;
    const char* part;
  } cases[] = {
      {kv.options() + "--media lowrank --profile none", "none"},
      {kv.options() + "--media lowrank --profile " + layout, "bad.toml"},
      {kv.options() + "--media lowrank --profile " + profile, "recall.basis"},
      {kv.options() + "--media lowrank --profile " + without, "kvrail-calibrate"},
      {kv.options() + "--media lowrank --profile " + cut_basis, "recall.basis"},
      {"--k " + kv.k, "go together"},
      {kv.options() + "--media int4+protect", "--protect"},
      {kv.options() + "--media int4+protect --protect 0,0,0,0", "nothing is protected"},
      {kv.options() + "--media int4+protect --protect 1,2", "--help"},
      {kv.options() + "--media lossless+protect --protect 1,1,1,1", "int4+protect"},
      {kv.options() + "--media zip", "full"},
      {kv.options() + "--media lowrank@99", "0.25 to 10"},
      {kv.options() + "--media ''", "--media needs a name"},
      {kv.options() + "--full", "no meaning"},
      {kv.options() + "--dtype int8", "bf16"},
      {kv.options() + "--dtype bf16", "fp16"},
      {kv.options() + "--layout " + layout, "rope_base"},
      {kv.options() + "--k-name k", "--k-name"},
      {"--k " + cut + " --v " + kv.v, "cut short"},
      {"--k none.npy --v " + kv.v, "check the path"},
      {"--nonsense", "--help"},
      {"--facts 7", "--help"},
      {"--layout " + layout, "needs --k"},
      {"--model " + kv.k, "k.npy"},
      {"--model none", "check the path"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.arguments);
    const Ended ended = run(each.arguments);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(ended.err.starts_with("kvrail-codec: "));
    CHECK(ended.err.find('\n') == ended.err.size() - 1);
    CHECK(ended.err.find(each.part) != std::string::npos);
  }
}

TEST_CASE("kvrail-codec / --help ends with 0, an output that is full with 1") {
  const Ended help = run("--help");
  CHECK(help.code == 0);
  CHECK(help.out.find("--media") != std::string::npos);
  const KvOnDisk kv;
  const std::string command = std::string(KVRAIL_CODEC_PATH)
                                  .append(" --json --media full ")
                                  .append(kv.options())
                                  .append(" >/dev/full 2>/dev/null");
  const int status = std::system(command.c_str());
  CHECK(WEXITSTATUS(status) == 1);
}

}  // namespace
}  // namespace kvrail::fidelity_test
