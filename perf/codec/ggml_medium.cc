#include "perf/codec/ggml_medium.h"

#include <algorithm>
#include <cmath>

namespace kvrail::fidelity {

Result<void> GgmlMedium::prepare(const KvSet& set) {
  side_values_ = std::uint64_t{set.tokens} * set.row_values();
  values_.resize(side_values_);
  bytes_.resize(2 * set.layers * ggml_bytes(format_, side_values_));
  return {};
}

Status GgmlMedium::encode(const KvSet& set) noexcept {
  const std::uint64_t side = ggml_bytes(format_, side_values_);
  auto out = std::span(bytes_);
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    const codec::RunView run = set.run(layer, 0, set.tokens);
    for (const auto& rows : {run.k, run.v}) {
      to_floats(set.dtype, rows, values_);
      if (!std::all_of(values_.begin(), values_.end(), [](float x) { return std::isfinite(x); }))
        return Status{Code::unsupported};
      ggml_encode(format_, values_, out.first(side));
      out = out.subspan(side);
    }
  }
  return {};
}

Status GgmlMedium::decode(KvSet& out) noexcept {
  const std::uint64_t side = ggml_bytes(format_, side_values_);
  auto in = std::span<const std::byte>(bytes_);
  for (std::uint32_t layer = 0; layer < out.layers; ++layer) {
    const codec::MutableRun run = out.run(layer, 0, out.tokens);
    for (const auto& rows : {run.k, run.v}) {
      ggml_decode(format_, in.first(side), values_);
      from_floats(Dtype::fp32, values_, rows);
      in = in.subspan(side);
    }
  }
  return {};
}

}  // namespace kvrail::fidelity
