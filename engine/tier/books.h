// The books of a tier's thread: which records there are, in which segment, which of a segment's bytes are still
// wanted, and whose turn it is to go. No I/O.
//
// Thread: the tier's.
// Invariant: a record is in the list of exactly the segment that it names; live_bytes is the sum of their disk bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tier/directory.h"
#include "engine/tier/record_table.h"

namespace kvrail::engine::tier {

struct Record {
  Hash128 hash;
  Hash128 shape;
  std::uint64_t sequence = 0;
  std::uint64_t stream_bytes = 0;
  std::uint32_t tokens = 0;
  std::uint32_t epsilon_ppm = 0;
  std::uint32_t segment = UINT32_MAX;
  std::uint32_t page = 0;                           // where its first piece is
  std::uint32_t next = UINT32_MAX, before = UINT32_MAX;  // in its segment
  Medium coding = Medium::full;
  bool read_since = false;                          // since it was written
};

struct Segment {
  SegmentFile file;  // file.header.id 0: this place is free
  std::uint64_t tail = 0;
  std::uint64_t live_bytes = 0;
  std::uint32_t first = UINT32_MAX;
  std::uint32_t pins = 0;    // operations under way and records unsynced: the file stays open
  bool sealed = false;       // takes no more
  bool leaving = false;      // being emptied; its file goes with the last pin
  [[nodiscard]] bool used() const noexcept { return file.header.id != 0; }
};

class Books {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  Books(std::uint32_t max_blocks, std::uint32_t max_segments) : records_(max_blocks), segments_(max_segments) {}

  [[nodiscard]] std::uint32_t find(const Hash128& hash) const noexcept { return records_.find(hash); }
  [[nodiscard]] Record& record(std::uint32_t at) noexcept { return records_[at]; }
  [[nodiscard]] Segment& segment(std::uint32_t at) noexcept { return segments_[at]; }
  [[nodiscard]] std::uint32_t segment_places() const noexcept { return static_cast<std::uint32_t>(segments_.size()); }
  [[nodiscard]] std::uint64_t records() const noexcept { return records_.size(); }
  [[nodiscard]] bool full() const noexcept { return records_.full(); }
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }

  // kNone: no place.
  [[nodiscard]] std::uint32_t add_segment(SegmentFile file) noexcept;
  void remove_segment(std::uint32_t at) noexcept;  // has no record
  void resize_segment(std::uint32_t at, std::uint64_t bytes) noexcept;

  // kNone: the table is full. The hash must not be there.
  [[nodiscard]] std::uint32_t add(const Record& record) noexcept;
  void remove(std::uint32_t at) noexcept;
  // Its bytes lie elsewhere from now on.
  void move(std::uint32_t at, std::uint32_t segment, std::uint32_t page, std::uint64_t sequence) noexcept;

  // The segment to give up next: one with little left that is wanted, else the oldest. Not the active one, none with
  // pins, none that is leaving. kNone: there is none.
  [[nodiscard]] std::uint32_t victim(std::uint32_t active) const noexcept;
  // Sealed segments in turn, for who reads them all; kNone: there is none.
  [[nodiscard]] std::uint32_t next_sealed(std::uint64_t after_id) const noexcept;

 private:
  void link(std::uint32_t at) noexcept;
  void unlink(std::uint32_t at) noexcept;

  RecordTable<Record> records_;
  std::vector<Segment> segments_;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace kvrail::engine::tier
