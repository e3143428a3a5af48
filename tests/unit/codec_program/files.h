// Files of KV for the tests of kvrail-codec, in a folder that goes with the test.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "kvrail/base/assert.h"
#include "kvrail/base/prng.h"
#include "perf/codec/kv_set.h"

namespace kvrail::fidelity_test {

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvrail-codec-XXXXXX").string();
    KVRAIL_ASSERT(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  /// Writes the file and gives its path.
  [[nodiscard]] std::string file(const std::string& name, const std::string& bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    KVRAIL_ASSERT(out.good());
    return path;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
  return out;
}

inline std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string out("\x93NUMPY", 6);
  out += static_cast<char>(version);
  out += '\0';
  return out.append(little_endian(header.size(), version == 1 ? 2 : 4)).append(header).append(data);
}

/// "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3, 4), }"
inline std::string npy_header(const std::string& descr, const std::string& shape) {
  std::string out("{'descr': '");
  return out.append(descr)
      .append("', 'fortran_order': False, 'shape': ")
      .append(shape)
      .append(", }\n");
}

inline std::string safetensors(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8).append(header).append(data);
}

/// Normal values; every fourth dim of K ten times as large, as real K has it.
inline fidelity::KvSet random_set(Dtype dtype, std::uint32_t layers, std::uint32_t tokens,
                                  std::uint32_t kv_heads, std::uint32_t head_dim) {
  fidelity::KvSet set{dtype, layers, tokens, kv_heads, head_dim, {}, {}, {}, {}};
  set = set.empty_like(dtype);
  Prng random(7);
  std::vector<float> values(set.side_values());
  for (auto* side : {&set.k, &set.v}) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      double sum = -6;
      for (int draw = 0; draw < 12; ++draw) sum += random.uniform01();
      values[i] = static_cast<float>(side == &set.k && i % 4 == 0 ? 10 * sum : sum);
    }
    fidelity::from_floats(dtype, values, *side);
  }
  return set;
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace kvrail::fidelity_test
