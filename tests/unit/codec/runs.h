// Runs of KV for the tests of codecs, and calls that guard what they read and write.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/codec.h"

namespace kvrail::codec_test {

inline constexpr std::array kCodedMedia{Medium::full, Medium::lossless, Medium::int4, Medium::int8,
                                        Medium::exact};

struct Run {
  codec::RunShape shape;
  std::vector<std::byte> bytes;  // K then V
  [[nodiscard]] codec::RunView view() const;
};

/// Gaussian values, those of some channels ten times as large, as in real K.
[[nodiscard]] Run random_run(const codec::RunShape& shape, std::uint64_t seed);

struct Coded {
  codec::Meta meta;
  codec::Report report;
  std::array<std::vector<std::byte>, codec::kMaxPlanes> planes;  // cut to their size
};
/// Encodes from memory that is misaligned by one, into memory with guards behind each plane, which
/// it checks.
[[nodiscard]] Coded encode(const codec::Codec& codec, const codec::RunShape& shape, const Run& in);

struct Decoded {
  codec::Report report;
  Run run;
  bool written =
      false;  // two decodes over different poison gave the same bytes, and no guard was touched
};
[[nodiscard]] Decoded decode(const codec::Codec& codec, const codec::RunShape& shape,
                             const Coded& coded);

/// Dtypes × head dims × token counts that the codec says it takes (reliability.md rows 44-45).
[[nodiscard]] std::vector<codec::RunShape> shapes_for(const codec::Codec& codec);

}  // namespace kvrail::codec_test
