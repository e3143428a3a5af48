#include "scheduler/levels.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/exp_table.h"

namespace kvrail::scheduler {
namespace {

std::uint32_t lesser_weight(std::uint32_t a, std::uint32_t b) noexcept {
  return a == 0 ? b : std::min(a, b);
}

// Of many flows each is cold when its turn comes. So the one after the next is fetched whole, and of the
// next, which is here by then, the neighbours on the timer wheel: its end unlinks it from them.
void fetch_ahead(const Flow& next) noexcept {
  const auto* const after = reinterpret_cast<const char*>(next.ring_next);
  for (std::size_t line = 0; line < sizeof(Flow) + 63; line += 64) __builtin_prefetch(after + line, 1);
  __builtin_prefetch(next.timer_prev, 1);
  __builtin_prefetch(next.timer_next, 1);
}

}  // namespace

void LevelSet::insert(Flow& flow) noexcept {
  KVRAIL_ASSERT(!flow.listed && flow.level < kLevels && flow.weight > 0);
  Ring& ring = rings_[flow.level];
  if (ring.head == nullptr) {
    flow.ring_prev = flow.ring_next = &flow;
    ring = Ring{&flow, 0, 1, 0, 0};
    bitmap_ |= std::uint64_t{1} << flow.level;
  } else {
    Flow* const last = ring.head->ring_prev;
    flow.ring_prev = last;
    flow.ring_next = ring.head;
    last->ring_next = &flow;
    ring.head->ring_prev = &flow;
  }
  ring.least_weight = lesser_weight(ring.least_weight, flow.weight);
  ring.next_least = lesser_weight(ring.next_least, flow.weight);
  ++ring.count;
  ++size_;
  flow.listed = true;
  flow.in_turn = false;
  flow.deficit = 0;
}

void LevelSet::remove(Flow& flow) noexcept {
  KVRAIL_ASSERT(flow.listed && size_ > 0);
  Ring& ring = rings_[flow.level];
  KVRAIL_ASSERT(ring.count > 0);
  if (ring.count == 1) {
    KVRAIL_ASSERT(ring.head == &flow);
    ring = Ring{};
    bitmap_ &= ~(std::uint64_t{1} << flow.level);
  } else {
    flow.ring_prev->ring_next = flow.ring_next;
    flow.ring_next->ring_prev = flow.ring_prev;
    if (ring.head == &flow) ring.head = flow.ring_next;
    --ring.count;
  }
  flow.ring_prev = flow.ring_next = nullptr;
  --size_;
  flow.listed = false;
  flow.in_turn = false;
  flow.deficit = 0;
}

void LevelSet::begin_turn(Ring& ring, Flow& flow, std::uint64_t chunk_bytes,
                          std::uint64_t turn_cap_bytes) noexcept {
  ring.next_least = lesser_weight(ring.next_least, flow.weight);
  const std::uint64_t share = chunk_bytes * flow.weight / ring.least_weight;
  const std::uint64_t quantum =
      std::clamp(share, chunk_bytes, std::max(turn_cap_bytes, chunk_bytes));
  // The overdraft of the last turn is at most one chunk; chunks may have shrunk since.
  const auto chunk = static_cast<std::int64_t>(chunk_bytes);
  flow.deficit = std::max(flow.deficit, 1 - chunk) + static_cast<std::int64_t>(quantum);
  flow.in_turn = true;
  KVRAIL_ASSERT(ring.turns_left > 0);
  if (--ring.turns_left == 0) {
    ring.least_weight = ring.next_least;
    ring.next_least = 0;
    ring.turns_left = ring.count;
  }
}

Flow* LevelSet::turn(std::uint64_t chunk_bytes, std::uint64_t turn_cap_bytes) noexcept {
  if (bitmap_ == 0) return nullptr;
  KVRAIL_ASSERT(chunk_bytes > 0);
  Ring& ring = rings_[find_last_set(bitmap_)];
  KVRAIL_ASSERT(ring.head != nullptr && ring.head->listed);
  if (ring.head->in_turn && ring.head->deficit <= 0) {
    ring.head->in_turn = false;
    ring.head = ring.head->ring_next;
  }
  if (!ring.head->in_turn) begin_turn(ring, *ring.head, chunk_bytes, turn_cap_bytes);
  KVRAIL_ASSERT(ring.head->deficit > 0);
  fetch_ahead(*ring.head->ring_next);
  return ring.head;
}

}  // namespace kvrail::scheduler
