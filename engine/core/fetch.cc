// Transfers that the receiver starts: FETCH goes to the owner's node, which answers with an OFFER that
// carries the fetch id, or with a REJECT.
#include <algorithm>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kFirstFetchNs = 500 * kMillisecondNs;   // repeated after that, doubled
constexpr TimeNs kLastFetchNs = 4 * kSecondNs;

}  // namespace

Status Node::Core::fetch(AgentHandle handle, TicketId ticket, const Name& owner, const Name& context,
                         std::uint64_t version, const SendOptions& options) noexcept {
  LocalAgent* asker = agent(handle);
  if (asker == nullptr) return Status{Code::not_found};
  if (draining_) return Status{Code::shutting_down, Scope::engine};
  if (ticket == 0 || options.deadline_ns < 0 || options.fidelity_floor_ppm > 1'000'000) {
    return Status{Code::invalid_argument};
  }
  const AgentWhere* place = where(asker->info.tenant, owner);
  if (place == nullptr || place->local.valid()) {
    // Of an owner that has gone what was kept of its contexts can be had.
    const AgentHandle from = place == nullptr ? AgentHandle{} : place->local;
    const VersionHandle found = place == nullptr ? store_->find(asker->tenant, owner, context, version)
                                                 : store_->find_for(from, context, version);
    VersionView view;
    const bool known = found.valid() && store_->view(found, view);
    if (!known && tier_ == nullptr) return Status{Code::not_found};
    if (!reserve_events(handle, 1)) return Status{Code::out_of_capacity};
    if (!known) {
      if (begin_recall({handle, ticket, asker->tenant, owner, context, version, options, now_, 0, {}, false})) return Status{};
      release_reserved(handle, 1);
      return Status{Code::not_found};
    }
    deliver_locally({next_transfer_++, from, handle, ticket, true, 0, context, found, options, now_}, view);
    note_used(handle, asker->tenant, owner, context);
    desk_->turn_uses(options.task, handle, owner, context);
    return Status{};
  }
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  if (!make_name(context.view()).ok()) return Status{Code::not_found};
  if (fetches_.full() || !reserve_events(handle, 1)) return Status{Code::out_of_capacity};
  yield_refresh();
  (void)open_fetch(handle, ticket, remotes_.get(remotes_.handle_at(place->remote))->peer, owner, context, version, options);
  desk_->turn_uses(options.task, handle, owner, context);
  return Status{};
}

// Invalid: the table is full.
Handle<Fetch> Node::Core::open_fetch(AgentHandle handle, TicketId ticket, std::uint32_t peer, const Name& owner, const Name& context,
                                     std::uint64_t version, const SendOptions& options) noexcept {
  const Handle<Fetch> made = fetches_.try_emplace();
  if (!made.valid()) return made;
  const AgentInfo& asker = agent(handle)->info;
  Fetch& fetch = *fetches_.get(made);
  fetch.id = next_fetch_++;
  fetch.agent = handle;
  fetch.ticket = ticket;
  fetch.peer = peer;
  fetch.tenant = asker.tenant;
  fetch.requester = asker.name;
  fetch.owner = owner;
  fetch.context = context;
  fetch.version = version;
  fetch.options = options;
  fetch.submitted_ns = now_;
  fetch.give_up_ns = add_saturating(now_, options.deadline_ns != 0 ? options.deadline_ns : options_.accept_timeout_ns);
  fetch.retry_ns = kFirstFetchNs;
  timers_.set(entity(Kind::fetch, made.index), fetch.give_up_ns);
  want(Kind::fetch, made.index);
  return made;
}

void Node::Core::run_fetch(std::uint32_t index) noexcept {
  Fetch* fetch = fetches_.get(fetches_.handle_at(index));
  if (fetch == nullptr || fetch->posted || fetch->in.valid()) return;
  const std::uint32_t lane = best_lane(fetch->peer);
  if (lane == kNoIndex) return;
  if (!desk_->tell(fetch->options.task, fetch->peer, lane)) return want_later(Kind::fetch, index);
  wire::Fetch message;
  message.fetch_id = fetch->id;
  message.task = fetch->options.task;
  message.tenant = fetch->tenant;
  message.requester = fetch->requester;
  message.owner = fetch->owner;
  message.context = fetch->context;
  message.version = fetch->version;
  message.remaining_ns = fetch->options.deadline_ns == 0
                             ? 0
                             : static_cast<std::uint64_t>(std::max<TimeNs>(fetch->give_up_ns - now_, 1));
  message.fidelity_floor_ppm = fetch->options.fidelity_floor_ppm;
  message.critical = fetch->options.critical;
  message.background = fetch->options.background;
  message.wish = fetch->options.medium;
  if (!post(lane, message)) return want_later(Kind::fetch, index);
  fetch->posted = true;
  fetch->resend_at_ns = now_ + jittered(fetch->retry_ns);
  fetch->retry_ns = std::min(2 * fetch->retry_ns, kLastFetchNs);
  timers_.set(entity(Kind::fetch, index), std::min(fetch->give_up_ns, fetch->resend_at_ns));
}

