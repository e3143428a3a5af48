// A medium that codec_for() knows: run by run, each of kRunTokens tokens of one layer.
#pragma once

#include <array>

#include "codec/codec.h"
#include "perf/codec/medium_under_test.h"

namespace kvrail::fidelity {

class CodedMedium final : public MediumUnderTest {
 public:
  explicit CodedMedium(const codec::Codec& codec) : codec_(&codec) {}
  [[nodiscard]] std::string_view name() const noexcept override {
    return medium_name(codec_->medium());
  }
  [[nodiscard]] Result<void> prepare(const KvSet& set) override;
  /// A run that the codec refuses (NaN, Inf) goes as the engine sends it: lossless, or else full.
  [[nodiscard]] Status encode(const KvSet& set) noexcept override;
  [[nodiscard]] Status decode(KvSet& out) noexcept override;
  [[nodiscard]] std::uint64_t encoded_bits() const noexcept override;

 private:
  struct Run {
    std::uint32_t layer = 0;
    std::uint32_t first = 0;
    std::uint32_t tokens = 0;
    std::array<std::uint64_t, codec::kMaxPlanes> offset{}, room{};  // of each plane in bytes_
    codec::Meta meta;
  };

  codec::MutablePlanes room_of(const Run& run) noexcept;
  Status encode_run(const KvSet& set, Run& run) noexcept;

  const codec::Codec* codec_;
  std::vector<Run> runs_;
  std::vector<std::byte> bytes_, scratch_memory_;
  std::span<std::byte> scratch_;
};

}  // namespace kvrail::fidelity
