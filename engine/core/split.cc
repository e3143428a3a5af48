// The medium split at the receiver: the agent computes the head of a context, block by block as it claims them, while
// the tail arrives, last block first. The receiver alone moves the two marks: `claimed` rises with each claim, `tail`
// falls with each whole block that has come; the transfer has all it needs when they meet. What came of blocks that the
// agent computes all the same is thrown away.
//
// A Split lives from the delivery of the token ids until the last claim is answered: with the tail, or with why it
// does not come. If the agent claims nothing, all of it arrives.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {

// Only missing blocks that reach from what is held to the end can be met from both sides.
bool Node::Core::can_split(const Incoming& in) noexcept {
  const std::uint64_t blocks = (in.tokens.size() + in.layout.block_tokens - 1) / in.layout.block_tokens;
  return in.range_count == 1 && in.ranges[0].count >= 2 && in.ranges[0].first + std::uint64_t{in.ranges[0].count} == blocks;
}

// The ids, and the KV that is held of the start. Without room for them it becomes a delivery like any other.
void Node::Core::begin_split(Incoming& in, InHandle handle) noexcept {
  if (splits_.full() || split_of_.full()) return;
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  const auto ids = store_->publish_tokens(in.tenant_handle, in.from_name, in.context, in.version_number, in.layout,
                                          Medium::tokens, in.tokens, in.epsilon_ppm);
  if (!ids.ok()) return;
  const DeliveryHandle first = store_->deliver(in.to, ids.value());
  if (!first.valid()) return;
  in.split = splits_.try_emplace();
  Split& split = *splits_.get(in.split);
  split.to = in.to;
  split.first = first;
  split.in = handle;
  split.tail = in.ranges[0].count;
  split.begun_ns = now_;
  KVRAIL_ASSERT(split_of_.insert(first.packed(), in.split.index) != nullptr);
  AgentEvent event;
  event.kind = AgentEventKind::delivery;
  event.medium = Medium::split;
  event.critical = in.critical;
  event.task = in.task;
  event.transfer = in.id;
  event.version = ids.value();
  event.version_number = in.version_number;
  event.delivery = first;
  event.manifest = store_->manifest(first);
  event.missing_blocks = in.missing_blocks;
  event.predicted_ns = predicted_ns(in);
  event.observed_ns = now_ - in.submitted_ns;
  KVRAIL_ASSERT(in.event_reserved);
  in.event_reserved = false;
  push_event(in.to, event);
}

// ---- the marks -------------------------------------------------------------------------------------

// Bytes of the stream up to the end of the block `at` of the missing ones.
std::uint64_t Node::Core::stream_end(const Incoming& in, const PayloadShape& shape, std::uint64_t at) noexcept {
  const transport::Payload& payload = in.arrays.payload;
  const std::uint64_t piece = shape.tail_pieces(shape.missing_blocks() - at);
  return piece < payload.starts.size() ? payload.starts[piece] : payload.total_bytes;
}

// All of the stream that the transfer still needs.
std::uint64_t Node::Core::needed_bytes(const Incoming& in) const noexcept {
  const Split* split = splits_.get(in.split);
  if (split == nullptr || split->claimed == 0) return in.arrays.payload.total_bytes;
  return stream_end(in, shape_of(in), split->claimed);
}

std::uint64_t Node::Core::needed_runs(const Incoming& in) const noexcept {
  const Split* split = splits_.get(in.split);
  return (in.missing_blocks - (split == nullptr ? 0 : split->claimed)) * in.layout.layers;
}

void Node::Core::move_tail(const Incoming& in, Split& split) noexcept {
  const PayloadShape shape = shape_of(in);
  while (split.tail > split.claimed && in.received.covers(0, stream_end(in, shape, split.tail - 1))) --split.tail;
}

// How many blocks from the head on the agent may compute now: as many as it will have when the network has brought the
// others, by what both have taken so far. The last missing block always comes from the network, so that a delivery has a
// tail; one that is arriving is waited for.
std::uint32_t Node::Core::grant(const Incoming& in, Split& split, std::uint32_t most) const noexcept {
  const std::uint32_t between = split.tail - split.claimed;
  const auto arrived = static_cast<std::uint64_t>(in.missing_blocks) - split.tail;
  if (between == 0 || split.claimed + 1 >= in.missing_blocks) return 0;
  if (between == 1 && in.received.bytes() > stream_end(in, shape_of(in), split.tail)) return 0;
  const auto limit = std::min({most, between, static_cast<std::uint32_t>(in.missing_blocks) - 1 - split.claimed});
  if (arrived == 0 || split.granted == 0 || now_ <= split.begun_ns) return limit;
  const auto arrival_ns = static_cast<std::uint64_t>(now_ - split.begun_ns) / arrived;
  const auto compute_ns = static_cast<std::uint64_t>(std::max<TimeNs>(now_ - split.granted_ns, 1)) / split.granted;
  const std::uint64_t fair = std::max<std::uint64_t>(between * arrival_ns / std::max<std::uint64_t>(arrival_ns + compute_ns, 1), 1);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, fair));
}

