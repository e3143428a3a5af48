#include "perf/model/model_file.h"

#include <xxhash.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "perf/model/bf16.h"

namespace kvrail::model {
namespace {

constexpr std::size_t kHeaderBytes = 128;
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;
constexpr std::uint32_t kMaxVocabularyBytes = 1 << 20;

struct Header {
  std::uint32_t version = 0;
  ModelShape shape;
  std::uint32_t vocabulary_bytes = 0;
  std::uint32_t checksum = 0;
  std::uint64_t values = 0;
};

Header parse_header(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data() + 8;
  const auto u32 = [&at] {
    const std::uint32_t value = load_le32(at);
    at += 4;
    return value;
  };
  Header h;
  h.version = u32();
  h.shape.dim = u32();
  h.shape.layers = u32();
  h.shape.heads = u32();
  h.shape.kv_heads = u32();
  h.shape.head_dim = u32();
  h.shape.ffn_dim = u32();
  h.shape.vocabulary = u32();
  h.shape.max_tokens = u32();
  h.vocabulary_bytes = u32();
  h.shape.rope_base = std::bit_cast<float>(u32());
  h.shape.norm_epsilon = std::bit_cast<float>(u32());
  h.checksum = u32();
  h.values = load_le64(at);
  return h;
}

// The CRC of zlib and Ethernet (reflected 0xEDB88320), because Python has it built in.
std::uint32_t crc32(std::span<const std::byte> bytes) {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) {
      c = (c >> 1) ^ ((c & 1U) != 0 ? 0xEDB88320U : 0U);
    }
    table[i] = c;
  }
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const std::byte b : bytes) {
    crc = table[(crc ^ std::to_integer<std::uint32_t>(b)) & 0xFFU] ^ (crc >> 8);
  }
  return ~crc;
}

std::uint64_t values_of(const ModelShape& s) {
  const std::uint64_t q = s.query_width();
  const std::uint64_t kv = s.kv_width();
  const std::uint64_t dim = s.dim;
  const std::uint64_t layer = 2 * dim + 2 * dim * q + 2 * dim * kv + 3 * dim * s.ffn_dim;
  return s.vocabulary * dim + s.layers * layer + dim;
}

// Hands out consecutive tensors of the file as float32.
class TensorReader {
 public:
  explicit TensorReader(const std::byte* at) : at_(at) {}
  std::vector<float> vector(std::uint64_t count) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = from_bf16(load_le16(at_));
      at_ += 2;
    }
    return values;
  }
  Matrix matrix(std::uint32_t in, std::uint32_t out) {
    return transposed(vector(std::uint64_t{in} * out), in, out);
  }

 private:
  const std::byte* at_;
};

// The header, once everything that it says has been found true of the file.
Result<Header> checked_header(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  if (bytes.size() < 8 || std::memcmp(bytes.data(), "KVRMODEL", 8) != 0) {
    return bad_file(path, "not a kvrail model file (it doesn't begin with KVRMODEL)");
  }
  if (bytes.size() < kHeaderBytes) {
    return bad_file(path, "truncated: the header alone has 128 bytes");
  }
  const Header header = parse_header(bytes);
  if (header.version != kVersion) {
    return Error{
        {Code::version_mismatch},
        path.string() + ": version " + std::to_string(header.version) + ", this reader knows 1"};
  }
  const std::string fault = shape_fault(header.shape);
  if (!fault.empty()) {
    return bad_file(path, fault);
  }
  if (header.vocabulary_bytes > kMaxVocabularyBytes || header.values != values_of(header.shape)) {
    return bad_file(path, "the sizes in the header don't fit each other");
  }
  const std::uint64_t expected = kHeaderBytes + header.vocabulary_bytes + 2 * header.values;
  if (bytes.size() != expected) {
    return bad_file(path, std::to_string(bytes.size()) + " bytes, the header promises " +
                              std::to_string(expected));
  }
  if (crc32(bytes.subspan(kHeaderBytes)) != header.checksum) {
    return bad_file(path, "damaged: the checksum doesn't match");
  }
  return header;
}

}  // namespace

Error bad_file(const std::filesystem::path& path, const std::string& what) {
  return Error{{Code::corrupt}, path.string() + ": " + what};
}

