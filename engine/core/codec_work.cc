#include "engine/core/codec_work.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "codec/lowrank.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::engine {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::uint64_t kRoomSlackBytes = 96;  // what a short run may stray from the mean by

std::size_t index_of(Medium medium) noexcept { return static_cast<std::size_t>(medium); }
std::size_t index_of(Dtype dtype) noexcept { return static_cast<std::size_t>(dtype); }

// What the formats need of values as models make them; what needs more is learned (docs/codecs.md).
std::uint64_t first_bits_per_1000(Medium medium, Dtype dtype) noexcept {
  const bool residual = medium == Medium::exact;
  switch (dtype) {
    case Dtype::bf16: return residual ? 4'000 : 12'200;
    case Dtype::fp16: return residual ? 7'000 : 14'200;
    case Dtype::fp32: return residual ? 24'000 : 28'200;
    case Dtype::fp8_e4m3:
    case Dtype::fp8_e5m2: break;
  }
  return 8'000;
}

// How many times slower a medium is than those that its first guess is made for, in whole numbers: exact codes its
// residual value by value, lowrank multiplies by a basis (docs/performance.md, docs/codecs.md).
std::uint64_t slowness(Medium medium) noexcept {
  return medium == Medium::exact || medium == Medium::lowrank ? 20 : 1;
}

// Exponential mean over about eight measurements; what the clock can't tell apart teaches nothing.
void learn(std::uint64_t& ns_per_mib, TimeNs elapsed_ns, std::uint64_t bytes) noexcept {
  if (elapsed_ns <= 0 || bytes == 0) return;
  const std::uint64_t sample = (static_cast<std::uint64_t>(elapsed_ns) << 20) / bytes;
  ns_per_mib = ns_per_mib - ns_per_mib / 8 + sample / 8;
}

// Calls `with` with the codec of a layer of the context's block number `number`. Only lowrank's knows where it is:
// its basis differs by layer, and RoPE turns by position.
template <class With>
auto with_codec(const Layout& layout, const Coding& coding, std::uint32_t number, std::uint32_t layer, With with) {
  if (coding.medium != Medium::lowrank) return with(*codec::codec_for(coding.rows()));
  const codec::LowRank codec(coding.lowrank->basis(), layer, number * layout.block_tokens, coding.lowrank->theta());
  return with(codec);
}

// The planes of the store by those of the codec, which counts from 0 without gaps.
std::size_t store_plane(PlaneMask mask, std::size_t nth) noexcept {
  for (std::size_t plane = 0;; ++plane) {
    if (has_plane(mask, plane) && nth-- == 0) return plane;
  }
}

}  // namespace

CodecWork::CodecWork(const Speeds& first, const LowRankBasis* lowrank, std::uint32_t lowrank_limit_ppm) noexcept
    : lowrank_(lowrank), lowrank_limit_ppm_(lowrank_limit_ppm) {
  speeds_.fill(first);
  for (const Medium medium : kCodedMedia) {
    Speeds& of = speeds_[index_of(medium)];
    of = {first.encode_ns_per_mib * slowness(medium), first.decode_ns_per_mib * slowness(medium)};
    for (std::size_t d = 0; d < bits_per_1000_[0].size(); ++d) {
      bits_per_1000_[index_of(medium)][d] = first_bits_per_1000(medium, static_cast<Dtype>(d));
    }
  }
}

void CodecWork::AlignedFree::operator()(std::byte* memory) const noexcept { ::operator delete[](memory, kAlignment); }

Coding CodecWork::coding_of(Medium medium) const noexcept {
  return {medium, 0, 0, medium == Medium::lowrank ? lowrank_ : nullptr};
}

