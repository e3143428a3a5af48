// Delivery between agents of one node: one descriptor and a reference count, no byte is read. Names are
// looked up within a tenant, so another tenant's agent is simply not found.
#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"
#include "scheduler/cost.h"

namespace kvrail::engine {

Status Node::Core::version_for_local(const LocalRequest& request, const VersionView& view, Medium& medium,
                                     VersionHandle& version) noexcept {
  const LocalAgent* from = agent(request.from);  // none: what a fetch found of an owner that has gone
  const AgentInfo& to = agent(request.to)->info;
  const bool same_tokenizer = from != nullptr ? from->info.tokenizer == to.tokenizer : to.layout == view.layout;
  const Medium wish = request.options.medium == Medium::automatic ? options_.policy : request.options.medium;
  const auto accepts = [&](Medium m) { return (to.accepted & mask_of(m)) != 0; };
  const bool as_tokens = accepts(Medium::tokens) && same_tokenizer && !view.tokens.empty();
  const scheduler::MediumLoss& loss = loss_.at(view.tokens.size()).media[static_cast<std::size_t>(view.medium)];
  // For its lineage another way is sought only where there is one, and no medium was wished for by name.
  const struct {
    std::uint32_t fidelity_floor_ppm, lineage_floor_ppm;
  } floors{request.options.fidelity_floor_ppm,
           as_tokens && request.options.medium == Medium::automatic ? options_.lineage_floor_ppm : 0};
  const bool under_floor = view.epsilon_ppm > 0 && scheduler::under_floor(floors, loss, view.medium, view.epsilon_ppm) != nullptr;
  // What has all tokens stands for whatever of them was wished for; some of them stand for no other medium.
  const bool whole = is_kv(wish) && !is_sparse(wish);
  if (wish == Medium::summary || view.medium == Medium::summary) {
    if (!accepts(Medium::summary)) return Status{Code::rejected};
    const bool ids = view.medium != Medium::summary && extract_tokens(request.from, view) > 0;
    if (ids && !same_tokenizer) return Status{Code::rejected};
    medium = Medium::summary;
    version = view.medium == Medium::summary ? request.version : VersionHandle{};
    return Status{};
  }
  const bool has_kv = !view.blocks.empty();
  const bool as_kv = has_kv && to.layout == view.layout && (accepts(view.medium) || (accepts(Medium::full) && !is_partial(view.medium))) &&
                     view.medium != Medium::split;
  if (as_kv && wish != Medium::tokens && !under_floor && !(whole && is_partial(view.medium))) {
    medium = view.medium == Medium::tokens ? Medium::full : view.medium;
    version = request.version;
    return Status{};
  }
  if (as_tokens) {
    medium = Medium::tokens;
    if (!has_kv && to.layout == view.layout) {
      version = request.version;
      return Status{};
    }
    const AllowAllocScope allow;
    const auto made = store_->publish_tokens(view.tenant, from != nullptr ? from->info.name : view.owner, request.context, view.number, view.layout,
                                             Medium::tokens, view.tokens);
    if (made.ok()) version = made.value();
    return made.status();
  }
  const bool extract = same_tokenizer && extract_tokens(request.from, view) > 0;
  if (accepts(Medium::summary) && ((from != nullptr && from->info.summary_bytes > 0) || extract)) {
    medium = Medium::summary;
    return Status{};
  }
  return Status{to.layout == view.layout ? Code::rejected : Code::layout_mismatch};
}

void Node::Core::deliver_locally(const LocalRequest& request, const VersionView& view) noexcept {
  KVRAIL_ASSERT_MSG(store_->number(request.version) == view.number, "the view of a version that is gone");
  if (view.stub && !request.restored && wait_for_restore(request, view)) return;
  Medium medium = Medium::automatic;
  VersionHandle version;
  if (!reserve_events(request.to, 1)) return finish_locally(request, medium, Status{Code::out_of_capacity}, version);
  Status status = version_for_local(request, view, medium, version);
  if (status.ok() && medium == Medium::summary && !version.valid()) {
    if (start_local_summary(request)) return;
    status = Status{Code::out_of_capacity};
  }
  if (!status.ok()) release_reserved(request.to, 1);
  finish_locally(request, medium, status, version);
}

void Node::Core::note_local_turn(const LocalRequest& request, VersionHandle version) noexcept {
  desk_->tasks().count_transfer(request.options.task, 0);
  VersionView view;
  if (!request.fetch && store_->view(version, view)) desk_->turn_begins(request.options.task, request.to, &view.owner, &request.context);
}

void Node::Core::finish_locally(const LocalRequest& request, Medium medium, Status status,
                                VersionHandle version) noexcept {
  AgentEvent event;
  event.medium = medium;
  event.critical = request.options.critical;
  event.receiver = request.receiver;
  event.task = request.options.task;
  event.transfer = request.id;
  event.observed_ns = now_ - request.submitted_ns;
  if (status.ok()) {
    const DeliveryHandle delivery = agent(request.to) == nullptr ? DeliveryHandle{} : store_->deliver(request.to, version);
    if (delivery.valid()) {
      event.kind = AgentEventKind::delivery;
      event.version = version;
      event.version_number = store_->number(version);
      event.delivery = delivery;
      event.manifest = store_->manifest(delivery);
      push_event(request.to, event);
      ++agent(request.to)->deliveries;
      ++counters_.local_deliveries;
      if (request.options.task != 0) note_local_turn(request, version);
    } else {
      status = Status{Code::out_of_capacity};
      release_reserved(request.to, 1);
    }
  } else if (medium == Medium::summary) {
    release_reserved(request.to, 1);  // was kept for the call-back
  }
  event.kind = request.fetch ? AgentEventKind::fetched : AgentEventKind::sent;
  event.ticket = request.ticket;
  event.status = status;
  push_event(request.fetch ? request.to : request.from, event);
  explain_local(request, medium, status);
}

}  // namespace kvrail::engine
