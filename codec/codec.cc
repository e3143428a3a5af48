#include "codec/codec.h"

#include <cstring>

#include "codec/full.h"
#include "codec/lossless.h"
#include "codec/planes_codec.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/time.h"

namespace kvrail::codec {
namespace {

bool aligned(std::span<std::byte> scratch) noexcept {
  return scratch.empty() || reinterpret_cast<std::uintptr_t>(scratch.data()) % 64 == 0;
}

// What a stranger's meta must say before a codec looks at the planes.
bool plausible(const Codec& codec, const RunShape& shape, const Meta& meta,
               const Planes& in) noexcept {
  if (meta.medium != codec.medium() || meta.planes == 0 || meta.planes > codec.planes())
    return false;
  for (std::size_t plane = 0; plane < meta.planes; ++plane) {
    if (in[plane].size() != meta.bytes[plane] || meta.bytes[plane] > codec.bound(shape, plane))
      return false;
  }
  return true;
}

}  // namespace

Result<void> Codec::can_encode(const RunShape& shape) const {
  if (takes(shape)) return {};
  return refusal(shape);
}

Error Codec::refusal(const RunShape&) const { KVRAIL_UNREACHABLE(); }

Report Codec::encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                     std::span<std::byte> scratch, Meta& meta) const noexcept {
  KVRAIL_ASSERT(in.k.size() == shape.side_bytes() && in.v.size() == shape.side_bytes());
  KVRAIL_ASSERT(scratch.size() >= scratch_bytes(shape) && aligned(scratch));
  for (std::size_t plane = 0; plane < planes(); ++plane)
    KVRAIL_ASSERT(out[plane].size() >= bound(shape, plane));
  meta = Meta{};
  meta.medium = medium();
  meta.planes = static_cast<std::uint8_t>(planes());
  Report report;
  report.raw_bytes = shape.raw_bytes();
  const SteadyClock clock;
  const TimeNs before = clock.now_ns();
  if (shape.tokens > 0) report.status = do_encode(shape, in, out, scratch, meta);
  report.ns = static_cast<std::uint64_t>(clock.now_ns() - before);
  for (std::size_t plane = 0; plane < meta.planes; ++plane)
    report.encoded_bytes += meta.bytes[plane];
  report.epsilon_ppm = meta.epsilon_ppm[meta.planes - 1U];
  return report;
}

Report Codec::decode(const RunShape& shape, const Meta& meta, const Planes& in,
                     const MutableRun& out, std::span<std::byte> scratch) const noexcept {
  KVRAIL_ASSERT(out.k.size() == shape.side_bytes() && out.v.size() == shape.side_bytes());
  KVRAIL_ASSERT(scratch.size() >= scratch_bytes(shape) && aligned(scratch));
  Report report;
  report.raw_bytes = shape.raw_bytes();
  const SteadyClock clock;
  const TimeNs before = clock.now_ns();
  report.status = Status{Code::corrupt};
  if (plausible(*this, shape, meta, in)) {
    for (std::size_t plane = 0; plane < meta.planes; ++plane)
      report.encoded_bytes += meta.bytes[plane];
    report.epsilon_ppm = meta.epsilon_ppm[meta.planes - 1U];
    report.status = shape.tokens > 0 ? do_decode(shape, meta, in, out, scratch) : Status{};
  }
  if (!report.status.ok() && shape.tokens > 0) {
    std::memset(out.k.data(), 0, out.k.size());
    std::memset(out.v.data(), 0, out.v.size());
  }
  report.ns = static_cast<std::uint64_t>(clock.now_ns() - before);
  return report;
}

const Codec* codec_for(Medium medium) noexcept {
  switch (medium) {
    case Medium::full:
      return &full_codec();
    case Medium::lossless:
      return &lossless_codec();
    case Medium::int4:
    case Medium::int8:
    case Medium::exact:
      return planes_codec(medium);
    default:
      return nullptr;
  }
}

}  // namespace kvrail::codec
