// Files that lie, and files of another program.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

#include "kvrail/base/byte_order.h"
#include "perf/model/bpe_tokenizer.h"
#include "perf/model/model_file.h"
#include "tests/unit/model/model_fixture.h"

namespace kvrail::model {
namespace {

using Bytes = std::vector<std::byte>;

// A file of its own that is gone at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const Bytes& bytes) {
    std::string name = (std::filesystem::temp_directory_path() / "kvrail-model-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    REQUIRE(fd >= 0);
    ::close(fd);
    path_ = name;
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const Bytes& weights() {
  static const Result<Bytes> bytes = read_file(KVRAIL_MODEL_WEIGHTS);
  REQUIRE(bytes.ok());
  return *bytes;
}

Code code_of(const Bytes& bytes) {
  return Model::load(TemporaryFile(bytes).path()).status().code;
}

Bytes with_u32(std::size_t offset, std::uint32_t value) {
  Bytes bytes = weights();
  store_le32(bytes.data() + offset, value);
  return bytes;
}

TEST_CASE("model file / the repository's weights load, are small, and say what they are") {
  const ModelShape& shape = recall_model().shape();
  CHECK(weights().size() < 2'000'000);
  CHECK(shape.head_dim == 64);
  CHECK(shape.layers >= 2);
  CHECK(shape.layers <= 4);
  CHECK(recall_model().vocabulary().size() == shape.vocabulary);
  const Layout layout = recall_model().layout(64, Dtype::bf16);
  CHECK(layout.block_bytes() == 2ULL * shape.layers * 64 * shape.kv_heads * 64 * 2);
  CHECK(layout.model_id == hash_of(weights()));
}

TEST_CASE("model file / a file cut at any length is refused with a reason") {
  for (std::size_t size :
       {0UL, 1UL, 7UL, 8UL, 60UL, 127UL, 128UL, 129UL, 4000UL, weights().size() - 1}) {
    const Bytes cut(weights().begin(), weights().begin() + static_cast<std::ptrdiff_t>(size));
    const auto model = Model::load(TemporaryFile(cut).path());
    REQUIRE_FALSE(model.ok());
    CHECK(model.status().code == Code::corrupt);
    CHECK(model.error().message.size() > 20);
  }
  Bytes longer = weights();
  longer.push_back(std::byte{0});
  CHECK(code_of(longer) == Code::corrupt);
}

TEST_CASE("model file / wrong magic, version and header fields are refused") {
  CHECK(code_of(with_u32(0, 0x20204B4F)) == Code::corrupt);
  CHECK(code_of(with_u32(8, 2)) == Code::version_mismatch);
  // Every size field: zero, one too many, and values whose products overflow 32 and 64 bits.
  for (std::size_t offset = 12; offset < 48; offset += 4) {
    for (const std::uint32_t value : {0U, 7U, 0x10000U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
      if (offset == 40 && (value == 7 || value == 0x10000U)) {
        continue;  // max_tokens sizes nothing in the file, so these are fine values for it.
      }
      CAPTURE(offset);
      CAPTURE(value);
      CHECK(code_of(with_u32(offset, value)) == Code::corrupt);
    }
  }
  CHECK(code_of(with_u32(48, std::bit_cast<std::uint32_t>(NAN))) == Code::corrupt);
  CHECK(code_of(with_u32(52, 0)) == Code::corrupt);
  CHECK(code_of(with_u32(60, 0xFFFFFFFFU)) == Code::corrupt);
}

TEST_CASE("model file / one flipped bit anywhere in the data is found") {
  for (std::size_t offset = 128; offset < weights().size(); offset += weights().size() / 7) {
    Bytes bytes = weights();
    bytes[offset] ^= std::byte{0x10};
    CHECK(code_of(bytes) == Code::corrupt);
  }
}

TEST_CASE("model file / no file, and a folder, are errors of their own") {
  CHECK(Model::load("/nonexistent/recall.kvrmodel").status().code == Code::not_found);
  CHECK_FALSE(Model::load(std::filesystem::temp_directory_path()).ok());
}

TEST_CASE("vocabulary / words and tokens, and what isn't one") {
  const Vocabulary& vocabulary = recall_model().vocabulary();
  const auto tokens = vocabulary.encode(" alice kite\npale  teal ");
  REQUIRE(tokens.ok());
  REQUIRE(tokens->size() == 4);
  const Fact fact{(*tokens)[0], (*tokens)[1], (*tokens)[2], (*tokens)[3]};
  CHECK(text_of(vocabulary, fact) == "alice.kite = pale teal");
  CHECK(vocabulary.encode("alice qwerty").status().code == Code::not_found);
  CHECK(vocabulary.encode("")->empty());
  CHECK(Vocabulary::parse("n alice\nn alice\n").status().code == Code::corrupt);
  CHECK(Vocabulary::parse("z alice\n").status().code == Code::corrupt);
  CHECK(Vocabulary::parse("n\n").status().code == Code::corrupt);
}

TEST_CASE("facts / keys are distinct, the seed decides, and growth avoids what is there") {
  const FactWorld& world = recall_world();
  const auto first = FactSource(world, 3).draw(96);
  CHECK(first == FactSource(world, 3).draw(96));
  CHECK(first != FactSource(world, 4).draw(96));
  auto all = first;
  const auto more = FactSource(world, 5).draw(world.key_count() - 96, first);
  all.insert(all.end(), more.begin(), more.end());
  std::ranges::sort(all, {}, [](const Fact& f) { return std::pair(f.name, f.thing); });
  const auto same_key = [](const Fact& a, const Fact& b) {
    return a.name == b.name && a.thing == b.thing;
  };
  CHECK(std::ranges::adjacent_find(all, same_key) == all.end());
  CHECK(all.size() == world.key_count());
}

// ---- llama2.c
// ------------------------------------------------------------------------------------------

std::filesystem::path data_folder() {
  const char* folder = std::getenv("KVRAIL_DATA");
  return folder != nullptr ? folder : std::string(KVRAIL_SOURCE_ROOT) + "/../shared/data";
}

Bytes llama2c_header(std::initializer_list<std::int32_t> fields) {
  Bytes bytes(4 * fields.size());
  std::memcpy(bytes.data(), fields.begin(), bytes.size());
  return bytes;
}

TEST_CASE("llama2.c / headers with sizes that lie are refused") {
  const auto code = [](std::initializer_list<std::int32_t> fields) {
    return Model::load_llama2c(TemporaryFile(llama2c_header(fields)).path()).status().code;
  };
  CHECK(code({64, 172, 5, 8, 4}) == Code::corrupt);
  CHECK(code({64, 172, 5, 8, 4, 512, 512}) == Code::corrupt);
  CHECK(code({64, 172, 0, 8, 4, 512, 512}) == Code::corrupt);
  CHECK(code({64, 172, 5, 8, 3, 512, 512}) == Code::corrupt);
  CHECK(code({65, 172, 5, 8, 4, 512, 512}) == Code::corrupt);
  CHECK(code({64, 172, 5, 8, 4, -2147483647 - 1, 512}) == Code::corrupt);
  CHECK(code({2147483647, 2147483647, 2147483647, 1, 1, 2147483647, 2147483647}) == Code::corrupt);
}

// Values computed by another implementation, for the text below: layer, token, KV head, dim.
struct Expected {
  std::uint32_t layer, token, head, dim;
  float key_before_rope, key, value;
};
constexpr Expected kExpected[] = {
    {0, 1, 0, 0, 0.394826F, 0.304463F, -0.828987F},
    {0, 40, 3, 5, 3.773586F, 4.188526F, -0.118572F},
    {1, 7, 1, 2, -5.349247F, -2.440624F, -0.00049F},
    {2, 63, 2, 7, 9.152202F, 9.316922F, -0.164104F},
    {3, 90, 0, 4, 0.929325F, 6.056375F, -1.594319F},
    {4, 5, 1, 1, -0.868573F, -0.684289F, -0.28329F},
    {4, 95, 3, 6, 0.790548F, -0.237789F, -0.012174F},
};
constexpr const char* kStory =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw "
    "a big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, "
    "let's go to the "
    "park.\" Lily was sad and didn'";

TEST_CASE(
    "llama2.c / stories260K tells its known story, and its KV is that of another implementation") {
  const auto folder = data_folder() / "models/stories260K";
  if (!std::filesystem::exists(folder / "stories260K.bin")) {
    MESSAGE("skipped: no ", (folder / "stories260K.bin").string(), " (set KVRAIL_DATA)");
    return;
  }
  const auto model = Model::load_llama2c(folder / "stories260K.bin");
  REQUIRE(model.ok());
  const auto tokenizer = BpeTokenizer::load(folder / "tok512.bin", model->shape().vocabulary);
  REQUIRE(tokenizer.ok());
  auto tokens = tokenizer->encode("Once upon a time");
  REQUIRE(tokens.ok());
  CHECK(*tokens == std::vector<TokenId>{1, 403, 407, 261, 378});
  Session session(*model, 96);
  REQUIRE(session.append(*tokens).ok());
  while (tokens->size() < 96) {
    tokens->push_back(session.greedy());
    REQUIRE(session.append(std::span(*tokens).last(1)).ok());
  }
  CHECK(tokenizer->decode(*tokens) == kStory);
  const ModelShape& s = model->shape();
  for (const Expected& e : kExpected) {
    const std::size_t at = std::size_t{e.token} * s.kv_width() + e.head * s.head_dim + e.dim;
    CAPTURE(e.layer);
    CAPTURE(e.token);
    CHECK(session.key_before_rope(e.layer)[at] == doctest::Approx(e.key_before_rope).epsilon(2e-4));
    CHECK(session.key(e.layer)[at] == doctest::Approx(e.key).epsilon(2e-4));
    CHECK(std::abs(session.value(e.layer)[at] - e.value) < 2e-4F);
  }
  CHECK(session.logits()[300] == doctest::Approx(3.18715F).epsilon(1e-3));
  CHECK(session.logits()[511] == doctest::Approx(-8.57354F).epsilon(1e-3));
  CHECK_FALSE(BpeTokenizer::load(folder / "tok512.bin", 513).ok());
  CHECK_FALSE(BpeTokenizer::load(folder / "tok512.bin", 511).ok());
}

}  // namespace
}  // namespace kvrail::model