Result<std::vector<std::byte>> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return Error{{Code::not_found, Scope::transfer, errno},
                 path.string() + ": can't be opened: " + std::strerror(errno)};
  }
  const std::streamoff size = file.tellg();
  if (size < 0 || static_cast<std::uint64_t>(size) > kMaxFileBytes) {
    return Error{{Code::too_large}, path.string() + ": not a regular file of at most 1 GiB"};
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (file.gcount() != size) {
    return Error{{Code::io_error}, path.string() + ": can't be read to its end"};
  }
  return bytes;
}

std::string shape_fault(const ModelShape& s) {
  // These bounds keep every product of three fields and a layer count under 2^64.
  const auto outside = [](std::uint32_t value, std::uint32_t limit) {
    return value == 0 || value > limit;
  };
  if (outside(s.dim, 1 << 14) || outside(s.ffn_dim, 1 << 16) || outside(s.layers, 1 << 10)) {
    return "dim must be 1 to 16384, ffn_dim 1 to 65536, layers 1 to 1024";
  }
  if (outside(s.heads, 1 << 10) || outside(s.kv_heads, s.heads) || s.heads % s.kv_heads != 0) {
    return "heads must be 1 to 1024 and a multiple of kv_heads";
  }
  if (outside(s.head_dim, 576) || s.head_dim % 2 != 0) {
    return "head_dim must be even and at most 576";
  }
  if (outside(s.vocabulary, 1 << 20) || outside(s.max_tokens, 1 << 16)) {
    return "vocabulary must be 1 to 1048576, max_tokens 1 to 65536";
  }
  if (!(s.rope_base >= 1.0F) || !std::isfinite(s.rope_base) || !(s.norm_epsilon > 0.0F) ||
      !(s.norm_epsilon < 1.0F)) {
    return "rope_base must be at least 1 and norm_epsilon between 0 and 1";
  }
  return {};
}

Matrix transposed(std::span<const float> weights, std::uint32_t in, std::uint32_t out) {
  KVRAIL_ASSERT(weights.size() == std::size_t{in} * out);
  Matrix matrix{in, out, std::vector<float>(weights.size())};
  for (std::size_t o = 0; o < out; ++o) {
    for (std::size_t i = 0; i < in; ++i) {
      matrix.values[i * out + o] = weights[o * in + i];
    }
  }
  return matrix;
}

Hash128 hash_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

Result<Model> Model::load(const std::filesystem::path& path) {
  auto file = read_file(path);
  if (!file) {
    return std::move(file).error();
  }
  const std::span<const std::byte> bytes = *file;
  const auto checked = checked_header(path, bytes);
  if (!checked) {
    return checked.error();
  }
  const Header& header = *checked;
  const auto* text = reinterpret_cast<const char*>(bytes.data() + kHeaderBytes);
  auto vocabulary = Vocabulary::parse({text, header.vocabulary_bytes});
  if (!vocabulary) {
    return bad_file(path, vocabulary.error().message);
  }
  if (vocabulary->size() != header.shape.vocabulary) {
    return bad_file(path, "the vocabulary has another number of words than the header says");
  }

  Model model;
  model.shape_ = header.shape;
  model.vocabulary_ = std::move(*vocabulary);
  model.id_ = hash_of(bytes);
  const ModelShape& s = model.shape_;
  TensorReader tensors(bytes.data() + kHeaderBytes + header.vocabulary_bytes);
  model.embedding_ = tensors.vector(std::uint64_t{s.vocabulary} * s.dim);
  for (std::uint32_t i = 0; i < s.layers; ++i) {
    LayerWeights layer;
    layer.attention_norm = tensors.vector(s.dim);
    layer.query = tensors.matrix(s.dim, s.query_width());
    layer.key = tensors.matrix(s.dim, s.kv_width());
    layer.value = tensors.matrix(s.dim, s.kv_width());
    layer.output = tensors.matrix(s.query_width(), s.dim);
    layer.ffn_norm = tensors.vector(s.dim);
    layer.gate = tensors.matrix(s.dim, s.ffn_dim);
    layer.up = tensors.matrix(s.dim, s.ffn_dim);
    layer.down = tensors.matrix(s.ffn_dim, s.dim);
    model.layers_.push_back(std::move(layer));
  }
  model.final_norm_ = tensors.vector(s.dim);
  model.classifier_ = transposed(model.embedding_, s.dim, s.vocabulary);
  model.fill_rope_tables();
  return model;
}

}  // namespace kvrail::model
