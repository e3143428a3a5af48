#include "engine/client/session.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvrail/base/checked.h"

namespace kvrail::client {

TimeNs now_ns() noexcept { return SteadyClock().now_ns(); }

TimeNs deadline_after(TimeNs timeout_ns) noexcept {
  return add_saturating(now_ns(), std::max<TimeNs>(timeout_ns, 0));
}

SpinBudget call_spin(const AttachOptions& options) noexcept {
  const TimeNs least_ns = std::max<TimeNs>(options.spin.count(), 0);
  return {least_ns, std::max(least_ns, adaptive_spin_ns())};
}

void unmap(ArenaMap& map) noexcept {
  if (map.owned && map.base != nullptr) ::munmap(map.base, map.bytes);
  map = ArenaMap{};
}

Session::Session(std::unique_ptr<Channel> channel, const Attachment& attachment, const Layout& layout,
                 const SpinBudget& calls, TimeNs spin_ns)
    : channel_(std::move(channel)),
      attachment_(attachment),
      layout_(layout),
      view_(ipc::view_control(attachment.control_map.base, attachment.control)),
      submit_(view_.submit, attachment.control.submit_capacity),
      completion_(view_.completion, attachment.control.completion_capacity),
      call_spin_(calls),
      spin_ns_(spin_ns) {
  arenas_.push_back({attachment.arena_id, 0, attachment.arena, 0, true});
  arenas_.push_back({attachment.receive_id, 0, attachment.receive, 0, true});
}

Session::~Session() {
  channel_.reset();  // Leaves first: the engine must not write into what is unmapped here.
  for (Arena& arena : arenas_) unmap(arena.map);
  unmap(attachment_.control_map);
}

void Session::end(Status why) noexcept {
  KVRAIL_ASSERT(!why.ok());
  if (over_.ok()) over_ = why;  // The first reason is the true one.
}

void Session::leave() noexcept {
  end({Code::cancelled, Scope::engine});
  channel_->close();
}

void Session::free_scratch() noexcept {
  seen_processed_ = view_.shared->processed.load(std::memory_order_acquire);  // P1 <- R1
  while (!regions_.empty() && regions_.front().record <= seen_processed_) regions_.pop_front();
}

// First fit behind the newest region, then from the start. One byte always stays free between the
// newest and the oldest region, so that "empty" and "full" look different.
bool Session::find_scratch(std::uint32_t bytes, std::uint32_t& offset) const noexcept {
  const auto size = static_cast<std::uint32_t>(view_.scratch.size());
  if (regions_.empty()) {
    offset = 0;
    return bytes <= size;
  }
  const std::uint32_t oldest = regions_.front().begin;
  const std::uint32_t newest = regions_.back().end;
  if (newest > oldest) {
    offset = bytes <= size - newest ? newest : 0;
    return bytes <= size - newest || bytes < oldest;
  }
  offset = newest;
  return bytes < oldest - newest;
}

Status Session::submit(ipc::SubmitRecord record, std::span<const Bytes> payload, const Deadline& deadline) {
  // Behind a send, which wants to be quick; before all others, which may want the memory.
  if (record.command != ipc::Command::send) tell_given_back();
  std::uint64_t total = 0;
  for (const Bytes part : payload) total += part.size();
  if (total > view_.scratch.size()) {
    return {Code::too_large, Scope::transfer, static_cast<std::int32_t>(view_.scratch.size())};
  }
  const auto bytes = static_cast<std::uint32_t>(total);
  std::uint32_t offset = 0;
  for (;;) {
    if (!over_.ok()) return over_;
    if (regions_.size() < kRegionsToFree && find_scratch(bytes, offset) && submit_.has_room()) break;
    free_scratch();
    if (find_scratch(bytes, offset) && submit_.has_room()) break;
    if (submit_.state() != RingState::ok) end({Code::protocol_error, Scope::engine});
    if (const Status waited = wait_for_room(deadline); !waited.ok()) return waited;
  }
  record.payload_offset = bytes == 0 ? 0 : offset;
  record.payload_bytes = bytes;
  if (record.b != 0) record.submitted_ns = now_ns();  // Only where there is time to be measured from it.
  std::byte* at = view_.scratch.data() + offset;
  for (const Bytes part : payload) {
    if (!part.empty()) std::memcpy(at, part.data(), part.size());
    at += part.size();
  }
  const bool pushed = submit_.try_push(record);
  KVRAIL_ASSERT(pushed);
  ++submitted_;
  if (owes_release_ && submit_.try_push(release_)) {
    owes_release_ = false;
    ++submitted_;
  }
  if (bytes != 0) regions_.push_back({submitted_, offset, offset + bytes});
  if (submit_.publish()) channel_->ring();
  return {};
}

void Session::give_back(const ipc::SubmitRecord& release, bool may_wait) noexcept {
  // Only an agent that looks all the time comes back soon.
  if (may_wait && spin_ns_ > 0 && !owes_release_) {
    release_ = release;
    owes_release_ = true;
    return;
  }
  static_cast<void>(submit(release, {}, Deadline(kGiveBackTimeout)));
}

void Session::tell_given_back() noexcept {
  if (!owes_release_ || !over_.ok() || !submit_.has_room()) return;  // It never waits.
  owes_release_ = false;
  static_cast<void>(submit(release_, {}, Deadline(kGiveBackTimeout)));
}

bool Session::is_lent(std::uint32_t arena) const noexcept {
  return std::any_of(arenas_.begin(), arenas_.end(),
                     [arena](const Arena& entry) noexcept { return entry.id == arena && entry.map.lent; });
}

Status Session::wait_for_room(const Deadline& deadline) {
  store_completions();
  view_.shared->room_wanted.store(1, std::memory_order_seq_cst);  // R3
  // Compared with what the caller saw when it found no room: a count read only now might be the last
  // that ever comes.
  if (view_.shared->processed.load(std::memory_order_seq_cst) != seen_processed_ ||  // R3 <- R2
      !completion_.prepare_park()) {
    view_.shared->room_wanted.store(0, std::memory_order_relaxed);  // Saves a needless bell only.
    if (completion_.state() != RingState::ok) end({Code::protocol_error, Scope::engine});
    return over_;
  }
  const Status waited = channel_->wait(deadline.left_ns());
  completion_.cancel_park();
  if (!waited.ok() && waited.code != Code::timed_out) end(waited);
  return waited;
}

void Session::store_completions() noexcept {
  ipc::CompletionRecord record;
  while (completion_.try_pop(record)) {
    stored_.push_back(record);
    has_read_ = true;
  }
  tell_read();
}

void Session::tell_read() noexcept {
  if (!has_read_) return;
  has_read_ = false;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // F2
  if (view_.shared->reading_wanted.load(std::memory_order_relaxed) == 0) return;  // ordered by the fence
  if (view_.shared->reading_wanted.exchange(0, std::memory_order_relaxed) != 0) channel_->ring();
}

bool Session::take(ipc::CompletionRecord& out) noexcept {
  if (!stored_.empty()) {
    out = stored_.front();
    stored_.pop_front();
    return true;
  }
  if (completion_.try_pop(out)) {
    has_read_ = true;
    return true;
  }
  tell_read();
  tell_given_back();
  if (completion_.state() != RingState::ok) end({Code::protocol_error, Scope::engine});
  return false;
}

bool Session::spin(TimeNs begin_ns, TimeNs spin_ns) noexcept {
  constexpr int kLooksPerClockRead = 64;
  if (spin_ns <= 0) return false;
  const TimeNs until_ns = add_saturating(begin_ns, spin_ns);
  while (now_ns() < until_ns) {
    for (int i = 0; i < kLooksPerClockRead; ++i) {
      if (completion_.available() != 0) return true;
    }
    if (spin_ns_ == 0) ::sched_yield();  // no core of its own: the engine may need this one
  }
  return false;
}

Status Session::wait(const Deadline& deadline, std::uint32_t kinds) {
  if (!stored_.empty() || completion_.available() != 0) return {};
  if (!over_.ok()) return over_;
  const TimeNs begin_ns = now_ns();
  if (deadline.ns(begin_ns) <= begin_ns) {
    const Status checked = check(begin_ns);
    return checked.ok() ? Status{Code::timed_out} : checked;
  }
  if (channel_->drives()) return await_channel(deadline);
  const bool call = kinds == ipc::kWakeReply;
  const TimeNs spin_ns = std::min(call ? call_spin_.ns() : spin_ns_, deadline.ns(begin_ns) - begin_ns);
  Status waited;
  if (!spin(begin_ns, spin_ns) && completion_.prepare_park(kinds | ipc::kWakeReply)) {
    waited = await_channel(deadline);
    completion_.cancel_park();
  }
  if (call) call_spin_.learn(now_ns() - begin_ns);
  return waited;
}

Status Session::await_channel(const Deadline& deadline) {
  const Status waited = channel_->wait(deadline.left_ns());
  if (waited.ok() || completion_.available() != 0) return {};
  if (waited.code != Code::timed_out) end(waited);
  return waited;
}

bool Session::arm() noexcept {
  tell_given_back();
  return stored_.empty() && over_.ok() && completion_.prepare_park();
}

Status Session::check(TimeNs now) {
  constexpr TimeNs kCheckEveryNs = 10 * kMillisecondNs;  // A system call per poll would be dear.
  if (!over_.ok() || now - checked_ns_ < kCheckEveryNs) return over_;
  checked_ns_ = now;
  if (const Status status = channel_->check(); !status.ok()) end(status);
  return over_;
}

std::byte* Session::at(std::uint32_t arena, std::uint64_t offset, std::uint64_t bytes, const Deadline& deadline) {
  const auto inside = [offset, bytes](const Arena& entry) noexcept -> std::byte* {
    if (offset < entry.first_offset) return nullptr;
    const std::uint64_t from = offset - entry.first_offset;
    return range_fits(from, bytes, entry.map.bytes) ? entry.map.base + from : nullptr;
  };
  bool known = false;
  for (const Arena& entry : arenas_) {
    if (entry.id != arena) continue;
    known = true;
    if (std::byte* found = inside(entry); found != nullptr) return found;
  }
  if (known || !over_.ok()) return nullptr;
  Result<ArenaMap> map = channel_->arena(arena, deadline.left_ns());
  if (!map.ok()) {
    if (map.status().scope == Scope::engine && map.status().code != Code::not_found) end(map.status());
    return nullptr;
  }
  unmap_idle();
  arenas_.push_back({arena, 0, *map, 0, false});
  return inside(arenas_.back());
}

MappedRange Session::range_around(std::uint32_t arena, std::uint64_t offset) const noexcept {
  for (const Arena& entry : arenas_) {
    const MappedRange range{arena, entry.first_offset, entry.first_offset + entry.map.bytes};
    if (entry.id == arena && range.holds(arena, offset, 0)) return range;
  }
  KVRAIL_UNREACHABLE();
}

const std::byte* Session::held(std::uint32_t arena, std::uint64_t offset) const noexcept {
  for (const Arena& entry : arenas_) {
    if (entry.id == arena && offset >= entry.first_offset && offset - entry.first_offset < entry.map.bytes) {
      return entry.map.base + (offset - entry.first_offset);
    }
  }
  KVRAIL_UNREACHABLE();
}

void Session::hold(std::uint32_t arena) noexcept {
  for (Arena& entry : arenas_) {
    if (entry.id == arena) ++entry.holds;
  }
}

void Session::let_go(std::uint32_t arena) noexcept {
  for (Arena& entry : arenas_) {
    if (entry.id == arena) {
      KVRAIL_ASSERT(entry.holds > 0);
      --entry.holds;
    }
  }
}

void Session::keep(const ImportedRange& range) {
  arenas_.push_back({range.arena, 0, range.map, range.offset, true});
}

// An arena of an agent that has long gone stays in memory as long as somebody maps it.
void Session::unmap_idle() noexcept {
  if (hold_all_ != 0) return;
  const auto idle = [](const Arena& entry) noexcept { return !entry.permanent && entry.holds == 0; };
  if (static_cast<std::size_t>(std::count_if(arenas_.begin(), arenas_.end(), idle)) < kIdleArenas) return;
  for (Arena& entry : arenas_) {
    if (idle(entry)) unmap(entry.map);
  }
  std::erase_if(arenas_, [&idle](const Arena& entry) { return idle(entry); });
}

void Session::write_probe(const Probe& probe, std::uint64_t copied_bytes) noexcept {
  ipc::ProbeRecord& record = *view_.probe;
  const std::uint64_t sequence = record.sequence.load(std::memory_order_relaxed);  // Written here only.
  record.sequence.store(sequence + 1, std::memory_order_relaxed);  // Ordered by the fence behind it.
  std::atomic_thread_fence(std::memory_order_release);
  const auto put = [&record](ipc::ProbeWord word, std::uint64_t value) noexcept {
    record.words[static_cast<std::size_t>(word)].store(value, std::memory_order_relaxed);
  };
  put(ipc::ProbeWord::updated_ns, static_cast<std::uint64_t>(now_ns()));
  put(ipc::ProbeWord::queue_length, probe.queue_length);
  put(ipc::ProbeWord::cache_bytes, probe.cache_bytes);
  put(ipc::ProbeWord::compute_load_ppm, probe.compute_load_ppm);
  put(ipc::ProbeWord::idle_until_ns, static_cast<std::uint64_t>(probe.idle_until_ns));
  put(ipc::ProbeWord::prefill_fixed_ns, probe.compute.prefill_fixed_ns);
  put(ipc::ProbeWord::prefill_per_token_ns, probe.compute.prefill_per_token_ns);
  put(ipc::ProbeWord::prefill_quadratic_ns_q20, probe.compute.prefill_quadratic_ns_q20);
  put(ipc::ProbeWord::decode_per_token_ns, probe.compute.decode_per_token_ns);
  put(ipc::ProbeWord::accepted, probe.accepted);
  put(ipc::ProbeWord::tokenizer_low, probe.tokenizer.low);
  put(ipc::ProbeWord::tokenizer_high, probe.tokenizer.high);
  put(ipc::ProbeWord::copied_bytes, copied_bytes);
  put(ipc::ProbeWord::backlog_ns, static_cast<std::uint64_t>(probe.backlog_ns));
  record.sequence.store(sequence + 2, std::memory_order_release);  // pairs with the engine's acquire load
}

}  // namespace kvrail::client
