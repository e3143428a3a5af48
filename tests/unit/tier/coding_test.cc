// How blocks are kept that are not kept as they are: what comes back, what it costs, and what is known of the loss.
#include <cmath>

#include "tests/unit/tier/file_fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

// 64 tokens of 6 layers, 4 heads of 128 bf16: 768 KiB a block, of values as models have them.
Layout model_layout() {
  Layout layout = small_layout();
  layout.layers = 6;
  layout.kv_heads = 4;
  layout.head_dim = 128;
  layout.block_tokens = 64;
  return layout;
}

std::uint16_t bf16(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }
float of_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::vector<std::byte> values(std::uint64_t seed, const Layout& layout, std::uint32_t tokens) {
  std::vector<std::byte> packed(packed_bytes(layout, tokens));
  Prng random(seed);
  for (std::size_t at = 0; at < packed.size(); at += 2) {
    const double sum = random.uniform01() + random.uniform01() + random.uniform01() - 1.5;
    const std::uint16_t bits = bf16(static_cast<float>(sum * 3));
    std::memcpy(packed.data() + at, &bits, 2);
  }
  std::vector<std::byte> slot(layout.block_bytes());
  unpack_rows(layout, tokens, packed.data(), slot.data());
  return slot;
}

// Error over signal, of all values that are finite in `right`.
double nmse(const std::vector<std::byte>& right, const std::vector<std::byte>& got) {
  double error = 0;
  double signal = 0;
  for (std::size_t at = 0; at < right.size(); at += 2) {
    std::uint16_t a = 0;
    std::uint16_t b = 0;
    std::memcpy(&a, right.data() + at, 2);
    std::memcpy(&b, got.data() + at, 2);
    const double x = of_bf16(a);
    const double y = of_bf16(b);
    if (!std::isfinite(x)) continue;
    error += (x - y) * (x - y);
    signal += x * x;
  }
  return error / signal;
}

struct Coded {
  explicit Coded(Medium coding, std::uint32_t calibrated_ppm = 0) : options(small_tier(folder)) {
    options.segment_bytes = 8U << 20;
    options.capacity_bytes = 64U << 20;
    options.coding = coding;
    options.coding_epsilon_ppm = calibrated_ppm;
    open();
  }
  void open() {
    tier.reset();
    tier.emplace(options, model_layout());
  }
  TierCompletion put(std::uint64_t number, const std::vector<std::byte>& rows, std::uint32_t tokens = 64, std::uint32_t epsilon_ppm = 0) {
    tier->puts.erase(number);
    REQUIRE(tier->port->put({number, hash_of(number), tier->layout, tokens, epsilon_ppm, rows.data()}));
    return tier->end_put(number);
  }
  Folder folder;
  tier::TierOptions options;
  std::optional<Tier> tier;
};

}  // namespace

TEST_CASE("tier coding: lossless takes less room and gives every bit back, of tails and after a restart too") {
  Coded f(Medium::lossless, 500);
  const auto block = values(1, f.tier->layout, 64);
  const auto tail = values(2, f.tier->layout, 7);
  const TierCompletion done = f.put(1, block);
  CHECK(done.status.ok());
  CHECK(done.stored_bytes * 13 < f.tier->layout.block_bytes() * 10);
  CHECK(done.epsilon_ppm == 0);
  CHECK(f.put(2, tail, 7, 30).epsilon_ppm == 30);
  for (int round = 0; round < 2; ++round) {
    CHECK(f.tier->get(1).status.ok());
    CHECK(f.tier->slot == block);
    CHECK(f.tier->get(2, 7).epsilon_ppm == 30);
    CHECK(f.tier->slot == tail);
    f.open();
  }
}

