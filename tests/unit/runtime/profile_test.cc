// Profiles: what is read, what is refused, and what the scheduler makes of it.
#include "engine/config/profile.h"

#include <doctest/doctest.h>

#include <string>

using namespace kvrail;

namespace {

constexpr const char* kGood = R"(version = 1
model = "000102030405060708090a0b0c0d0e0f"
[lowrank]
basis = "model.basis"
id = "f0e0d0c0b0a090807060504030201000"
theta = 1020
[protection]
first_layers = 2
last_layers = 1
first_blocks = 1
last_blocks = 2
[[depth]]
up_to_tokens = 256
[depth.media.int8]
epsilon = 4.0e-5
kappa = 5
extra_tokens = 0
[depth.media.int4]
epsilon = 0.01
kappa = 2.5
extra_tokens = 1.25
[[depth]]
up_to_tokens = 1024
[depth.media.int8]
epsilon = 1e-9
kappa = 7.0
extra_tokens = 0.5
)";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("profile / a file of kvrail-calibrate is read whole") {
  const auto profile = engine::parse_profile(kGood, "model.profile.toml");
  REQUIRE(profile.ok());
  CHECK(profile->model_id == Hash128{0x08090a0b0c0d0e0f, 0x0001020304050607});
  CHECK(profile->basis_file == "model.basis");
  CHECK(profile->basis_id == Hash128{0x7060504030201000, 0xf0e0d0c0b0a09080});
  CHECK(profile->theta == 1020);
  CHECK(profile->protection == codec::Protection{2, 1, 1, 2});
  REQUIRE(profile->depths.size() == 2);
  const codec::MediumFigures& int4 =
      profile->depths[0].media[static_cast<std::size_t>(Medium::int4)];
  CHECK(int4.known);
  CHECK(int4.epsilon == 0.01);
  CHECK(int4.kappa == 2.5);
  CHECK(int4.extra_tokens == 1.25);
  CHECK(!profile->depths[1].media[static_cast<std::size_t>(Medium::int4)].known);
}

TEST_CASE("profile / the scheduler gets the figures of its depth, built-in ones where none are") {
  const scheduler::DepthLoss loss = engine::loss_of(*engine::parse_profile(kGood, "p"));
  const auto of = [&](std::uint64_t tokens, Medium medium) {
    return loss.at(tokens).media[static_cast<std::size_t>(medium)];
  };
  const auto built_in = scheduler::LossProfile::built_in();
  CHECK(of(1, Medium::int8).epsilon_ppm == 40);
  CHECK(of(256, Medium::int4).epsilon_ppm == 10'000);
  CHECK(of(256, Medium::int4).kappa_milli == 2500);
  CHECK(of(256, Medium::int4).extra_tokens_milli == 1250);
  for (const std::uint64_t deep : {257ULL, 1024ULL, 1'000'000ULL}) {
    CHECK(of(deep, Medium::int8).epsilon_ppm == 1);  // lossy is never exact
    CHECK(of(deep, Medium::int8).kappa_milli == 7000);
    CHECK(of(deep, Medium::int8).extra_tokens_milli == 500);
    CHECK(of(deep, Medium::int4).epsilon_ppm ==
          built_in.media[static_cast<std::size_t>(Medium::int4)].epsilon_ppm);
  }
  CHECK(of(256, Medium::full).epsilon_ppm == 0);
}

TEST_CASE("profile / what is wrong is named with file, line and key") {
  const auto refused = [](const std::string& text, const std::string& part) {
    const auto profile = engine::parse_profile(text, "p.toml");
    REQUIRE(!profile.ok());
    CAPTURE(profile.error().message);
    CHECK(profile.error().message.starts_with("p.toml"));
    CHECK(profile.error().message.find(part) != std::string::npos);
    CHECK(profile.error().message.find('\n') == std::string::npos);
  };
  refused(with("version = 1", "version = 2"), "version must be 1");
  refused(with("version = 1", ""), "version must be 1");
  refused(with("000102", "00010g"), ":2: model: must be a string of 32 hex digits");
  refused(with("theta = 1020", "theta = 5000"), "theta must be 0 to 2047");
  refused(with("theta = 1020", ""), ":3: lowrank: needs basis");
  refused(with("basis = \"model.basis\"", "basis = \"\""), "basis");
  refused(with("theta = 1020", "theta = -1"), ":6: theta: must be a whole number");
  refused(with("epsilon = 0.01", "epsilon = nan"), ":19: epsilon: must be a number");
  refused(with("epsilon = 0.01", "epsilon = 1.5"), "epsilon must be 0 to 1");
  refused(with("kappa = 2.5", "kappa = -2.5"), "int4 up to 256 tokens");
  refused(with("kappa = 2.5", "kappa = \"2.5\""), ":20: kappa: must be a number");
  refused(with("media.int4", "media.int5"), "int5: unknown key");
  refused(with("first_layers", "some_layers"), ":8: some_layers: unknown key");
  refused(with("up_to_tokens = 1024", "up_to_tokens = 256"), "must rise");
  refused("version = 1\n", "has 0 depths");
  refused("version = 1\ndepth = 3\n", ":2: depth: must be an array of tables");
  refused("version = 1\n[", "p.toml:2:");
  refused(std::string("version = 1\0", 12), "no profile");
  CHECK(engine::load_profile("/nonexistent/p").status().code == Code::not_found);
  CHECK(engine::load_profile("/").status().code == Code::invalid_argument);
}

TEST_CASE("protection / layers and blocks at the ends, however few there are") {
  const codec::Protection rule{1, 2, 1, 0};
  CHECK(is_protected(rule, 0, 16, 5, 10));
  CHECK(!is_protected(rule, 1, 16, 5, 10));
  CHECK(!is_protected(rule, 13, 16, 5, 10));
  CHECK(is_protected(rule, 14, 16, 5, 10));
  CHECK(is_protected(rule, 5, 16, 0, 10));
  CHECK(!is_protected(rule, 5, 16, 9, 10));
  CHECK(is_protected(rule, 1, 2, 9, 10));
  CHECK(!is_protected(codec::Protection{}, 0, 1, 0, 1));
}
