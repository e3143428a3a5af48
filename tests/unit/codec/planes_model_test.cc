// The planes on KV that a model computed: bits of the exact medium, and the error against an int4
// of its own and against ggml's formats.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "codec/float_convert.h"
#include "codec/planes_codec.h"
#include "perf/codec/ggml_blocks.h"
#include "tests/unit/codec/runs.h"
#include "tests/unit/model/model_fixture.h"

using namespace kvrail;
using namespace kvrail::codec;
using namespace kvrail::codec_test;

namespace {

// One layer's KV, as bf16 values in floats.
struct LayerKv {
  RunShape shape;
  std::vector<float> k, v;
};
struct ModelKv {
  const char* name = "";
  std::vector<LayerKv> layers;
};

std::vector<float> as_bf16(std::span<const float> values) {
  std::vector<float> out;
  for (const float v : values) out.push_back(bf16_to_float(float_to_bf16(v)));
  return out;
}

ModelKv kv_of(const char* name, const model::Model& model, const model::Session& session) {
  const model::ModelShape& shape = model.shape();
  ModelKv kv{name, {}};
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    kv.layers.push_back({{Dtype::bf16, shape.kv_heads, shape.head_dim, session.length()},
                         as_bf16(session.key(layer)),
                         as_bf16(session.value(layer))});
  }
  return kv;
}

ModelKv recall_kv() {
  model::FactSource source(model::recall_world(), 11);
  model::Session session(model::recall_model(), 600);
  REQUIRE(session.append(model::recall_world().document(source.draw(128))).ok());
  return kv_of("recall", model::recall_model(), session);
}

std::filesystem::path data_folder() {
  const char* folder = std::getenv("KVRAIL_DATA");
  return folder != nullptr ? folder : std::string(KVRAIL_SOURCE_ROOT) + "/../shared/data";
}

// Empty where the model isn't there.
ModelKv stories_kv() {
  const std::filesystem::path folder = data_folder() / "models/stories260K";
  if (!std::filesystem::exists(folder / "stories260K.bin")) {
    MESSAGE("SKIP: no ", (folder / "stories260K.bin").string(), " (set KVRAIL_DATA)");
    return {};
  }
  const auto loaded = model::Model::load_llama2c(folder / "stories260K.bin");
  REQUIRE(loaded.ok());
  model::Session session(*loaded, 400);
  std::vector<TokenId> tokens{1, 403, 407, 261, 378};
  REQUIRE(session.append(tokens).ok());
  while (session.length() < 400) {
    const TokenId next = session.greedy();
    REQUIRE(session.append(std::span(&next, 1)).ok());
  }
  return kv_of("stories260K", *loaded, session);
}

std::vector<ModelKv> all_kv() {
  std::vector<ModelKv> all{recall_kv()};
  ModelKv stories = stories_kv();
  if (!stories.layers.empty()) all.push_back(std::move(stories));
  return all;
}

Run run_of(const LayerKv& layer) {
  Run run{layer.shape, {}};
  for (const std::vector<float>* side : {&layer.k, &layer.v}) {
    for (const float value : *side) {
      const std::uint16_t bits = float_to_bf16(value);
      run.bytes.push_back(static_cast<std::byte>(bits & 0xff));
      run.bytes.push_back(static_cast<std::byte>(bits >> 8));
    }
  }
  return run;
}

LayerKv through(Medium medium, const LayerKv& layer) {
  const Codec& codec = *codec_for(medium);
  const Decoded out = decode(codec, layer.shape, encode(codec, layer.shape, run_of(layer)));
  REQUIRE(out.report.status.ok());
  LayerKv result{layer.shape, {}, {}};
  for (std::size_t i = 0; i < out.run.bytes.size(); i += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, out.run.bytes.data() + i, 2);
    (i < layer.shape.side_bytes() ? result.k : result.v).push_back(bf16_to_float(bits));
  }
  return result;
}

constexpr double kQ8Bits = 8.5;

std::vector<float> through(fidelity::GgmlFormat format, std::span<const float> values) {
  std::vector<std::byte> blocks(fidelity::ggml_bytes(format, values.size()));
  std::vector<float> out(values.size());
  fidelity::ggml_encode(format, values, blocks);
  fidelity::ggml_decode(format, blocks, out);
  return out;
}

double nmse(std::span<const float> exact, std::span<const float> other) {
  double noise = 0;
  double energy = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double e = static_cast<double>(exact[i]) - static_cast<double>(other[i]);
    noise += e * e;
    energy += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  return noise / energy;
}