TEST_CASE("tier coding: int8 and int4 lose what they say, and add it to what was lost before") {
  std::uint64_t stored = UINT64_MAX;
  for (const Medium coding : {Medium::int8, Medium::int4}) {
    Coded f(coding);
    const auto block = values(3, f.tier->layout, 64);
    const TierCompletion done = f.put(1, block, 64, 1'000);
    REQUIRE(done.status.ok());
    CHECK(done.stored_bytes < stored);
    stored = done.stored_bytes;
    CHECK(done.epsilon_ppm > 1'000);
    f.open();
    const TierCompletion got = f.tier->get(1);
    CHECK(got.status.ok());
    CHECK(got.epsilon_ppm == done.epsilon_ppm);
    CHECK(f.tier->port->find(hash_of(1))->epsilon_ppm == done.epsilon_ppm);
    const double lost = nmse(block, f.tier->slot);
    CHECK(lost > 0);
    CHECK(lost * 1e6 < 2.0 * (done.epsilon_ppm - 1'000) + 1);
  }
  CHECK(stored * 3 < model_layout().block_bytes());
}

TEST_CASE("tier coding: what is to be kept exactly loses nothing, whatever the others do") {
  Coded f(Medium::int4, 70'000);
  const auto block = values(5, f.tier->layout, 64);
  REQUIRE(f.tier->port->put({7, hash_of(7), f.tier->layout, 64, 3, block.data(), true}));
  const TierCompletion done = f.tier->end_put(7);
  CHECK(done.status.ok());
  CHECK(done.epsilon_ppm == 3);
  f.open();
  CHECK(f.tier->get(7).epsilon_ppm == 3);
  CHECK(f.tier->slot == block);
}

TEST_CASE("tier coding: what a calibration says is lost at least is what is told") {
  Coded f(Medium::int8, 70'000);
  const auto block = values(3, f.tier->layout, 64);
  CHECK(f.put(1, block, 64, 5).epsilon_ppm == 70'005);
}

TEST_CASE("tier coding: a layer that cannot be coded is kept as it is, the others are coded") {
  Coded f(Medium::int8);
  auto block = values(4, f.tier->layout, 64);
  const std::uint16_t nan = 0x7FC1;
  const std::size_t layer = f.tier->layout.row_offset(2, 0, 0);
  std::memcpy(block.data() + layer + 100, &nan, 2);
  const TierCompletion done = f.put(1, block);
  REQUIRE(done.status.ok());
  CHECK(f.tier->get(1).status.ok());
  const std::size_t end = f.tier->layout.row_offset(3, 0, 0);
  CHECK(std::memcmp(f.tier->slot.data() + layer, block.data() + layer, end - layer) == 0);
  CHECK(f.tier->slot != block);
  CHECK(nmse(block, f.tier->slot) < 1e-3);
}

TEST_CASE("tier coding: rows that do not get smaller are kept as they are") {
  Coded f(Medium::lossless);
  const auto noise = rows_of(9, f.tier->layout, 64);
  const TierCompletion done = f.put(1, noise);
  CHECK(done.status.ok());
  CHECK(done.stored_bytes <= f.tier->layout.block_bytes() + 16 * f.tier->layout.layers);
  CHECK(f.tier->get(1).status.ok());
  CHECK(f.tier->slot == noise);
}

TEST_CASE("tier coding: blocks of many pieces, several on their way, with another coding after a restart") {
  Coded f(Medium::lossless);
  Layout layout = model_layout();
  layout.layers = 28;  // 3.5 MiB a block
  f.tier->layout = layout;
  std::map<std::uint64_t, std::vector<std::byte>> blocks;
  for (std::uint64_t number = 0; number < 6; ++number) {
    blocks[number] = values(number, layout, 64);
    REQUIRE(f.tier->port->put({number, hash_of(number), layout, 64, 0, blocks[number].data()}));
  }
  for (std::uint64_t number = 0; number < 6; ++number) CHECK(f.tier->end_put(number).status.ok());
  f.options.coding = Medium::full;
  f.open();
  f.tier->layout = layout;
  for (std::uint64_t number = 0; number < 6; ++number) {
    CHECK(f.tier->get(number).status.ok());
    CHECK(f.tier->slot == blocks[number]);
  }
}