// ---- claims ----------------------------------------------------------------------------------------

Status Node::Core::claim(AgentHandle handle, TicketId ticket, DeliveryHandle delivery, std::uint32_t most_tokens) noexcept {
  if (agent(handle) == nullptr) return Status{Code::not_found};
  if (ticket == 0 || most_tokens == 0) return Status{Code::invalid_argument};
  const std::uint32_t* found = split_of_.find(delivery.packed());
  if (found == nullptr || split_at(*found).to != handle) return Status{Code::generation_mismatch};
  if (!reserve_events(handle, 1)) return Status{Code::out_of_capacity};
  Split& split = split_at(*found);
  if (split.waiting != 0) answer_claim(split, Status{Code::cancelled});  // nobody waits for it any more
  split.waiting = ticket;
  if (split.ended) {
    answer_last(*found);
    return Status{};
  }
  Incoming& in = *must(ins_.get(split.in));
  if (in.state != InState::receiving) return Status{};  // the tail is being made ready
  move_tail(in, split);
  const std::uint32_t most = std::max(most_tokens / in.layout.block_tokens, 1U);
  const std::uint32_t blocks = grant(in, split, most);
  if (blocks == 0) return Status{};
  AgentEvent event;
  event.kind = AgentEventKind::claimed;
  event.ticket = ticket;
  event.transfer = in.id;
  event.extent.offset = (in.ranges[0].first + std::uint64_t{split.claimed}) * in.layout.block_tokens;
  event.extent.count = blocks * in.layout.block_tokens;
  split.claimed += blocks;
  split.granted = blocks;
  split.granted_ns = now_;
  split.waiting = 0;
  in.last_activity_ns = now_;
  push_event(handle, event);
  if (split.tail == split.claimed) seal(split.in.index);
  return Status{};
}

void Node::Core::answer_claim(Split& split, Status status) noexcept {
  AgentEvent event;
  event.kind = AgentEventKind::claimed;
  event.ticket = split.waiting;
  event.status = status;
  split.waiting = 0;
  push_event(split.to, event);
}

// The claim that waits gets the tail, or why there is none; with that the split is over.
void Node::Core::answer_last(std::uint32_t index) noexcept {
  Split& split = split_at(index);
  KVRAIL_ASSERT(split.ended && split.waiting != 0);
  AgentEvent event = split.last;
  event.kind = AgentEventKind::claimed;
  event.ticket = split.waiting;
  push_event(split.to, event);
  erase_split(index);
}

// ---- the end ---------------------------------------------------------------------------------------

// The deadline has come. Whole blocks of the tail are delivered; all before them is the agent's, claimed or not.
bool Node::Core::cut_split(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  Split* split = splits_.get(in.split);
  if (split == nullptr || in.state != InState::receiving) return false;
  move_tail(in, *split);
  if (split->tail == in.missing_blocks) return false;
  split->claimed = split->tail;
  in.deadline_ns = 0;
  ++counters_.transfers_cut;
  seal(index);
  return true;
}

// The blocks that the agent has computed are not published: only it has them.
void Node::Core::leave_head(Incoming& in) noexcept {
  const Split* split = splits_.get(in.split);
  if (split == nullptr || split->claimed == 0 || in.medium == Medium::split) return;
  const std::uint32_t first = in.ranges[0].first;
  store_->leave_head(in.staging, first, first + split->claimed);
  in.cut_at_bytes = in.received.bytes();
  in.medium = Medium::split;
}

void Node::Core::end_split(Incoming& in, const AgentEvent& last) noexcept {
  Split* split = splits_.get(in.split);
  if (split == nullptr) return;
  const std::uint32_t index = in.split.index;
  in.split = Handle<Split>{};
  split->in = InHandle{};
  split->ended = true;
  split->last = last;
  if (split->waiting != 0) answer_last(index);
}

// The agent gives the delivery back: what it has not asked for is let go.
void Node::Core::drop_split(AgentHandle handle, DeliveryHandle delivery) noexcept {
  const std::uint32_t* found = split_of_.find(delivery.packed());
  if (found == nullptr || split_at(*found).to != handle) return;
  const std::uint32_t index = *found;
  if (Incoming* in = ins_.get(split_at(index).in); in != nullptr) {
    in->split = Handle<Split>{};
    fail_in(split_at(index).in.index, Status{Code::cancelled});
  }
  Split& split = split_at(index);
  if (split.waiting != 0) answer_claim(split, Status{Code::cancelled});
  if (split.ended && split.last.delivery.valid()) (void)store_->release(split.to, split.last.delivery);
  erase_split(index);
}

void Node::Core::erase_split(std::uint32_t index) noexcept {
  split_of_.erase(split_at(index).first.packed());
  splits_.erase(splits_.handle_at(index));
}

// Its deliveries go with the agent, and its transfers have ended.
void Node::Core::drop_splits_of(AgentHandle handle) noexcept {
  splits_.for_each([&](Handle<Split> split, Split& of) {
    if (of.to == handle) erase_split(split.index);
  });
}

}  // namespace kvrail::engine