void CodecWork::make_room(const Layout& layout) {
  const codec::RunShape shape = codec::run_shape(layout, layout.block_tokens);
  std::size_t scratch = 0;
  std::size_t run = 0;
  for (const Medium medium : kCodedMedia) {
    const Coding coding = coding_of(medium);
    if (!can_code(layout, coding)) continue;
    scratch = std::max(scratch, with_codec(layout, coding, 0, 0, [&](const codec::Codec& codec) { return codec.scratch_bytes(shape); }));
    if (has_plane(coding.planes(), kVaryingPlane)) {
      run = std::max<std::size_t>(run, varying_bound(layout, medium, layout.block_tokens));
    }
  }
  const auto grow = [](Aligned& memory, std::size_t& have, std::size_t want) {
    if (want <= have) return;
    memory.reset(static_cast<std::byte*>(::operator new[](want, kAlignment)));
    have = want;
  };
  grow(scratch_, scratch_bytes_, scratch);
  grow(run_, run_bytes_, run);
}

bool CodecWork::can(const Layout& layout, Medium medium) const noexcept {
  const Coding coding = coding_of(medium);
  if (!can_code(layout, coding) || (medium == Medium::lowrank && !lowrank_->fits(layout))) return false;
  const codec::RunShape shape = codec::run_shape(layout, layout.block_tokens);
  const bool varies = has_plane(coding.planes(), kVaryingPlane);
  return with_codec(layout, coding, 0, 0, [&](const codec::Codec& codec) { return codec.scratch_bytes(shape); }) <= scratch_bytes_ &&
         (!varies || varying_bound(layout, medium, layout.block_tokens) <= run_bytes_);
}

transport::wire::LowRankCode CodecWork::lowrank_code(const Layout& layout) const noexcept {
  if (!can(layout, Medium::lowrank)) return {};
  return {lowrank_->basis().id(), lowrank_->theta()};
}

bool CodecWork::take_offered(const Layout& layout, std::uint64_t block_bytes, std::uint64_t tail_bytes,
                             std::uint32_t tail_rows, Coding& coding) const noexcept {
  coding.lowrank = coding_of(coding.medium).lowrank;
  return can(layout, coding.rows()) && take_sizes(layout, block_bytes, tail_bytes, tail_rows, coding);
}

