#include "engine/tier/format.h"

#include <algorithm>
#include <cstring>

#include "codec/hash.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::engine::tier {
namespace {

// Little-endian texts, so that a hex dump tells what a file is.
constexpr std::uint64_t kManifestMagic = 0x31524549544c564bULL;  // "KVLTIER1"
constexpr std::uint64_t kSegmentMagic = 0x3147455354524c4bULL;   // "KLRTSEG1"
constexpr std::uint32_t kPieceMagic = 0x4345504bU;               // "KPEC"
constexpr std::size_t kFileDigestAt = 56;                        // in the first 64 bytes of a manifest or segment
constexpr std::size_t kPieceDigestAt = kPieceHeaderBytes - 8;
constexpr std::uint8_t kLastFlag = 1;

bool all_zero(std::span<const std::byte> bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{}; });
}

bool known_coding(std::uint8_t value) noexcept {
  const auto medium = static_cast<Medium>(value);
  return medium == Medium::full || medium == Medium::lossless || medium == Medium::int8 || medium == Medium::int4;
}

// The first 16 bytes of both files: magic, version, the bytes that the header covers.
Found decode_file(std::span<const std::byte> page, std::uint64_t magic) noexcept {
  if (page.size() < kPageBytes) return Found::damaged;
  if (all_zero(page.first(64))) return Found::blank;
  if (load_le64(page.data()) != magic) return Found::foreign;
  const bool whole = load_le64(page.data() + kFileDigestAt) == codec::digest(page.first(kFileDigestAt), magic);
  if (load_le16(page.data() + 8) != kFormatVersion) return whole ? Found::newer : Found::damaged;
  return whole && all_zero(page.subspan(64)) ? Found::ok : Found::damaged;
}

void begin_file(std::span<std::byte> page, std::uint64_t magic) noexcept {
  KVRAIL_ASSERT(page.size() == kPageBytes);
  std::memset(page.data(), 0, page.size());
  store_le64(page.data(), magic);
  store_le16(page.data() + 8, kFormatVersion);
}

void seal_file(std::span<std::byte> page, std::uint64_t magic) noexcept {
  store_le64(page.data() + kFileDigestAt, codec::digest(page.first(kFileDigestAt), magic));
}

}  // namespace

void encode_manifest(std::span<std::byte> page) noexcept {
  begin_file(page, kManifestMagic);
  seal_file(page, kManifestMagic);
}

Found decode_manifest(std::span<const std::byte> page) noexcept { return decode_file(page, kManifestMagic); }

void encode_segment(const SegmentHeader& header, std::span<std::byte> page) noexcept {
  begin_file(page, kSegmentMagic);
  store_le64(page.data() + 16, header.id);
  store_le64(page.data() + 24, header.key);
  store_le64(page.data() + 32, header.bytes);
  seal_file(page, kSegmentMagic);
}

Found decode_segment(std::span<const std::byte> page, SegmentHeader& out) noexcept {
  const Found found = decode_file(page, kSegmentMagic);
  if (found != Found::ok) return found;
  out = {load_le64(page.data() + 16), load_le64(page.data() + 24), load_le64(page.data() + 32)};
  return out.id != 0 && out.bytes >= 2 * kPageBytes && out.bytes % kPageBytes == 0 ? Found::ok : Found::damaged;
}

void encode_piece(const SegmentHeader& segment, const PieceHeader& piece, std::span<std::byte> out) noexcept {
  KVRAIL_ASSERT(out.size() >= kPieceHeaderBytes && piece.bytes > 0 && piece.bytes <= kPieceBytes);
  std::byte* at = out.data();
  std::memset(at, 0, kPieceHeaderBytes);
  store_le32(at, kPieceMagic);
  store_le16(at + 4, kFormatVersion);
  at[6] = static_cast<std::byte>(piece.coding);
  at[7] = static_cast<std::byte>(piece.last ? kLastFlag : 0);
  store_le64(at + 8, segment.id);
  store_le64(at + 16, piece.hash.low);
  store_le64(at + 24, piece.hash.high);
  store_le64(at + 32, piece.shape.low);
  store_le64(at + 40, piece.shape.high);
  store_le64(at + 48, piece.sequence);
  store_le64(at + 56, piece.offset);
  store_le32(at + 64, piece.bytes);
  store_le32(at + 68, piece.tokens);
  store_le32(at + 72, piece.epsilon_ppm);
  store_le64(at + 80, piece.digest);
  store_le64(at + kPieceDigestAt, codec::digest({at, kPieceDigestAt}, segment.key));
}

Found decode_piece(const SegmentHeader& segment, std::span<const std::byte> in, PieceHeader& out) noexcept {
  KVRAIL_ASSERT(in.size() >= kPieceHeaderBytes);
  const std::byte* at = in.data();
  if (all_zero(in.first(kPieceHeaderBytes))) return Found::blank;
  if (load_le32(at) != kPieceMagic) return Found::foreign;
  if (load_le64(at + kPieceDigestAt) != codec::digest({at, kPieceDigestAt}, segment.key)) return Found::damaged;
  if (load_le16(at + 4) != kFormatVersion) return Found::newer;
  const auto coding = std::to_integer<std::uint8_t>(at[6]);
  const auto flags = std::to_integer<std::uint8_t>(at[7]);
  out = {.hash = {load_le64(at + 16), load_le64(at + 24)},
         .shape = {load_le64(at + 32), load_le64(at + 40)},
         .sequence = load_le64(at + 48),
         .offset = load_le64(at + 56),
         .bytes = load_le32(at + 64),
         .tokens = load_le32(at + 68),
         .epsilon_ppm = load_le32(at + 72),
         .coding = static_cast<Medium>(coding),
         .last = (flags & kLastFlag) != 0,
         .digest = load_le64(at + 80)};
  // The checksum holds, so these are as they were written; they are held against the rules all the same, because
  // what follows from them indexes memory.
  const bool sound = load_le64(at + 8) == segment.id && known_coding(coding) && (flags & ~kLastFlag) == 0 &&
                     out.bytes > 0 && out.bytes <= kPieceBytes && (out.last || out.bytes == kPieceBytes) &&
                     out.offset % kPieceBytes == 0 && out.offset < (std::uint64_t{1} << 40) && out.tokens > 0 &&
                     out.tokens <= 512;
  return sound ? Found::ok : Found::damaged;
}

std::uint64_t piece_digest(const SegmentHeader& segment, std::span<const std::byte> stream) noexcept {
  return codec::digest(stream, segment.key);
}

}  // namespace kvrail::engine::tier
