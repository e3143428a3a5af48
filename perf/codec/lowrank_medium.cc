#include "perf/codec/lowrank_medium.h"

#include <charconv>

namespace kvrail::fidelity {

Result<std::optional<double>> lowrank_rate(std::string_view name) {
  const std::size_t at = name.find('@');
  if (at == std::string_view::npos) return std::optional<double>();
  const std::string_view text = name.substr(at + 1);
  double bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits);
  if (error != std::errc() || end != text.data() + text.size() || !(bits >= 0.25 && bits <= 10)) {
    return Error{{Code::invalid_argument},
                 std::string("--media \"").append(name.substr(0, 32)) +
                     "\": a rate is 0.25 to 10 bits a value, as in lowrank@2"};
  }
  return std::optional<double>(bits);
}

Result<void> LowRankMedium::prepare(const KvSet& set) {
  if (context_.basis == nullptr) return Error{{Code::unsupported}, context_.why_no_basis};
  const codec::BasisShape& shape = context_.basis->shape();
  if (set.layers > shape.layers || set.kv_heads != shape.kv_heads ||
      set.head_dim != shape.head_dim) {
    return Error{{Code::unsupported}, "the basis is of another form than this KV"};
  }
  codecs_.clear();
  theta_ = !bits_ && context_.theta
               ? *context_.theta
               : codec::theta_for_rate(*context_.basis, bits_.value_or(dtype_bytes(set.dtype)), kRunTokens);
  return CodedMedium::prepare(set);
}

const codec::Codec& LowRankMedium::codec_for_run(const KvSet& set, std::uint32_t layer,
                                                 std::uint32_t first) {
  const std::uint32_t position = first + (set.rope ? set.rope->first_position : 0);
  codecs_.push_back(std::make_unique<codec::LowRank>(*context_.basis, layer, position, theta_));
  return *codecs_.back();
}

}  // namespace kvrail::fidelity
