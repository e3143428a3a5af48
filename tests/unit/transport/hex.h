// Golden bytes: the same text stands in docs/wire.md, one `name: hex` line for each example.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>

inline std::string hex_of(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

// Reads the examples of the document: a line "golden NAME", then lines of hex indented by two
// spaces, grouped at will.
inline const std::map<std::string, std::string>& golden_examples() {
  static const std::map<std::string, std::string> examples = [] {
    std::map<std::string, std::string> found;
    std::ifstream file(KVRAIL_WIRE_DOCUMENT);
    REQUIRE_MESSAGE(file.good(), "docs/wire.md cannot be read");
    std::string line;
    std::string current;
    while (std::getline(file, line)) {
      if (line.rfind("golden ", 0) == 0) {
        current = line.substr(7);
        found[current];
      } else if (!current.empty() && line.rfind("  ", 0) == 0) {
        for (const char c : line) {
          if (c != ' ') found[current] += c;
        }
      } else {
        current.clear();
      }
    }
    return found;
  }();
  return examples;
}

inline void check_golden(const std::string& name, std::span<const std::byte> bytes) {
  const auto& examples = golden_examples();
  const auto found = examples.find(name);
  INFO("example " << name << " is now " << hex_of(bytes));
  CHECK_MESSAGE((found != examples.end() && found->second == hex_of(bytes)),
                "docs/wire.md shows other bytes for " << name);
}
