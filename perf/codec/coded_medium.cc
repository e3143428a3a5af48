#include "perf/codec/coded_medium.h"

#include <algorithm>

namespace kvrail::fidelity {
namespace {

constexpr std::size_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::span<std::byte> aligned_part(std::vector<std::byte>& memory, std::size_t bytes) {
  memory.resize(bytes + kAlignment);
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  return std::span(memory).subspan(aligned(at) - at, bytes);
}

const codec::Codec& fallback() {
  const codec::Codec* lossless = codec::codec_for(Medium::lossless);
  return lossless != nullptr ? *lossless : *codec::codec_for(Medium::full);
}

}  // namespace

Result<void> CodedMedium::prepare(const KvSet& set) {
  runs_.clear();
  std::uint64_t total = 0;
  std::size_t scratch = 0;
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    for (std::uint32_t first = 0; first < set.tokens; first += kRunTokens) {
      Run run{&codec_for_run(set, layer, first),
              layer,
              first,
              std::min(kRunTokens, set.tokens - first),
              {},
              {},
              {}};
      const codec::RunShape shape = set.run_shape(run.tokens);
      if (auto can = run.codec->can_encode(shape); !can.ok()) return can;
      for (std::size_t plane = 0; plane < codec::kMaxPlanes; ++plane) {
        if (plane < run.codec->planes()) run.room[plane] = run.codec->bound(shape, plane);
        if (plane < fallback().planes())
          run.room[plane] = std::max(run.room[plane], fallback().bound(shape, plane));
        run.offset[plane] = total;
        total += aligned(run.room[plane]);
      }
      scratch =
          std::max({scratch, run.codec->scratch_bytes(shape), fallback().scratch_bytes(shape)});
      runs_.push_back(run);
    }
  }
  bytes_.resize(total);
  scratch_ = aligned_part(scratch_memory_, scratch);
  return {};
}

codec::MutablePlanes CodedMedium::room_of(const Run& run) noexcept {
  codec::MutablePlanes planes;
  for (std::size_t plane = 0; plane < planes.size(); ++plane)
    planes[plane] = std::span(bytes_).subspan(run.offset[plane], run.room[plane]);
  return planes;
}

Status CodedMedium::encode_run(const KvSet& set, Run& run) noexcept {
  const codec::RunShape shape = set.run_shape(run.tokens);
  const codec::RunView in = set.run(run.layer, run.first, run.tokens);
  const Status status = run.codec->encode(shape, in, room_of(run), scratch_, run.meta).status;
  if (status.code != Code::unsupported) return status;
  return fallback().encode(shape, in, room_of(run), scratch_, run.meta).status;
}

Status CodedMedium::encode(const KvSet& set) noexcept {
  for (Run& run : runs_) {
    if (const Status status = encode_run(set, run); !status.ok()) return status;
  }
  return {};
}

Status CodedMedium::decode(KvSet& out) noexcept {
  for (const Run& run : runs_) {
    const codec::Codec& codec =
        run.meta.medium == run.codec->medium() ? *run.codec : *codec::codec_for(run.meta.medium);
    const codec::MutablePlanes room = room_of(run);
    codec::Planes planes;
    for (std::size_t plane = 0; plane < run.meta.planes; ++plane)
      planes[plane] = room[plane].first(run.meta.bytes[plane]);
    const Status status = codec
                              .decode(out.run_shape(run.tokens), run.meta, planes,
                                      out.run(run.layer, run.first, run.tokens), scratch_)
                              .status;
    if (!status.ok()) return status;
  }
  return {};
}

std::uint64_t CodedMedium::encoded_bits() const noexcept {
  std::uint64_t bytes = 0;
  for (const Run& run : runs_) {
    for (std::size_t plane = 0; plane < run.meta.planes; ++plane) bytes += run.meta.bytes[plane];
  }
  return 8 * bytes;
}

}  // namespace kvrail::fidelity
