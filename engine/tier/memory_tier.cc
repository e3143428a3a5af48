#include "engine/tier/memory_tier.h"

#include <algorithm>

#include "codec/hash.h"
#include "engine/tier/rows.h"

namespace kvrail::engine {
namespace {

constexpr std::byte kSpoiled{0xA5};

}  // namespace

MemoryTier::MemoryTier(const MemoryTierOptions& options)
    : options_(options),
      slots_(static_cast<std::uint32_t>(options.capacity_bytes / options.most_block_bytes)),
      random_(options.seed),
      memory_(std::make_unique<std::byte[]>(slots_ * options.most_block_bytes)),
      records_(std::make_unique<Record[]>(slots_)),
      index_(slots_),
      pending_(options.in_flight),
      gone_(std::size_t{slots_} + 1) {
  KVRAIL_ASSERT_MSG(slots_ > 0, "a tier of no block");
  figures_.capacity_bytes = options.capacity_bytes;
  for (std::uint32_t slot = slots_; slot-- > 0;) {
    records_[slot].younger = free_;
    free_ = slot;
  }
}

bool MemoryTier::start(Pending pending, std::uint64_t bytes) noexcept {
  if (pending_.size() >= options_.in_flight) return false;
  pending.due_poll = polls_ + options_.delay_polls;
  pending.asked_ns = now_ns();
  busy_until_ns_ = std::max(busy_until_ns_, pending.asked_ns) + options_.fixed_ns +
                   static_cast<TimeNs>(bytes * 1'000'000'000 / options_.bytes_per_s);
  pending.due_ns = busy_until_ns_;
  pending_.push(pending);
  return true;
}

bool MemoryTier::put(const TierPut& put) noexcept {
  KVRAIL_ASSERT(put.rows != nullptr && put.tokens > 0 && put.tokens <= put.layout.block_tokens);
  if (figures_.state != TierState::ready && figures_.state != TierState::recovering) return false;
  Pending pending{.event = TierEvent::put, .put = put};
  pending.digest = digest_of(put);
  return start(pending, packed_bytes(put.layout, put.tokens));
}

bool MemoryTier::get(const TierGet& get) noexcept {
  KVRAIL_ASSERT(get.rows != nullptr && get.tokens > 0 && get.tokens <= get.layout.block_tokens);
  if (figures_.state == TierState::failed) return false;
  if (!start({.event = TierEvent::get, .get = get}, packed_bytes(get.layout, get.tokens))) return false;
  for_each_half(get.layout, get.tokens, [&](std::uint64_t in_slot, std::uint64_t, std::uint64_t bytes) {
    std::memset(get.rows + in_slot, static_cast<int>(kSpoiled), bytes);
  });
  return true;
}

void MemoryTier::forget(const Hash128& hash) noexcept {
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].event == TierEvent::put && pending_[i].put.hash == hash) pending_[i].forgotten = true;
  }
  if (const std::uint32_t* slot = index_.find(hash)) drop(*slot);
}

std::optional<TierEntry> MemoryTier::find(const Hash128& hash) const noexcept {
  const std::uint32_t* slot = index_.find(hash);
  if (slot == nullptr || figures_.state == TierState::failed) return std::nullopt;
  return records_[*slot].entry;
}

