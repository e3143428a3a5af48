// kvrail-calibrate: what it writes is read again, the committed profile is whole, and its basis
// does what docs/codecs.md says of it.
#include "perf/calibrate/calibrate.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/config/profile.h"
#include "perf/codec/lowrank_medium.h"
#include "perf/codec/model_trial.h"
#include "perf/model/model.h"

using namespace kvrail;
using namespace kvrail::calibrate;

namespace {

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Folder {
  Folder()
      : path(std::filesystem::temp_directory_path() /
             ("kvrail-calibrate-test-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

// [layer][token][kv_head][dim] in fp32, version 1.0; values along few directions.
std::string write_npy(const std::filesystem::path& path, std::uint32_t tokens, double phase) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, " +
                       std::to_string(tokens) + ", 2, 8), }";
  header.resize((10 + header.size() + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size()) << '\0' << header;
  for (std::uint32_t i = 0; i < 2 * tokens; ++i) {
    for (std::uint32_t j = 0; j < 16; ++j) {
      const auto value = static_cast<float>(2 + std::sin(0.7 * i + phase) * std::cos(0.4 * j) +
                                            0.1 * std::sin(1.9 * i * (j + 1)));
      file.write(reinterpret_cast<const char*>(&value), 4);
    }
  }
  return path.string();
}

}  // namespace

TEST_CASE("calibrate / the committed profile and basis are whole and of the committed model") {
  const auto profile = engine::load_profile(KVRAIL_RECALL_PROFILE);
  REQUIRE_MESSAGE(profile.ok(), (profile.ok() ? "" : profile.error().message));
  const auto model = model::Model::load(KVRAIL_MODEL_WEIGHTS);
  REQUIRE(model.ok());
  CHECK(profile->model_id == model->layout().model_id);
  const auto basis = codec::Basis::parse(
      bytes_of(std::filesystem::path(KVRAIL_RECALL_PROFILE).parent_path() / profile->basis_file));
  REQUIRE_MESSAGE(basis.ok(), (basis.ok() ? "" : basis.error().message));
  CHECK(basis->id() == profile->basis_id);
  CHECK(basis->check(model->layout()).ok());
  CHECK(codec::theta_for_rate(*basis, 2.0) == profile->theta);
  CHECK(profile->depths.size() == 3);
}

TEST_CASE("calibrate / at 8x the model answers on fresh documents as on exact KV") {
  const auto profile = engine::load_profile(KVRAIL_RECALL_PROFILE);
  REQUIRE(profile.ok());
  const auto basis = codec::Basis::parse(
      bytes_of(std::filesystem::path(KVRAIL_RECALL_PROFILE).parent_path() / profile->basis_file));
  REQUIRE(basis.ok());
  fidelity::LowRankMedium medium("lowrank", 2.0, fidelity::MediumContext{&*basis, {}});
  fidelity::TrialOptions options;
  options.path = KVRAIL_MODEL_WEIGHTS;
  options.seed = 4711;
  auto trial = fidelity::ModelTrial::open(options);
  REQUIRE(trial.ok());
  fidelity::AnswerSums sums;
  double bits = 0, values = 0;
  for (std::uint32_t i = 0; i < (*trial)->contexts(); ++i) {
    auto context = (*trial)->next();
    REQUIRE(context.ok());
    REQUIRE(medium.prepare(context->kv).ok());
    fidelity::KvSet decoded = context->kv.empty_like(context->kv.dtype);
    REQUIRE(medium.encode(context->kv).ok());
    REQUIRE(medium.decode(decoded).ok());
    const auto answered = (*trial)->answer(decoded, {});
    REQUIRE(answered.ok());
    sums.add(*answered);
    bits += static_cast<double>(medium.encoded_bits());
    values += 2.0 * static_cast<double>(context->kv.side_values());
  }
  MESSAGE((bits / values), " bits a value: KL ", sums.logit_kl(), ", top-1 ", sums.top1(),
          ", accuracy ", sums.accuracy());
  CHECK(bits / values < 2.02);
  CHECK(sums.logit_kl() < 5e-4);  // int4 of 4.25 bits: 4e-3
  CHECK(sums.top1() > 0.998);
}

TEST_CASE("calibrate / what is written is read again") {
  codec::Profile profile;
  profile.model_id = {0x0123456789abcdef, 0xfedcba9876543210};
  profile.basis_file = "x.basis";
  profile.basis_id = {5, 6};
  profile.theta = 1000;
  profile.protection = {2, 2, 1, 2};
  profile.depths.resize(2);
  profile.depths[0].up_to_tokens = 100;
  profile.depths[0].media[static_cast<std::size_t>(Medium::int8)] = {true, 4e-5, 6.25, 0};
  profile.depths[1].up_to_tokens = 200;
  profile.depths[1].media[static_cast<std::size_t>(Medium::lowrank)] = {true, 1, 1e5, 123.5};
  const auto read = engine::parse_profile(profile_text(profile, {"a \"line\"", "another"}), "p");
  REQUIRE_MESSAGE(read.ok(), (read.ok() ? "" : read.error().message));
  CHECK(read->model_id == profile.model_id);
  CHECK(read->basis_file == "x.basis");
  CHECK(read->basis_id == profile.basis_id);
  CHECK(read->theta == 1000);
  CHECK(read->protection == profile.protection);
  REQUIRE(read->depths.size() == 2);
  for (std::size_t depth = 0; depth < 2; ++depth) {
    CHECK(read->depths[depth].up_to_tokens == profile.depths[depth].up_to_tokens);
    for (std::size_t medium = 0; medium < kMediumCount; ++medium) {
      const auto& want = profile.depths[depth].media[medium];
      const auto& got = read->depths[depth].media[medium];
      CHECK(got.known == want.known);
      CHECK(got.epsilon == doctest::Approx(want.epsilon).epsilon(1e-4));
      CHECK(got.kappa == doctest::Approx(want.kappa).epsilon(1e-4));
      CHECK(got.extra_tokens == doctest::Approx(want.extra_tokens).epsilon(1e-4));
    }
  }
}

TEST_CASE(
    "calibrate / from files: half of the tokens gives the basis that the other is scored on") {
  const Folder folder;
  Options options;
  options.files.k = write_npy(folder.path / "k.npy", 200, 0);
  options.files.v = write_npy(folder.path / "v.npy", 200, 1);
  options.out = (folder.path / "out").string();
  const auto done = calibrate::calibrate(options);
  REQUIRE_MESSAGE(done.ok(), (done.ok() ? "" : done.error().message));
  CHECK(done->profile.model_id == Hash128{});
  CHECK(done->profile.basis_file == "out.basis");
  const auto basis = codec::Basis::parse(done->basis);
  REQUIRE(basis.ok());
  CHECK(basis->id() == done->profile.basis_id);
  CHECK(basis->shape().rope.rotary_dims == 0);
  REQUIRE(done->profile.depths.size() == 1);
  const auto& lowrank = done->profile.depths[0].media[static_cast<std::size_t>(Medium::lowrank)];
  CHECK(lowrank.known);
  CHECK(lowrank.epsilon > 0);
  CHECK(lowrank.epsilon < 0.02);
  CHECK(engine::parse_profile(profile_text(done->profile, done->lines), "p").ok());
}

TEST_CASE("calibrate / int4's figures are those with the blocks that the profile protects") {
  const Folder folder;
  Options options;
  options.files.k = write_npy(folder.path / "k.npy", 600, 0);
  options.files.v = write_npy(folder.path / "v.npy", 600, 1);
  options.out = (folder.path / "out").string();
  const auto of = [&](codec::Protection protection) {
    options.protection = protection;
    const auto done = calibrate::calibrate(options);
    REQUIRE_MESSAGE(done.ok(), (done.ok() ? "" : done.error().message));
    CHECK(done->profile.protection == protection);
    return done->profile.depths[0].media;
  };
  const auto plain = of({});
  const auto ends = of({0, 0, 1, 2});  // of five blocks, the second half of the tokens
  const auto int4 = static_cast<std::size_t>(Medium::int4);
  const auto int8 = static_cast<std::size_t>(Medium::int8);
  CHECK(ends[int4].epsilon < 0.7 * plain[int4].epsilon);
  CHECK(ends[int4].epsilon > plain[int8].epsilon);
  CHECK(ends[int8].epsilon == plain[int8].epsilon);
}

TEST_CASE("calibrate / bad usage and bad input are refused in one line") {
  const auto refused = [](std::vector<const char*> words) {
    words.insert(words.begin(), "kvrail-calibrate");
    int exit_code = 0;
    auto options = parse_options(static_cast<int>(words.size()), words.data(), exit_code);
    if (options.ok())
      options = [&]() -> Result<Options> {
        auto done = calibrate::calibrate(*options);
        if (!done.ok()) return std::move(done).error();
        return *options;
      }();
    REQUIRE(!options.ok());
    CHECK(!options.error().message.empty());
    CHECK(options.error().message.find('\n') == std::string::npos);
    CHECK(exit_code == 2);
  };
  refused({});
  refused({"--out", "x", "--k", "k.npy"});
  refused({"--out", "x", "--layout", "l.toml"});
  refused({"--out", "x", "--k", "k.npy", "--v", "v.npy", "--model", "m"});
  refused({"--out", "x", "--bits", "0"});
  refused({"--out", "x", "--dtype", "int3", "--k", "k.npy", "--v", "v.npy"});
  refused({"--out", "x", "--k", "/nonexistent/k.npy", "--v", "/nonexistent/v.npy"});
  refused({"--out", "x", "--model", "/nonexistent"});
  refused({"--out", "x", "--model", "/dev/null"});
  const Folder folder;
  const std::string k = write_npy(folder.path / "k.npy", 2, 0);
  refused({"--out", "x", "--k", k.c_str(), "--v", k.c_str()});
}
