#include "engine/tier/stream.h"

#include <algorithm>
#include <cstring>

#include "engine/tier/rows.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::engine::tier {
namespace {

// In front of a layer's bytes: medium, planes, form, 0, then the bytes of each plane.
constexpr std::size_t kFrameHeadBytes = 16;

// Calls with (pointer into the slot, bytes) for the packed rows from `at` on, at most `bytes` of them.
template <class With>
void walk(const Layout& layout, std::uint32_t tokens, std::uint64_t at, std::uint64_t bytes, With with) {
  const std::uint64_t half = tokens * layout.row_bytes();
  while (bytes > 0) {
    const std::uint64_t in_half = at % half;
    const std::uint64_t step = std::min(bytes, half - in_half);
    with(at / half * layout.block_tokens * layout.row_bytes() + in_half, step);
    at += step;
    bytes -= step;
  }
}

std::uint64_t layer_bytes(const Layout& layout, std::uint32_t tokens) noexcept { return 2 * tokens * layout.row_bytes(); }

bool codes(Medium coding, const Layout& layout, std::uint32_t tokens) noexcept {
  if (coding == Medium::full) return false;
  const codec::Codec* codec = codec::codec_for(coding);
  return codec != nullptr && codec->takes(codec::run_shape(layout, tokens));
}

void write_head(std::byte* frame, Medium medium, std::uint8_t planes, std::uint8_t form,
                std::span<const std::uint64_t> bytes) noexcept {
  std::memset(frame, 0, kFrameHeadBytes);
  frame[0] = static_cast<std::byte>(medium);
  frame[1] = std::byte{planes};
  frame[2] = std::byte{form};
  for (std::size_t i = 0; i < planes; ++i) store_le32(frame + 4 + 4 * i, static_cast<std::uint32_t>(bytes[i]));
}

}  // namespace

void RowSource::start(const TierPut& put, Medium coding, std::uint32_t least_ppm, Scratch& scratch) {
  put_ = put;
  least_ppm_ = coding == Medium::lossless ? 0 : least_ppm;
  coding_ = codes(coding, put.layout, put.tokens) ? coding : Medium::full;
  scratch_ = &scratch;
  at_ = 0;
  layer_ = 0;
  frame_at_ = frame_end_ = 0;
  lost_ppm_ = 0;
}

std::uint64_t RowSource::bound() const noexcept {
  const std::uint64_t packed = packed_bytes(put_.layout, put_.tokens);
  return coding_ == Medium::full ? packed : packed + put_.layout.layers * kFrameHeadBytes;
}

bool RowSource::done() const noexcept {
  if (coding_ == Medium::full) return at_ == packed_bytes(put_.layout, put_.tokens);
  return layer_ == put_.layout.layers && frame_at_ == frame_end_;
}

std::uint32_t RowSource::take(std::span<std::byte> out) {
  std::size_t filled = 0;
  if (coding_ == Medium::full) {
    const std::uint64_t bytes = std::min<std::uint64_t>(out.size(), packed_bytes(put_.layout, put_.tokens) - at_);
    walk(put_.layout, put_.tokens, at_, bytes, [&](std::uint64_t in_slot, std::uint64_t step) {
      std::memcpy(out.data() + filled, put_.rows + in_slot, step);
      filled += step;
    });
    at_ += bytes;
    return static_cast<std::uint32_t>(filled);
  }
  while (filled < out.size() && !done()) {
    if (frame_at_ == frame_end_) encode_layer();
    const std::size_t step = std::min(out.size() - filled, frame_end_ - frame_at_);
    std::memcpy(out.data() + filled, frame_.data() + frame_at_, step);
    frame_at_ += step;
    filled += step;
  }
  return static_cast<std::uint32_t>(filled);
}

void RowSource::encode_layer() {
  const codec::RunShape shape = codec::run_shape(put_.layout, put_.tokens);
  const codec::Codec& codec = *codec::codec_for(coding_);
  const codec::RunView in{{put_.rows + put_.layout.row_offset(layer_, 0, 0), shape.side_bytes()},
                          {put_.rows + put_.layout.row_offset(layer_, 1, 0), shape.side_bytes()}};
  std::uint64_t room = kFrameHeadBytes + shape.raw_bytes();
  for (std::size_t plane = 0; plane < codec.planes(); ++plane) room += codec.bound(shape, plane);
  if (frame_.size() < room) frame_.resize(room);
  codec::MutablePlanes planes;
  std::size_t at = kFrameHeadBytes;
  for (std::size_t plane = 0; plane < codec.planes(); ++plane) {
    planes[plane] = {frame_.data() + at, codec.bound(shape, plane)};
    at += planes[plane].size();
  }
  codec::Meta meta;
  const codec::Report report = codec.encode(shape, in, planes, scratch_->take(codec.scratch_bytes(shape)), meta);
  ++layer_;
  frame_at_ = 0;
  if (report.status.ok() && report.encoded_bytes < shape.raw_bytes()) {
    frame_end_ = kFrameHeadBytes;
    for (std::size_t plane = 0; plane < meta.planes; ++plane) {
      std::memmove(frame_.data() + frame_end_, planes[plane].data(), meta.bytes[plane]);
      frame_end_ += meta.bytes[plane];
    }
    write_head(frame_.data(), coding_, meta.planes, meta.form, meta.bytes);
    lost_ppm_ = std::max({lost_ppm_, report.epsilon_ppm, least_ppm_});
    return;
  }
  std::memcpy(frame_.data() + kFrameHeadBytes, in.k.data(), in.k.size());
  std::memcpy(frame_.data() + kFrameHeadBytes + in.k.size(), in.v.data(), in.v.size());
  const std::uint64_t raw = shape.raw_bytes();
  write_head(frame_.data(), Medium::full, 1, 0, {&raw, 1});
  frame_end_ = kFrameHeadBytes + raw;
}

