// A block's rows as the stream of bytes that a record keeps, and back.
//
// full: the valid rows, packed (rows.h). Coded: for each layer a frame, which says how that layer is coded: a layer
// that the coding cannot take (NaN where it has loss), or would not make smaller, stands there as it is.
//
// Thread: the tier's. These take memory from the heap as layouts need it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/codec.h"
#include "engine/core/tier_port.h"

namespace kvrail::engine::tier {

// Memory aligned to 64 bytes that only grows.
class Scratch {
 public:
  [[nodiscard]] std::span<std::byte> take(std::size_t bytes) {
    if (memory_.size() < bytes + 64) memory_.resize(bytes + 64);
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    return {memory_.data() + ((at + 63) / 64 * 64 - at), bytes};
  }

 private:
  std::vector<std::byte> memory_;
};

class RowSource {
 public:
  // `least_ppm`: what a layer that is coded with loss loses at least.
  void start(const TierPut& put, Medium coding, std::uint32_t least_ppm, Scratch& scratch);
  // Most bytes that the stream can have.
  [[nodiscard]] std::uint64_t bound() const noexcept;
  // The next bytes; fewer than there is room for at the end only.
  [[nodiscard]] std::uint32_t take(std::span<std::byte> out);
  [[nodiscard]] bool done() const noexcept;
  [[nodiscard]] Medium coding() const noexcept { return coding_; }
  // Of what the stream decodes to, so far.
  [[nodiscard]] std::uint32_t epsilon_ppm() const noexcept { return put_.epsilon_ppm + lost_ppm_; }

 private:
  void encode_layer();

  TierPut put_;
  Medium coding_ = Medium::full;
  Scratch* scratch_ = nullptr;
  std::uint64_t at_ = 0;     // full: in the packed rows
  std::uint32_t layer_ = 0;  // coded: the next to be encoded
  std::vector<std::byte> frame_;
  std::size_t frame_at_ = 0, frame_end_ = 0;
  std::uint32_t least_ppm_ = 0, lost_ppm_ = 0;
};

class RowSink {
 public:
  void start(const TierGet& get, Medium coding, Scratch& scratch);
  // The next bytes of the stream. False: they are no such stream.
  [[nodiscard]] bool give(std::span<const std::byte> bytes);
  // Whether all rows have come, and nothing more.
  [[nodiscard]] bool whole() const noexcept;

 private:
  [[nodiscard]] bool take_frame(std::span<const std::byte>& bytes);
  [[nodiscard]] bool decode_layer(std::span<const std::byte> frame);

  TierGet get_;
  Medium coding_ = Medium::full;
  Scratch* scratch_ = nullptr;
  std::uint64_t at_ = 0;
  std::uint32_t layer_ = 0;
  std::vector<std::byte> frame_;  // what has come of a frame that is not whole
};

}  // namespace kvrail::engine::tier
