#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "kvrail/base/result.h"
#include "kvrail/base/status.h"

namespace kvrail {
namespace {

TEST_CASE("status / every code has a name of its own") {
  std::set<std::string> names;
  for (std::uint16_t value = 0; value < kCodeCount; ++value) {
    const std::string text = name(static_cast<Code>(value));
    CHECK(text != "invalid code");
    CHECK(names.insert(text).second);
  }
  CHECK(std::string(name(static_cast<Code>(kCodeCount))) == "invalid code");
  CHECK(std::string(name(static_cast<Code>(0xFFFF))) == "invalid code");
}

TEST_CASE("status / every scope has a name of its own") {
  std::set<std::string> names;
  for (std::uint8_t value = 0; value < kScopeCount; ++value) {
    CHECK(names.insert(name(static_cast<Scope>(value))).second);
  }
  CHECK(std::string(name(static_cast<Scope>(kScopeCount))) == "invalid scope");
}

TEST_CASE("status / its eight bytes are all defined and survive a copy") {
  const Status status{Code::io_error, Scope::lane, -5};
  unsigned char bytes[sizeof(Status)];
  std::memcpy(bytes, &status, sizeof(bytes));
  const unsigned char expected[8] = {25, 0, 1, 0, 0xFB, 0xFF, 0xFF, 0xFF};
  CHECK(std::memcmp(bytes, expected, sizeof(bytes)) == 0);
  Status copy;
  std::memcpy(&copy, bytes, sizeof(copy));
  CHECK(copy == status);
  CHECK(!copy.ok());
  CHECK(Status::ok_status().ok());
}

TEST_CASE("result / holds a move-only value") {
  auto make = [](bool good) -> Result<std::unique_ptr<int>> {
    if (!good) {
      return Error{Status{Code::too_large}, "7 is more than the limit of 5"};
    }
    return std::make_unique<int>(7);
  };
  auto good = make(true);
  REQUIRE(good.ok());
  CHECK(good.status().ok());
  CHECK(**good == 7);
  const std::unique_ptr<int> taken = std::move(good).value();
  CHECK(*taken == 7);

  auto bad = make(false);
  REQUIRE(!bad.ok());
  CHECK(bad.status().code == Code::too_large);
  CHECK(bad.error().message == "7 is more than the limit of 5");
}

TEST_CASE("result / an error moves on into a result of another type") {
  Result<int> inner = Error{Status{Code::busy, Scope::peer, 3}, "reason"};
  Result<std::string> outer = std::move(inner).error();
  REQUIRE(!outer.ok());
  CHECK(outer.error().message == "reason");
  CHECK(outer.status() == Status{Code::busy, Scope::peer, 3});
}

TEST_CASE("result / a failing status alone is enough") {
  Result<int> failed = Status{Code::not_found};
  CHECK(failed.status().code == Code::not_found);
  CHECK(failed.error().message.empty());
}

TEST_CASE("result<void> / default and ok are success, the rest failure") {
  CHECK(Result<void>{}.ok());
  CHECK(Result<void>{Status::ok_status()}.ok());
  CHECK(Result<void>{Status{Code::limit}}.status().code == Code::limit);
  CHECK(!Result<void>{Error{Status{Code::limit}, "x"}});
}

}  // namespace
}  // namespace kvrail
