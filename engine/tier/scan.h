// Reads a segment from its first piece to its end, window by window, and tells which whole records are in it. What is
// damaged, torn or never written is passed page by page until a piece is found again.
//
// Thread: any; no I/O of its own, no memory beyond its members. Every byte given may be a stranger's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/tier/format.h"

namespace kvrail::engine::tier {

struct SeenRecord {
  PieceHeader last;  // of its last piece: its epsilon is the record's
  std::uint64_t stream_bytes = 0;
  std::uint32_t page = 0;
};

class SegmentScan {
 public:
  // `verify`: the digests of all pieces too; else only those of their headers.
  SegmentScan(const SegmentHeader& segment, std::uint64_t file_bytes, bool verify) noexcept;

  [[nodiscard]] bool done() const noexcept { return at_ >= end_; }
  // Where to read on, and how much; less only where the file ends.
  [[nodiscard]] std::uint64_t offset() const noexcept { return at_; }
  [[nodiscard]] std::uint32_t bytes() const noexcept;
  // What was read there, at least a page. Calls record(const SeenRecord&) for each whole record, and damaged(offset)
  // for each piece that is none any more.
  template <class Record, class Damaged>
  void take(std::span<const std::byte> window, Record record, Damaged damaged) noexcept {
    std::uint64_t used = 0;
    while (used + kPageBytes <= window.size() && !done()) {
      const Step step = next(window.subspan(used), used == 0);
      if (step.is_short) return;  // it goes on with a window that begins here
      if (step.whole) record(seen_);
      if (step.damaged) damaged(at_);
      at_ += step.bytes;
      used += step.bytes;
    }
  }
  // Nothing there: the file has shrunk meanwhile.
  void stop() noexcept { end_ = at_; }

  [[nodiscard]] std::uint64_t tail() const noexcept { return tail_; }  // behind the last piece that holds
  [[nodiscard]] std::uint64_t damaged() const noexcept { return damaged_; }
  [[nodiscard]] bool blank_behind() const noexcept { return blank_behind_; }  // nothing was ever written behind the tail

 private:
  struct Step {
    std::uint64_t bytes = kPageBytes;
    bool is_short = false, whole = false, damaged = false;
  };
  [[nodiscard]] Step next(std::span<const std::byte> window, bool first) noexcept;
  void join(const PieceHeader& piece, Step& step) noexcept;

  SegmentHeader segment_;
  std::uint64_t end_;
  bool verify_;
  std::uint64_t at_ = kPageBytes;
  std::uint64_t tail_ = kPageBytes;
  std::uint64_t damaged_ = 0;
  bool blank_behind_ = true;
  bool skipping_ = false;   // the page before was no piece
  bool joining_ = false;    // seen_ is a record whose last piece has not come
  SeenRecord seen_;
};

}  // namespace kvrail::engine::tier
