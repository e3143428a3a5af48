#include "engine/tier/scan.h"

#include <algorithm>

namespace kvrail::engine::tier {
namespace {

constexpr std::uint32_t kHeaderWindowBytes = 64U << 10;

}  // namespace

SegmentScan::SegmentScan(const SegmentHeader& segment, std::uint64_t file_bytes, bool verify) noexcept
    : segment_(segment), end_(std::min(segment.bytes, file_bytes) / kPageBytes * kPageBytes), verify_(verify) {}

std::uint32_t SegmentScan::bytes() const noexcept {
  const std::uint64_t window = verify_ || skipping_ ? kPieceRoomBytes : kHeaderWindowBytes;
  return static_cast<std::uint32_t>(std::min(window, end_ - at_));
}

SegmentScan::Step SegmentScan::next(std::span<const std::byte> window, bool first) noexcept {
  Step step;
  PieceHeader piece;
  const Found found = decode_piece(segment_, window, piece);
  if (found != Found::ok) {
    joining_ = false;
    if (found != Found::blank) {
      // Once for a row of pages: the first of them was a piece's header, the others its stream.
      step.damaged = !skipping_;
      damaged_ += step.damaged ? 1 : 0;
      blank_behind_ = false;
    }
    skipping_ = true;
    return step;
  }
  skipping_ = false;
  const std::uint64_t whole = piece_disk_bytes(piece.bytes);
  // A window that began here has room for any piece: if it is short, the file ended.
  step.damaged = at_ + whole > end_ || (verify_ && window.size() < whole && first);
  if (verify_ && !step.damaged) {
    step.is_short = window.size() < whole;
    if (step.is_short) return step;
    step.damaged = piece_digest(segment_, window.subspan(kPieceHeaderBytes, piece.bytes)) != piece.digest;
  }
  if (step.damaged) {
    ++damaged_;
    joining_ = false;
    skipping_ = true;
    blank_behind_ = false;
    return step;
  }
  step.bytes = whole;
  join(piece, step);
  tail_ = at_ + whole;
  blank_behind_ = true;
  return step;
}

void SegmentScan::join(const PieceHeader& piece, Step& step) noexcept {
  if (piece.offset == 0) {
    joining_ = true;
    seen_ = {piece, 0, static_cast<std::uint32_t>(at_ / kPageBytes)};
  } else {
    joining_ = joining_ && piece.offset == seen_.stream_bytes && piece.sequence == seen_.last.sequence &&
               piece.hash == seen_.last.hash && piece.shape == seen_.last.shape && piece.tokens == seen_.last.tokens &&
               piece.coding == seen_.last.coding;
    if (!joining_) return;
    seen_.last = piece;
  }
  seen_.stream_bytes += piece.bytes;
  step.whole = piece.last;
  if (piece.last) joining_ = false;
}

}  // namespace kvrail::engine::tier