TimeNs MemoryTier::restore_ns(std::uint64_t stored_bytes) const noexcept {
  const TimeNs own = options_.fixed_ns + static_cast<TimeNs>(stored_bytes * 1'000'000'000 / options_.bytes_per_s);
  const TimeNs now = now_ns();
  return own + (options_.clock == nullptr ? 0 : std::max<TimeNs>(busy_until_ns_ - now, 0));
}

TierFigures MemoryTier::figures() const noexcept { return figures_; }

TimeNs MemoryTier::next_due_ns() const noexcept {
  return held_ || options_.clock == nullptr || pending_.empty() ? kNever : pending_[0].due_ns;
}

bool MemoryTier::is_due(const Pending& pending) const noexcept {
  if (held_) return false;
  return options_.clock == nullptr ? pending.due_poll <= polls_ : pending.due_ns <= now_ns();
}

std::size_t MemoryTier::poll(std::span<TierCompletion> out) noexcept {
  ++polls_;
  std::size_t filled = 0;
  // What a completion gave up is told before the next: gone_ never holds more than there are records.
  while (filled < out.size()) {
    if (!gone_.empty()) {
      out[filled++] = {.event = TierEvent::gone, .hash = gone_.front()};
      gone_.pop();
    } else if (!pending_.empty() && is_due(pending_.front())) {
      const Pending pending = pending_.front();
      pending_.pop();
      out[filled++] = complete(pending);
    } else {
      break;
    }
  }
  return filled;
}

TierCompletion MemoryTier::complete(const Pending& pending) noexcept {
  TierCompletion done{.event = pending.event};
  if (pending.event == TierEvent::put) {
    done.cookie = pending.put.cookie;
    done.hash = pending.put.hash;
    done.status = end_put(pending, done);
    ++(done.status.ok() ? figures_.puts : figures_.refused);
  } else {
    done.cookie = pending.get.cookie;
    done.hash = pending.get.hash;
    done.status = end_get(pending.get, done);
    ++figures_.gets;
  }
  done.took_ns = now_ns() - pending.asked_ns;
  return done;
}

Status MemoryTier::end_put(const Pending& pending, TierCompletion& done) noexcept {
  const TierPut& put = pending.put;
  KVRAIL_ASSERT_MSG(digest_of(put) == pending.digest, "rows were changed while the tier had them");
  const std::uint64_t bytes = packed_bytes(put.layout, put.tokens);
  const std::uint32_t epsilon_ppm = put.epsilon_ppm + (put.exact ? 0 : options_.loss_ppm);
  if (pending.forgotten) return Code::cancelled;
  if (figures_.state == TierState::failed) return Code::io_error;
  if (bytes > options_.most_block_bytes) return Code::too_large;
  if (refuse_next_ > 0 || drawn(options_.refuse_ppm)) {
    if (refuse_next_ > 0) --refuse_next_;
    return Code::out_of_capacity;
  }
  if (const std::uint32_t* before = index_.find(put.hash)) drop(*before);
  const std::uint32_t slot = take_slot();
  Record& record = records_[slot];
  record = {.hash = put.hash,
            .shape = codec::fingerprint(put.layout),
            .entry = {.tokens = put.tokens, .epsilon_ppm = epsilon_ppm, .stored_bytes = bytes},
            .older = youngest_};
  (youngest_ == kNone ? oldest_ : records_[youngest_].younger) = slot;
  youngest_ = slot;
  static_cast<void>(index_.insert(put.hash, slot));
  pack_rows(put.layout, put.tokens, put.rows, bytes_of(slot));
  figures_.used_bytes += bytes;
  figures_.bytes_written += bytes;
  ++figures_.blocks;
  done.epsilon_ppm = epsilon_ppm;
  done.stored_bytes = bytes;
  return {};
}

Status MemoryTier::end_get(const TierGet& get, TierCompletion& done) noexcept {
  const std::uint32_t* found = index_.find(get.hash);
  if (found == nullptr) return Code::not_found;
  const std::uint32_t slot = *found;
  Record& record = records_[slot];
  if (record.shape != codec::fingerprint(get.layout) || record.entry.tokens != get.tokens) return Code::layout_mismatch;
  if (record.damage == Damage::none && drawn(options_.corrupt_ppm)) record.damage = Damage::corrupt;
  if (record.damage == Damage::none && drawn(options_.lose_ppm)) record.damage = Damage::lost;
  if (record.damage != Damage::none) {
    const bool damaged = record.damage == Damage::corrupt;
    if (damaged) ++figures_.damaged;
    give_up(slot);
    return damaged ? Code::corrupt : Code::not_found;
  }
  unpack_rows(get.layout, get.tokens, bytes_of(slot), get.rows);
  figures_.bytes_read += record.entry.stored_bytes;
  done.epsilon_ppm = record.entry.epsilon_ppm;
  done.stored_bytes = record.entry.stored_bytes;
  return {};
}

std::uint64_t MemoryTier::digest_of(const TierPut& put) const noexcept {
  std::uint64_t digest = 0;
  for_each_half(put.layout, put.tokens, [&](std::uint64_t in_slot, std::uint64_t, std::uint64_t bytes) {
    digest = codec::digest({put.rows + in_slot, bytes}, digest);
  });
  return digest;
}

std::uint32_t MemoryTier::take_slot() noexcept {
  if (free_ == kNone) give_up(oldest_);
  const std::uint32_t slot = free_;
  free_ = records_[slot].younger;
  return slot;
}

void MemoryTier::drop(std::uint32_t slot) noexcept {
  const Record& record = records_[slot];
  static_cast<void>(index_.erase(record.hash));
  figures_.used_bytes -= record.entry.stored_bytes;
  --figures_.blocks;
  (record.older == kNone ? oldest_ : records_[record.older].younger) = record.younger;
  (record.younger == kNone ? youngest_ : records_[record.younger].older) = record.older;
  records_[slot] = {.younger = free_};
  free_ = slot;
}

void MemoryTier::give_up(std::uint32_t slot) noexcept {
  gone_.push(records_[slot].hash);
  drop(slot);
}

void MemoryTier::corrupt(const Hash128& hash) noexcept {
  if (const std::uint32_t* slot = index_.find(hash)) records_[*slot].damage = Damage::corrupt;
}

void MemoryTier::lose(const Hash128& hash) noexcept {
  if (const std::uint32_t* slot = index_.find(hash)) give_up(*slot);
}

void MemoryTier::lose_unseen(const Hash128& hash) noexcept {
  if (const std::uint32_t* slot = index_.find(hash)) records_[*slot].damage = Damage::lost;
}

}  // namespace kvrail::engine
