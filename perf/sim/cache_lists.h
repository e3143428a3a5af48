// Doubly linked lists over numbered blocks; a block is in one of them at most.
#pragma once

#include <cstdint>
#include <vector>

#include "kvrail/base/assert.h"

namespace kvrail::simulation {

class BlockLists {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  BlockLists(std::uint32_t blocks, std::uint32_t lists) : links_(blocks), lists_(lists) {}

  // kNone: in none.
  [[nodiscard]] std::uint32_t list_of(std::uint32_t block) const { return links_[block].list; }
  [[nodiscard]] std::uint32_t size(std::uint32_t list) const { return lists_[list].size; }
  [[nodiscard]] std::uint32_t back(std::uint32_t list) const { return lists_[list].back; }
  // Toward the front; kNone after the first one.
  [[nodiscard]] std::uint32_t before(std::uint32_t block) const { return links_[block].before; }

  void push_front(std::uint32_t list, std::uint32_t block) {
    Link& own = links_[block];
    List& to = lists_[list];
    KVRAIL_ASSERT(own.list == kNone);
    own = Link{list, kNone, to.front};
    (to.front == kNone ? to.back : links_[to.front].before) = block;
    to.front = block;
    ++to.size;
  }
  void remove(std::uint32_t block) {
    const Link own = links_[block];
    KVRAIL_ASSERT(own.list != kNone);
    List& from = lists_[own.list];
    (own.before == kNone ? from.front : links_[own.before].behind) = own.behind;
    (own.behind == kNone ? from.back : links_[own.behind].before) = own.before;
    links_[block] = Link{};
    --from.size;
  }
  void move_front(std::uint32_t list, std::uint32_t block) {
    remove(block);
    push_front(list, block);
  }

 private:
  struct Link {
    std::uint32_t list = kNone, before = kNone, behind = kNone;
  };
  struct List {
    std::uint32_t front = kNone, back = kNone, size = 0;
  };
  std::vector<Link> links_;
  std::vector<List> lists_;
};

}  // namespace kvrail::simulation
