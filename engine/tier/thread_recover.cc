// The start: every segment is read through, the newest first, and what is whole in it is known again.
#include <unistd.h>

#include "engine/tier/tier_thread.h"

namespace kvrail::engine::tier {
namespace {

constexpr std::uint64_t kWorthCutting = 8;

}  // namespace

// One segment, between other work and only while none of that is with the disk.
bool TierThread::recover_next() noexcept {
  if (!recovering_) return false;
  if (!idle()) return false;
  if (found_.empty()) {
    recovering_ = false;
    tell({.kind = Message::Kind::ready});
    return true;
  }
  SegmentFile file = std::move(found_.back());
  found_.pop_back();
  // What was written last may be torn. What is older was whole once; it is checked when it is read.
  const bool verify = verify_left_ > 0;
  if (verify) --verify_left_;
  recover_segment(std::move(file), verify);
  return true;
}

void TierThread::recover_segment(SegmentFile file, bool verify) noexcept {
  const SegmentHeader header = file.header;
  const std::uint64_t file_bytes = file.bytes;
  const std::uint32_t segment = books_.add_segment(std::move(file));
  books_.segment(segment).sealed = true;
  SegmentScan scan(header, file_bytes, verify);
  Buffer& buffer = *take_buffer(Use::recover, kNone);
  while (!scan.done()) {
    start(buffer, DiskOp::Kind::read, segment, scan.offset(), scan.bytes());
    for (bool over = false; !over;) {
      DiskOp* const op = disk_->reap();
      if (op == nullptr) disk_->wait(kNever);
      over = op == &buffer && !go_on(buffer);
    }
    unpin(segment);
    if (buffer.error != 0) {
      scan.stop();
      figures_.damaged.fetch_add(1, std::memory_order_relaxed);
      break;
    }
    scan.take({buffer.memory, buffer.wanted}, [&](const SeenRecord& seen) { remember(segment, seen); }, [](std::uint64_t) {});
  }
  give_back(buffer);
  figures_.damaged.fetch_add(scan.damaged(), std::memory_order_relaxed);
  books_.segment(segment).tail = scan.tail();
  if (scan.tail() == kPageBytes) {
    // Nothing in it: never written, or nothing that can be told.
    if (scan.damaged() == 0 && scan.blank_behind()) return remove_file(segment);
    directory_->quarantine(header.id);
    figures_.quarantined.store(directory_->quarantined(), std::memory_order_relaxed);
    books_.remove_segment(segment);
  } else if (scan.blank_behind() && file_bytes - scan.tail() >= file_bytes / kWorthCutting &&
             ::ftruncate(books_.segment(segment).file.fd.get(), static_cast<off_t>(scan.tail())) == 0) {
    books_.resize_segment(segment, scan.tail());
  }
  figures_.used_bytes.store(books_.file_bytes(), std::memory_order_relaxed);
}

void TierThread::remember(std::uint32_t segment, const SeenRecord& seen) noexcept {
  next_sequence_ = std::max(next_sequence_, seen.last.sequence + 1);
  const std::uint32_t before = books_.find(seen.last.hash);
  if (before != kNone) {
    if (books_.record(before).sequence > seen.last.sequence) return;
    books_.remove(before);
  }
  const Record record{.hash = seen.last.hash, .shape = seen.last.shape, .sequence = seen.last.sequence,
                      .stream_bytes = seen.stream_bytes, .tokens = seen.last.tokens,
                      .epsilon_ppm = seen.last.epsilon_ppm, .segment = segment, .page = seen.page,
                      .coding = seen.last.coding};
  if (books_.add(record) == kNone) {
    if (before != kNone) tell({.kind = Message::Kind::gone, .hash = record.hash});
    return;
  }
  Message message{.kind = Message::Kind::present, .hash = record.hash};
  message.entry = {.tokens = record.tokens, .epsilon_ppm = record.epsilon_ppm, .stored_bytes = record.stream_bytes};
  tell(message);
}

}  // namespace kvrail::engine::tier
