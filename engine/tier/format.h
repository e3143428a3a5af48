// What stands in the files of a tier, byte by byte (docs/tier-format.md has the tables).
//
// A segment is a file: one page with a SegmentHeader, then pieces, each at a page's start. A record, one block, is one
// or more pieces in a row: its bytes as one stream, cut every 1 MiB, each part behind a header of its own that says
// all there is to know. So records can be written and read as streams, and each part is checked while it is hot.
//
// Every checksum is seeded with the segment's key, drawn when the file is made: rows that an agent chose can hold a
// piece's image, but not one that is taken for a piece, and what an older file left on the disk is taken for nothing.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/types.h"

namespace kvrail::engine::tier {

inline constexpr std::uint32_t kPageBytes = 4096;  // what direct I/O wants all places and lengths to be multiples of
inline constexpr std::uint32_t kPieceHeaderBytes = 128;
inline constexpr std::uint32_t kPieceBytes = 1U << 20;  // of a record's stream in one piece, but for the last
inline constexpr std::uint32_t kPieceRoomBytes = kPieceBytes + kPageBytes;  // of a piece on the disk
inline constexpr std::uint16_t kFormatVersion = 1;

[[nodiscard]] constexpr std::uint64_t page_up(std::uint64_t bytes) noexcept {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
// On the disk: of a piece with so many bytes of stream, of a record.
[[nodiscard]] constexpr std::uint32_t piece_disk_bytes(std::uint32_t bytes) noexcept {
  return static_cast<std::uint32_t>(page_up(kPieceHeaderBytes + bytes));
}
[[nodiscard]] constexpr std::uint64_t record_disk_bytes(std::uint64_t stream_bytes) noexcept {
  const std::uint64_t before = (stream_bytes - 1) / kPieceBytes;
  return before * kPieceRoomBytes + piece_disk_bytes(static_cast<std::uint32_t>(stream_bytes - before * kPieceBytes));
}

struct SegmentHeader {
  std::uint64_t id = 0;   // ascending: the order in which segments were made
  std::uint64_t key = 0;  // the seed of all checksums in it
  std::uint64_t bytes = 0;
  friend bool operator==(const SegmentHeader&, const SegmentHeader&) = default;
};

struct PieceHeader {
  Hash128 hash;
  Hash128 shape;               // the Layout's fingerprint
  std::uint64_t sequence = 0;  // of the record; of two of one hash the higher counts
  std::uint64_t offset = 0;    // in the record's stream: a multiple of kPieceBytes
  std::uint32_t bytes = 0;     // of stream in this piece
  std::uint32_t tokens = 0;
  std::uint32_t epsilon_ppm = 0;  // of the rows; whole in the last piece only
  Medium coding = Medium::full;
  bool last = false;
  std::uint64_t digest = 0;  // of the stream bytes in this piece
  friend bool operator==(const PieceHeader&, const PieceHeader&) = default;
};

enum class Found : std::uint8_t {
  ok,
  blank,    // all zero: never written
  foreign,  // not ours
  newer,    // of a version that is not known here
  damaged,  // ours, but its checksum or its values do not hold
};

// A page each.
void encode_manifest(std::span<std::byte> page) noexcept;
[[nodiscard]] Found decode_manifest(std::span<const std::byte> page) noexcept;
void encode_segment(const SegmentHeader& header, std::span<std::byte> page) noexcept;
[[nodiscard]] Found decode_segment(std::span<const std::byte> page, SegmentHeader& out) noexcept;

// kPieceHeaderBytes in front of the stream's bytes.
void encode_piece(const SegmentHeader& segment, const PieceHeader& piece, std::span<std::byte> out) noexcept;
[[nodiscard]] Found decode_piece(const SegmentHeader& segment, std::span<const std::byte> in, PieceHeader& out) noexcept;
[[nodiscard]] std::uint64_t piece_digest(const SegmentHeader& segment, std::span<const std::byte> stream) noexcept;

}  // namespace kvrail::engine::tier
