// The medium lowrank at a rate, in a basis from MediumContext.
#pragma once

#include <optional>

#include "codec/lowrank.h"
#include "perf/codec/coded_medium.h"

namespace kvrail::fidelity {

/// Bits a value of "lowrank@BITS"; empty for "lowrank": the context's. invalid_argument
/// outside 0.25 to 10.
[[nodiscard]] Result<std::optional<double>> lowrank_rate(std::string_view name);

class LowRankMedium final : public CodedMedium {
 public:
  LowRankMedium(std::string name, std::optional<double> bits, const MediumContext& context)
      : name_(std::move(name)), bits_(bits), context_(context) {}
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] Result<void> prepare(const KvSet& set) override;

 private:
  const codec::Codec& codec_for_run(const KvSet& set, std::uint32_t layer,
                                    std::uint32_t first) override;

  std::string name_;
  std::optional<double> bits_;
  MediumContext context_;
  std::uint16_t theta_ = 0;
  std::vector<std::unique_ptr<codec::LowRank>> codecs_;  // of each run
};

}  // namespace kvrail::fidelity
