#include "mempool/extents.h"

#include <algorithm>
#include <boost/intrusive/set.hpp>
#include <iterator>

#include "kvrail/base/assert.h"

namespace kvrail::mempool {
namespace {

namespace bi = boost::intrusive;

struct ByAddress;
struct BySize;
using AddressHook =
    bi::set_base_hook<bi::tag<ByAddress>, bi::link_mode<bi::normal_link>, bi::optimize_size<true>>;
using SizeHook =
    bi::set_base_hook<bi::tag<BySize>, bi::link_mode<bi::normal_link>, bi::optimize_size<true>>;

struct Node : AddressHook, SizeHook {
  std::uint64_t first = 0;
  std::uint64_t units = 0;
  Node* next_unused = nullptr;
};

struct LowerAddress {
  bool operator()(const Node& a, const Node& b) const noexcept { return a.first < b.first; }
};
struct Smaller {
  bool operator()(const Node& a, const Node& b) const noexcept {
    return a.units != b.units ? a.units < b.units : a.first < b.first;
  }
};

}  // namespace

struct Extents::Trees {
  using AddressTree = bi::set<Node, bi::base_hook<AddressHook>, bi::compare<LowerAddress>>;
  using SizeTree = bi::set<Node, bi::base_hook<SizeHook>, bi::compare<Smaller>>;

  explicit Trees(std::uint64_t count) : nodes(std::make_unique<Node[]>(count)) {
    for (std::uint64_t i = 0; i < count; ++i) {
      put_unused(nodes[i]);
    }
  }
  void put_unused(Node& node) noexcept {
    node.next_unused = unused;
    unused = &node;
  }
  void insert(std::uint64_t first, std::uint64_t units) noexcept {
    Node* node = unused;
    KVRAIL_ASSERT_MSG(node != nullptr, "more free ranges than pieces + 1");
    unused = node->next_unused;
    node->first = first;
    node->units = units;
    by_address.insert(*node);
    by_size.insert(*node);
  }
  void remove(Node& node) noexcept {
    by_address.erase(by_address.iterator_to(node));
    by_size.erase(by_size.iterator_to(node));
    put_unused(node);
  }

  std::unique_ptr<Node[]> nodes;
  Node* unused = nullptr;
  AddressTree by_address;
  SizeTree by_size;
};

Extents::Extents(std::uint64_t total_units, std::uint32_t max_pieces)
    : total_units_(total_units), free_units_(total_units), max_pieces_(max_pieces) {
  // Pieces are at least a unit, so no more than every second unit starts a free range. One node is
  // spare because give_back() inserts the joined range after it has removed its neighbours.
  trees_ = std::make_unique<Trees>(std::min<std::uint64_t>(max_pieces, total_units / 2) + 2);
  if (total_units > 0) {
    trees_->insert(0, total_units);
  }
}

Extents::~Extents() = default;

std::optional<std::uint64_t> Extents::try_take(std::uint64_t units, std::uint32_t pieces) noexcept {
  KVRAIL_ASSERT(units > 0 && pieces > 0 && pieces <= units);
  if (pieces > max_pieces_ - pieces_ || units > free_units_) {
    return std::nullopt;
  }
  Node key;
  key.units = units;
  const auto fit = trees_->by_size.lower_bound(key);
  if (fit == trees_->by_size.end()) {
    return std::nullopt;
  }
  const std::uint64_t first = fit->first;
  const std::uint64_t rest = fit->units - units;
  trees_->remove(*fit);
  if (rest > 0) {
    trees_->insert(first + units, rest);
  }
  free_units_ -= units;
  pieces_ += pieces;
  return first;
}

void Extents::give_back(std::uint64_t first, std::uint64_t units, std::uint32_t pieces) noexcept {
  KVRAIL_ASSERT(units > 0 && first < total_units_ && units <= total_units_ - first);
  KVRAIL_ASSERT(pieces <= pieces_);
  Node key;
  key.first = first;
  auto after = trees_->by_address.lower_bound(key);
  std::uint64_t begin = first;
  std::uint64_t end = first + units;
  if (after != trees_->by_address.begin()) {
    Node& before = *std::prev(after);
    KVRAIL_ASSERT_MSG(before.first + before.units <= first, "given back twice");
    if (before.first + before.units == first) {
      begin = before.first;
      trees_->remove(before);
    }
  }
  if (after != trees_->by_address.end()) {
    KVRAIL_ASSERT_MSG(after->first >= end, "given back twice");
    if (after->first == end) {
      end += after->units;
      trees_->remove(*after);
    }
  }
  trees_->insert(begin, end - begin);
  free_units_ += units;
  pieces_ -= pieces;
  KVRAIL_ASSERT(free_units_ <= total_units_);
}

std::uint64_t Extents::largest_free() const noexcept {
  return trees_->by_size.empty() ? 0 : trees_->by_size.rbegin()->units;
}

std::uint32_t Extents::free_ranges() const noexcept {
  return static_cast<std::uint32_t>(trees_->by_address.size());
}

void Extents::check() const noexcept {
  std::uint64_t sum = 0;
  std::uint64_t end = 0;
  bool first = true;
  for (const Node& node : trees_->by_address) {
    KVRAIL_ASSERT(node.units > 0);
    KVRAIL_ASSERT_MSG(first || node.first > end, "free ranges touch or overlap");
    end = node.first + node.units;
    sum += node.units;
    first = false;
  }
  KVRAIL_ASSERT(end <= total_units_ && sum == free_units_);
  KVRAIL_ASSERT(trees_->by_address.size() == trees_->by_size.size());
  KVRAIL_ASSERT(trees_->by_address.size() <= std::uint64_t{pieces_} + 1);
}

}  // namespace kvrail::mempool
