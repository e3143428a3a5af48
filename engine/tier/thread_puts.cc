// Puts: rows become pieces at the active segment's tail, and records once a sync has covered them.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "codec/hash.h"
#include "engine/tier/tier_thread.h"
#include "kvrail/base/assert.h"

namespace kvrail::engine::tier {
namespace {

constexpr std::uint64_t kWorthCutting = 8;  // a segment's unwritten end is cut off where it is one part in so many

}  // namespace

bool TierThread::start_writes() noexcept {
  bool any = false;
  while (free_write_ > 0) {
    if (open_ == kNone && !begin_put()) break;
    any = true;
    if (open_ == kNone) continue;
    Buffer* const buffer = take_buffer(Use::put, open_);
    write_piece(writes_[open_], open_, *buffer);
  }
  return any;
}

// The next put gets its place. False: there is none, or it has to wait.
bool TierThread::begin_put() noexcept {
  if (puts_.empty()) return false;
  const Command& command = puts_.front();
  const auto job = static_cast<std::uint32_t>(
      std::find_if(writes_.begin(), writes_.end() - 1, [](const Write& write) { return !write.used; }) - writes_.begin());
  KVRAIL_ASSERT(job < options_.in_flight);
  Write& write = writes_[job];
  const bool exact = command.put.exact;
  write.source.start(command.put, exact ? Medium::full : options_.coding, exact ? 0 : options_.coding_epsilon_ppm, encode_scratch_);
  Status why;
  const Room room = room_for(record_disk_bytes(write.source.bound()), why);
  if (room == Room::wait) return false;
  write.used = true;
  write.carry = false;
  write.forgotten = command.forgotten;
  write.slot = command.slot;
  write.hash = command.put.hash;
  write.shape = codec::fingerprint(command.put.layout);
  write.tokens = command.put.tokens;
  write.coding = write.source.coding();
  puts_.pop_front();
  if (room == Room::no) {
    write.status = why;
    end_put(job);
    return true;
  }
  open_at_tail(write);
  open_ = job;
  return true;
}

void TierThread::open_at_tail(Write& write) noexcept {
  write.sequence = next_sequence_++;
  write.segment = active_;
  write.page = static_cast<std::uint32_t>(books_.segment(active_).tail / kPageBytes);
  write.stream_bytes = 0;
  write.under_way = 0;
  write.issued = false;
  write.status = {};
  pin(active_);
}

// Whether so many bytes fit behind the active segment's tail, with a new segment where need be.
TierThread::Room TierThread::room_for(std::uint64_t bytes, Status& why) noexcept {
  if (bytes + kPageBytes > options_.segment_bytes) {
    why = Code::too_large;
    return Room::no;
  }
  if (active_ != kNone && books_.segment(active_).tail + bytes <= books_.segment(active_).file.bytes) return Room::yes;
  if (active_ != kNone) seal_active();
  if (!making_.valid() && books_.file_bytes() + options_.segment_bytes > options_.capacity_bytes) {
    wants_room_ = true;
    // With nothing that could go, now or when what is under way has ended, waiting is for nothing.
    const bool hopeless = leaving_ == kNone && books_.victim(active_) == kNone && idle() && written_.empty();
    if (hopeless) why = Code::out_of_capacity;
    return hopeless ? Room::no : Room::wait;
  }
  return next_segment(why);
}

// Begins before it is needed, if there is room. Whether it did.
bool TierThread::make_segment() noexcept {
  if (making_.valid() || books_.file_bytes() + options_.segment_bytes > options_.capacity_bytes) return false;
  const bool soon = active_ != kNone && books_.segment(active_).tail * 2 > books_.segment(active_).file.bytes;
  if (!soon && (active_ != kNone || puts_.empty())) return false;
  std::packaged_task<Result<SegmentFile>()> make([this, id = next_segment_id_++] { return directory_->create(id, options_.segment_bytes); });
  making_ = make.get_future();
  // The one before has ended, or its segment would not be in use.
  maker_ = std::jthread([this, make = std::move(make)]() mutable {
    make();
    mailbox_.poke();
  });
  return true;
}

TierThread::Room TierThread::next_segment(Status& why) noexcept {
  static_cast<void>(make_segment());
  if (making_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return Room::wait;
  auto made = making_.get();
  if (!made.ok()) {
    why = made.error().status;
    return Room::no;
  }
  active_ = books_.add_segment(std::move(made).value());
  if (active_ == kNone) why = Code::out_of_capacity;
  return active_ == kNone ? Room::no : Room::yes;
}

void TierThread::write_piece(Write& write, std::uint32_t job, Buffer& buffer) noexcept {
  Segment& segment = books_.segment(write.segment);
  std::byte* const stream = buffer.memory + kPieceHeaderBytes;
  const std::uint32_t bytes = write.source.take({stream, kPieceBytes});
  write.issued = write.source.done();
  write.epsilon_ppm = write.source.epsilon_ppm();
  const PieceHeader piece{.hash = write.hash, .shape = write.shape, .sequence = write.sequence,
                          .offset = write.stream_bytes, .bytes = bytes, .tokens = write.tokens,
                          .epsilon_ppm = write.epsilon_ppm, .coding = write.coding, .last = write.issued,
                          .digest = piece_digest(segment.file.header, {stream, bytes})};
  encode_piece(segment.file.header, piece, {buffer.memory, kPieceHeaderBytes});
  const std::uint32_t on_disk = piece_disk_bytes(bytes);
  std::memset(stream + bytes, 0, on_disk - kPieceHeaderBytes - bytes);
  buffer.piece = static_cast<std::uint32_t>(write.stream_bytes / kPieceBytes);
  write.stream_bytes += bytes;
  ++write.under_way;
  start(buffer, DiskOp::Kind::write, write.segment, segment.tail, on_disk);
  segment.tail += on_disk;
  if (write.issued) open_ = kNone;
  KVRAIL_ASSERT(job < writes_.size() && segment.tail <= segment.file.bytes);
}

void TierThread::piece_written(Buffer& buffer) noexcept {
  const std::uint32_t job = buffer.job;
  Write& write = writes_[job];
  --write.under_way;
  unpin(write.segment);
  if (buffer.error != 0) {
    const Code code = buffer.error == ENOSPC || buffer.error == EDQUOT ? Code::out_of_capacity : Code::io_error;
    write.status = {code, Scope::device, buffer.error};
    if (open_ == job) open_ = kNone;
  }
  figures_.bytes_written.fetch_add(buffer.wanted, std::memory_order_relaxed);
  scrub_credit_ += buffer.wanted;
  give_back(buffer);
  settle_write(job);
}

// Of a write of which nothing is under way.
void TierThread::settle_write(std::uint32_t job) noexcept {
  Write& write = writes_[job];
  if (write.under_way > 0) return;
  if (!write.status.ok()) {
    // Whatever the file has there now; the next record goes into another.
    if (active_ == write.segment) seal_active();
    unpin(write.segment);
    if (write.carry) return carried();
    return end_put(job);
  }
  if (!write.issued) return;
  write.written_ns = clock_.now_ns();
  written_.push_back(job);
  written_bytes_ += write.stream_bytes;
}

// One sync for all that is written in one segment: at once where nothing else is coming, else when time or bytes are up.
bool TierThread::maybe_sync() noexcept {
  if (written_.empty() || sync_segment_ != kNone) return false;
  const bool more_comes = !puts_.empty() || free_write_ < options_.depth;
  if (more_comes && written_bytes_ < options_.commit_bytes && patience() > 0) return false;
  sync_segment_ = writes_[written_.front()].segment;
  std::erase_if(written_, [&](std::uint32_t job) {
    if (writes_[job].segment != sync_segment_) return false;
    syncing_.push_back(job);
    written_bytes_ -= writes_[job].stream_bytes;
    return true;
  });
  sync_ = {.kind = DiskOp::Kind::sync, .fd = books_.segment(sync_segment_).file.fd.get()};
  disk_->start(sync_);
  return true;
}

void TierThread::synced() noexcept {
  if (sync_.result == -EINTR || sync_.result == -EAGAIN) {
    disk_->start(sync_);
    return;
  }
  figures_.syncs.fetch_add(1, std::memory_order_relaxed);
  const std::uint32_t segment = sync_segment_;
  sync_segment_ = kNone;
  if (sync_.result < 0 && active_ == segment) seal_active();
  for (const std::uint32_t job : syncing_) {
    Write& write = writes_[job];
    // After a sync that failed nobody knows what the disk has, now or after another sync.
    if (sync_.result < 0) write.status = {Code::io_error, Scope::device, -sync_.result};
    unpin(write.segment);
    if (write.carry) {
      carried();
    } else {
      if (write.status.ok()) acknowledge(job);
      end_put(job);
    }
  }
  syncing_.clear();
}

void TierThread::acknowledge(std::uint32_t job) noexcept {
  Write& write = writes_[job];
  if (write.forgotten) {
    write.status = Code::cancelled;
    return;
  }
  const std::uint32_t before = books_.find(write.hash);
  if (before != kNone) books_.remove(before);
  while (books_.full()) {
    const std::uint32_t victim = books_.victim(active_);
    if (victim == kNone || victim == write.segment) break;
    give_up_segment(victim);
  }
  const Record record{.hash = write.hash, .shape = write.shape, .sequence = write.sequence,
                      .stream_bytes = write.stream_bytes, .tokens = write.tokens, .epsilon_ppm = write.epsilon_ppm,
                      .segment = write.segment, .page = write.page, .coding = write.coding};
  if (books_.add(record) != kNone) return;
  write.status = Code::out_of_capacity;
  if (before != kNone) tell({.kind = Message::Kind::gone, .hash = write.hash});
}

void TierThread::end_put(std::uint32_t job) noexcept {
  Write& write = writes_[job];
  write.used = false;
  Message message{.kind = Message::Kind::put, .slot = write.slot, .hash = write.hash, .status = write.status};
  message.entry = {.tokens = write.tokens, .epsilon_ppm = write.epsilon_ppm, .stored_bytes = write.stream_bytes};
  figures_.used_bytes.store(books_.file_bytes(), std::memory_order_relaxed);
  tell(message);
}

void TierThread::seal_active() noexcept {
  Segment& segment = books_.segment(active_);
  segment.sealed = true;
  if (segment.file.bytes - segment.tail >= segment.file.bytes / kWorthCutting &&
      ::ftruncate(segment.file.fd.get(), static_cast<off_t>(segment.tail)) == 0) {
    books_.resize_segment(active_, segment.tail);
  }
  active_ = kNone;
}

}  // namespace kvrail::engine::tier
