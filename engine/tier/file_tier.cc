#include "engine/tier/file_tier.h"

#include <algorithm>

#include "engine/tier/rows.h"
#include "kvrail/base/assert.h"

namespace kvrail::engine::tier {
namespace {

constexpr std::uint64_t kFirstRate = 1'000'000'000;  // bytes per second, until measured
constexpr TimeNs kAccessNs = 200 * kMicrosecondNs;   // of a get, besides its bytes
constexpr std::uint64_t kRemembered = 256ULL << 20;  // bytes that a rate looks back over

}  // namespace

void FileTier::Rate::learn(std::uint64_t more, TimeNs took_ns) noexcept {
  bytes += more;
  ns += std::max<TimeNs>(took_ns, 1);
  if (bytes < kRemembered) return;
  bytes /= 2;
  ns /= 2;
}

std::uint64_t FileTier::Rate::per_s() const noexcept {
  return ns == 0 ? 0 : static_cast<std::uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(ns));
}

FileTier::FileTier(const TierOptions& options) : options_(options), known_(options.max_blocks), slots_(options.in_flight) {
  figures_.capacity_bytes = options.capacity_bytes;
  for (std::uint32_t slot = options.in_flight; slot-- > 0;) free_slot(slot);
}

FileTier::~FileTier() = default;

Result<std::unique_ptr<FileTier>> FileTier::create(const TierOptions& options) {
  KVRAIL_ASSERT(options.depth > 0 && options.in_flight > 0 && options.max_blocks > 0);
  KVRAIL_ASSERT(options.segment_bytes % kPageBytes == 0 && options.capacity_bytes >= 2 * options.segment_bytes);
  auto directory = Directory::open(options.directory, options.direct);
  if (!directory.ok()) return std::move(directory).error();
  std::unique_ptr<FileTier> made(new FileTier(options));
  if (!made->mailbox_.valid()) {
    return Error{{Code::limit, Scope::engine}, "offload: no event descriptor left; raise the limit of open files"};
  }
  made->thread_ = std::make_unique<TierThread>(options, std::move(directory).value(), made->mailbox_);
  if (auto ready = made->thread_->prepare(made->warnings_); !ready.ok()) return std::move(ready).error();
  made->thread_->begin();
  return Result<std::unique_ptr<FileTier>>(std::move(made));
}

std::uint32_t FileTier::take_slot(std::uint64_t cookie, const Hash128& hash, std::uint64_t bytes, bool is_put) noexcept {
  const std::uint32_t slot = free_slot_;
  if (slot == kNone) return kNone;
  free_slot_ = slots_[slot].next;
  slots_[slot] = {.used = true, .is_put = is_put, .cookie = cookie, .bytes = bytes, .hash = hash, .started_ns = clock_.now_ns()};
  return slot;
}

void FileTier::free_slot(std::uint32_t slot) noexcept {
  slots_[slot] = {.next = free_slot_};
  free_slot_ = slot;
}

bool FileTier::put(const TierPut& put) noexcept {
  KVRAIL_ASSERT(put.rows != nullptr && put.tokens > 0 && put.tokens <= put.layout.block_tokens);
  if (state_ != TierState::ready) return false;
  if (retry_at_ns_ != 0 && (puts_under_way_ > 0 || clock_.now_ns() < retry_at_ns_)) return false;
  const std::uint32_t slot = take_slot(put.cookie, put.hash, packed_bytes(put.layout, put.tokens), true);
  if (slot == kNone) return false;
  if (!mailbox_.command({.kind = Command::Kind::put, .slot = slot, .put = put})) {
    free_slot(slot);
    return false;
  }
  if (puts_under_way_++ == 0) write_busy_since_ns_ = slots_[slot].started_ns;
  return true;
}

bool FileTier::get(const TierGet& get) noexcept {
  KVRAIL_ASSERT(get.rows != nullptr && get.tokens > 0 && get.tokens <= get.layout.block_tokens);
  const std::uint32_t known = known_.find(get.hash);
  const std::uint64_t bytes = known == kNone ? 0 : known_[known].entry.stored_bytes;
  const std::uint32_t slot = take_slot(get.cookie, get.hash, bytes, false);
  if (slot == kNone) return false;
  if (!mailbox_.command({.kind = Command::Kind::get, .slot = slot, .get = get})) {
    free_slot(slot);
    return false;
  }
  if (get_bytes_under_way_ == 0) read_busy_since_ns_ = slots_[slot].started_ns;
  get_bytes_under_way_ += bytes;
  return true;
}

void FileTier::forget(const Hash128& hash) noexcept {
  if (puts_under_way_ > 0) {
    for (Slot& slot : slots_) {
      if (slot.used && slot.is_put && slot.hash == hash) slot.forgotten = true;
    }
  }
  static_cast<void>(unknow(hash));
  // Where the queue is full the thread keeps a record that nobody finds, until it ages.
  static_cast<void>(mailbox_.command({.kind = Command::Kind::forget, .hash = hash}));
}

std::optional<TierEntry> FileTier::find(const Hash128& hash) const noexcept {
  const std::uint32_t at = known_.find(hash);
  if (at == kNone) return std::nullopt;
  return known_[at].entry;
}

