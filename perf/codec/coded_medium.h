// Media that a codec::Codec codes: run by run, each of kRunTokens tokens of one layer.
#pragma once

#include <array>

#include "codec/codec.h"
#include "perf/codec/medium_under_test.h"

namespace kvrail::fidelity {

class CodedMedium : public MediumUnderTest {
 public:
  [[nodiscard]] Result<void> prepare(const KvSet& set) override;
  /// A run that the codec refuses (NaN, Inf) goes as the engine sends it: lossless, or else full.
  [[nodiscard]] Status encode(const KvSet& set) noexcept override;
  [[nodiscard]] Status decode(KvSet& out) noexcept override;
  [[nodiscard]] std::uint64_t encoded_bits() const noexcept override;

 protected:
  /// The codec of a run, which must live until the next prepare().
  [[nodiscard]] virtual const codec::Codec& codec_for_run(const KvSet& set, std::uint32_t layer,
                                                          std::uint32_t first) = 0;

 private:
  struct Run {
    const codec::Codec* codec = nullptr;
    std::uint32_t layer = 0;
    std::uint32_t first = 0;
    std::uint32_t tokens = 0;
    std::array<std::uint64_t, codec::kMaxPlanes> offset{}, room{};  // of each plane in bytes_
    codec::Meta meta;
  };

  codec::MutablePlanes room_of(const Run& run) noexcept;
  Status encode_run(const KvSet& set, Run& run) noexcept;

  std::vector<Run> runs_;
  std::vector<std::byte> bytes_, scratch_memory_;
  std::span<std::byte> scratch_;
};

/// What codec_for() knows.
class PlainMedium final : public CodedMedium {
 public:
  explicit PlainMedium(const codec::Codec& codec) : codec_(&codec) {}
  [[nodiscard]] std::string_view name() const noexcept override {
    return medium_name(codec_->medium());
  }

 private:
  const codec::Codec& codec_for_run(const KvSet&, std::uint32_t, std::uint32_t) override {
    return *codec_;
  }

  const codec::Codec* codec_;
};

/// int4 or int8, and one plane more for the (layer, block)s that a profile protects; a block is a
/// run of kRunTokens.
class ProtectedMedium final : public CodedMedium {
 public:
  ProtectedMedium(const codec::Codec& codec, const codec::Codec& finer,
                  const codec::Protection& rule)
      : codec_(&codec),
        finer_(&finer),
        rule_(rule),
        name_(std::string(medium_name(codec.medium())).append("+protect")) {}
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 private:
  const codec::Codec& codec_for_run(const KvSet& set, std::uint32_t layer,
                                    std::uint32_t first) override {
    const std::uint32_t blocks = (set.tokens + kRunTokens - 1) / kRunTokens;
    return is_protected(rule_, layer, set.layers, first / kRunTokens, blocks) ? *finer_ : *codec_;
  }

  const codec::Codec *codec_, *finer_;
  codec::Protection rule_;
  std::string name_;
};

}  // namespace kvrail::fidelity
