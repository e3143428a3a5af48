// Buffers and the operations that are made with them.
#include "engine/tier/tier_thread.h"
#include "kvrail/base/assert.h"

namespace kvrail::engine::tier {

// Reads and writes have as many each, so that neither waits for the other's.
TierThread::Buffer* TierThread::take_buffer(Use use, std::uint32_t job) noexcept {
  std::uint32_t& left = use == Use::put ? free_write_ : free_read_;
  if (left == 0) return nullptr;
  for (Buffer& buffer : buffers_) {
    if (buffer.use != Use::free) continue;
    --left;
    buffer.use = use;
    buffer.job = job;
    buffer.ended = false;
    return &buffer;
  }
  KVRAIL_UNREACHABLE();
}

void TierThread::give_back(Buffer& buffer) noexcept {
  ++(buffer.use == Use::put ? free_write_ : free_read_);
  buffer.use = Use::free;
  buffer.job = kNone;
}

void TierThread::start(Buffer& buffer, DiskOp::Kind kind, std::uint32_t segment, std::uint64_t offset,
                       std::uint32_t bytes) noexcept {
  KVRAIL_ASSERT(bytes > 0 && bytes <= kPieceRoomBytes && bytes % kPageBytes == 0 && offset % kPageBytes == 0);
  pin(segment);
  buffer.kind = kind;
  buffer.fd = books_.segment(segment).file.fd.get();
  buffer.data = buffer.memory;
  buffer.bytes = buffer.wanted = bytes;
  buffer.offset = offset;
  buffer.stuck = 0;
  buffer.error = 0;
  disk_->start(buffer);
}

void TierThread::unpin(std::uint32_t segment) noexcept {
  KVRAIL_ASSERT(books_.segment(segment).pins > 0);
  --books_.segment(segment).pins;
}

bool TierThread::check_piece(const Buffer& buffer, std::uint32_t segment, std::uint64_t sequence, const Hash128& hash,
                             PieceHeader& out) noexcept {
  const SegmentHeader& header = books_.segment(segment).file.header;
  const std::span<const std::byte> bytes(buffer.memory, buffer.wanted);
  return decode_piece(header, bytes, out) == Found::ok && out.hash == hash && out.sequence == sequence &&
         out.offset == std::uint64_t{buffer.piece} * kPieceBytes && kPieceHeaderBytes + out.bytes <= bytes.size() &&
         piece_digest(header, bytes.subspan(kPieceHeaderBytes, out.bytes)) == out.digest;
}

}  // namespace kvrail::engine::tier
