// docs/config.md against the parser: every key has a row, and what a row says of default and range
// is so.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace kvrail::engine {
namespace {

struct Row {
  std::string fallback, allowed;
};

std::string without(std::string text, char what) {
  std::erase(text, what);
  return text;
}

// The table of the page, by full name of the key.
std::map<std::string, Row> rows_of_page() {
  std::ifstream file(KVRAIL_CONFIG_PAGE);
  std::map<std::string, Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    std::istringstream text(line.substr(2));
    for (std::string cell; std::getline(text, cell, '|');) {
      const std::size_t begin = cell.find_first_not_of(' ');
      cells.push_back(begin == std::string::npos
                          ? ""
                          : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
    REQUIRE_MESSAGE(cells.size() == 4, line);
    CHECK_MESSAGE(
        rows.emplace(without(cells[0], '`'), Row{without(cells[1], '`'), without(cells[2], '`')})
            .second,
        line);
  }
  return rows;
}

std::string refusal(const std::string& text) {
  const auto config = parse_config(text, "k");
  return config.ok() ? "" : config.error().message;
}

std::set<std::string> known_in(const std::string& message) {
  const std::size_t at = message.find("known");
  const std::string list = message.substr(message.find("are ", at) + 4);
  std::set<std::string> names;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) names.insert(without(name, ' '));
  return names;
}

std::string head_of(const std::string& section) {
  const bool list = section == "peer" || section == "workflow" || section == "attach.tenant";
  return list ? "[[" + section + "]]\n" : "[" + section + "]\n";
}

// What the parser itself says that it knows.
std::set<std::string> keys_of_parser() {
  std::set<std::string> sections = known_in(refusal("no_such_section = 1\n"));
  sections.insert("attach.tenant");
  std::set<std::string> keys;
  for (const std::string& section : sections) {
    for (const std::string& key : known_in(refusal(head_of(section) + "no_such_key = 1\n"))) {
      if (!sections.contains(section + "." + key)) keys.insert(section + "." + key);
    }
  }
  return keys;
}

std::pair<std::string, std::string> split(const std::string& key) {
  const std::size_t dot = key.rfind('.');
  return {head_of(key.substr(0, dot)), key.substr(dot + 1)};
}

}  // namespace

TEST_CASE("docs/config.md / has a row for every key that the parser knows, and for no other") {
  std::set<std::string> documented;
  for (const auto& [key, row] : rows_of_page()) documented.insert(key);
  CHECK(keys_of_parser() == documented);
  CHECK(documented.size() > 30);
}

TEST_CASE("docs/config.md / says the range that the parser says") {
  for (const auto& entry : rows_of_page()) {
    const std::string& key = entry.first;  // clang 14 captures no structured binding
    const Row& row = entry.second;
    const auto [head, name] = split(key);
    const std::string message = refusal(head + name + " = [[]]\n");  // never of the right type
    CAPTURE(key);
    CAPTURE(message);
    REQUIRE_FALSE(message.empty());
    // Texts have forms of their own, which other tests hold.
    if (message.ends_with("must be a string")) continue;
    CHECK_FALSE(row.allowed.empty());
    CHECK_MESSAGE(message.find(row.allowed) != std::string::npos, row.allowed);
  }
}

TEST_CASE(
    "docs/config.md / says the default that the parser has: written out, it changes nothing") {
  int written = 0;
  for (const auto& entry : rows_of_page()) {
    const std::string& key = entry.first;
    const Row& row = entry.second;
    const bool literal = row.fallback.starts_with('"') || row.fallback == "true" ||
                         row.fallback == "false" ||
                         row.fallback.find_first_not_of("0123456789") == std::string::npos;
    // An element of a list has no default as a whole.
    if (!literal || key.starts_with("peer.")) continue;
    const auto [head, name] = split(key);
    CAPTURE(key);
    auto config = parse_config(head + name + " = " + row.fallback + "\n", "k");
    REQUIRE_MESSAGE(config.ok(), (config.ok() ? "" : config.error().message));
    config->source = {};
    CHECK(*config == Config{});
    ++written;
  }
  CHECK(written > 20);
  CHECK(PeerConfig{}.transport == without(rows_of_page().at("peer.transport").fallback, '"'));
}

}  // namespace kvrail::engine
