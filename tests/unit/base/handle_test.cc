#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvrail/base/handle.h"
#include "kvrail/base/prng.h"

namespace kvrail {
namespace {

struct LaneTag;
using TestTable = SlotTable<std::string, LaneTag>;
using TestHandle = Handle<LaneTag>;

TEST_CASE("handle / packs into one word and back") {
  const TestHandle handle{7, 0xDEADBEEF};
  CHECK(handle.packed() == 0xDEADBEEF00000007ULL);
  CHECK(TestHandle::unpack(handle.packed()) == handle);
  CHECK(!TestHandle{}.valid());
}

TEST_CASE("slot table / a stale handle finds nothing, even when its slot is in use again") {
  TestTable table(1);
  const TestHandle first = table.try_emplace("first");
  REQUIRE(first.valid());
  CHECK(table.full());
  CHECK(table.erase(first));
  const TestHandle second = table.try_emplace("second");
  REQUIRE(second.valid());
  CHECK(second.index == first.index);
  CHECK(table.get(first) == nullptr);
  CHECK(!table.erase(first));
  REQUIRE(table.get(second) != nullptr);
  CHECK(*table.get(second) == "second");
}

TEST_CASE("slot table / a full table refuses, and a freed slot is granted again") {
  TestTable table(3);
  std::vector<TestHandle> handles;
  for (int i = 0; i < 3; ++i) {
    handles.push_back(table.try_emplace(std::to_string(i)));
    CHECK(handles.back().valid());
  }
  CHECK(!table.try_emplace("too many").valid());
  CHECK(table.size() == 3);
  CHECK(table.erase(handles[1]));
  CHECK(table.try_emplace("again").valid());
  CHECK(!table.try_emplace("too many").valid());
}

TEST_CASE("slot table / rejects handles from outside") {
  TestTable table(2);
  const TestHandle live = table.try_emplace("x");
  CHECK(table.get(TestHandle{}) == nullptr);
  CHECK(table.get(TestHandle{99, 1}) == nullptr);
  CHECK(table.get(TestHandle{1, 1}) == nullptr);  // The right generation of a slot that is free.
  CHECK(table.get(TestHandle{live.index, 0}) == nullptr);
  CHECK(table.get(TestHandle{0xFFFFFFFF, 0xFFFFFFFF}) == nullptr);
  TestTable none(0);
  CHECK(none.full());
  CHECK(!none.try_emplace("x").valid());
  CHECK(none.get(TestHandle{0, 1}) == nullptr);
}

TEST_CASE("slot table / erasing destroys the object at once") {
  auto object = std::make_shared<int>(1);
  SlotTable<std::shared_ptr<int>, LaneTag> table(2);
  const auto handle = table.try_emplace(object);
  CHECK(object.use_count() == 2);
  CHECK(table.erase(handle));
  CHECK(object.use_count() == 1);
}

TEST_CASE("slot table / the walk visits live objects and may erase the present one") {
  TestTable table(5);
  std::vector<TestHandle> handles;
  for (int i = 0; i < 5; ++i) {
    handles.push_back(table.try_emplace(std::to_string(i)));
  }
  CHECK(table.erase(handles[3]));
  std::string seen;
  table.for_each([&](TestHandle handle, std::string& text) {
    seen += text;
    if (text == "2") {
      CHECK(table.erase(handle));
    }
  });
  CHECK(seen == "0124");
  CHECK(table.size() == 3);
  CHECK(!table.handle_at(2).valid());
  CHECK(table.handle_at(4) == handles[4]);
}

TEST_CASE("slot table / agrees with a map over random operations") {
  Prng prng(11);
  SlotTable<std::uint64_t, LaneTag> table(16);
  std::map<std::uint64_t, std::uint64_t> model;  // Packed handle to value, the live ones.
  std::vector<TestHandle> ever;
  for (int step = 0; step < 20'000; ++step) {
    if (prng.chance(0.5)) {
      const std::uint64_t value = prng.next_u64();
      const TestHandle handle = table.try_emplace(value);
      CHECK(handle.valid() == (model.size() < 16));
      if (handle.valid()) {
        CHECK(model.emplace(handle.packed(), value).second);
        ever.push_back(handle);
      }
    } else if (!ever.empty()) {
      const TestHandle handle = ever[prng.uniform(ever.size())];
      const auto found = model.find(handle.packed());
      const std::uint64_t* value = table.get(handle);
      REQUIRE((value != nullptr) == (found != model.end()));
      if (value != nullptr) {
        CHECK(*value == found->second);
        model.erase(found);
      }
      CHECK(table.erase(handle) == (value != nullptr));
    }
    REQUIRE(table.size() == model.size());
  }
}

}  // namespace
}  // namespace kvrail
