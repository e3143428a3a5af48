// Gets: pieces are read ahead, checked, and become rows in their order.
#include <algorithm>

#include "codec/hash.h"
#include "engine/tier/tier_thread.h"

namespace kvrail::engine::tier {

bool TierThread::start_reads() noexcept {
  bool any = false;
  while (!gets_.empty() && free_read_ > 0) {
    begin_get(gets_.front());
    gets_.pop_front();
    any = true;
  }
  for (std::uint32_t job = 0; job < reads_.size() && free_read_ > 0; ++job) {
    Read& read = reads_[job];
    while (read.used && read.status.ok() && read.issued < read.pieces) {
      Buffer* buffer = take_buffer(Use::get, job);
      if (buffer == nullptr) break;
      buffer->piece = read.issued++;
      ++read.under_way;
      const std::uint64_t left = read.stream_bytes - std::uint64_t{buffer->piece} * kPieceBytes;
      const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, kPieceBytes));
      start(*buffer, DiskOp::Kind::read, read.segment,
            std::uint64_t{read.page} * kPageBytes + std::uint64_t{buffer->piece} * kPieceRoomBytes, piece_disk_bytes(bytes));
      any = true;
    }
  }
  return any;
}

void TierThread::begin_get(const Command& command) noexcept {
  const auto job = static_cast<std::uint32_t>(
      std::find_if(reads_.begin(), reads_.end(), [](const Read& read) { return !read.used; }) - reads_.begin());
  Read& read = reads_[job];
  read.used = true;
  read.slot = command.slot;
  read.get = command.get;
  const std::uint32_t at = books_.find(command.get.hash);
  read.pieces = read.issued = read.consumed = read.under_way = 0;
  read.status = {};
  if (at == kNone) {
    read.status = Code::not_found;
    return end_get(job);
  }
  Record& record = books_.record(at);
  if (record.shape != codec::fingerprint(command.get.layout) || record.tokens != command.get.tokens) {
    read.status = Code::layout_mismatch;
    return end_get(job);
  }
  record.read_since = true;
  read.sequence = record.sequence;
  read.stream_bytes = record.stream_bytes;
  read.segment = record.segment;
  read.page = record.page;
  read.epsilon_ppm = record.epsilon_ppm;
  read.pieces = static_cast<std::uint32_t>((record.stream_bytes + kPieceBytes - 1) / kPieceBytes);
  read.sink.start(command.get, record.coding, decode_scratch_);
  pin(read.segment);
}

void TierThread::piece_read(Buffer& buffer) noexcept {
  Read& read = reads_[buffer.job];
  --read.under_way;
  unpin(read.segment);
  buffer.ended = true;
  figures_.bytes_read.fetch_add(buffer.wanted, std::memory_order_relaxed);
  scrub_credit_ += buffer.wanted;
  consume(buffer.job);
}

void TierThread::consume(std::uint32_t job) noexcept {
  Read& read = reads_[job];
  const auto next = [&]() -> Buffer* {
    for (Buffer& buffer : buffers_) {
      const bool mine = buffer.use == Use::get && buffer.job == job && buffer.ended;
      if (mine && (buffer.piece == read.consumed || !read.status.ok())) return &buffer;
    }
    return nullptr;
  };
  while (Buffer* buffer = next()) {
    PieceHeader piece;
    if (read.status.ok() && buffer->error != 0) {
      read.status = {Code::io_error, Scope::transfer, buffer->error};
    } else if (read.status.ok()) {
      const bool sound = check_piece(*buffer, read.segment, read.sequence, read.get.hash, piece) &&
                         piece.last == (read.consumed + 1 == read.pieces) &&
                         read.sink.give({buffer->memory + kPieceHeaderBytes, piece.bytes});
      if (!sound) read.status = Code::corrupt;
    }
    ++read.consumed;
    give_back(*buffer);
  }
  const bool all = read.consumed == read.pieces;
  if (all && read.status.ok() && !read.sink.whole()) read.status = Code::corrupt;
  if (read.under_way == 0 && (all || !read.status.ok())) {
    unpin(read.segment);
    end_get(job);
  }
}

void TierThread::end_get(std::uint32_t job) noexcept {
  Read& read = reads_[job];
  read.used = false;
  Message message{.kind = Message::Kind::get, .slot = read.slot, .hash = read.get.hash, .status = read.status};
  message.entry = {.tokens = read.get.tokens, .epsilon_ppm = read.epsilon_ppm, .stored_bytes = read.stream_bytes};
  tell(message);
  if (read.status.code == Code::corrupt || read.status.code == Code::io_error) {
    // It may have been moved or replaced meanwhile: what was read then was another record.
    const std::uint32_t now = books_.find(read.get.hash);
    if (now != kNone && books_.record(now).sequence == read.sequence) drop_damaged(now);
  } else if (read.status.code == Code::not_found) {
    tell({.kind = Message::Kind::gone, .hash = read.get.hash});
  }
}

void TierThread::drop_damaged(std::uint32_t record) noexcept {
  figures_.damaged.fetch_add(1, std::memory_order_relaxed);
  give_up(record);
}

}  // namespace kvrail::engine::tier