TimeNs FileTier::restore_ns(std::uint64_t stored_bytes) const noexcept {
  const std::uint64_t measured = reads_.per_s();
  const std::uint64_t rate = std::max<std::uint64_t>(measured == 0 ? kFirstRate : measured, 1'000'000);
  const double bytes = static_cast<double>(stored_bytes + get_bytes_under_way_);
  return kAccessNs + static_cast<TimeNs>(bytes * 1e9 / static_cast<double>(rate));
}

std::size_t FileTier::poll(std::span<TierCompletion> out) noexcept {
  if (puts_under_way_ > 0 || state_ == TierState::slow) watch_puts();
  if (!mailbox_.has_message() || out.empty()) return 0;
  mailbox_.begin_messages();
  std::size_t filled = 0;
  Message message;
  while (filled < out.size() && mailbox_.message(message)) {
    if (take(message, out[filled])) ++filled;
  }
  mailbox_.end_messages();
  return filled;
}

// A disk that has become slow takes no more until all that it has is written.
void FileTier::watch_puts() noexcept {
  if (state_ == TierState::slow && puts_under_way_ == 0) state_ = TierState::ready;
  if (state_ != TierState::ready) return;
  const TimeNs now = clock_.now_ns();
  for (const Slot& slot : slots_) {
    if (slot.used && slot.is_put && now - slot.started_ns > options_.slow_ns) state_ = TierState::slow;
  }
}

// Whether the message is something that the caller hears of.
bool FileTier::take(const Message& message, TierCompletion& out) noexcept {
  switch (message.kind) {
    case Message::Kind::put:
    case Message::Kind::get: return end(message, out);
    case Message::Kind::present: know(message.hash, message.entry); return false;
    case Message::Kind::forgotten: static_cast<void>(unknow(message.hash)); return false;
    case Message::Kind::gone:
      out = {.event = TierEvent::gone, .hash = message.hash};
      return unknow(message.hash);
    case Message::Kind::ready:
      if (state_ == TierState::recovering) state_ = TierState::ready;
      return false;
  }
  return false;
}

bool FileTier::end(const Message& message, TierCompletion& out) noexcept {
  const Slot slot = slots_[message.slot];
  KVRAIL_ASSERT(slot.used && slot.hash == message.hash);
  free_slot(message.slot);
  const TimeNs now = clock_.now_ns();
  out = {.event = slot.is_put ? TierEvent::put : TierEvent::get, .cookie = slot.cookie, .hash = slot.hash,
         .status = message.status, .epsilon_ppm = message.entry.epsilon_ppm, .stored_bytes = message.entry.stored_bytes,
         .took_ns = now - slot.started_ns};
  if (!slot.is_put) {
    get_bytes_under_way_ -= slot.bytes;
    ++figures_.gets;
    if (out.status.ok()) {
      // Of the time since the last one ended where several are under way: the rate is of the disk, not of one get.
      reads_.learn(message.entry.stored_bytes, now - std::max(read_busy_since_ns_, slot.started_ns));
      read_busy_since_ns_ = now;
    }
    return true;
  }
  --puts_under_way_;
  if (slot.forgotten && out.status.ok()) out.status = Code::cancelled;  // on its way back already, or the queue was full
  if (!out.status.ok()) {
    if (out.status.code != Code::cancelled) ++figures_.refused;
    const bool of_disk = out.status.code == Code::out_of_capacity || out.status.code == Code::io_error;
    if (of_disk) retry_at_ns_ = now + options_.retry_ns;
    return true;
  }
  retry_at_ns_ = 0;
  ++figures_.puts;
  writes_.learn(message.entry.stored_bytes, now - std::max(write_busy_since_ns_, slot.started_ns));
  write_busy_since_ns_ = now;
  know(slot.hash, message.entry);
  return true;
}

void FileTier::know(const Hash128& hash, const TierEntry& entry) noexcept {
  const std::uint32_t at = known_.find(hash);
  if (at != kNone) {
    known_[at].entry = entry;
    return;
  }
  // The thread's table is of the same size and gives up before it adds: there is room, unless what was forgotten here
  // is still known there; then this one is not found.
  static_cast<void>(known_.insert({.hash = hash, .entry = entry}));
}

bool FileTier::unknow(const Hash128& hash) noexcept {
  const std::uint32_t at = known_.find(hash);
  if (at == kNone) return false;
  known_.erase(at);
  return true;
}

TierFigures FileTier::figures() const noexcept {
  TierFigures out = figures_;
  const TierThread::Figures& thread = thread_->figures();
  out.state = state_;
  if (state_ == TierState::ready && retry_at_ns_ != 0 && clock_.now_ns() < retry_at_ns_) out.state = TierState::slow;
  out.blocks = known_.size();
  out.used_bytes = thread.used_bytes.load(std::memory_order_relaxed);
  out.bytes_written = thread.bytes_written.load(std::memory_order_relaxed);
  out.bytes_read = thread.bytes_read.load(std::memory_order_relaxed);
  out.damaged = thread.damaged.load(std::memory_order_relaxed);
  out.quarantined = thread.quarantined.load(std::memory_order_relaxed);
  out.read_bytes_per_s = reads_.per_s();
  out.write_bytes_per_s = writes_.per_s();
  return out;
}

}  // namespace kvrail::engine::tier
