// topk and window: some tokens of a set, their values through another medium.
//
//   topk@50        half of the tokens, by the importance that the set has from its agent, else by
//                  leverage; leverage@50 goes by leverage in any case
//   window@25+int4 the newest quarter and the sinks, through int4
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "perf/codec/coded_medium.h"

namespace kvrail::fidelity {

struct SparseRule {
  enum class Choice : std::uint8_t { topk, leverage, window } choice = Choice::topk;
  std::uint32_t percent = 50;  // of the tokens, sinks and recent among them
  Medium values = Medium::full;
};
[[nodiscard]] bool is_sparse(std::string_view name) noexcept;
/// invalid_argument, in one line with the remedy, where the name says no such rule.
[[nodiscard]] Result<SparseRule> sparse_rule(std::string_view name);

class SparseMedium final : public MediumUnderTest {
 public:
  SparseMedium(std::string name, const SparseRule& rule);
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] Result<void> prepare(const KvSet& set) override;
  [[nodiscard]] Status encode(const KvSet& set) noexcept override;
  [[nodiscard]] Status decode(KvSet& out) noexcept override;
  [[nodiscard]] std::uint64_t encoded_bits() const noexcept override;
  [[nodiscard]] std::span<const std::uint32_t> kept_tokens() const noexcept override {
    return kept_;
  }

 private:
  [[nodiscard]] std::uint32_t keep_count(std::uint32_t tokens) const noexcept;
  std::span<const float> importance_of(const KvSet& set) noexcept;

  std::string name_;
  SparseRule rule_;
  PlainMedium values_;
  KvSet compact_;
  std::vector<std::uint32_t> chosen_, received_;
  std::span<const std::uint32_t> kept_;
  std::vector<std::byte> positions_;
  std::size_t position_bytes_ = 0;
  std::vector<float> leverage_;
  std::vector<double> frequencies_, memory_;
};

}  // namespace kvrail::fidelity
