#include "perf/codec/sparse_medium.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "codec/leverage.h"
#include "codec/sparse.h"

namespace kvrail::fidelity {
namespace {

using Choice = SparseRule::Choice;

std::optional<Choice> choice_of(std::string_view name) noexcept {
  const std::string_view word = name.substr(0, name.find('@'));
  if (word == "topk") return Choice::topk;
  if (word == "leverage") return Choice::leverage;
  if (word == "window") return Choice::window;
  return std::nullopt;
}

const codec::Codec* codec_of(std::string_view name) noexcept {
  for (const Medium medium :
       {Medium::full, Medium::lossless, Medium::exact, Medium::int8, Medium::int4}) {
    if (name == medium_name(medium)) return codec::codec_for(medium);
  }
  return nullptr;
}

}  // namespace

bool is_sparse(std::string_view name) noexcept {
  return choice_of(name).has_value();
}

Result<SparseRule> sparse_rule(std::string_view name) {
  const auto fault = [&] {
    return Error{{Code::invalid_argument},
                 std::string("--media \"").append(name.substr(0, 32)) +
                     "\": give a percentage of the tokens from 1 to 100 and, with +, a medium for "
                     "their values, as in topk@50 or window@25+int4"};
  };
  const auto choice = choice_of(name);
  const std::size_t at = name.find('@');
  if (!choice || at == std::string_view::npos) return fault();
  const std::size_t plus = name.find('+');
  const std::string_view text =
      name.substr(at + 1, plus == std::string_view::npos ? plus : plus - at - 1);
  SparseRule rule{*choice, 0, Medium::full};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rule.percent);
  if (error != std::errc() || end != text.data() + text.size() || rule.percent < 1 ||
      rule.percent > 100)
    return fault();
  if (plus != std::string_view::npos) {
    const codec::Codec* codec = codec_of(name.substr(plus + 1));
    if (codec == nullptr) return fault();
    rule.values = codec->medium();
  }
  return rule;
}

SparseMedium::SparseMedium(std::string name, const SparseRule& rule)
    : name_(std::move(name)), rule_(rule), values_(*codec::codec_for(rule.values)) {}

std::uint32_t SparseMedium::keep_count(std::uint32_t tokens) const noexcept {
  const std::uint64_t count = (std::uint64_t{tokens} * rule_.percent + 50) / 100;
  return std::max(static_cast<std::uint32_t>(count), std::min(tokens, 1U));
}

Result<void> SparseMedium::prepare(const KvSet& set) {
  const std::uint32_t keep = keep_count(set.tokens);
  compact_ = KvSet{set.dtype, set.layers, keep, set.kv_heads, set.head_dim, {}, {}, {}, {}};
  compact_ = compact_.empty_like(set.dtype);
  chosen_.assign(set.tokens, 0);
  received_.assign(keep, 0);
  positions_.resize((std::size_t{keep} + 1) * codec::kMostVarintBytes);
  if (rule_.choice != Choice::window) {
    leverage_.assign(set.tokens, 0);
    memory_.resize(codec::Leverage::memory_doubles(set.kv_heads, set.head_dim));
    frequencies_.clear();
    if (set.rope) {
      frequencies_.resize(set.rope->rule.rotary_dims / 2);
      codec::rope_frequencies(set.rope->rule, frequencies_);
    }
  }
  return values_.prepare(compact_);
}

std::span<const float> SparseMedium::importance_of(const KvSet& set) noexcept {
  if (rule_.choice == Choice::topk && set.importance.size() == set.tokens) return set.importance;
  std::fill(leverage_.begin(), leverage_.end(), 0.0F);
  const std::uint32_t first = set.rope ? set.rope->first_position : 0;
  const auto pairing = set.rope ? set.rope->rule.pairing : codec::RopePairing::interleaved;
  const codec::RunShape shape = set.run_shape(set.tokens);
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    const codec::RunView run = set.run(layer, 0, set.tokens);
    codec::Leverage leverage(set.kv_heads, set.head_dim, frequencies_, pairing, memory_);
    leverage.add(shape, run.k, first);
    leverage.close();
    leverage.score(shape, run.k, first, leverage_);
  }
  return leverage_;
}

Status SparseMedium::encode(const KvSet& set) noexcept {
  const std::uint32_t keep = compact_.tokens;
  // A context that is hardly longer than what is always kept still leaves room for a choice.
  const std::uint32_t sinks = std::min(codec::kSinks, keep / 4);
  const std::uint32_t recent = std::min(codec::kRecent, keep / 4);
  const auto kept = rule_.choice == Choice::window
                        ? codec::choose_window(set.tokens, keep - sinks, sinks, chosen_)
                        : codec::choose_topk(importance_of(set), keep, sinks, recent, chosen_);
  position_bytes_ = codec::encode_positions(kept, set.tokens, positions_);
  const codec::RunShape shape = set.run_shape(set.tokens);
  for (std::uint32_t layer = 0; layer < set.layers; ++layer)
    codec::gather_rows(shape, set.run(layer, 0, set.tokens), 0, kept, compact_.run(layer, 0, keep));
  kept_ = {};
  return values_.encode(compact_);
}

// A real receiver keeps the compact rows; here they go to their tokens for the measures.
Status SparseMedium::decode(KvSet& out) noexcept {
  const auto kept =
      codec::decode_positions(std::span(positions_).first(position_bytes_), out.tokens, received_);
  if (!kept.ok()) return kept.status();
  if (const Status status = values_.decode(compact_); !status.ok()) return status;
  kept_ = *kept;
  std::fill(out.k.begin(), out.k.end(), std::byte{0});
  std::fill(out.v.begin(), out.v.end(), std::byte{0});
  for (std::uint32_t layer = 0; layer < out.layers; ++layer) {
    for (std::uint32_t row = 0; row < kept_.size(); ++row) {
      const std::uint64_t from = compact_.row_offset(layer, row);
      const std::uint64_t to = out.row_offset(layer, kept_[row]);
      std::memcpy(out.k.data() + to, compact_.k.data() + from, out.row_bytes());
      std::memcpy(out.v.data() + to, compact_.v.data() + from, out.row_bytes());
    }
  }
  return {};
}

std::uint64_t SparseMedium::encoded_bits() const noexcept {
  return values_.encoded_bits() + 8 * position_bytes_;
}

}  // namespace kvrail::fidelity
