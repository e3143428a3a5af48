#include "perf/codec/ggml_blocks.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "kvrail/base/byte_order.h"

namespace kvrail::fidelity {
namespace {

std::vector<float> ramp() {
  std::vector<float> values(kGgmlBlockValues);
  std::iota(values.begin(), values.end(), -16.0F);  // -16 to 15
  return values;
}

TEST_CASE("ggml / q8_0: the scale is the greatest magnitude over 127") {
  std::vector<float> values = ramp();
  values[0] = 127.0F;
  values[1] = -126.5F;  // a half goes away from zero
  std::vector<std::byte> block(34);
  ggml_encode(GgmlFormat::q8_0, values, block);
  CHECK(load_le16(block.data()) == 0x3C00);  // 1.0
  CHECK(static_cast<int>(static_cast<signed char>(block[2])) == 127);
  CHECK(static_cast<int>(static_cast<signed char>(block[3])) == -127);
  CHECK(static_cast<int>(static_cast<signed char>(block[4])) == -14);
  std::vector<float> decoded(values.size());
  ggml_decode(GgmlFormat::q8_0, block, decoded);
  CHECK(decoded[0] == 127.0F);
  CHECK(decoded[31] == 15.0F);
}

TEST_CASE("ggml / q4_0: the value of the greatest magnitude is code 0, halves share a byte") {
  const std::vector<float> values = ramp();
  std::vector<std::byte> block(18);
  ggml_encode(GgmlFormat::q4_0, values, block);
  CHECK(load_le16(block.data()) == 0x4000);  // -16 / -8
  // -16 / 2 + 8.5 = 0.5 and 0 / 2 + 8.5 = 8.5; -1 / 2 + 8.5 = 8 and 15 / 2 + 8.5 = 16, at most 15.
  CHECK(static_cast<int>(block[2]) == 0x80);
  CHECK(static_cast<int>(block[17]) == 0xF8);
  std::vector<float> decoded(values.size());
  ggml_decode(GgmlFormat::q4_0, block, decoded);
  CHECK(decoded[0] == -16.0F);
  CHECK(decoded[16] == 0.0F);
  CHECK(decoded[31] == 14.0F);
}

TEST_CASE("ggml / zeros, values too small for a scale, a block that is not full") {
  for (const GgmlFormat format : {GgmlFormat::q8_0, GgmlFormat::q4_0}) {
    for (const float value : {0.0F, 1e-42F}) {
      const std::vector<float> values(35, value);
      std::vector<std::byte> blocks(ggml_bytes(format, values.size()));
      CHECK(blocks.size() == 2 * ggml_block_bytes(format));
      ggml_encode(format, values, blocks);
      std::vector<float> decoded(values.size(), 1.0F);
      ggml_decode(format, blocks, decoded);
      for (const float each : decoded) CHECK(each == 0.0F);
    }
  }
}

// A file of the archive, by tar; empty where that fails.
std::vector<std::byte> from_archive(const std::string& archive, const std::string& name) {
  const std::string command = "tar -xJOf '" + archive + "' ggml/" + name + " 2>/dev/null";
  std::vector<std::byte> bytes;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return bytes;
  std::byte part[4096];
  for (std::size_t got; (got = std::fread(part, 1, sizeof(part), pipe)) > 0;)
    bytes.insert(bytes.end(), part, part + got);
  ::pclose(pipe);
  return bytes;
}

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

TEST_CASE("ggml / blocks and values are those of libggml") {
  const char* data = std::getenv("KVRAIL_DATA");
  const std::filesystem::path root = data != nullptr ? data : KVRAIL_SOURCE_ROOT "/../shared/data";
  const std::string archive = (root / "vectors/ggml_blocks_gauss_edge.tar.xz").string();
  if (!std::filesystem::exists(archive)) {
    MESSAGE("SKIP: no ", archive, " (set KVRAIL_DATA)");
    return;
  }
  for (const std::string input : {"gauss", "edge"}) {
    const std::vector<float> values = floats(from_archive(archive, input + ".f32"));
    if (values.empty()) {
      MESSAGE("SKIP: tar cannot read ", archive);
      return;
    }
    for (const GgmlFormat format : {GgmlFormat::q8_0, GgmlFormat::q4_0}) {
      const std::string name = input + "." + std::string(ggml_name(format));
      CAPTURE(name);
      std::vector<std::byte> blocks(ggml_bytes(format, values.size()));
      ggml_encode(format, values, blocks);
      CHECK(blocks == from_archive(archive, name + ".bin"));
      std::vector<float> decoded(values.size());
      ggml_decode(format, blocks, decoded);
      CHECK(decoded == floats(from_archive(archive, name + ".deq.f32")));
    }
  }
}

}  // namespace
}  // namespace kvrail::fidelity
