// Media of kvrail-codec by name, and one trip through them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "perf/codec/medium_under_test.h"

namespace kvrail::fidelity_test {

inline std::unique_ptr<fidelity::MediumUnderTest> medium(const std::string& name) {
  auto made = fidelity::make_medium(name, fidelity::MediumContext{});
  REQUIRE(made.ok());
  return std::move(*made);
}

inline fidelity::KvSet there_and_back(fidelity::MediumUnderTest& medium, const fidelity::KvSet& set) {
  REQUIRE(medium.prepare(set).ok());
  REQUIRE(medium.encode(set).ok());
  fidelity::KvSet out = set.empty_like(medium.decoded_dtype(set));
  std::fill(out.k.begin(), out.k.end(), std::byte{0x5A});
  REQUIRE(medium.decode(out).ok());
  return out;
}

}  // namespace kvrail::fidelity_test
