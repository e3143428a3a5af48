// The duty cycle of a node: what is looked at, in which order, how much of each.
#include <algorithm>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kBlockedRetryNs = kMillisecondNs;
constexpr std::uint32_t kMaxTimersPerCycle = 256;
constexpr std::uint32_t kMaxWorkPerCycle = 256;

}  // namespace

std::size_t Node::Core::cycle(TimeNs now) noexcept {
  const NoAllocScope no_alloc;
  now_ = std::max(now_, now);  // a command since may have read the clock later than the caller did
  budget_ = options_.work_bytes_per_cycle;
  steps_ = options_.work_blocks_per_cycle;
  blocked_ = 0;
  ++counters_.duty_cycles;
  std::size_t work = poll_transports();
  work += poll_tier();
  work += run_timers();
  work += run_work();
  work += post_chunks();
  work += announce();
  work += send_states();
  work += flush_events();
  work += housekeep();
  return work;
}

std::size_t Node::Core::poll_transports() noexcept {
  std::size_t work = 0;
  for (std::uint32_t t = 0; t < transport_count_; ++t) {
    const std::size_t count = transports_[t]->poll(now_, events_);
    for (std::size_t i = 0; i < count; ++i) dispatch(t, events_[i]);
    work += count;
  }
  return work;
}

void Node::Core::dispatch(std::uint32_t transport, const Event& event) noexcept {
  status_dirty_ = true;
  switch (event.kind) {
    case transport::EventKind::lane_up: return on_lane_up(transport, event);
    case transport::EventKind::lane_down: return on_lane_down(transport, event);
    case transport::EventKind::chunk_done: return on_chunk_done(transport, event);
    case transport::EventKind::chunk_received: return on_chunk_received(transport, event);
    case transport::EventKind::lease_withdrawn: return on_lease_withdrawn(transport, event);
    case transport::EventKind::frame: {
      const std::uint32_t lane = find_lane(transport, event.lane);
      if (lane == kNoIndex) {
        ++counters_.unknown_messages;  // of a lane that we have closed
        return;
      }
      heard(*lane_at(lane));
      return on_frame(lane, event.bytes);
    }
  }
}

template <class M>
bool Node::Core::handle(std::uint32_t lane, std::span<const std::byte> bytes, M& message,
                        void (Core::*handler)(std::uint32_t, const M&) noexcept) noexcept {
  if (!wire::decode(bytes, message).ok()) return false;
  (this->*handler)(lane, message);
  return true;
}

void Node::Core::on_frame(std::uint32_t lane, std::span<const std::byte> bytes) noexcept {
  const auto type = wire::peek_type(bytes);
  bool good = type.has_value();
  const auto take = [&]<class M>(M message, void (Core::*handler)(std::uint32_t, const M&) noexcept) {
    good = handle(lane, bytes, message, handler);
  };
  const auto take_task = [&]<class M>(M message, void (TaskDesk::*handler)(std::uint32_t, const M&) noexcept) {
    good = wire::decode(bytes, message).ok();
    if (good) (desk_.get()->*handler)(lane, message);
  };
  if (good) {
    switch (*type) {
      case wire::MessageType::keepalive: take(wire::Keepalive{}, &Core::on_keepalive); break;
      case wire::MessageType::agent_up: take(wire::AgentUp{}, &Core::on_agent_up); break;
      case wire::MessageType::agent_down: take(wire::AgentDown{}, &Core::on_agent_down); break;
      case wire::MessageType::offer: take(wire::Offer{}, &Core::on_offer); break;
      case wire::MessageType::tokens: take(wire::Tokens{}, &Core::on_tokens); break;
      case wire::MessageType::accept: take(wire::Accept{}, &Core::on_accept); break;
      case wire::MessageType::later: take(wire::Later{}, &Core::on_later); break;
      case wire::MessageType::reject: take(wire::Reject{}, &Core::on_reject); break;
      case wire::MessageType::done: take(wire::Done{}, &Core::on_done); break;
      case wire::MessageType::cancel: take(wire::Cancel{}, &Core::on_cancel); break;
      case wire::MessageType::query: take(wire::Query{}, &Core::on_query); break;
      case wire::MessageType::outcome: take(wire::Outcome{}, &Core::on_outcome); break;
      case wire::MessageType::fetch: take(wire::Fetch{}, &Core::on_fetch); break;
      case wire::MessageType::state: take(wire::State{}, &Core::on_state); break;
      case wire::MessageType::summary: take(wire::Summary{}, &Core::on_summary); break;
      case wire::MessageType::workflow: take_task(wire::Workflow{}, &TaskDesk::on_workflow); break;
      case wire::MessageType::task: take_task(wire::TaskNotice{}, &TaskDesk::on_task); break;
      case wire::MessageType::turn: take_task(wire::TurnNotice{}, &TaskDesk::on_turn); break;
      case wire::MessageType::eager: take(wire::Eager{}, &Core::on_eager); break;
      case wire::MessageType::encodings: ++counters_.unknown_messages; break;  // the planes tell it
    }
  }
  if (!good) {
    ++counters_.malformed_frames;
    close_lane(lane);
  }
}

