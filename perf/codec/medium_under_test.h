// What kvrail-codec measures: a way to encode K and V of all layers and to get them back. The
// media of codec/ come through codec_for(); one that needs more than rows of KV (a choice of
// tokens, a calibrated basis) is one more class here and one more line in medium_under_test.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/basis.h"
#include "codec/profile.h"
#include "kvrail/base/result.h"
#include "perf/codec/kv_set.h"

namespace kvrail::fidelity {

/// Tokens of a run, as the engine cuts a context into blocks.
inline constexpr std::uint32_t kRunTokens = 64;

/// One medium over one form of set. prepare() takes all memory; encode() and decode() allocate
/// nothing, so that they can be timed.
class MediumUnderTest {
 public:
  MediumUnderTest() = default;
  MediumUnderTest(const MediumUnderTest&) = delete;
  MediumUnderTest& operator=(const MediumUnderTest&) = delete;
  virtual ~MediumUnderTest() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Values of this type come out of decode().
  [[nodiscard]] virtual Dtype decoded_dtype(const KvSet& set) const noexcept { return set.dtype; }
  /// unsupported, in one line with the remedy, where sets of this form cannot be coded.
  [[nodiscard]] virtual Result<void> prepare(const KvSet& set) = 0;

  /// A set of the form that was prepared for.
  [[nodiscard]] virtual Status encode(const KvSet& set) noexcept = 0;
  /// What encode() made last, into a set of the same form and of decoded_dtype(). Rows of tokens
  /// that were left out are zero.
  [[nodiscard]] virtual Status decode(KvSet& out) noexcept = 0;
  /// Of what encode() made last: all that a receiver needs beside the form of the set.
  [[nodiscard]] virtual std::uint64_t encoded_bits() const noexcept = 0;
  /// The tokens that decode() filled last, ascending; empty: all of them.
  [[nodiscard]] virtual std::span<const std::uint32_t> kept_tokens() const noexcept { return {}; }
};

/// What media may draw on besides KV.
struct MediumContext {
  const codec::Basis* basis = nullptr;  // of lowrank; null: it can code nothing, and why
  std::string why_no_basis;
  std::optional<std::uint16_t> theta = {};  // of "lowrank" without a rate; none: an eighth of the set's
  codec::Protection protection = {};        // of "int4+protect", "int8+protect"
};
/// Whether the medium of this name draws on a basis, on a protection.
[[nodiscard]] bool draws_on_basis(std::string_view name) noexcept;
[[nodiscard]] bool draws_on_protection(std::string_view name) noexcept;

/// Media of kvrail that this build has, in the order of a report.
[[nodiscard]] std::vector<std::string> medium_names();
/// Formats of others to compare with.
[[nodiscard]] std::vector<std::string> comparison_names();
/// By a name of either list, "lowrank@BITS" with bits a value, "int4+protect" or "int8+protect", or
/// as in sparse_medium.h; else
/// invalid_argument with the list. The basis must outlive the medium.
[[nodiscard]] Result<std::unique_ptr<MediumUnderTest>> make_medium(const std::string& name,
                                                                   const MediumContext& context);

}  // namespace kvrail::fidelity
