// A tier's segment file of any content: records as they are written, noise, cuts, flipped bits, planted headers. A
// scan ends, stays inside the file, and tells of whole records only; with their digests verified, only of such whose
// every byte is as it was written.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/tier/scan.h"
#include "kvrail/base/assert.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/seeds.h"

using namespace kvrail;
using namespace kvrail::engine::tier;

namespace {

constexpr std::size_t kPages = 48;

struct Image {
  SegmentHeader header{1, 0x1234'5678'9abc'def0ULL, kPages * kPageBytes};
  std::vector<std::byte> file = std::vector<std::byte>(kPages * kPageBytes);

  [[nodiscard]] std::span<std::byte> from(std::uint64_t page) { return std::span(file).subspan(page * kPageBytes); }

  // Returns the page behind it. A record of several pieces has 1 MiB in all but its last, so here each is one piece,
  // and what would be the next of a larger one comes as a planted header.
  std::uint64_t put(std::uint64_t page, test::Bytes& bytes) {
    const std::uint64_t room = (kPages - page) * kPageBytes - kPieceHeaderBytes;
    PieceHeader piece;
    piece.hash = {bytes.u8(), bytes.u8()};
    piece.shape = {3, 4};
    piece.sequence = bytes.u8();
    piece.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(1 + bytes.number(255) * 97, room));
    piece.tokens = 1 + bytes.u8();
    piece.epsilon_ppm = bytes.u8();
    piece.last = !bytes.one_in(8);
    if (bytes.one_in(16)) piece.offset = bytes.number(3) * kPieceBytes;
    const auto stream = from(page).subspan(kPieceHeaderBytes, piece.bytes);
    const std::uint8_t fill = bytes.u8();
    std::fill(stream.begin(), stream.end(), static_cast<std::byte>(fill));
    piece.digest = piece_digest(header, stream);
    encode_piece(header, piece, from(page));
    return page + piece_disk_bytes(piece.bytes) / kPageBytes;
  }

  void spoil(test::Bytes& bytes) {
    const std::uint64_t at = bytes.u64() % file.size();
    switch (bytes.u8() % 4) {
      case 0: file[at] ^= static_cast<std::byte>(1U << bytes.u8() % 8); break;
      case 1: bytes.take(std::span(file).subspan(at, std::min<std::size_t>(64, file.size() - at))); break;
      case 2: {  // a copy of something else, as old files leave it
        const std::uint64_t to = bytes.u64() % kPages;
        const std::uint64_t of = bytes.u64() % kPages;
        if (to != of) std::memcpy(from(to).data(), from(of).data(), kPageBytes);
        break;
      }
      default: file.resize(std::max<std::size_t>(kPageBytes, at)); file.resize(kPages * kPageBytes); break;
    }
  }
};

// What a scan says is whole must be so by the bytes themselves.
void check_whole(Image& image, const SeenRecord& seen) {
  PieceHeader piece;
  std::uint64_t page = seen.page;
  std::uint64_t stream = 0;
  do {
    KVRAIL_ASSERT(page < kPages && decode_piece(image.header, image.from(page), piece) == Found::ok);
    KVRAIL_ASSERT(piece.hash == seen.last.hash && piece.offset == stream);
    KVRAIL_ASSERT(page * kPageBytes + piece_disk_bytes(piece.bytes) <= image.file.size());
    KVRAIL_ASSERT(piece_digest(image.header, image.from(page).subspan(kPieceHeaderBytes, piece.bytes)) == piece.digest);
    stream += piece.bytes;
    page += piece_disk_bytes(piece.bytes) / kPageBytes;
  } while (!piece.last);
  KVRAIL_ASSERT(stream == seen.stream_bytes && piece == seen.last);
}

void scan(Image& image, std::uint64_t file_bytes, bool verify) {
  SegmentScan scan(image.header, file_bytes, verify);
  std::uint64_t before = 0;
  std::uint64_t records = 0;
  while (!scan.done()) {
    KVRAIL_ASSERT(scan.offset() > before && scan.bytes() >= kPageBytes);
    KVRAIL_ASSERT(scan.offset() + scan.bytes() <= file_bytes);
    before = scan.offset();
    scan.take(std::span<const std::byte>(image.file).subspan(scan.offset(), scan.bytes()),
              [&](const SeenRecord& seen) {
                ++records;
                KVRAIL_ASSERT(seen.page > 0 && seen.page < kPages && seen.last.last);
                if (verify) check_whole(image, seen);
              },
              [&](std::uint64_t offset) { KVRAIL_ASSERT(offset % kPageBytes == 0 && offset < file_bytes); });
  }
  KVRAIL_ASSERT(scan.tail() >= kPageBytes && scan.tail() <= std::max<std::uint64_t>(file_bytes, kPageBytes));
  KVRAIL_ASSERT(records + scan.damaged() <= kPages);
}

void decode_strangers(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> page(kPageBytes);
  std::memcpy(page.data(), data, std::min<std::size_t>(size, page.size()));
  SegmentHeader header;
  if (decode_segment(page, header) == Found::ok) {
    std::vector<std::byte> again(kPageBytes);
    encode_segment(header, again);
    SegmentHeader twice;
    KVRAIL_ASSERT(decode_segment(again, twice) == Found::ok && twice == header);
  }
  static_cast<void>(decode_manifest(page));
  PieceHeader piece;
  if (decode_piece(Image().header, page, piece) == Found::ok) KVRAIL_ASSERT(piece.bytes > 0 && piece.bytes <= kPieceBytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  decode_strangers(data, size);
  test::Bytes bytes(data, size);
  Image image;
  for (std::uint64_t page = 1; page < kPages && !bytes.empty();) {
    page = bytes.one_in(8) ? page + 1 : image.put(page, bytes);
  }
  const std::uint64_t faults = bytes.number(8) % 16;
  for (std::uint64_t i = 0; i < faults; ++i) image.spoil(bytes);
  const std::uint64_t file_bytes = bytes.one_in(2) ? image.file.size() : bytes.u64() % (image.file.size() + 1);
  scan(image, std::max<std::uint64_t>(file_bytes, kPageBytes), true);
  scan(image, std::max<std::uint64_t>(file_bytes, kPageBytes), false);
  return 0;
}

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  std::vector<FuzzInput> seeds;
  const auto page_of = [&](auto write) {
    std::array<std::byte, kPageBytes> page{};
    write(page);
    const auto* first = reinterpret_cast<const std::uint8_t*>(page.data());
    seeds.emplace_back(first, first + 128);
  };
  page_of([](auto& page) { encode_manifest(page); });
  page_of([](auto& page) { encode_segment({7, 8, 64U << 20}, page); });
  page_of([](auto& page) { encode_piece(Image().header, {.hash = {1, 2}, .shape = {3, 4}, .sequence = 5, .bytes = 6, .tokens = 7, .last = true}, page); });
  FuzzInput records;
  for (std::uint8_t i = 0; i < 12; ++i) records.insert(records.end(), {0, i, 1, i, 0, static_cast<std::uint8_t>(20 * i), 15, 0, 0, 0, 7});
  seeds.push_back(records);
  for (std::uint8_t kind = 0; kind < 4; ++kind) {
    FuzzInput spoiled = records;
    spoiled.insert(spoiled.end(), {0, 2, 0, 0, 0, 0, 0, 0, 0x40, kind, kind, 3, 0, 0, 0, 0, 0, 0, 0, 9, 1, 2, 3});
    seeds.push_back(spoiled);
  }
  return seeds;
}