std::size_t Node::Core::run_timers() noexcept {
  std::size_t work = 0;
  for (; work < kMaxTimersPerCycle; ++work) {
    const std::uint32_t id = timers_.pop_due(now_);
    if (id == Timers::kNone) break;
    std::uint32_t index = 0;
    switch (kind_of(id, index)) {
      case Kind::out: out_timer(index); break;
      case Kind::in: in_timer(index); break;
      case Kind::peer: peer_timer(index); break;
      case Kind::dial: run_dial(index); break;
      case Kind::fetch: fetch_timer(index); break;
      case Kind::commit: break;
      case Kind::restore: restore_overdue(index); break;
      case Kind::local_wait:
        end_local_wait(index, Status{Code::timed_out}, VersionHandle{});
        break;
    }
  }
  return work;
}

std::size_t Node::Core::run_work() noexcept {
  const std::uint32_t count = std::min(work_.size(), kMaxWorkPerCycle);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t index = 0;
    switch (kind_of(work_.pop(), index)) {
      case Kind::out: run_out(index); break;
      case Kind::in: run_in(index); break;
      case Kind::fetch: run_fetch(index); break;
      case Kind::commit: run_commit(index); break;
      case Kind::restore: run_restore(index); break;
      case Kind::local_wait: run_local_extract(index); break;
      case Kind::peer:
      case Kind::dial: break;
    }
  }
  return count - std::min(count, blocked_);
}

void Node::Core::run_out(std::uint32_t index) noexcept {
  if (!outs_.handle_at(index).valid()) return;  // freed while it was queued
  switch (out_at(index).state) {
    case OutState::offering: return run_offering(index);
    case OutState::summarising: return run_summarising(index);
    case OutState::sending: return run_sending(index);
    case OutState::querying: return run_querying(index);
    case OutState::draining: return run_draining(index);
    case OutState::parked:
    case OutState::offered:
    case OutState::waiting:
    case OutState::finishing:
    case OutState::restoring: return;
  }
}

void Node::Core::run_in(std::uint32_t index) noexcept {
  if (!ins_.handle_at(index).valid()) return;
  Incoming& in = in_at(index);
  if (in.state == InState::closing) return run_closing(index);
  run_answers(index);
  if (in.state == InState::deciding) return run_deciding(index);
  if (in.state == InState::decoding) return run_decoding(index);
  if (in.state == InState::receiving && in.coding.coded()) {
    const std::uint64_t runs = shape_of(in).runs();
    while (in.decode_at < runs && decode_step(in)) {
    }
    if (budget_ == 0) want(Kind::in, index);
  }
}

std::size_t Node::Core::housekeep() noexcept {
  if (now_ >= next_forget_ns_) {
    forget_ended(now_ - options_.ended_memory_ns);
    fit_reservations();
    next_forget_ns_ = now_ + kSecondNs;
  }
  if (page_ != nullptr && (status_dirty_ ? now_ >= next_status_ns_ : contexts_due_ && now_ >= next_contexts_ns_)) {
    refresh_status();
    next_status_ns_ = now_ + options_.scheduler.slice_ns;
  }
  run_refresh();
  return store_->housekeep(now_, budget_);
}

TimeNs Node::Core::next_deadline() const noexcept {
  TimeNs next = std::min(timers_.next_ns(), scheduler_.next_timer_ns());
  for (std::uint32_t t = 0; t < transport_count_; ++t) next = std::min(next, transports_[t]->next_deadline_ns());
  next = std::min({next, tier_deadline(), refresh_deadline()});
  if (blocked_ > 0 || event_agents_.size() > 0 || announce_dirty_) next = std::min(next, now_ + kBlockedRetryNs);
  if (open_transfers() > 0) next = std::min(next, next_slice_ns_);
  if (page_ != nullptr && status_dirty_) next = std::min(next, next_status_ns_);
  if (page_ != nullptr && contexts_due_) next = std::min(next, next_contexts_ns_);
  return next;
}

bool Node::Core::arm() noexcept {
  if (work_.size() > blocked_) return false;
  for (std::uint32_t t = 0; t < transport_count_; ++t) {
    if (!transports_[t]->arm()) return false;
  }
  return true;
}

// In the order of Kind, but for the last.
std::array<std::uint32_t, 7> Node::Core::entity_sizes() const noexcept {
  return {outs_.capacity(),          ins_.capacity(),     peers_.capacity(),
          options_.limits.max_dials, fetches_.capacity(), agents_.capacity(), restores_.capacity()};
}

std::uint32_t Node::Core::entity(Kind kind, std::uint32_t index) const noexcept {
  const auto sizes = entity_sizes();
  std::uint32_t base = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(kind); ++k) base += sizes[k];
  return base + index;
}

Node::Core::Kind Node::Core::kind_of(std::uint32_t id, std::uint32_t& index) const noexcept {
  const auto sizes = entity_sizes();
  index = id;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    if (index < sizes[k]) return static_cast<Kind>(k);
    index -= sizes[k];
  }
  return Kind::local_wait;
}

}  // namespace kvrail::engine
