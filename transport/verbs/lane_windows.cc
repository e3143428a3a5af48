// Memory windows: a lease is told with keys of its own, one for each range and queue pair, which are
// bound before and invalidated after. Where a device has none, or a lease has too many ranges, the
// keys are those of the registered memory, and only the end of the queue pairs revokes them.
//
//   to bind -> bindings posted -> complete: told -> withdrawn, and the peer has released it, or has
//   not in time -> to revoke -> invalidations posted -> complete: the memory is nobody's any more
#include <algorithm>

#include "kvrail/base/no_alloc.h"
#include "transport/verbs/lane.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::uint64_t kMostRangeBytes = 1ULL << 30;

bool is_done(const std::array<SendQueue, 2>& queues, const std::array<std::uint64_t, 2>& work) {
  return queues[kControl].completed >= work[kControl] && queues[kBulk].completed >= work[kBulk];
}

}  // namespace

Lane::Range Lane::next_range(std::span<const Piece> pieces, RangeCursor& at) noexcept {
  Range range;
  while (at.piece < pieces.size()) {
    std::byte* const address = pieces[at.piece].address + at.within;
    const Region* const region = context_.memory.find(address);
    KVRAIL_ASSERT_MSG(region != nullptr, "the memory of an exposed lease was unregistered");
    if (range.bytes != 0 && (range.address + range.bytes != address || range.region != region ||
                             range.bytes == kMostRangeBytes)) {
      break;
    }
    if (range.bytes == 0) range = Range{address, 0, region};
    const std::uint64_t bytes = std::min({pieces[at.piece].bytes - at.within,
                                          static_cast<std::uint64_t>(region->end - address),
                                          kMostRangeBytes - range.bytes});
    range.bytes += static_cast<std::uint32_t>(bytes);
    at.within += bytes;
    if (at.within == pieces[at.piece].bytes) at = RangeCursor{at.piece + 1, 0};
  }
  return range;
}

// 0: more than windows are for.
std::uint32_t Lane::ranges_for_windows(const Payload& sink) noexcept {
  RangeCursor at;
  std::uint32_t count = 0;
  while (next_range(sink.pieces, at).bytes != 0) {
    if (++count > kBindSlots) return 0;
  }
  return count;
}

void Lane::bind(std::size_t stream, const Payload& sink, Bound& bound) noexcept {
  Doorbell& doorbell = context_.doorbells[stream];
  WindowPool& pool = *device_->windows;
  RangeCursor at;
  for (Range range = next_range(sink.pieces, at); range.bytes != 0;
       range = next_range(sink.pieces, at)) {
    const std::uint32_t index = pool.take();
    WindowPool::Window& window = pool.at(index);
    ibv_send_wr& request = doorbell.add();
    request.opcode = IBV_WR_BIND_MW;
    request.bind_mw.mw = window.handle;
    request.bind_mw.rkey = window.key;
    request.bind_mw.bind_info = {range.region->keys[device_->index],
                                 reinterpret_cast<std::uint64_t>(range.address), range.bytes,
                                 IBV_ACCESS_REMOTE_WRITE};
    std::uint32_t& last = bound.last[stream];
    (last == kNoWindow ? bound.first[stream] : pool.at(last).next) = index;
    last = index;
  }
}

// The lease in front gets its windows, or goes on without. False: nothing to do, or no room.
bool Lane::bind_next() noexcept {
  if (to_bind_.empty() || to_tell_.full()) return false;
  Telling telling{to_bind_.front(), {}};
  OwnLeases::Slot& slot = context_.leases.at(telling.slot);
  const bool fresh = slot.state == OwnLeases::Slot::State::exposed && slot.peer == peer_ &&
                     slot.reachable && (slot.told & bit()) == 0;
  const std::uint32_t pairs = has_bulk_pair() ? 2 : 1;
  const std::uint32_t ranges =
      fresh && device_->windows != nullptr ? ranges_for_windows(slot.sink) : 0;
  if (ranges != 0 && device_->windows->has(ranges * pairs)) {
    for (std::size_t stream = 0; stream < pairs; ++stream) {
      if (!context_.doorbells[stream].has_room_aside(ranges)) return false;
    }
    make_bound();
    for (std::size_t stream = 0; stream < pairs; ++stream) {
      bind(stream, slot.sink, bound_[telling.slot]);
      telling.work[stream] = context_.doorbells[stream].last();
    }
    slot.told |= bit();  // from here on it must be taken back
    ++context_.counters.leases_in_windows;
  }
  to_bind_.pop();
  to_tell_.push(telling);
  return true;
}