void RowSink::start(const TierGet& get, Medium coding, Scratch& scratch) {
  get_ = get;
  coding_ = coding;
  scratch_ = &scratch;
  at_ = 0;
  layer_ = 0;
  frame_.clear();
}

bool RowSink::whole() const noexcept {
  if (coding_ == Medium::full) return at_ == packed_bytes(get_.layout, get_.tokens);
  return layer_ == get_.layout.layers && frame_.empty();
}

bool RowSink::give(std::span<const std::byte> bytes) {
  if (coding_ == Medium::full) {
    if (bytes.size() > packed_bytes(get_.layout, get_.tokens) - at_) return false;
    std::size_t taken = 0;
    walk(get_.layout, get_.tokens, at_, bytes.size(), [&](std::uint64_t in_slot, std::uint64_t step) {
      std::memcpy(get_.rows + in_slot, bytes.data() + taken, step);
      taken += step;
    });
    at_ += bytes.size();
    return true;
  }
  while (!bytes.empty()) {
    if (!take_frame(bytes)) return false;
  }
  return true;
}

// Decodes the frame that `bytes` goes on with, if it is whole now; else keeps what there is of it.
bool RowSink::take_frame(std::span<const std::byte>& bytes) {
  if (layer_ == get_.layout.layers) return false;
  const auto move_in = [&](std::size_t want) {
    const std::size_t step = std::min(want - frame_.size(), bytes.size());
    frame_.insert(frame_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(step));
    bytes = bytes.subspan(step);
    return frame_.size() == want;
  };
  const bool straight = frame_.empty() && bytes.size() >= kFrameHeadBytes;
  if (!straight && frame_.size() < kFrameHeadBytes && !move_in(kFrameHeadBytes)) return true;
  const std::byte* head = straight ? bytes.data() : frame_.data();
  std::uint64_t want = kFrameHeadBytes;
  for (std::size_t plane = 0; plane < codec::kMaxPlanes; ++plane) want += load_le32(head + 4 + 4 * plane);
  // Never more than the rows themselves; what says so is damaged, and must not make us take memory.
  if (want > kFrameHeadBytes + layer_bytes(get_.layout, get_.tokens)) return false;
  if (straight && bytes.size() >= want) {
    const bool decoded = decode_layer(bytes.first(want));
    bytes = bytes.subspan(want);
    return decoded;
  }
  if (!move_in(want)) return true;
  const bool decoded = decode_layer(frame_);
  frame_.clear();
  return decoded;
}

bool RowSink::decode_layer(std::span<const std::byte> frame) {
  const codec::RunShape shape = codec::run_shape(get_.layout, get_.tokens);
  const auto medium = static_cast<Medium>(frame[0]);
  const auto count = std::to_integer<std::uint8_t>(frame[1]);
  const codec::MutableRun out{{get_.rows + get_.layout.row_offset(layer_, 0, 0), shape.side_bytes()},
                              {get_.rows + get_.layout.row_offset(layer_, 1, 0), shape.side_bytes()}};
  ++layer_;
  if (medium == Medium::full) {
    if (count != 1 || frame.size() != kFrameHeadBytes + shape.raw_bytes()) return false;
    std::memcpy(out.k.data(), frame.data() + kFrameHeadBytes, out.k.size());
    std::memcpy(out.v.data(), frame.data() + kFrameHeadBytes + out.k.size(), out.v.size());
    return true;
  }
  const codec::Codec* codec = medium == coding_ ? codec::codec_for(medium) : nullptr;
  if (codec == nullptr || !codec->takes(shape) || count == 0 || count > codec->planes()) return false;
  codec::Meta meta;
  meta.medium = medium;
  meta.planes = count;
  meta.form = std::to_integer<std::uint8_t>(frame[2]);
  codec::Planes planes;
  std::size_t at = kFrameHeadBytes;
  for (std::size_t plane = 0; plane < count; ++plane) {
    meta.bytes[plane] = load_le32(frame.data() + 4 + 4 * plane);
    planes[plane] = frame.subspan(at, meta.bytes[plane]);
    at += meta.bytes[plane];
  }
  return at == frame.size() && codec->decode(shape, meta, planes, out, scratch_->take(codec->scratch_bytes(shape))).status.ok();
}

}  // namespace kvrail::engine::tier