void Node::Core::fetch_timer(std::uint32_t index) noexcept {
  Fetch* fetch = fetches_.get(fetches_.handle_at(index));
  if (fetch == nullptr) return;
  if (ins_.get(fetch->in) != nullptr) {
    // The transfer is here and has the deadline itself; ask again later whether it still is.
    timers_.set(entity(Kind::fetch, index), now_ + kLastFetchNs);
    return;
  }
  if (now_ >= fetch->give_up_ns) return end_fetch(index, Status{Code::timed_out}, nullptr);
  fetch->posted = false;
  timers_.set(entity(Kind::fetch, index), fetch->give_up_ns);
  want(Kind::fetch, index);
}

std::uint32_t Node::Core::find_fetch(std::uint64_t id) noexcept {
  std::uint32_t found = kNoIndex;
  fetches_.for_each([&](Handle<Fetch> handle, Fetch& fetch) {
    if (fetch.id == id) found = handle.index;
  });
  return found;
}

// The fetch that `in` answers is open again; another offer may come for it.
void Node::Core::await_offer(Incoming& in) noexcept {
  if (in.fetch != kNoIndex) fetches_.get(fetches_.handle_at(in.fetch))->in = InHandle{};
  in.fetch = kNoIndex;
}

void Node::Core::end_fetch(std::uint32_t index, Status status, const Incoming* in) noexcept {
  const Handle<Fetch> handle = fetches_.handle_at(index);
  const Fetch fetch = *must(fetches_.get(handle));
  if (Incoming* open = ins_.get(fetch.in); open != nullptr) open->fetch = kNoIndex;
  fetches_.erase(handle);
  timers_.cancel(entity(Kind::fetch, index));
  if (fetch.refresh) return end_refresh(handle, fetch, status);
  AgentEvent event;
  event.kind = AgentEventKind::fetched;
  event.ticket = fetch.ticket;
  event.status = status;
  event.task = fetch.options.task;
  event.critical = fetch.options.critical;
  event.observed_ns = now_ - fetch.submitted_ns;
  if (in != nullptr) {
    event.medium = in->medium;
    event.transfer = in->id;
    event.version_number = in->version_number;
    event.bytes = in->payload_bytes;
    event.missing_blocks = in->missing_blocks;
    event.predicted_ns = predicted_ns(*in);
  }
  push_event(fetch.agent, event);
}

// ---- the owner -------------------------------------------------------------------------------------

void Node::Core::on_fetch(std::uint32_t lane, const wire::Fetch& message) noexcept {
  const std::uint32_t peer = lane_at(lane)->peer;
  bool known = false;
  outs_.for_each([&](OutHandle, Outgoing& out) {
    known |= out.fetch_id == message.fetch_id && out.peer == peer && out.state != OutState::draining;
  });
  if (known) return;  // repeated
  // Absent, of another tenant, or asked for by someone who isn't there: one answer for all.
  const Status not_found{Code::not_found};
  const AgentWhere* owner = where(message.tenant, message.owner);
  const AgentWhere* asker = where(message.tenant, message.requester);
  if (owner == nullptr || !owner->local.valid() || asker == nullptr || asker->local.valid()) {
    return refuse(lane, 0, message.fetch_id, not_found);
  }
  const RemoteAgent& remote = *remotes_.get(remotes_.handle_at(asker->remote));
  if (remote.peer != peer) return refuse(lane, 0, message.fetch_id, not_found);
  if (draining_) return refuse(lane, 0, message.fetch_id, Status{Code::shutting_down, Scope::engine});
  const VersionHandle version = store_->find_for(owner->local, message.context, message.version);
  VersionView view;
  if (!version.valid() || !store_->view(version, view)) return refuse(lane, 0, message.fetch_id, not_found);
  if (outs_.full()) return;  // it asks again
  const AgentInfo& info = agent(owner->local)->info;
  OutRequest request;
  request.from = owner->local;
  request.fetch_id = message.fetch_id;
  request.tenant = message.tenant;
  request.from_name = message.owner;
  request.to_name = message.requester;
  request.context = message.context;
  request.version = version;
  request.version_number = view.number;
  request.peer = peer;
  request.weight = static_cast<std::uint16_t>(std::min(info.role + remote.role, 0xffff));
  request.options.task = message.task;
  request.options.deadline_ns = static_cast<std::int64_t>(std::min<std::uint64_t>(message.remaining_ns, INT64_MAX / 4));
  request.options.fidelity_floor_ppm = message.fidelity_floor_ppm;
  request.options.medium = message.wish;
  request.options.critical = message.critical;
  request.options.background = message.background;
  begin_out(start_out(request).index, view);
}

}  // namespace kvrail::engine
