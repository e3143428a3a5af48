#include "engine/tier/tier_thread.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "kvrail/base/assert.h"

namespace kvrail::engine::tier {
namespace {

constexpr std::align_val_t kAlignment{kPageBytes};
constexpr std::uint8_t kMostStuck = 8;
constexpr std::uint32_t kSparePlaces = 8;

std::uint32_t segment_places(const TierOptions& options, std::size_t found) {
  return static_cast<std::uint32_t>(options.capacity_bytes / options.segment_bytes + found) + kSparePlaces;
}

}  // namespace

TierThread::TierThread(const TierOptions& options, std::unique_ptr<Directory> directory, Mailbox& mailbox)
    : options_(options),
      directory_(std::move(directory)),
      mailbox_(mailbox),
      books_(options.max_blocks, 0),
      memory_(nullptr, [](std::byte* memory) { ::operator delete[](memory, kAlignment); }) {}

TierThread::~TierThread() {
  mailbox_.stop();
  if (thread_.joinable()) thread_.join();
}

Result<void> TierThread::prepare(std::vector<std::string>& warnings) {
  found_ = directory_->segments();
  figures_.quarantined.store(directory_->quarantined(), std::memory_order_relaxed);
  warnings.insert(warnings.end(), directory_->warnings().begin(), directory_->warnings().end());
  books_ = Books(options_.max_blocks, segment_places(options_, found_.size()));
  const std::uint32_t count = 2 * options_.depth;
  const std::size_t bytes = std::size_t{count} * kPieceRoomBytes;
  memory_.reset(static_cast<std::byte*>(::operator new[](bytes, kAlignment)));
  std::fill_n(memory_.get(), bytes, std::byte{});
  buffers_.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    buffers_[i].memory = memory_.get() + std::size_t{i} * kPieceRoomBytes;
    buffers_[i].buffer = static_cast<std::int32_t>(i);
  }
  free_read_ = free_write_ = options_.depth;
  writes_.resize(options_.in_flight + 1);
  reads_.resize(options_.in_flight);
  // The sync is one more.
  const DiskOptions disk{.depth = count + 1, .event_fd = mailbox_.command_fd(), .memory = {memory_.get(), bytes}, .buffers = count};
  if (options_.uring) {
    auto uring = make_uring_disk(disk);
    if (uring.ok()) {
      disk_ = std::move(uring).value();
    } else {
      warnings.push_back("offload: " + uring.error().message + "; it goes on with one system call at a time");
    }
  }
  if (disk_ == nullptr) disk_ = make_plain_disk(disk);
  if (options_.wrap) disk_ = options_.wrap(std::move(disk_));
  for (const SegmentFile& file : found_) next_segment_id_ = std::max(next_segment_id_, file.header.id + 1);
  verify_left_ = 2;
  return {};
}

void TierThread::begin() {
  thread_ = std::jthread([this] { run(); });
}

void TierThread::run() noexcept {
  while (!mailbox_.stopping()) {
    if (cycle()) continue;
    if (mailbox_.may_sleep()) disk_->wait(patience());
    mailbox_.awake();
  }
  finish();
}

bool TierThread::cycle() noexcept {
  bool worked = take_commands();
  worked |= reap();
  worked |= start_reads();
  worked |= recover_next();
  worked |= make_room();
  worked |= make_segment();
  worked |= start_writes();
  worked |= maybe_sync();
  worked |= scrub();
  return worked;
}

bool TierThread::take_commands() noexcept {
  Command command;
  bool any = false;
  while (mailbox_.next_command(command)) {
    any = true;
    switch (command.kind) {
      case Command::Kind::put: puts_.push_back(command); break;
      case Command::Kind::get: gets_.push_back(command); break;
      case Command::Kind::forget: forget(command.hash); break;
    }
  }
  return any;
}

void TierThread::forget(const Hash128& hash) noexcept {
  for (Command& put : puts_) put.forgotten = put.forgotten || put.put.hash == hash;
  for (Write& write : writes_) write.forgotten = write.forgotten || (write.used && !write.carry && write.hash == hash);
  const std::uint32_t record = books_.find(hash);
  if (record != kNone) books_.remove(record);
  tell({.kind = Message::Kind::forgotten, .hash = hash});
}

bool TierThread::reap() noexcept {
  bool any = false;
  while (DiskOp* op = disk_->reap()) {
    any = true;
    if (op == &sync_) {
      synced();
      continue;
    }
    auto& buffer = static_cast<Buffer&>(*op);
    if (!go_on(buffer)) ended(buffer);
  }
  return any;
}

// Whether the operation goes on with what is left of it. If not, buffer.error says how it ended.
bool TierThread::go_on(Buffer& buffer) noexcept {
  const std::int32_t result = buffer.result;
  const bool again = result == -EINTR || result == -EAGAIN;
  if ((result < 0 && !again) || result > static_cast<std::int32_t>(buffer.bytes)) {
    buffer.error = result < 0 ? -result : EIO;
    return false;
  }
  // Whole pages only: direct I/O goes on at a page, and a page that came in part is asked for again.
  const std::uint32_t got = again ? 0 : static_cast<std::uint32_t>(result);
  if (got == buffer.bytes) {
    buffer.error = 0;
    return false;
  }
  const std::uint32_t pages = got / kPageBytes * kPageBytes;
  buffer.stuck = pages > 0 ? 0 : static_cast<std::uint8_t>(buffer.stuck + 1);
  if ((result == 0 && buffer.kind == DiskOp::Kind::read) || buffer.stuck >= kMostStuck) {
    buffer.error = again ? -result : buffer.kind == DiskOp::Kind::write ? ENOSPC : EIO;
    return false;
  }
  buffer.data += pages;
  buffer.offset += pages;
  buffer.bytes -= pages;
  disk_->start(buffer);
  return true;
}

void TierThread::ended(Buffer& buffer) noexcept {
  switch (buffer.use) {
    case Use::put: piece_written(buffer); break;
    case Use::get: piece_read(buffer); break;
    case Use::carry: carry_read(buffer); break;
    case Use::scrub: scrub_read(buffer); break;
    case Use::recover: break;  // recover_segment() looks at it itself
    case Use::free: KVRAIL_UNREACHABLE();
  }
}

// How long nothing is to be done unless the disk or the worker says something.
TimeNs TierThread::patience() const noexcept {
  if (written_.empty() || sync_segment_ != kNone) return kNever;
  const TimeNs due = writes_[written_.front()].written_ns + options_.commit_ns;
  return std::max<TimeNs>(due - clock_.now_ns(), 0);
}

bool TierThread::idle() const noexcept {
  return sync_segment_ == kNone &&
         std::all_of(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) { return buffer.use == Use::free || buffer.ended; });
}

// What is with the disk ends, what is written is synced; what waits in queues is dropped.
void TierThread::finish() noexcept {
  puts_.clear();
  gets_.clear();
  while (!idle()) {
    if (!reap()) disk_->wait(kMillisecondNs);
  }
  if (making_.valid()) {
    if (const auto unused = making_.get(); unused.ok()) directory_->remove(unused->header.id);
  }
  if (active_ != kNone) {
    sync_ = {.kind = DiskOp::Kind::sync, .fd = books_.segment(active_).file.fd.get()};
    disk_->start(sync_);
    while (disk_->reap() != &sync_) disk_->wait(kMillisecondNs);
    seal_active();
  }
}

}  // namespace kvrail::engine::tier
