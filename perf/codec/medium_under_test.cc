#include "perf/codec/medium_under_test.h"

#include <algorithm>
#include <array>

#include "perf/codec/coded_medium.h"
#include "perf/codec/ggml_medium.h"
#include "perf/codec/lowrank_medium.h"
#include "perf/codec/sparse_medium.h"

namespace kvrail::fidelity {
namespace {

constexpr std::array kCodedMedia{Medium::full, Medium::lossless, Medium::exact, Medium::int8,
                                 Medium::int4};
constexpr std::array kGgmlFormats{GgmlFormat::q8_0, GgmlFormat::q4_0};

// What may be protected, and what a protected run is coded by.
struct Protectable {
  std::string_view name;
  Medium medium, finer;
};
constexpr std::array kProtectable{Protectable{"int4+protect", Medium::int4, Medium::int8},
                                  Protectable{"int8+protect", Medium::int8, Medium::exact}};

constexpr std::string_view kLowRank = "lowrank";
constexpr std::array<std::string_view, 4> kSparse{"topk@50", "topk@25", "window@50", "window@25"};

}  // namespace

std::vector<std::string> medium_names() {
  std::vector<std::string> names;
  for (const Medium medium : kCodedMedia) {
    if (codec::codec_for(medium) != nullptr) names.emplace_back(medium_name(medium));
  }
  names.emplace_back(kLowRank);
  for (const std::string_view name : kSparse) {
    names.emplace_back(name);
    if (codec::codec_for(Medium::int4) != nullptr)
      names.push_back(std::string(name).append("+int4"));
  }
  return names;
}

bool draws_on_basis(std::string_view name) noexcept {
  return name == kLowRank || name.starts_with("lowrank@");
}

bool draws_on_protection(std::string_view name) noexcept {
  return std::any_of(kProtectable.begin(), kProtectable.end(),
                     [&](const Protectable& one) { return name == one.name; });
}

std::vector<std::string> comparison_names() {
  std::vector<std::string> names;
  for (const GgmlFormat format : kGgmlFormats) names.emplace_back(ggml_name(format));
  return names;
}

Result<std::unique_ptr<MediumUnderTest>> make_medium(const std::string& name,
                                                     const MediumContext& context) {
  for (const Medium medium : kCodedMedia) {
    const codec::Codec* codec = codec::codec_for(medium);
    if (codec != nullptr && name == medium_name(medium))
      return std::unique_ptr<MediumUnderTest>(std::make_unique<PlainMedium>(*codec));
  }
  for (const Protectable& one : kProtectable) {
    if (name == one.name) {
      return std::unique_ptr<MediumUnderTest>(std::make_unique<ProtectedMedium>(
          *codec::codec_for(one.medium), *codec::codec_for(one.finer), context.protection));
    }
  }
  for (const GgmlFormat format : kGgmlFormats) {
    if (name == ggml_name(format))
      return std::unique_ptr<MediumUnderTest>(std::make_unique<GgmlMedium>(format));
  }
  if (draws_on_basis(name)) {
    auto bits = lowrank_rate(name);
    if (!bits.ok()) return std::move(bits).error();
    return std::unique_ptr<MediumUnderTest>(std::make_unique<LowRankMedium>(name, *bits, context));
  }
  if (is_sparse(name)) {
    auto rule = sparse_rule(name);
    if (!rule.ok()) return std::move(rule).error();
    return std::unique_ptr<MediumUnderTest>(std::make_unique<SparseMedium>(name, *rule));
  }
  std::string known;
  for (const auto& list : {medium_names(), comparison_names()}) {
    for (const std::string& valid : list) known.append(known.empty() ? "" : ", ").append(valid);
  }
  return Error{{Code::invalid_argument},
               std::string("--media \"")
                       .append(name.substr(0, 32))
                       .append("\" is none of those there are: ") +
                   known + " (and int4+protect, int8+protect, lowrank@BITS, topk@PERCENT+MEDIUM, leverage@…, "
                           "window@…)"};
}

}  // namespace kvrail::fidelity
