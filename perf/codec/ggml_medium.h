// ggml's q8_0 and q4_0 as a medium, to compare with: every layer's K and V as one row of blocks.
#pragma once

#include "perf/codec/ggml_blocks.h"
#include "perf/codec/medium_under_test.h"

namespace kvrail::fidelity {

class GgmlMedium final : public MediumUnderTest {
 public:
  explicit GgmlMedium(GgmlFormat format) : format_(format) {}
  [[nodiscard]] std::string_view name() const noexcept override { return ggml_name(format_); }
  /// Not rounded to a shorter type: what llama.cpp computes with.
  [[nodiscard]] Dtype decoded_dtype(const KvSet&) const noexcept override { return Dtype::fp32; }
  [[nodiscard]] Result<void> prepare(const KvSet& set) override;
  [[nodiscard]] Status encode(const KvSet& set) noexcept override;
  [[nodiscard]] Status decode(KvSet& out) noexcept override;
  [[nodiscard]] std::uint64_t encoded_bits() const noexcept override { return 8 * bytes_.size(); }

 private:
  GgmlFormat format_;
  std::uint64_t side_values_ = 0;  // of K or V of one layer
  std::vector<float> values_;
  std::vector<std::byte> bytes_;  // layer by layer, K then V
};

}  // namespace kvrail::fidelity
