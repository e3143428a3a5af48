// Which transfer `kvrailctl explain` shows, and what it says of it.
#include "engine/ctl/pick.h"

#include <doctest/doctest.h>

#include <memory>

#include "engine/ctl/views.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::ctl;

namespace {

// A page with the rows in this order, oldest first.
std::unique_ptr<StatusData> page_of(std::initializer_list<StatusTransfer> rows) {
  auto data = std::make_unique<StatusData>();
  data->node = 7;
  for (StatusTransfer row : rows) {
    row.serial = ++data->transfer_count;
    data->transfers[row.serial % kStatusTransfers] = row;
  }
  return data;
}

StatusTransfer row_of(std::uint64_t id, StatusDirection direction, std::uint64_t peer,
                      std::uint32_t lines = 0) {
  StatusTransfer row;
  row.transfer = id;
  row.direction = direction;
  row.peer_node = peer;
  row.line_count = lines;
  return row;
}

constexpr auto kIn = StatusDirection::in;
constexpr auto kOut = StatusDirection::out;
constexpr auto kLocal = StatusDirection::local;

bool has(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("kvrailctl / ids are decimal or hexadecimal, never octal") {
  CHECK(*parse_id("10") == 10);
  CHECK(*parse_id("010") == 10);
  CHECK(*parse_id("0x10") == 16);
  CHECK(*parse_id("0X00000000000000fF") == 255);
  CHECK(*parse_id("18446744073709551615") == UINT64_MAX);
  for (const char* text :
       {"", "0", "0x", "0x0", "-1", "+1", " 1", "1 ", "1.0", "x1", "ten", "18446744073709551616"}) {
    CAPTURE(text);
    CHECK(parse_id(text).status().code == Code::invalid_argument);
  }
  CHECK(*parse_id(node_text(0x1234)) == 0x1234);
}

TEST_CASE(
    "kvrailctl / of transfers with one id the newest that tells why is shown, and the others are "
    "named") {
  const auto page = page_of(
      {row_of(5, kIn, 8, 2), row_of(5, kIn, 9, 3), row_of(5, kOut, 8), row_of(6, kLocal, 7)});
  const Picked picked = pick_transfer(*page, {.transfer = 5, .way = {}, .peer = {}});
  REQUIRE(picked.row != nullptr);
  CHECK(picked.row->peer_node == 9);
  REQUIRE(picked.others.size() == 2);
  const std::string text = ambiguity_text(picked);
  CHECK(has(text, "3 transfers have the id 5"));
  CHECK(has(text, "this is the one in from 0x0000000000000009"));
  CHECK(has(text, "in from 0x0000000000000008, out to 0x0000000000000008"));
  CHECK(has(text, "--way"));
}

TEST_CASE("kvrailctl / the way and the peer choose") {
  const auto page = page_of(
      {row_of(5, kOut, 8), row_of(5, kIn, 8, 2), row_of(5, kIn, 9, 3), row_of(6, kLocal, 7)});
  const auto serial = [&](const Choice& choice) {
    const Picked picked = pick_transfer(*page, choice);
    CHECK(ambiguity_text(picked).empty());
    return picked.row == nullptr ? 0 : picked.row->serial;
  };
  CHECK(serial({.transfer = 5, .way = "out", .peer = {}}) == 1);
  CHECK(serial({.transfer = 5, .way = "in", .peer = 8}) == 2);
  CHECK(serial({.transfer = 5, .way = "in", .peer = 9}) == 3);
  CHECK(serial({.transfer = 5, .way = {}, .peer = 9}) == 3);
  CHECK(serial({.transfer = 6, .way = {}, .peer = {}}) == 4);
  CHECK(serial({.transfer = 6, .way = "in", .peer = {}}) == 0);
  CHECK(serial({.transfer = {}, .way = {}, .peer = {}}) == 4);
  CHECK(serial({.transfer = {}, .way = "out", .peer = {}}) == 1);
}

TEST_CASE("kvrailctl / a table of costs says what its sums hold, a row without one says why") {
  const auto page =
      page_of({row_of(5, kIn, 8, 2), row_of(6, kIn, 8), row_of(7, kOut, 8), row_of(8, kLocal, 7)});
  const auto text = [&](std::uint64_t id) {
    return text_of(*page, *pick_transfer(*page, {.transfer = id, .way = {}, .peer = {}}).row);
  };
  CHECK(has(text(5), "total = (wait + encode, transmit and decode, which overlap, + recompute)"));
  CHECK(has(text(5), "cost  = weight of the transfer x (total + loss) + price"));
  CHECK(has(text(6), "before its medium was chosen"));
  CHECK(has(text(7), "kvrailctl explain 7 --way in --peer 0x0000000000000007"));
  CHECK(has(text(8), "within the node"));
}
