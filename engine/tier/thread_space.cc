// Room: segments that go, records of theirs that are carried on, and the reading again of what is kept.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/tier/tier_thread.h"
#include "kvrail/base/assert.h"

namespace kvrail::engine::tier {
namespace {

constexpr std::uint64_t kCarryShare = 4;  // of a segment, at most one part in so many is carried on

}  // namespace

// Begins when the active segment is half full, so that the next one has room when it is needed.
bool TierThread::make_room() noexcept {
  bool any = false;
  if (leaving_ == kNone) {
    if (books_.file_bytes() + options_.segment_bytes <= options_.capacity_bytes) return false;
    const bool soon = active_ != kNone && books_.segment(active_).tail * 2 > books_.segment(active_).file.bytes;
    if (!wants_room_ && !soon) return false;
    leaving_ = books_.victim(active_);
    if (leaving_ == kNone) return false;
    books_.segment(leaving_).leaving = true;
    carry_budget_ = options_.segment_bytes / kCarryShare;
    // Of one with little left all goes on: that it was not read says less than that nobody forgot it.
    keep_unread_ = books_.segment(leaving_).live_bytes <= carry_budget_;
    any = true;
  }
  while (!carry_under_way_) {
    Segment& segment = books_.segment(leaving_);
    if (segment.first == kNone) {
      if (segment.pins > 0) break;
      remove_file(leaving_);
      leaving_ = kNone;
      wants_room_ = false;
      return true;
    }
    any = true;
    const std::uint32_t record = segment.first;
    if (books_.record(record).read_since || keep_unread_) {
      if (open_ != kNone) return false;  // the tail is its own until its length is known
      if (carry_next(record)) break;
    }
    give_up(record);
  }
  if (carry_wants_buffer_) carry_piece();
  return any;
}

// The record gets a place in the active segment. False: there is none.
bool TierThread::carry_next(std::uint32_t record) noexcept {
  const Record& from = books_.record(record);
  const std::uint64_t bytes = record_disk_bytes(from.stream_bytes);
  if (bytes > carry_budget_ || active_ == kNone || active_ == from.segment) return false;
  Segment& to = books_.segment(active_);
  if (to.tail + bytes > to.file.bytes) return false;
  carry_budget_ -= bytes;
  Write& write = writes_.back();
  write.used = write.carry = true;
  write.hash = from.hash;
  write.shape = from.shape;
  write.tokens = from.tokens;
  write.epsilon_ppm = from.epsilon_ppm;
  write.coding = from.coding;
  write.record = record;
  write.record_sequence = from.sequence;
  open_at_tail(write);
  to.tail += bytes;
  carry_from_ = from.segment;
  carry_from_page_ = from.page;
  carry_stream_bytes_ = from.stream_bytes;
  pin(carry_from_);
  carry_under_way_ = carry_wants_buffer_ = true;
  return true;
}

void TierThread::carry_piece() noexcept {
  Write& write = writes_.back();
  const auto job = static_cast<std::uint32_t>(writes_.size() - 1);
  Buffer* const buffer = take_buffer(Use::carry, job);
  if (buffer == nullptr) return;
  carry_wants_buffer_ = false;
  buffer->piece = static_cast<std::uint32_t>(write.stream_bytes / kPieceBytes);
  const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(carry_stream_bytes_ - write.stream_bytes, kPieceBytes));
  ++write.under_way;
  start(*buffer, DiskOp::Kind::read, carry_from_,
        std::uint64_t{carry_from_page_} * kPageBytes + std::uint64_t{buffer->piece} * kPieceRoomBytes, piece_disk_bytes(bytes));
}

// A piece was read where it was, or written where it goes.
void TierThread::carry_read(Buffer& buffer) noexcept {
  Write& write = writes_.back();
  const bool was_read = buffer.kind == DiskOp::Kind::read;
  unpin(was_read ? carry_from_ : write.segment);
  if (buffer.error != 0) write.status = {Code::io_error, Scope::device, buffer.error};
  PieceHeader piece;
  if (was_read && write.status.ok()) {
    if (check_piece(buffer, carry_from_, write.record_sequence, write.hash, piece)) {
      const SegmentHeader& to = books_.segment(write.segment).file.header;
      piece.sequence = write.sequence;
      piece.digest = piece_digest(to, {buffer.memory + kPieceHeaderBytes, piece.bytes});
      encode_piece(to, piece, {buffer.memory, kPieceHeaderBytes});
      write.stream_bytes += piece.bytes;
      write.issued = write.stream_bytes == carry_stream_bytes_;
      start(buffer, DiskOp::Kind::write, write.segment,
            std::uint64_t{write.page} * kPageBytes + std::uint64_t{buffer.piece} * kPieceRoomBytes, buffer.wanted);
      return;
    }
    write.status = Code::corrupt;
  }
  --write.under_way;
  give_back(buffer);
  carry_wants_buffer_ = write.status.ok() && !write.issued;
  settle_write(static_cast<std::uint32_t>(writes_.size() - 1));
}

