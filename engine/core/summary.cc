// Summaries: the sending agent is asked for one by a call-back, and answers in its own time; or the engine
// makes one itself (extract.cc).
#include <algorithm>
#include <cstring>

#include "engine/core/node_core.h"

namespace kvrail::engine {

bool Node::Core::ask_for_summary(AgentHandle from, TransferId request, VersionHandle version) noexcept {
  if (agent(from) == nullptr || !reserve_events(from, 1)) return false;
  AgentEvent event;
  event.kind = AgentEventKind::summary_request;
  event.medium = Medium::summary;
  event.transfer = request;
  event.version = version;
  VersionView view;
  if (store_->view(version, view)) {
    event.version_number = view.number;
    event.manifest = view.manifest;
  }
  push_event(from, event);
  return true;
}

// ---- to another node -------------------------------------------------------------------------------

void Node::Core::begin_summary(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  move(out, OutState::summarising);
  if (!out.summary_asked) {
    VersionView view;
    KVRAIL_ASSERT(store_->view(out.version, view));
    const std::uint32_t tokens = extract_tokens(out.from, view);
    if (tokens > 0 && !begin_extract(out.extract, view, tokens)) return cancel_out(index, Status{Code::out_of_memory});
    if (tokens == 0 && !ask_for_summary(out.from, out.id, out.version)) {
      return cancel_out(index, Status{Code::not_found});
    }
    out.summary_asked = true;
  }
  out.state_due_ns = now_ + options_.accept_timeout_ns;
  arm_out(index);
  want(Kind::out, index);
}

void Node::Core::run_summarising(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (out.extract.open() && !run_extract(index)) return;
  if (!out.summary_ready || out.lane == kNoIndex) return;
  const wire::Summary message{out.id, out.summary_kind, out.summary};
  if (!post(out.lane, message)) return want_later(Kind::out, index);
  out.summary_posted = true;
  begin_finishing(index);
}

Status Node::Core::summary(AgentHandle handle, TransferId request, std::uint8_t kind,
                           std::span<const std::byte> bytes) noexcept {
  if (agent(handle) == nullptr) return Status{Code::not_found};
  if (kind > 2 || (kind != 0 && bytes.size() % 4 != 0)) return Status{Code::invalid_argument};
  if (bytes.size() > summary_limit()) return Status{Code::too_large};
  Handle<LocalWait> local;
  local_waits_.for_each([&](Handle<LocalWait> h, LocalWait& open) {
    if (open.request.id == request && open.request.from == handle && !open.restore.valid()) local = h;
  });
  if (LocalWait* open = local_waits_.get(local); open != nullptr) {
    if (open->extract.open()) return Status{Code::generation_mismatch};  // nobody asked the agent
    VersionView view;
    KVRAIL_ASSERT(store_->view(open->request.version, view));
    if (bytes.empty()) {  // The agent has none to give.
      end_local_wait(local.index, Status{Code::rejected}, VersionHandle{});
      return Status{};
    }
    const AllowAllocScope allow;
    const auto version = store_->publish_summary(view.tenant, agent(handle)->info.name, open->request.context,
                                                 view.number, kind, bytes);
    end_local_wait(local.index, version.status(), version.ok() ? version.value() : VersionHandle{});
    return Status{};
  }
  const std::uint32_t* index = out_ids_.find(request);
  if (index == nullptr || out_at(*index).from != handle) return Status{Code::not_found};
  Outgoing& out = out_at(*index);
  const bool asked = out.state == OutState::summarising || out.state == OutState::querying;
  if (!asked || !out.summary_asked || out.summary_ready || out.extract.open()) return Status{Code::generation_mismatch};
  if (bytes.empty()) {
    cancel_out(*index, Status{Code::rejected});
    return Status{};
  }
  out.summary = scratch_.try_array<std::byte>(bytes.size());
  if (out.summary.empty()) return Status{Code::out_of_capacity};
  std::memcpy(out.summary.data(), bytes.data(), bytes.size());
  out.summary_kind = kind;
  out.summary_ready = true;
  want(Kind::out, *index);
  return Status{};
}

void Node::Core::on_summary(std::uint32_t lane, const wire::Summary& message) noexcept {
  const std::uint32_t index = find_in(lane, message.transfer);
  if (index == kNoIndex) return;
  Incoming& in = in_at(index);
  if (in.state != InState::summary) return;
  const AllowAllocScope allow;
  const auto version = store_->publish_summary(in.tenant_handle, in.from_name, in.context, in.version_number,
                                               message.kind, message.bytes);
  if (!version.ok()) return close_in(index, Answer::done, version.status());
  in.summary_bytes = message.bytes.size();
  counters_.payload_bytes_in += message.bytes.size();
  deliver(index, version.value());
}

// ---- on this node ----------------------------------------------------------------------------------

bool Node::Core::start_local_summary(const LocalRequest& request) noexcept {
  const Handle<LocalWait> handle = local_waits_.try_emplace();
  if (!handle.valid()) return false;
  LocalWait& open = *local_waits_.get(handle);
  open.request = request;
  VersionView view;
  KVRAIL_ASSERT(store_->view(request.version, view));
  const std::uint32_t tokens = extract_tokens(request.from, view);
  if (tokens > 0 ? !begin_extract(open.extract, view, tokens)
                 : !ask_for_summary(request.from, request.id, request.version)) {
    local_waits_.erase(handle);
    return false;
  }
  if (tokens > 0) want(Kind::local_wait, handle.index);
  store_->pin(request.version);
  const TimeNs limit = request.options.deadline_ns != 0 ? request.options.deadline_ns : options_.accept_timeout_ns;
  timers_.set(entity(Kind::local_wait, handle.index), add_saturating(request.submitted_ns, limit));
  return true;
}

void Node::Core::end_local_wait(std::uint32_t index, Status status, VersionHandle version) noexcept {
  const Handle<LocalWait> handle = local_waits_.handle_at(index);
  if (!handle.valid()) return;
  const LocalRequest request = local_waits_.get(handle)->request;
  const Medium medium = local_waits_.get(handle)->restore.valid() ? Medium::automatic : Medium::summary;
  release_extract(local_waits_.get(handle)->extract);
  local_waits_.erase(handle);
  timers_.cancel(entity(Kind::local_wait, index));
  store_->unpin(request.version);
  finish_locally(request, medium, status, version);
}

}  // namespace kvrail::engine
