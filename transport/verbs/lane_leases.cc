// Leases: what of our memory the peer may write, and what it lets us write.
#include <algorithm>

#include "transport/verbs/lane.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::uint64_t kMostSegmentBytes = 1ULL << 30;
constexpr TimeNs kAskAgainNs = kMillisecondNs;

}  // namespace

void Lane::tell_lease(std::uint32_t slot) noexcept {
  // Told when the peer asks for it, where this is full.
  if (state_ == LaneState::up && !fading_) static_cast<void>(to_tell_.try_push(slot));
}

void Lane::tell_withdrawn(LeaseId lease) noexcept {
  to_withdraw_.push(lease);
  if (withdraws_owed_++ == 0) withdraw_since_ns_ = context_.now_ns;
}

// One message about the lease in front. False: nothing to tell, or no room.
bool Lane::tell_next() noexcept {
  if (to_tell_.empty()) return false;
  const std::uint32_t index = to_tell_.front();
  OwnLeases::Slot& slot = context_.leases.at(index);
  const auto next = [&] {
    to_tell_.pop();
    tell_piece_ = 0;
    tell_within_ = 0;
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
  head.first = tell_piece_ == 0 && tell_within_ == 0;
  std::size_t piece = tell_piece_;
  std::uint64_t within = tell_within_;
  Segment open;
  const auto close = [&] {
    if (open.bytes != 0)
      encode(open, std::span<std::byte, kSegmentBytes>(out + head.count++ * kSegmentBytes,
                                                       kSegmentBytes));
    open = Segment{};
  };
  while (piece < pieces.size()) {
    std::byte* const address = pieces[piece].address + within;
    const Region* const region = context_.memory.find(address);
    KVRAIL_ASSERT_MSG(region != nullptr, "the memory of an exposed lease was unregistered");
    const std::uint64_t bytes =
        std::min({pieces[piece].bytes - within, static_cast<std::uint64_t>(region->end - address),
                  kMostSegmentBytes});
    const auto at = reinterpret_cast<std::uint64_t>(address);
    const std::uint32_t key = region->keys[device_->index]->rkey;
    if (open.bytes != 0 && open.address + open.bytes == at && open.key == key &&
        open.bytes + bytes <= kMostSegmentBytes) {
      open.bytes += static_cast<std::uint32_t>(bytes);
    } else {
      close();
      if (head.count == kMaxSegmentsPerMessage) break;
      open = Segment{at, key, static_cast<std::uint32_t>(bytes)};
    }
    within += bytes;
    if (within == pieces[piece].bytes) {
      ++piece;
      within = 0;
    }
  }
  close();
  head.last = piece == pieces.size();
  const std::span<std::byte> room =
      ring_.append(MessageKind::lease, kLeaseHeadBytes + head.count * kSegmentBytes, 0);
  if (room.empty()) return false;
  std::copy_n(out, head.count * kSegmentBytes, room.begin() + kLeaseHeadBytes);
  encode(head, room);
  slot.told |= bit();
  tell_piece_ = piece;
  tell_within_ = within;
  return head.last ? next() : true;
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
      if (!context_.leases.confirm(head.lease, bit())) return refuse(wire::FrameError::bad_lease);
      --withdraws_owed_;
      withdraw_since_ns_ = context_.now_ns;
      return;
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
  if (known ? !to_tell_.try_push(lease.slot) : !to_deny_.try_push(lease))
    refuse(wire::FrameError::unexpected);
}

}  // namespace kvrail::transport::verbs
