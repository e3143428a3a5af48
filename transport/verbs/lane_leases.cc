// Leases: what of our memory the peer may write, and what it lets us write.
#include <algorithm>
#include <utility>

#include "transport/verbs/lane.h"

namespace kvrail::transport::verbs {
namespace {

constexpr TimeNs kAskAgainNs = kMillisecondNs;

}  // namespace

void Lane::tell_lease(std::uint32_t slot) noexcept {
  // Told when the peer asks for it, where this is full.
  if (state_ == LaneState::up && !fading_) static_cast<void>(to_bind_.try_push(slot));
}

void Lane::tell_withdrawn(LeaseId lease) noexcept {
  to_withdraw_.push(lease);
  if (withdraws_owed_++ == 0) withdraw_since_ns_ = context_.now_ns;
}

// One message about the lease in front. False: nothing to tell yet, or no room.
bool Lane::tell_next() noexcept {
  if (to_tell_.empty()) return false;
  const Telling& telling = to_tell_.front();
  if (queues_[kControl].completed < telling.work[kControl] ||
      queues_[kBulk].completed < telling.work[kBulk]) {
    return false;  // a key that is not bound yet opens nothing
  }
  const std::uint32_t index = telling.slot;
  OwnLeases::Slot& slot = context_.leases.at(index);
  const auto next = [&] {
    to_tell_.pop();
    tell_at_ = RangeCursor{};
    return true;
  };
  if (slot.state != OwnLeases::Slot::State::exposed || slot.peer != peer_ || !slot.reachable)
    return next();

  const std::span<const Piece> pieces = slot.sink.pieces;
  std::byte* const out = context_.statement.get();
  LeaseHead head;
  head.lease = {index, slot.generation};
  head.total_bytes = slot.sink.total_bytes;
  head.pieces = static_cast<std::uint32_t>(pieces.size());
  head.first = tell_at_.piece == 0 && tell_at_.within == 0;
  RangeCursor at = tell_at_;
  std::array<std::uint32_t, 2> window{kNoWindow, kNoWindow};
  if (is_bound(index)) window = bound_[index].first;  // few ranges: told in one message
  while (head.count < kMaxSegmentsPerMessage) {
    const Range range = next_range(pieces, at);
    if (range.bytes == 0) break;
    const Segment segment{reinterpret_cast<std::uint64_t>(range.address), range.bytes,
                          {key_of(range, window[kControl]),
                           has_bulk_pair() ? key_of(range, window[kBulk]) : 0u}};
    encode(segment, std::span<std::byte, kSegmentBytes>(out + head.count++ * kSegmentBytes,
                                                        kSegmentBytes));
  }
  head.last = at.piece == pieces.size();
  const std::span<std::byte> room =
      ring_.append(MessageKind::lease, kLeaseHeadBytes + head.count * kSegmentBytes, 0);
  if (room.empty()) return false;
  std::copy_n(out, head.count * kSegmentBytes, room.begin() + kLeaseHeadBytes);
  encode(head, room);
  slot.told |= bit();
  tell_at_ = at;
  return head.last ? next() : true;
}

// The key for a range of a lease: of its window, and goes on to the next one, or of its region.
std::uint32_t Lane::key_of(const Range& range, std::uint32_t& window) noexcept {
  if (window == kNoWindow) return range.region->keys[device_->index]->rkey;
  return device_->windows->at(std::exchange(window, device_->windows->at(window).next)).key;
}

// No WRITE of the peer's is under way; with windows it could still begin one, against the protocol.
void Lane::on_released(LeaseId lease) noexcept {
  if (!context_.leases.owes(lease, bit()) ||
      (is_bound(lease.slot) && bound_[lease.slot].revoking)) {
    if (late_releases_ == 0) return refuse(wire::FrameError::bad_lease);
    --late_releases_;
    return;
  }
  --withdraws_owed_;
  withdraw_since_ns_ = context_.now_ns;
  if (is_bound(lease.slot)) return begin_revoke(lease);
  static_cast<void>(context_.leases.confirm(lease, bit()));
}

void Lane::on_statement(const InMessage& message, std::span<const std::byte> body) noexcept {
  LeaseHead head;
  if (!decode(body, head) || (message.kind != MessageKind::lease && head.count != 0)) {
    return refuse(wire::FrameError::bad_lease);
  }
  switch (message.kind) {
    case MessageKind::lease:
      return on_lease_told(head, body);
    case MessageKind::withdrawn:
      if (peer_leases_.on_withdrawn(head.lease)) {
        if (to_release_.full()) return refuse(wire::FrameError::bad_lease);
        to_release_.push(head.lease);
      }
      return;
    case MessageKind::released:
      return on_released(head.lease);
    case MessageKind::query:
      return on_query(head.lease);
    case MessageKind::no_lease:
      for (Query& query : queries_) {
        if (query.lease == head.lease && query.state == Query::State::asked)
          query.state = Query::State::refused;
      }
      return;
    default:
      return refuse(wire::FrameError::bad_type);
  }
}

void Lane::on_lease_told(const LeaseHead& head, std::span<const std::byte> body) noexcept {
  for (Query& query : queries_) {
    if (query.state == Query::State::refused) query = Query{};
  }
  switch (peer_leases_.on_lease(head, body)) {
    case PeerLeases::Arrival::taken:
      break;
    case PeerLeases::Arrival::malformed:
      return refuse(wire::FrameError::bad_lease);
    case PeerLeases::Arrival::no_room:
      // Chunks for it wait until others are gone; of one that no pool could hold they are rejected.
      for (Query& query : queries_) {
        if (query.lease != head.lease || query.state != Query::State::asked) continue;
        const bool never = head.pieces / kPageSegments >= context_.segments.pages();
        query.state = never ? Query::State::refused : Query::State::later;
        query.again_ns = add_saturating(context_.now_ns, kAskAgainNs);
      }
      break;
  }
  for (Query& query : queries_) {
    if (query.lease == head.lease && peer_leases_.state_of(head.lease) == PeerLeases::State::told)
      query = Query{};
  }
}

void Lane::on_query(LeaseId lease) noexcept {
  const OwnLeases::Slot* const slot = context_.leases.find(lease, peer_);
  const bool known = slot != nullptr && slot->reachable;
  // A peer has at most two questions open.
  if (known ? !to_bind_.try_push(lease.slot) : !to_deny_.try_push(lease))
    refuse(wire::FrameError::unexpected);
}

}  // namespace kvrail::transport::verbs