std::uint64_t CodecWork::room_for(const Layout& layout, Medium medium, std::uint32_t rows) const noexcept {
  const std::uint64_t values = 2 * codec::run_shape(layout, rows).side_values();
  const std::uint64_t bits = bits_per_1000_[index_of(medium)][index_of(layout.dtype)];
  const std::uint64_t bytes = kRunHeadBytes + div_ceil(values * bits, 8'000) + kRoomSlackBytes;
  return std::min(bytes, varying_bound(layout, medium, rows));
}

bool CodecWork::plan(const Layout& layout, Medium medium, std::uint32_t tail_rows, Coding& out) const noexcept {
  if (!can(layout, medium)) return false;
  out = coding_of(medium);
  if (has_plane(out.planes(), kVaryingPlane)) {
    out.varying_full_bytes = room_for(layout, medium, layout.block_tokens);
    if (tail_rows > 0) out.varying_tail_bytes = room_for(layout, medium, tail_rows);
  }
  return coded_bytes(layout, out, layout.block_tokens) < layout.block_bytes();
}

void CodecWork::learn_room(const Layout& layout, Medium medium, std::uint32_t rows, std::uint64_t bytes) noexcept {
  const std::uint64_t values = 2 * codec::run_shape(layout, rows).side_values();
  std::uint64_t& bits = bits_per_1000_[index_of(medium)][index_of(layout.dtype)];
  bits = std::max(bits, div_ceil(bytes * 8'000, values) * 51 / 50);
}

CodecWork::Encoded CodecWork::encode(const Layout& layout, const Coding& coding, const BlockView& block,
                                     std::uint32_t number, std::uint32_t layer) noexcept {
  return with_codec(layout, coding, number, layer, [&](const codec::Codec& codec) { return encode_with(codec, layout, coding, block, layer); });
}

bool CodecWork::decode(const Layout& layout, const Coding& coding, const BlockView& block, std::uint32_t number,
                       std::uint32_t layer) noexcept {
  return with_codec(layout, coding, number, layer, [&](const codec::Codec& codec) { return decode_with(codec, layout, coding, block, layer); });
}

CodecWork::Encoded CodecWork::encode_with(const codec::Codec& codec, const Layout& layout, const Coding& coding,
                                          const BlockView& block, std::uint32_t layer) noexcept {
  const codec::RunShape shape = codec::run_shape(layout, block.tokens);
  const PlaneMask mask = coding.planes();
  // Planes that are there already are written again, with the same bytes: a code is a function of the rows.
  codec::MutablePlanes out;
  for (std::size_t i = 0; i < codec.planes(); ++i) {
    const std::size_t plane = store_plane(mask, i);
    out[i] = plane == kVaryingPlane ? std::span(run_.get(), run_bytes_) : block.planes[plane].run(layer);
  }
  const codec::RunView in{{block.raw + layout.row_offset(layer, 0, 0), shape.side_bytes()},
                          {block.raw + layout.row_offset(layer, 1, 0), shape.side_bytes()}};
  codec::Meta meta;
  const codec::Report report = codec.encode(shape, in, out, {scratch_.get(), scratch_bytes_}, meta);
  if (!report.status.ok()) return Encoded::refused;
  if (coding.medium == Medium::lowrank && report.epsilon_ppm > lowrank_limit_ppm_) return Encoded::refused;
  if (!has_plane(mask, kVaryingPlane)) return Encoded::ok;
  const std::uint64_t used = meta.bytes[codec.planes() - 1];
  const std::span<std::byte> run = block.planes[kVaryingPlane].run(layer);
  if (kRunHeadBytes + used > run.size()) {
    learn_room(layout, coding.rows(), block.tokens, used);
    return Encoded::too_large;
  }
  store_le32(run.data(), static_cast<std::uint32_t>(used));
  std::memcpy(run.data() + kRunHeadBytes, run_.get(), used);
  std::memset(run.data() + kRunHeadBytes + used, 0, run.size() - kRunHeadBytes - used);
  return Encoded::ok;
}

bool CodecWork::decode_with(const codec::Codec& codec, const Layout& layout, const Coding& coding,
                            const BlockView& block, std::uint32_t layer) noexcept {
  const codec::RunShape shape = codec::run_shape(layout, block.tokens);
  codec::Meta meta;
  meta.medium = coding.rows();
  meta.planes = static_cast<std::uint8_t>(codec.planes());
  codec::Planes in;
  for (std::size_t i = 0; i < codec.planes(); ++i) {
    const std::size_t plane = store_plane(coding.planes(), i);
    std::span<const std::byte> run = block.planes[plane].run(layer);
    if (plane == kVaryingPlane) {
      const std::uint32_t used = load_le32(run.data());
      if (used > run.size() - kRunHeadBytes) return false;
      run = run.subspan(kRunHeadBytes, used);
    }
    in[i] = run;
    meta.bytes[i] = run.size();
  }
  const codec::MutableRun out{{block.raw + layout.row_offset(layer, 0, 0), shape.side_bytes()},
                              {block.raw + layout.row_offset(layer, 1, 0), shape.side_bytes()}};
  return codec.decode(shape, meta, in, out, {scratch_.get(), scratch_bytes_}).status.ok();
}

void CodecWork::learn_encode(Medium medium, TimeNs elapsed_ns, std::uint64_t bytes) noexcept {
  learn(speeds_[index_of(medium)].encode_ns_per_mib, elapsed_ns, bytes);
}
void CodecWork::learn_decode(Medium medium, TimeNs elapsed_ns, std::uint64_t bytes) noexcept {
  learn(speeds_[index_of(medium)].decode_ns_per_mib, elapsed_ns, bytes);
}
std::uint64_t CodecWork::encode_ns(Medium medium, std::uint64_t bytes) const noexcept {
  return (bytes * speeds_[index_of(medium)].encode_ns_per_mib) >> 20;
}
std::uint64_t CodecWork::decode_ns(Medium medium, std::uint64_t bytes) const noexcept {
  return (bytes * speeds_[index_of(medium)].decode_ns_per_mib) >> 20;
}

}  // namespace kvrail::engine
