// How much a test does, by KVRAIL_TEST_MODE: quick, normal (the default) or long.
#pragma once

#include <cstdlib>
#include <string_view>

namespace kvrail::test {

enum class Mode { quick, normal, extended };

[[nodiscard]] inline Mode mode() {
  const char* text = std::getenv("KVRAIL_TEST_MODE");
  const std::string_view name = text == nullptr ? "" : text;
  return name == "quick" ? Mode::quick : name == "long" ? Mode::extended : Mode::normal;
}

template <class T>
[[nodiscard]] T by_mode(T quick, T normal, T extended) {
  switch (mode()) {
    case Mode::quick: return quick;
    case Mode::normal: return normal;
    case Mode::extended: return extended;
  }
  return normal;
}

[[nodiscard]] inline bool is_long() { return mode() == Mode::extended; }

}  // namespace kvrail::test
