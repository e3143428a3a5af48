#include "tests/unit/codec/bases.h"

#include <cmath>
#include <span>

#include "codec/hash.h"
#include "codec/rows.h"
#include "kvrail/base/byte_order.h"
#include "kvrail/base/prng.h"

namespace kvrail::codec_test {
namespace {

// Near enough to a normal distribution, of variance 1, without a library function.
double bell(Prng& prng) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(prng.next_u64() >> 11) * 0x1p-53;
  return sum - 6.0;
}

double deviation(std::size_t component) {
  return 4.0 / (1.0 + static_cast<double>(component));
}

// Gram and Schmidt's.
std::vector<double> orthonormal(std::size_t count, std::size_t width, Prng& prng) {
  std::vector<double> rows(count * width);
  for (std::size_t r = 0; r < count; ++r) {
    double* const row = rows.data() + r * width;
    for (std::size_t i = 0; i < width; ++i) row[i] = bell(prng);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < r; ++other) {
        double along = 0;
        for (std::size_t i = 0; i < width; ++i) along += row[i] * rows[other * width + i];
        for (std::size_t i = 0; i < width; ++i) row[i] -= along * rows[other * width + i];
      }
    }
    double square = 0;
    for (std::size_t i = 0; i < width; ++i) square += row[i] * row[i];
    for (std::size_t i = 0; i < width; ++i) row[i] /= std::sqrt(square);
  }
  return rows;
}

// A uniform quantiser of a Gaussian: the best step and the error left, by bits.
constexpr double kStep[] = {1.596, .9957, .5860, .3352, .1881, .1041, .0569, .0308, .0165, .0088};
constexpr double kLeft[] = {.3634,  .1188,   .0374,   .01154,  .00349,
                            .00104, .000304, .000088, .000025, .0000071};

codec::BasisSegmentContent random_segment(const codec::BasisShape& shape, Prng& prng) {
  codec::BasisSegmentContent out;
  for (std::uint32_t v = 0; v < shape.segment_values(); ++v)
    out.mean.push_back(static_cast<float>(0.25 * bell(prng)));
  for (std::uint32_t c = 0; c < shape.components; ++c) {
    const double sigma = deviation(c);
    double left = 1.0;
    for (std::uint32_t bit = 0; bit < codec::kMaxComponentBits; ++bit) {
      out.steps.push_back(static_cast<float>(kStep[bit] * sigma));
      out.gains.push_back(static_cast<float>((left - kLeft[bit]) * sigma * sigma));
      left = kLeft[bit];
    }
  }
  for (const double value : orthonormal(shape.components, shape.segment_values(), prng))
    out.matrix.push_back(static_cast<float>(value));
  return out;
}

}  // namespace

codec::BasisContent random_basis(const codec::BasisShape& shape, std::uint64_t seed) {
  Prng prng(seed);
  codec::BasisContent content;
  content.shape = shape;
  // 1, 1/2, 1/4, ...: no pow() in a golden vector.
  for (std::uint32_t pair = 0; pair < shape.rope.rotary_dims / 2; ++pair)
    content.frequencies.push_back(std::ldexp(1.0, -static_cast<int>(pair % 16)));
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer)
    content.group_of_layer.push_back(static_cast<std::uint16_t>(layer % shape.groups));
  for (std::uint32_t i = 0; i < shape.groups * 2 * shape.segments(); ++i)
    content.segments.push_back(random_segment(shape, prng));
  return content;
}

Run run_along(const codec::BasisContent& content, const codec::RunShape& shape, std::uint32_t layer,
              std::uint32_t first_position, std::uint64_t seed) {
  const codec::BasisShape& s = content.shape;
  Run run{shape, std::vector<std::byte>(shape.raw_bytes())};
  Prng prng(seed);
  std::vector<float> row(shape.row_values());
  for (std::size_t side = 0; side < 2; ++side) {
    codec::RopeAngles angles(content.frequencies, first_position);
    for (std::uint32_t t = 0; t < shape.tokens; ++t, angles.advance()) {
      for (std::uint32_t segment = 0; segment < s.segments(); ++segment) {
        const auto& of =
            content.segments[(content.group_of_layer[layer] * 2U + side) * s.segments() + segment];
        float* const values = row.data() + segment * s.segment_values();
        std::copy(of.mean.begin(), of.mean.end(), values);
        for (std::uint32_t c = 0; c < s.components; ++c) {
          const auto along = static_cast<float>(deviation(c) * bell(prng));
          for (std::uint32_t v = 0; v < s.segment_values(); ++v)
            values[v] += along * of.matrix[std::size_t{c} * s.segment_values() + v];
        }
      }
      if (side == 0) codec::redo_rope(angles, s.rope.pairing, s.head_dim, row);
      codec::store_row(shape.dtype, row.data(), row.size(),
                       run.bytes.data() + side * shape.side_bytes() + t * shape.row_bytes());
    }
  }
  return run;
}

void seal(std::vector<std::byte>& file) {
  const Hash128 id = codec::encoding_id(std::span(file).subspan(24));
  store_le64(file.data() + 8, id.low);
  store_le64(file.data() + 16, id.high);
}

}  // namespace kvrail::codec_test