double dot(const float* a, const float* b, std::uint32_t count) {
  double sum = 0;
  for (std::uint32_t i = 0; i < count; ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Half the variance, under the attention that exact keys give, of the change of a query's scores:
// the divergence of the attention (methods.md §1.3). Later keys of the head stand for the queries.
double attention_error(const LayerKv& exact, std::span<const float> k) {
  const RunShape& shape = exact.shape;
  const std::size_t width = shape.row_values();
  double sum = 0;
  std::size_t count = 0;
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (std::uint32_t query = 32; query < shape.tokens; query += 7, ++count) {
      const float* const q = exact.k.data() + query * width + head * shape.head_dim;
      std::vector<double> score, change;
      for (std::uint32_t t = 0; t < query; ++t) {
        const std::size_t at = t * width + head * shape.head_dim;
        const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
        score.push_back(dot(q, exact.k.data() + at, shape.head_dim) * scale);
        change.push_back(dot(q, k.data() + at, shape.head_dim) * scale - score.back());
      }
      const double top = *std::max_element(score.begin(), score.end());
      double total = 0, mean = 0, square = 0;
      for (std::size_t t = 0; t < score.size(); ++t) {
        const double p = std::exp(score[t] - top);
        total += p;
        mean += p * change[t];
        square += p * change[t] * change[t];
      }
      mean /= total;
      sum += 0.5 * (square / total - mean * mean);
    }
  }
  return sum / static_cast<double>(count);
}

// int4 on a grid of its own, symmetric about 0 with 15 levels, in the same groups, with the same
// rotation and scale: what the first plane would be without a second one to nest in.
std::vector<float> through_own_int4(std::span<const float> values, std::uint32_t order) {
  std::vector<float> out(values.begin(), values.end());
  const auto rotate = [&] {
    for (std::size_t base = 0; base < out.size(); base += order) {
      for (std::size_t half = 1; half < order; half *= 2) {
        for (std::size_t i = base; i < base + order; ++i) {
          if (((i - base) & half) != 0) continue;
          const float a = out[i], b = out[i + half];
          out[i] = (a + b) * 0x1.6a09e6p-1F;
          out[i + half] = (a - b) * 0x1.6a09e6p-1F;
        }
      }
    }
  };
  rotate();
  for (std::size_t group = 0; group + 64 <= out.size(); group += 64) {
    float largest = 0;
    for (std::size_t i = group; i < group + 64; ++i) largest = std::max(largest, std::fabs(out[i]));
    const float step = bf16_to_float(float_to_bf16(largest / 7.0F));
    for (std::size_t i = group; i < group + 64 && step > 0; ++i)
      out[i] = std::clamp(std::round(out[i] / step), -7.0F, 7.0F) * step;
  }
  rotate();
  return out;
}

struct Errors {
  double k = 0, v = 0, attention = 0;
};
void add(const LayerKv& exact, std::span<const float> k, std::span<const float> v, Errors& sum) {
  sum.k += nmse(exact.k, k);
  sum.v += nmse(exact.v, v);
  sum.attention += attention_error(exact, k);
}

}  // namespace

TEST_CASE("exact / at most 13 bits a value on a model's bf16 KV, bit by bit") {
  for (const ModelKv& kv : all_kv()) {
    double bits = 0;
    double values = 0;
    for (const LayerKv& layer : kv.layers) {
      const Run in = run_of(layer);
      const Codec& codec = *codec_for(Medium::exact);
      const Coded coded = encode(codec, layer.shape, in);
      REQUIRE(coded.report.status.ok());
      CHECK(decode(codec, layer.shape, coded).run.bytes == in.bytes);
      bits += 8.0 * static_cast<double>(coded.report.encoded_bytes);
      values += static_cast<double>(2 * layer.shape.side_values());
    }
    MESSAGE(std::string(kv.name), ": exact takes ", bits / values, " bits a value");
    CHECK(bits / values <= 13.0);
  }
}

TEST_CASE("int4 / nesting costs nothing: not worse than an int4 of the same rate on its own") {
  for (const ModelKv& kv : all_kv()) {
    Errors nested, own;
    for (const LayerKv& layer : kv.layers) {
      const LayerKv coded = through(Medium::int4, layer);
      const std::uint32_t order = layer.shape.head_dim & (~layer.shape.head_dim + 1);
      add(layer, coded.k, coded.v, nested);
      add(layer, through_own_int4(layer.k, order), through_own_int4(layer.v, 1), own);
    }
    MESSAGE(std::string(kv.name), ": NMSE of K nested ", nested.k, ", alone ", own.k,
            "; of V nested ", nested.v, ", alone ", own.v);
    CHECK(nested.k <= own.k);
    CHECK(nested.v <= own.v);
  }
}

TEST_CASE("planes / against ggml's q8_0 and q4_0 on a model's KV") {
  for (const ModelKv& kv : all_kv()) {
    Errors int8, int4, q8, q4;
    for (const LayerKv& layer : kv.layers) {
      const LayerKv a = through(Medium::int8, layer);
      const LayerKv b = through(Medium::int4, layer);
      add(layer, a.k, a.v, int8);
      add(layer, b.k, b.v, int4);
      add(layer, through(fidelity::GgmlFormat::q8_0, layer.k),
          through(fidelity::GgmlFormat::q8_0, layer.v), q8);
      add(layer, through(fidelity::GgmlFormat::q4_0, layer.k),
          through(fidelity::GgmlFormat::q4_0, layer.v), q4);
    }
    const auto tell = [&](const char* name, const Errors& e) {
      const double layers = static_cast<double>(kv.layers.size());
      MESSAGE(std::string(kv.name), ", ", std::string(name), ": attention error ",
              e.attention / layers, ", NMSE of K ", e.k / layers, ", of V ", e.v / layers);
    };
    tell("int8", int8);
    tell("q8_0", q8);
    tell("int4", int4);
    tell("q4_0", q4);
    // 6.02 dB for each bit of difference in rate: a factor of 4.
    const double allowance = std::pow(4.0, kQ8Bits - 8.25);
    CHECK(int8.v <= q8.v * allowance);
    CHECK(int4.v <= q4.v * allowance);
    // Rotation pays where a few channels of K are wider than the others, as in stories260K: less
    // error at fewer bits. The recall model's K has none; there the rate decides, as for V.
    const bool wide_channels = std::string(kv.name) == "stories260K";
    CHECK(int8.attention < q8.attention * (wide_channels ? 1.0 : allowance));
    CHECK(int4.attention < q4.attention * (wide_channels ? 1.0 : allowance));
  }
}
