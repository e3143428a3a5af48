// .npy, .safetensors and layout files: what is read, and what is refused in one line.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "perf/codec/tensor.h"
#include "tests/unit/codec_program/files.h"

namespace kvrail::fidelity_test {
namespace {

using fidelity::InputFile;
using fidelity::KvFiles;
using fidelity::load_kv;

bool is_one_line(const std::string& message) {
  return !message.empty() && message.find('\n') == std::string::npos && message.size() < 600;
}

// The message with which the pair is refused.
std::string refusal(const KvFiles& files) {
  const auto set = load_kv(files);
  REQUIRE_FALSE(set.ok());
  CHECK(is_one_line(set.error().message));
  return set.error().message;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kShape = "(2, 3, 1, 2)";  // 12 values
const std::string kData24(24, '\1');
const std::string kData48(48, '\2');

TEST_CASE("npy / both versions, all types, keys in any order") {
  const Folder folder;
  const auto k1 = folder.file("k1.npy", npy(npy_header("<f2", kShape), kData24));
  const auto v1 = folder.file("v1.npy", npy(npy_header("<f2", kShape), kData24, 2));
  const auto half = load_kv({k1, v1, "", "", {}});
  REQUIRE(half.ok());
  CHECK(half->dtype == Dtype::fp16);
  CHECK(half->layers == 2);
  CHECK(half->tokens == 3);
  CHECK(half->kv_heads == 1);
  CHECK(half->head_dim == 2);
  CHECK(text_of(half->k) == kData24);

  const std::string other = "{\"shape\":(2,3,1,2),\"fortran_order\":False,\"descr\":\"<f4\"}";
  const auto f4 = folder.file("f4.npy", npy(other, kData48));
  const auto single = load_kv({f4, f4, "", "", {}});
  REQUIRE(single.ok());
  CHECK(single->dtype == Dtype::fp32);

  for (const char* descr : {"<V2", "|V2", "<u2"}) {
    const auto untyped = folder.file("u.npy", npy(npy_header(descr, kShape), kData24));
    const auto brain = load_kv({untyped, untyped, "", "", Dtype::bf16});
    REQUIRE(brain.ok());
    CHECK(brain->dtype == Dtype::bf16);
    CHECK(has(refusal({untyped, untyped, "", "", {}}), "--dtype bf16"));
    CHECK(has(refusal({untyped, untyped, "", "", Dtype::fp32}), "--dtype"));
  }
}

TEST_CASE("npy / headers that lie or are none") {
  const Folder folder;
  const struct {
    const char* what;
    std::string bytes;
    const char* part;
  } cases[] = {
      {"empty", "", "does not begin"},
      {"another magic", std::string(64, 'x'), "does not begin"},
      {"version 3", npy(npy_header("<f2", kShape), kData24, 3), "version 3.0"},
      {"magic alone", npy("", "").substr(0, 9), "does not begin"},
      {"length beyond the file", npy(npy_header("<f2", kShape), kData24).substr(0, 40), "follow"},
      {"no dictionary", npy("[1, 2]\n", kData24), "no dictionary"},
      {"not ended", npy("{'descr': '<f2', 'fortran_order': False", kData24), "lacks a comma"},
      {"a key lacks", npy("{'descr': '<f2', 'shape': (2, 3, 1, 2)}\n", kData24), "lacks one of"},
      {"a key twice", npy("{'descr': '<f2', 'descr': '<f2'}\n", kData24), "twice"},
      {"an unknown key", npy("{'desc': '<f2'}\n", kData24), "'desc'"},
      {"records", npy("{'descr': [('a', '<f2')], }\n", kData24), "descr"},
      {"Fortran order",
       npy("{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3, 1, 2)}\n", kData24),
       "ascontiguousarray"},
      {"big-endian", npy(npy_header(">f2", kShape), kData24), "big-endian"},
      {"doubles", npy(npy_header("<f8", kShape), kData24), "<f8"},
      {"negative", npy(npy_header("<f2", "(2, -3, 1, 2)"), kData24), "shape"},
      {"sizes beyond 64 bits", npy(npy_header("<f2", "(99999999999999999999, 1)"), ""), "shape"},
      {"a product beyond 64 bits",
       npy(npy_header("<f2", "(4294967296, 4294967296, 4294967296, 1)"), ""), "2^64"},
      {"2^31 values declared", npy(npy_header("<f2", "(1, 2097152, 8, 128)"), kData24),
       "4294967296"},
      {"a byte short", npy(npy_header("<f2", kShape), kData24.substr(1)), "23 bytes"},
      {"a byte long", npy(npy_header("<f2", kShape), kData24 + "x"), "25 bytes"},
      {"behind its end", npy("{'descr': '<f2'} x", kData24), "goes on"},
      {"three dims", npy(npy_header("<f2", "(2, 3, 2)"), kData24), "[layer][token]"},
      {"no tokens", npy(npy_header("<f2", "(2, 0, 1, 2)"), ""), "1 to"},
      {"a head too long", npy(npy_header("<f2", "(1, 1, 1, 577)"), std::string(1154, 'x')), "576"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.what);
    const auto path = folder.file("bad.npy", each.bytes);
    CHECK(has(refusal({path, path, "", "", {}}), each.part));
  }
}

TEST_CASE("npy / cut after every byte it is refused") {
  const Folder folder;
  const std::string whole = npy(npy_header("<f2", kShape), kData24);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto path = folder.file("cut.npy", whole.substr(0, size));
    CHECK_FALSE(load_kv({path, path, "", "", {}}).ok());
  }
}

TEST_CASE("files / absent, a folder, a pipe, another ending, K and V that do not agree") {
  const Folder folder;
  const auto good = folder.file("good.npy", npy(npy_header("<f2", kShape), kData24));
  CHECK(has(refusal({folder.path() + "/none.npy", good, "", "", {}}), "check the path"));
  CHECK(has(refusal({folder.path(), good, "", "", {}}), "regular file"));
  CHECK(has(refusal({"/dev/zero", good, "", "", {}}), "regular file"));
  const auto text = folder.file("k.txt", "1 2 3");
  CHECK(has(refusal({text, good, "", "", {}}), ".safetensors"));
  const auto shorter =
      folder.file("short.npy", npy(npy_header("<f2", "(2, 2, 1, 2)"), kData24.substr(0, 16)));
  CHECK(has(refusal({good, shorter, "", "", {}}), "agree"));
  const auto wider = folder.file("wide.npy", npy(npy_header("<f4", kShape), kData48));
  CHECK(has(refusal({good, wider, "", "", {}}), "agree"));
  CHECK(has(refusal({good, good, "", "", Dtype::bf16}), "fp16"));
  CHECK(has(refusal({good, good, "k", "", {}}), "--k-name"));
}

// "{TENSORS}", where literal + std::string&& would draw a false warning from gcc 12.
std::string object(const std::string& entries) {
  return std::string("{").append(entries).append("}");
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   std::uint64_t begin, std::uint64_t end) {
  std::string out("\"");
  return out.append(name)
      .append("\":{\"dtype\":\"")
      .append(dtype)
      .append("\",\"shape\":")
      .append(shape)
      .append(",\"data_offsets\":[")
      .append(std::to_string(begin))
      .append(",")
      .append(std::to_string(end))
      .append("]}");
}

TEST_CASE("safetensors / one file with K and V, by name, by their usual names, and alone") {
  const Folder folder;
  const std::string k = tensor("k", "BF16", "[2,3,1,2]", 24, 48);
  const std::string v = tensor("v", "BF16", "[2,3,1,2]", 0, 24);
  const auto both = folder.file(
      "kv.safetensors", safetensors("{\"__metadata__\":{\"format\":\"pt\"}," + k + "," + v + "}",
                                    std::string(24, 'v') + std::string(24, 'k')));
  for (const bool named : {false, true}) {
    const auto set = load_kv({both, both, named ? "k" : "", named ? "v" : "", {}});
    REQUIRE(set.ok());
    CHECK(set->dtype == Dtype::bf16);
    CHECK(text_of(set->k) == std::string(24, 'k'));
    CHECK(text_of(set->v) == std::string(24, 'v'));
  }
  CHECK(has(refusal({both, both, "key", "", {}}), "among: \"v\", \"k\""));

  const auto alone = folder.file(
      "k.safetensors",
      safetensors(object(tensor("layers", "F32", "[2,3,1,2]", 0, 48)) + "   ", kData48));
  const auto set = load_kv({alone, alone, "", "", {}});
  REQUIRE(set.ok());
  CHECK(set->dtype == Dtype::fp32);

  const auto integers = folder.file(
      "i.safetensors", safetensors(object(tensor("k", "I16", "[2,3,1,2]", 0, 24)), kData24));
  CHECK(has(refusal({integers, integers, "", "", {}}), "I16"));
}

TEST_CASE("safetensors / headers that lie or are none") {
  const Folder folder;
  const std::string good = tensor("k", "F16", "[2,3,1,2]", 0, 24);
  const std::string deep(100'000, '[');
  const struct {
    const char* what;
    std::string bytes;
    const char* part;
  } cases[] = {
      {"empty", "", "8 at least"},
      {"a header of 2^63 bytes", little_endian(1ULL << 63, 8) + "{}", "cut short"},
      {"beyond the format's limit", little_endian(100'000'001, 8) + "{}", "100000000"},
      {"no object", safetensors("[]", ""), "no JSON object"},
      {"blanks before it", safetensors(" {}", ""), "no JSON object"},
      {"not UTF-8", safetensors("{\"\xff\":1}", ""), "no JSON object"},
      {"something behind it", safetensors("{}x", ""), "no JSON object"},
      {"nested 100,000 deep", safetensors("{\"k\":" + deep + "}", ""), "no JSON object"},
      {"a tensor twice", safetensors(object(good + "," + good), kData24), "twice"},
      {"a field twice",
       safetensors("{\"k\":{\"dtype\":\"F16\",\"dtype\":\"F16\",\"shape\":[2,3,1,2],"
                   "\"data_offsets\":[0,24]}}",
                   kData24),
       "twice"},
      {"a field lacks", safetensors("{\"k\":{\"dtype\":\"F16\",\"shape\":[12]}}", kData24),
       "lacks"},
      {"a number for a tensor", safetensors("{\"k\":1}", ""), "lacks"},
      {"an unknown type", safetensors(object(tensor("k", "F15", "[12]", 0, 24)), kData24), "F15"},
      {"three offsets",
       safetensors("{\"k\":{\"dtype\":\"F16\",\"shape\":[12],\"data_offsets\":[0,24,24]}}",
                   kData24),
       "pair"},
      {"a negative offset",
       safetensors("{\"k\":{\"dtype\":\"F16\",\"shape\":[12],\"data_offsets\":[-1,23]}}", kData24),
       "pair"},
      {"a shape of fractions",
       safetensors("{\"k\":{\"dtype\":\"F16\",\"shape\":[1.5],\"data_offsets\":[0,3]}}",
                   std::string(3, 'x')),
       "shape"},
      {"offsets turned round", safetensors(object(tensor("k", "F16", "[0]", 24, 0)), kData24),
       "bytes 24 to 0"},
      {"beyond the file", safetensors(object(tensor("k", "F16", "[13]", 0, 26)), kData24), "26"},
      {"fewer bytes than the shape",
       safetensors(object(tensor("k", "F16", "[13]", 0, 24)), kData24), "need 26"},
      {"a product beyond 64 bits",
       safetensors(object(tensor("k", "F16", "[4294967296,4294967296]", 0, 24)), kData24), "2^64"},
      {"a hole at its begin", safetensors(object(tensor("k", "F16", "[11]", 2, 24)), kData24),
       "holes"},
      {"bytes of no tensor", safetensors(object(tensor("k", "F16", "[11]", 0, 22)), kData24),
       "belong to no tensor"},
      {"an overlap",
       safetensors(object(good + "," + tensor("v", "F16", "[2,3,1,2]", 12, 36)),
                   std::string(36, 'x')),
       "overlap"},
      {"metadata that are no texts", safetensors("{\"__metadata__\":{\"a\":1}}", ""),
       "__metadata__"},
      {"a name of escapes",
       safetensors("{\"\\u001b[31m\\n\":{\"dtype\":\"F15\",\"shape\":[],\"data_offsets\":[0,0]}}",
                   ""),
       "?[31m?"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.what);
    const auto path = folder.file("bad.safetensors", each.bytes);
    CHECK(has(refusal({path, path, "", "", {}}), each.part));
  }
}

std::string unhex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

TEST_CASE("safetensors / the files that another implementation accepts and refuses") {
  const char* data = std::getenv("KVRAIL_DATA");
  const std::filesystem::path root = data != nullptr ? data : KVRAIL_SOURCE_ROOT "/../shared/data";
  std::ifstream in(root / "vectors/safetensors_half.json");
  if (!in) {
    MESSAGE("SKIP: no ", (root / "vectors/safetensors_half.json").string(), " (set KVRAIL_DATA)");
    return;
  }
  const Folder folder;
  int seen = 0;
  for (const auto& each : nlohmann::json::parse(in)) {
    const std::string name = each["name"];
    CAPTURE(name);
    const auto file = InputFile::open(folder.file(name, unhex(each["hex"])));
    REQUIRE(file.ok());
    CHECK(fidelity::safetensors_places(*file).ok() == each["accept"].get<bool>());
    ++seen;
  }
  CHECK(seen > 5);
}

TEST_CASE("layout / RoPE data are read, what is wrong is named with file and line") {
  const Folder folder;
  const auto good = folder.file("good.toml",
                                "rope_base = 500000\nrope_scale = 8.0\nrotary = \"half\"\n"
                                "rotary_dims = 32\npositions_start = 17\n");
  const auto rope = fidelity::load_layout(good, 64);
  REQUIRE(rope.ok());
  CHECK(rope->rule.base == 500000.0F);
  CHECK(rope->rule.scale == 8.0F);
  CHECK(rope->rule.pairing == codec::RopePairing::half_split);
  CHECK(rope->rule.rotary_dims == 32);
  CHECK(rope->first_position == 17);
  const auto empty = fidelity::load_layout(folder.file("empty.toml", ""), 64);
  REQUIRE(empty.ok());
  CHECK(empty->rule.rotary_dims == 64);
  const struct {
    std::string text;
    const char* part;
  } cases[] = {
      {"rope_base = 0\n", ":1: rope_base"},
      {"rope_base = nan\n", ":1: rope_base"},
      {"\nrope_scale = \"8\"\n", ":2: rope_scale"},
      {"rotary = \"neox\"\n", "interleaved"},
      {"rotary_dims = 65\n", "rotary"},
      {"rotary_dims = 1e3\n", "whole number"},
      {"positions_start = -1\n", "whole number"},
      {"rope = 1\n", "is no key"},
      {"[rope]\nbase = 1\n", "is no key"},
      {"rope_base = \n", ":1: "},
      {"rope_base = 1\nrope_base = 2\n", ":2: "},
  };
  for (const auto& each : cases) {
    CAPTURE(each.text);
    const auto refused = fidelity::load_layout(folder.file("bad.toml", each.text), 64);
    REQUIRE_FALSE(refused.ok());
    CHECK(is_one_line(refused.error().message));
    CHECK(has(refused.error().message, each.part));
  }
}

}  // namespace
}  // namespace kvrail::fidelity_test
