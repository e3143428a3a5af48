// What every codec promises, whatever its medium: sizes within bounds, every byte of the output
// written, nothing past it, damage told or harmless.
#include "codec/codec.h"

#include <doctest/doctest.h>

#include "tests/unit/codec/runs.h"

using namespace kvrail;
using namespace kvrail::codec;
using namespace kvrail::codec_test;

TEST_CASE("every codec writes all of its output and nothing else") {
  for (const Medium medium : kCodedMedia) {
    const Codec* const codec = codec_for(medium);
    if (codec == nullptr) continue;
    for (const RunShape& shape : shapes_for(*codec)) {
      CAPTURE(medium_name(medium));
      CAPTURE(shape.head_dim);
      CAPTURE(shape.tokens);
      const Run in = random_run(shape, 7);
      const Coded coded = encode(*codec, shape, in);
      REQUIRE(coded.report.status.ok());
      CHECK(coded.report.raw_bytes == shape.raw_bytes());
      const Decoded out = decode(*codec, shape, coded);  // checks the guards around its output
      REQUIRE(out.report.status.ok());
      CHECK(out.written);
      if (shape.tokens > 0 && coded.meta.epsilon_ppm[coded.meta.planes - 1U] == 0)
        CHECK(out.run.bytes == in.bytes);
    }
  }
}

TEST_CASE("a run without tokens encodes to nothing") {
  for (const Medium medium : kCodedMedia) {
    const Codec* const codec = codec_for(medium);
    if (codec == nullptr) continue;
    const RunShape shape{Dtype::bf16, 2, 64, 0};
    const Coded coded = encode(*codec, shape, random_run(shape, 1));
    CHECK(coded.report.status.ok());
    CHECK(coded.report.encoded_bytes == 0);
    CHECK(decode(*codec, shape, coded).report.status.ok());
  }
}

TEST_CASE("planes cut at every length, or of another medium, are refused or decode within bounds") {
  for (const Medium medium : kCodedMedia) {
    const Codec* const codec = codec_for(medium);
    if (codec == nullptr) continue;
    const RunShape shape{Dtype::bf16, 1, 64, 3};
    const Run in = random_run(shape, 3);
    const Coded whole = encode(*codec, shape, in);
    REQUIRE(whole.report.status.ok());
    for (std::size_t plane = 0; plane < codec->planes(); ++plane) {
      for (std::size_t bytes = 0; bytes < whole.planes[plane].size(); ++bytes) {
        Coded cut = whole;
        cut.planes[plane].resize(bytes);
        cut.meta.bytes[plane] = bytes;
        const Decoded out = decode(*codec, shape, cut);
        CHECK(out.report.status.code == Code::corrupt);
        CHECK(out.written);
      }
    }
    Coded other = whole;
    other.meta.medium = Medium::tokens;
    CHECK(decode(*codec, shape, other).report.status.code == Code::corrupt);
    other = whole;
    other.meta.planes = 0;
    CHECK(decode(*codec, shape, other).report.status.code == Code::corrupt);
  }
}