void TierThread::carried() noexcept {
  Write& write = writes_.back();
  write.used = false;
  carry_under_way_ = carry_wants_buffer_ = false;
  unpin(carry_from_);
  // Forgotten or replaced meanwhile: then the copy is nobody's.
  const std::uint32_t record = books_.find(write.hash);
  if (record == kNone || books_.record(record).sequence != write.record_sequence) return;
  if (write.status.ok()) {
    books_.move(record, write.segment, write.page, write.sequence);
    figures_.carried.fetch_add(1, std::memory_order_relaxed);
  } else if (write.status.code == Code::corrupt) {
    drop_damaged(record);
  } else {
    give_up(record);
  }
}

void TierThread::give_up(std::uint32_t record) noexcept {
  const Hash128 hash = books_.record(record).hash;
  books_.remove(record);
  tell({.kind = Message::Kind::gone, .hash = hash});
}

void TierThread::give_up_segment(std::uint32_t segment) noexcept {
  while (books_.segment(segment).first != kNone) give_up(books_.segment(segment).first);
  remove_file(segment);
}

void TierThread::remove_file(std::uint32_t segment) noexcept {
  directory_->remove(books_.segment(segment).file.header.id);
  books_.remove_segment(segment);
  figures_.used_bytes.store(books_.file_bytes(), std::memory_order_relaxed);
}

// Reads again what is kept, one window for so many bytes that others have read or written, and only where nobody waits.
bool TierThread::scrub() noexcept {
  if (options_.scrub_share == 0 || scrub_under_way_ || recovering_) return false;
  if (scrub_credit_ < std::uint64_t{kPieceRoomBytes} * options_.scrub_share) return false;
  if (!gets_.empty() || !puts_.empty() || free_read_ < options_.depth) return false;
  const std::uint32_t segment = scrub_segment_;
  const bool same = segment != kNone && books_.segment(segment).file.header.id == scrub_segment_id_ && scrub_segment_id_ != 0;
  if (!same || books_.segment(segment).leaving || scrub_scan_->done()) {
    scrub_segment_ = books_.next_sealed(scrub_segment_id_);
    if (scrub_segment_ == kNone) return false;
    const SegmentFile& file = books_.segment(scrub_segment_).file;
    scrub_segment_id_ = file.header.id;
    scrub_scan_.emplace(file.header, file.bytes, true);
    if (scrub_scan_->done()) return false;
  }
  scrub_credit_ -= std::uint64_t{kPieceRoomBytes} * options_.scrub_share;
  Buffer* const buffer = take_buffer(Use::scrub, kNone);
  scrub_under_way_ = true;
  start(*buffer, DiskOp::Kind::read, scrub_segment_, scrub_scan_->offset(), scrub_scan_->bytes());
  return true;
}

void TierThread::scrub_read(Buffer& buffer) noexcept {
  scrub_under_way_ = false;
  unpin(scrub_segment_);
  const std::uint64_t begin = scrub_scan_->offset();
  if (buffer.error == 0) {
    scrub_scan_->take({buffer.memory, buffer.wanted}, [](const SeenRecord&) {}, [&](std::uint64_t offset) { damaged_at(scrub_segment_, offset); });
  } else {
    damaged_at(scrub_segment_, begin);
    scrub_scan_->stop();
  }
  figures_.scrubbed_bytes.fetch_add(scrub_scan_->offset() - begin, std::memory_order_relaxed);
  give_back(buffer);
}

// The record, if there is one, that has a piece at this place.
void TierThread::damaged_at(std::uint32_t segment, std::uint64_t offset) noexcept {
  for (std::uint32_t at = books_.segment(segment).first; at != kNone; at = books_.record(at).next) {
    const std::uint64_t begin = std::uint64_t{books_.record(at).page} * kPageBytes;
    if (offset >= begin && offset < begin + record_disk_bytes(books_.record(at).stream_bytes)) return drop_damaged(at);
  }
}

}  // namespace kvrail::engine::tier
