#include "codec/planes_codec.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "codec/planes_run.h"
#include "codec/residual.h"

namespace kvrail::codec {
namespace {

constexpr std::size_t kAlign = 64;

std::uint64_t aligned(std::uint64_t bytes) noexcept {
  return (bytes + kAlign - 1) & ~(kAlign - 1);
}

PlaneShape cut_of(const RunShape& shape) noexcept {
  return {shape.kv_heads, shape.head_dim};
}

std::uint64_t buffer_bytes(const RunShape& shape) noexcept {
  return aligned(plane_buffer_floats(cut_of(shape)) * sizeof(float));
}

Error cannot(std::string_view name, std::int64_t detail, const std::string& why) {
  return Error{{Code::unsupported, Scope::transfer, static_cast<std::int32_t>(detail)},
               std::string(name).append(why)};
}

class PlanesCodec final : public Codec {
 public:
  PlanesCodec(Medium medium, std::size_t planes, Rotation rotation) noexcept
      : medium_(medium), planes_(planes), rotation_(rotation) {}

  Medium medium() const noexcept override { return medium_; }
  std::size_t planes() const noexcept override { return planes_; }

  bool takes(const RunShape& shape) const noexcept override {
    return takes_dtype(shape.dtype) && shape.head_dim != 0 && shape.head_dim % kOctet == 0 &&
           shape.kv_heads != 0;
  }

  std::uint64_t bound(const RunShape& shape, std::size_t plane) const noexcept override {
    const RunPlaneBytes bytes = run_plane_bytes(cut_of(shape), shape.tokens);
    if (plane == 0) return bytes.plane0;
    return plane == 1 ? bytes.plane1 : residual_bound(shape.raw_bytes());
  }

  std::size_t scratch_bytes(const RunShape& shape) const noexcept override {
    return buffer_bytes(shape) + (planes_ == kMaxPlanes ? shape.raw_bytes() : 0);
  }

 private:
  // Every float, but exact is for those of 16 bits.
  [[nodiscard]] bool takes_dtype(Dtype dtype) const noexcept {
    const bool half = dtype == Dtype::bf16 || dtype == Dtype::fp16;
    return half || (dtype == Dtype::fp32 && planes_ < kMaxPlanes);
  }
  Error refusal(const RunShape& shape) const override {
    const std::string_view name = medium_name(medium_);
    if (takes_dtype(shape.dtype)) {
      return cannot(name, shape.head_dim,
                    " needs a head_dim that is a multiple of 8; other runs are sent by lossless");
    }
    return cannot(name, static_cast<std::int64_t>(shape.dtype),
                  shape.dtype == Dtype::fp32
                      ? " is exact for bf16 and fp16 only; fp32 is sent by lossless or full"
                      : " encodes bf16, fp16 and fp32; fp8 is sent by full");
  }
  PlaneRun plane_run(const RunShape& shape, bool rotate_v,
                     std::span<std::byte> scratch) const noexcept {
    return {shape, rotate_v, reinterpret_cast<float*>(scratch.data())};
  }

  std::array<ResidualSide, 2> residual_sides(const RunShape& shape,
                                             const std::byte* plane0) const noexcept {
    const PlaneShape cut = cut_of(shape);
    const ResidualSide k{shape.dtype, plane0, cut.segment_values(), shape.side_values()};
    ResidualSide v = k;
    v.scales += cut.scale_bytes(shape.tokens);
    return {k, v};
  }

  Status do_encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                   std::span<std::byte> scratch, Meta& meta) const noexcept override {
    const RunPlaneBytes bytes = run_plane_bytes(cut_of(shape), shape.tokens);
    const bool rotate_v = rotation_ == Rotation::k_and_v;
    const PlaneRun run = plane_run(shape, rotate_v, scratch);
    const std::span<std::byte> plane0 = out[0].first(bytes.plane0);
    const std::span<std::byte> plane1 =
        planes_ > 1 ? out[1].first(bytes.plane1) : std::span<std::byte>{};
    const RunTally tally = encode_planes(run, in, plane0, plane1);
    if (tally.refused) return Status{Code::unsupported, Scope::transfer, 0};
    meta.form = static_cast<std::uint8_t>(rotation_);
    meta.bytes[0] = bytes.plane0;
    meta.epsilon_ppm[0] = epsilon_of(tally.nmse() * kFirstPlaneNoise);
    if (planes_ > 1) {
      meta.bytes[1] = bytes.plane1;
      meta.epsilon_ppm[1] = epsilon_of(tally.nmse());
    }
    if (planes_ == kMaxPlanes) {
      const std::span<std::byte> near = scratch.subspan(buffer_bytes(shape), shape.raw_bytes());
      const std::span<std::byte> k = near.first(shape.side_bytes());
      const std::span<std::byte> v = near.subspan(shape.side_bytes());
      if (!decode_planes(run, plane0, plane1, {k, v}))
        return Status{Code::unsupported, Scope::transfer, 0};
      meta.bytes[2] =
          encode_residual(residual_sides(shape, plane0.data()), {in.k, in.v}, {k, v}, out[2]);
    }
    return {};
  }

  Status do_decode(const RunShape& shape, const Meta& meta, const Planes& in, const MutableRun& out,
                   std::span<std::byte> scratch) const noexcept override {
    const RunPlaneBytes bytes = run_plane_bytes(cut_of(shape), shape.tokens);
    const Status corrupt{Code::corrupt};
    if (meta.form > static_cast<std::uint8_t>(Rotation::k_and_v)) return corrupt;
    if (in[0].size() != bytes.plane0) return corrupt;
    if (meta.planes > 1 && in[1].size() != bytes.plane1) return corrupt;
    const PlaneRun run = plane_run(shape, meta.form != 0, scratch);
    const std::span<const std::byte> plane1 =
        meta.planes > 1 ? in[1] : std::span<const std::byte>{};
    if (!decode_planes(run, in[0], plane1, out)) return corrupt;
    if (meta.planes == kMaxPlanes &&
        !decode_residual(residual_sides(shape, in[0].data()), in[2], {out.k, out.v}))
      return corrupt;
    return {};
  }

  Medium medium_;
  std::size_t planes_;
  Rotation rotation_;
};

}  // namespace

const Codec* planes_codec(Medium medium, Rotation rotation) noexcept {
  static const std::array<PlanesCodec, 6> codecs{PlanesCodec{Medium::int4, 1, Rotation::k},
                                                 PlanesCodec{Medium::int8, 2, Rotation::k},
                                                 PlanesCodec{Medium::exact, 3, Rotation::k},
                                                 PlanesCodec{Medium::int4, 1, Rotation::k_and_v},
                                                 PlanesCodec{Medium::int8, 2, Rotation::k_and_v},
                                                 PlanesCodec{Medium::exact, 3, Rotation::k_and_v}};
  const std::size_t first = rotation == Rotation::k ? 0 : 3;
  for (std::size_t i = first; i < first + 3; ++i) {
    if (codecs[i].medium() == medium) return &codecs[i];
  }
  return nullptr;
}

}  // namespace kvrail::codec
