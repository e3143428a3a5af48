#include "transport/verbs/peer_leases.h"

#include <algorithm>

#include "kvrail/base/checked.h"

namespace kvrail::transport::verbs {

SegmentPool::SegmentPool(std::uint32_t pages)
    : pages_(std::make_unique<SegmentPage[]>(pages)), count_(pages), free_(pages) {
  KVRAIL_ASSERT(pages > 0);
  for (std::uint32_t i = 0; i < pages; ++i) pages_[i].next = i + 1 < pages ? i + 1 : kNoPage;
}

std::uint32_t SegmentPool::take() noexcept {
  const std::uint32_t page = first_free_;
  if (page == kNoPage) return page;
  first_free_ = pages_[page].next;
  pages_[page].next = kNoPage;
  pages_[page].used = 0;
  --free_;
  return page;
}

void SegmentPool::give(std::uint32_t page) noexcept {
  pages_[page].next = first_free_;
  first_free_ = page;
  ++free_;
}

PeerLeases::PeerLeases(SegmentPool& pool, std::uint32_t slots)
    : pool_(pool), count_(slots), slots_(std::make_unique<Slot[]>(slots)) {}

void PeerLeases::forget(Slot& slot) noexcept {
  for (std::uint32_t page = slot.head; page != kNoPage;) {
    const std::uint32_t next = pool_.at(page).next;
    pool_.give(page);
    page = next;
  }
  slot = Slot{};
}

void PeerLeases::clear() noexcept {
  for (std::uint32_t i = 0; i < count_; ++i) forget(slots_[i]);
}

PeerLeases::Arrival PeerLeases::on_lease(const LeaseHead& head,
                                         std::span<const std::byte> body) noexcept {
  if (head.lease.slot >= count_) return Arrival::malformed;
  Slot& slot = slots_[head.lease.slot];
  if (head.first) {
    // A description that is repeated (we asked while it was on its way) is the same one.
    if (slot.state == State::told && slot.generation == head.lease.generation)
      return Arrival::taken;
    if (slot.state == State::withdrawn || slot.in_use != 0) return Arrival::malformed;
    forget(slot);
    slot.state = State::arriving;
    slot.generation = head.lease.generation;
    slot.total = head.total_bytes;
  } else if (slot.generation != head.lease.generation || slot.state != State::arriving) {
    return Arrival::taken;  // the rest of one that is here, or that there was no room for
  }
  const Arrival arrival = add_segments(slot, head, body);
  if (arrival != Arrival::taken) {
    forget(slot);
    return arrival;
  }
  if (head.last) {
    if (slot.arrived != slot.total) return Arrival::malformed;
    slot.state = State::told;
    slot.near_page = slot.head;
  }
  return Arrival::taken;
}

PeerLeases::Arrival PeerLeases::add_segments(Slot& slot, const LeaseHead& head,
                                             std::span<const std::byte> body) noexcept {
  for (std::uint32_t i = 0; i < head.count; ++i) {
    const Segment one = segment(body, i);
    if (one.bytes == 0 || !range_fits(slot.arrived, one.bytes, slot.total) ||
        one.address + one.bytes < one.address) {
      return Arrival::malformed;
    }
    if (slot.tail == kNoPage || pool_.at(slot.tail).used == kPageSegments) {
      const std::uint32_t page = pool_.take();
      if (page == kNoPage) return Arrival::no_room;
      (slot.tail == kNoPage ? slot.head : pool_.at(slot.tail).next) = page;
      slot.tail = page;
    }
    SegmentPage& page = pool_.at(slot.tail);
    page.starts[page.used] = slot.arrived;
    page.segments[page.used++] = one;
    slot.arrived += one.bytes;
  }
  return Arrival::taken;
}

bool PeerLeases::on_withdrawn(LeaseId lease) noexcept {
  if (lease.slot >= count_) return true;
  Slot& slot = slots_[lease.slot];
  if (slot.state == State::unknown || slot.generation != lease.generation) return true;
  if (slot.in_use != 0) {
    slot.state = State::withdrawn;
    return false;
  }
  forget(slot);
  return true;
}

PeerLeases::State PeerLeases::state_of(LeaseId lease) const noexcept {
  if (lease.slot >= count_ || slots_[lease.slot].generation != lease.generation)
    return State::unknown;
  return slots_[lease.slot].state;
}

bool PeerLeases::finish(LeaseId lease) noexcept {
  Slot& slot = slots_[lease.slot];
  KVRAIL_ASSERT(slot.in_use > 0 && slot.generation == lease.generation);
  if (--slot.in_use != 0 || slot.state != State::withdrawn) return false;
  forget(slot);
  return true;
}

PeerLeases::Place PeerLeases::locate(LeaseId lease, std::uint64_t offset,
                                     std::size_t pair) noexcept {
  Slot& slot = slots_[lease.slot];
  KVRAIL_ASSERT(offset < slot.total);
  std::uint32_t page = slot.near_page;
  if (page == kNoPage || pool_.at(page).starts[0] > offset) page = slot.head;
  while (pool_.at(page).next != kNoPage && pool_.at(pool_.at(page).next).starts[0] <= offset)
    page = pool_.at(page).next;
  slot.near_page = page;
  const SegmentPage& found = pool_.at(page);
  const auto after =
      std::upper_bound(found.starts.begin(), found.starts.begin() + found.used, offset);
  const auto i = static_cast<std::size_t>(after - found.starts.begin() - 1);
  const std::uint64_t within = offset - found.starts[i];
  return {found.segments[i].address + within, found.segments[i].keys[pair],
          found.segments[i].bytes - within};
}

}  // namespace kvrail::transport::verbs