void Lane::make_bound() noexcept {
  if (bound_ != nullptr) return;
  const AllowAllocScope allow;  // once
  bound_ = std::make_unique<Bound[]>(context_.leases.capacity());
}

bool Lane::is_bound(std::uint32_t slot) const noexcept {
  return bound_ != nullptr && bound_[slot].first[kControl] != kNoWindow;
}

void Lane::begin_revoke(LeaseId lease) noexcept {
  if (to_revoke_.empty() && revoking_.empty()) revoke_since_ns_ = context_.now_ns;
  bound_[lease.slot].revoking = true;
  to_revoke_.push(lease);
}

// The invalidations of the lease in front. False: nothing to do, or no room.
bool Lane::revoke_next() noexcept {
  if (to_revoke_.empty()) return false;
  Revoking revoking{to_revoke_.front(), {}};
  const Bound& bound = bound_[revoking.lease.slot];
  for (const std::size_t stream : {kControl, kBulk}) {
    if (bound.first[stream] != kNoWindow &&
        !context_.doorbells[stream].has_room_aside(kBindSlots)) {
      return false;
    }
  }
  for (const std::size_t stream : {kControl, kBulk}) {
    for (std::uint32_t i = bound.first[stream]; i != kNoWindow; i = device_->windows->at(i).next) {
      ibv_send_wr& request = context_.doorbells[stream].add();
      request.opcode = IBV_WR_LOCAL_INV;
      request.invalidate_rkey = device_->windows->at(i).key;
      revoking.work[stream] = context_.doorbells[stream].last();
    }
  }
  revoking_.push(revoking);
  to_revoke_.pop();
  return true;
}

void Lane::finish_revokes() noexcept {
  while (!revoking_.empty() && is_done(queues_, revoking_.front().work)) {
    const LeaseId lease = revoking_.front().lease;
    Bound& bound = bound_[lease.slot];
    for (std::uint32_t i : bound.first) {
      while (i != kNoWindow) {
        const std::uint32_t next = device_->windows->at(i).next;
        device_->windows->give(i);
        i = next;
      }
    }
    bound = Bound{};
    revoking_.pop();
    revoke_since_ns_ = context_.now_ns;
    static_cast<void>(context_.leases.confirm(lease, bit()));
  }
}

// The peer has not released in time. True: its keys can be revoked, and are about to be.
bool Lane::revoke_overdue() noexcept {
  const auto is_owed = [&](std::uint32_t slot) {
    return context_.leases.is_withdrawing(slot, bit()) && !(is_bound(slot) && bound_[slot].revoking);
  };
  for (std::uint32_t slot = 0; slot < context_.leases.capacity(); ++slot) {
    if (is_owed(slot) && !is_bound(slot)) return false;
  }
  for (std::uint32_t slot = 0; slot < context_.leases.capacity(); ++slot) {
    if (!is_owed(slot)) continue;
    begin_revoke({slot, context_.leases.at(slot).generation});
    ++late_releases_;
    ++context_.counters.withdraws_revoked;
  }
  withdraws_owed_ = 0;
  return true;
}

// Before the queue pairs go: a device may keep a pair that windows are bound to.
void Lane::drop_windows() noexcept {
  if (bound_ == nullptr) return;
  for (std::uint32_t slot = 0; slot < context_.leases.capacity(); ++slot) {
    for (std::uint32_t i : bound_[slot].first) {
      while (i != kNoWindow) {
        const std::uint32_t next = device_->windows->at(i).next;
        device_->windows->drop(i);
        i = next;
      }
    }
    bound_[slot] = Bound{};
  }
}

}  // namespace kvrail::transport::verbs
