// The sender's second half: payload, digests, planes, and the chunks that the scheduler lets go.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kNoMemoryRetryNs = 2 * kMillisecondNs;

// Shares of a cycle's work: at least one unit, so that something always moves.
void spend(std::uint64_t& budget, std::uint64_t bytes) noexcept { budget -= std::min(budget, bytes); }

}  // namespace

PayloadShape Node::Core::shape_of(const Outgoing& out, const VersionView& view) const noexcept {
  PayloadShape shape{view.layout, out.rows > 0 ? out.rows : view.tokens.size(), out.coding, out.tail_from_row,
                     std::span(out.ranges).first(out.range_count), out.first_plane};
  shape.tail_first = out.tail_first;
  Store::StagingView staged;
  if (!out.gather.empty() && store_->view(out.gather[0].staging, staged)) shape.positions = staged.positions;
  return shape;
}

void Node::Core::begin_sending(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  VersionView view;
  KVRAIL_ASSERT(store_->view(out.version, view));
  const PayloadShape shape = shape_of(out, view);
  if (view.blocks.empty() || !shape.valid()) return cancel_out(index, Status{Code::protocol_error});
  out.missing_blocks = shape.missing_blocks();
  move(out, OutState::sending);
  arm_out(index);
  want(Kind::out, index);
}

void Node::Core::run_sending(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (out.restart_wanted) {
    if (out.chunks_in_flight > 0) return;  // on_chunk_done calls again
    out.restart_wanted = false;
    return restart(index);
  }
  if (out.lane == kNoIndex || out.cut) return;
  VersionView view;
  KVRAIL_ASSERT(store_->view(out.version, view));
  if (out.medium == Medium::topk) {
    if (!gather(index, view)) return;
    view.blocks = blocks_of(out, view);
  }
  const PayloadShape shape = shape_of(out, view);
  if (!out.payload_built && !build(index, view, shape)) return;
  prepare(index, view, shape);
  if (out.restart_wanted) return want(Kind::out, index);
  if (!out.flow.valid() && out.span_at < out.span_count) add_span_flow(index);
  if (out.flow.valid()) scheduler_.set_ready(out.flow, std::min(out.ready_bytes, out.spans[out.span_at].end), now_);
  if (out.prepare_at < shape.runs()) want(Kind::out, index);
}

// False: it goes on in another cycle, or the transfer has taken another way.
bool Node::Core::build(std::uint32_t index, const VersionView& view, const PayloadShape& shape) noexcept {
  Outgoing& out = out_at(index);
  Steps steps(*this);
  if (shape.coded() && out.planes_held < out.missing_blocks) {
    if (!attach_planes(out, view, steps.left)) {
      without_medium(index);  // no memory for planes, or not of these rows
      return false;
    }
    if (out.planes_held < out.missing_blocks) {
      want(Kind::out, index);
      return false;
    }
  }
  if (out.arrays.pieces.empty() && !begin_payload(shape, options_.integrity, scratch_, out.arrays)) {
    out.state_due_ns = now_ + kNoMemoryRetryNs;
    arm_out(index);
    return false;
  }
  if (!build_payload(shape, *store_, view.blocks, out.arrays, steps.left)) {
    want(Kind::out, index);
    return false;
  }
  if (!shape.positions.empty() && options_.integrity) {
    codec::digests(shape.positions, out.arrays.digests.subspan(out.arrays.payload.first_unit.back()));
  }
  out.payload_built = true;
  out.span_count = 1;
  out.span_at = 0;
  out.spans[0] = {0, out.arrays.payload.total_bytes};
  out.posted_end = 0;
  return true;
}

bool Node::Core::attach_planes(Outgoing& out, const VersionView& view, std::uint64_t& budget) noexcept {
  const PayloadShape shape = shape_of(out, view);
  for (; out.planes_held < out.missing_blocks && budget > 0; ++out.planes_held, --budget) {
    const std::uint32_t number = shape.nth(out.planes_held);
    if (!store_->attach_planes(view.blocks[number], out.coding.of_block(number))) return false;
  }
  return true;
}

// The store keeps planes as long as room allows, for the next one that sends the block.
void Node::Core::release_planes(Outgoing& out, std::uint64_t budget) noexcept {
  if (out.planes_held == 0) return;
  VersionView view;
  KVRAIL_ASSERT(store_->view(out.version, view));
  const PayloadShape shape = shape_of(out, view);
  for (; out.planes_held > 0 && budget > 0; --out.planes_held, --budget) {
    store_->release_planes(blocks_of(out, view)[shape.nth(out.planes_held - 1)]);
  }
}

// Goes on where the last cycle stopped; ready_bytes says how far the stream may be posted.
void Node::Core::prepare(std::uint32_t index, const VersionView& view, const PayloadShape& shape) noexcept {
  Outgoing& out = out_at(index);
  const transport::Payload& payload = out.arrays.payload;
  const bool planes = shape.coded();
  const std::uint64_t runs = shape.runs();
  if (!planes && !options_.integrity) out.prepare_at = runs;
  for (Steps steps(*this); out.prepare_at < runs && budget_ > 0 && steps.left > 0; --steps.left) {
    if (!(planes ? prepare_planes(out, view, shape) : prepare_raw(out, view, shape))) break;
    ++out.prepare_at;
    const std::uint64_t next = planes ? shape.ready_piece(out.prepare_at) : out.prepare_piece;
    out.ready_bytes = next < payload.starts.size() ? payload.starts[next] : payload.total_bytes;
  }
  if (out.prepare_at == runs) out.ready_bytes = payload.total_bytes;
  if (!out.encodings_checked) check_encodings(out, view, shape);
}

// The receiver has planes and asks for the next one only. That is of use if all of them are of one
// encoding, which is known when the last layer is encoded; until then nothing goes.
void Node::Core::check_encodings(Outgoing& out, const VersionView& view, const PayloadShape& shape) noexcept {
  out.ready_bytes = 0;
  if (out.prepare_at < shape.runs() || out.restart_wanted) return;
  out.encodings_checked = true;
  if (encodings_of(view.blocks, shape) == out.encodings) {
    out.ready_bytes = out.arrays.payload.total_bytes;
    return;
  }
  ++counters_.foreign_encodings;
  out.whole_planes = out.restart_wanted = true;
  drop_flow(out);
}

Hash128 Node::Core::encodings_of(std::span<const BlockHandle> blocks, const PayloadShape& shape) const noexcept {
  std::array<Hash128, 2> fold{};
  for (std::uint64_t n = 0; n < shape.missing_blocks(); ++n) {
    fold[1] = store_->block(blocks[shape.nth(n)]).encoding;
    fold[0] = codec::hash_of({reinterpret_cast<const char*>(fold.data()), sizeof(fold)});
  }
  return fold[0];
}

bool Node::Core::prepare_raw(Outgoing& out, const VersionView& view, const PayloadShape& shape) noexcept {
  const std::uint32_t layer = shape.run_layer(out.prepare_at);
  const std::uint32_t number = shape.run_block(out.prepare_at);
  const std::uint32_t pieces = shape.pieces_of(number);
  std::uint64_t* to = out.arrays.digests.data() + out.arrays.first_unit[out.prepare_piece];
  if (shape.first_row_of(number) == 0) {
    const BlockHandle block = view.blocks[number];
    if (!store_->ensure_digests(block, layer + 1, budget_)) {
      budget_ = 0;
      return false;
    }
    const std::span<const std::uint64_t> digests = store_->raw_digests(block, layer);
    KVRAIL_ASSERT(out.arrays.first_unit[out.prepare_piece] + digests.size() <= out.arrays.digests.size());
    std::copy(digests.begin(), digests.end(), to);
  } else {
    for (std::uint32_t p = 0; p < pieces; ++p) {
      const transport::Piece& piece = out.arrays.pieces[out.prepare_piece + p];
      const std::uint32_t units = transport::units_in(piece.bytes);
      codec::digests({piece.address, piece.bytes}, {to, units});
      spend(budget_, piece.bytes);
      to += units;
    }
  }
  out.prepare_piece += pieces;
  return true;
}

// A layer of a block that another transfer has encoded already is there.
bool Node::Core::prepare_planes(Outgoing& out, const VersionView& view, const PayloadShape& shape) noexcept {
  const std::uint32_t layer = shape.run_layer(out.prepare_at);
  const std::uint32_t number = shape.run_block(out.prepare_at);
  const BlockHandle handle = view.blocks[number];
  const BlockView block = store_->block(handle);
  const Coding coding = out.coding.of_block(number);
  if (!planes_there(block, coding.planes(), layer + 1)) {
    const std::uint64_t bytes = 2 * std::uint64_t{view.layout.block_tokens} * view.layout.row_bytes();
    const TimeNs before = clock_.now_ns();
    const CodecWork::Encoded encoded = codecs_.encode(view.layout, coding, block, number, layer);
    codecs_.learn_encode(coding.rows(), clock_.now_ns() - before, bytes);
    counters_.encoded_bytes += bytes;
    spend(budget_, bytes);
    if (encoded != CodecWork::Encoded::ok) {
      // What was too large is offered again with more room, unless that makes it useless.
      if (encoded == CodecWork::Encoded::refused) rule_out_medium(out);
      out.restart_wanted = true;
      drop_flow(out);
      return false;
    }
    store_->planes_written(handle, coding.planes(), layer + 1);
  }
  if (!options_.integrity) return true;
  for (std::uint32_t n = 0; n < shape.plane_count(); ++n) {
    if (!shape.in_plane(n, number)) continue;
    const std::uint64_t piece = shape.piece_of(n, out.prepare_at);
    const std::span<const std::uint64_t> digests = store_->plane_digests(handle, shape.plane_at(n), layer);
    KVRAIL_ASSERT(out.arrays.first_unit[piece] + digests.size() <= out.arrays.digests.size());
    std::copy(digests.begin(), digests.end(), out.arrays.digests.begin() + out.arrays.first_unit[piece]);
  }
  return true;
}

// ---- chunks ----------------------------------------------------------------------------------------

void Node::Core::add_span_flow(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT(!out.flow.valid() && out.span_at < out.span_count);
  const ByteSpan& span = out.spans[out.span_at];
  scheduler::FlowSpec spec;
  spec.lane = out.lane;
  spec.cookie = outs_.handle_at(index).packed();
  spec.total_bytes = span.end;
  spec.ready_bytes = std::clamp(out.ready_bytes, span.begin, span.end);
  spec.start_offset = span.begin;
  spec.weight = out.weight;
  spec.base_milli = std::uint32_t{out.criticality_milli} * out.weight;
  spec.submitted_ns = out.submitted_ns;
  spec.deadline_ns = out.deadline_ns != 0 ? out.deadline_ns : out.urgent_by_ns;
  spec.critical = out.critical;
  spec.background = out.background;
  spec.suspensions = out.suspensions;
  spec.budget = budget_of(out);
  out.posted_end = span.begin;
  out.flow = scheduler_.add_flow(spec, now_);
  if (!out.flow.valid()) want_later(Kind::out, index);
}

void Node::Core::drop_flow(Outgoing& out) noexcept {
  if (!out.flow.valid()) return;
  out.level = scheduler_.level_of(out.flow);
  out.urgency_milli = scheduler_.urgency_milli(out.flow, now_);
  out.suspensions = scheduler_.suspensions_of(out.flow);
  scheduler_.remove_flow(out.flow);
  out.flow = scheduler::FlowHandle{};
}

std::size_t Node::Core::post_chunks() noexcept {
  constexpr std::size_t kLanes = 64;
  KVRAIL_ASSERT(lanes_.capacity() <= kLanes);
  const std::size_t count = scheduler_.step(now_, actions_);
  if (count == 0) return 0;                    // as in most cycles; what follows clears half a kilobyte
  std::uint64_t refused = 0;                   // lanes that took no more, by index
  std::array<std::size_t, kLanes> from{};      // and their first action that was not taken
  std::size_t posted = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t lane = std::uint64_t{1} << actions_[i].lane;
    if ((refused & lane) != 0) continue;       // order within a lane is kept
    if (post_chunk(actions_[i])) {
      ++posted;
    } else {
      refused |= lane;
      from[actions_[i].lane] = i;
    }
  }
  // Only what a full lane refused goes back, last first; the other lanes' chunks are on their way.
  for (std::size_t i = count; refused != 0 && i > 0; --i) {
    const scheduler::PostAction& action = actions_[i - 1];
    if ((refused >> action.lane & 1U) != 0 && i - 1 >= from[action.lane]) scheduler_.unpost(action);
  }
  if (refused != 0) ++counters_.posts_refused;
  return posted;
}

bool Node::Core::post_chunk(const scheduler::PostAction& action) noexcept {
  const OutHandle handle = OutHandle::unpack(action.cookie);
  Outgoing& out = *must(outs_.get(handle));
  Lane& lane = *must(lane_at(action.lane));
  KVRAIL_ASSERT(out.state == OutState::sending && out.lane == action.lane && action.bytes > 0);
  KVRAIL_ASSERT(action.offset == out.posted_end && action.offset + action.bytes <= out.ready_bytes);
  if (lane.closing) return false;
  const auto use = action.reserved ? scheduler::CreditUse::reserved : scheduler::CreditUse::ordinary;
  if (!arbiter_.try_take_credit(action.lane, scheduler::CreditKind::data, use)) return false;
  const Handle<Chunk> chunk = chunks_.try_emplace();
  if (!chunk.valid()) {
    arbiter_.give_credit(action.lane, scheduler::CreditKind::data);
    return false;
  }
  *chunks_.get(chunk) = Chunk{handle, action.offset, action.bytes, action.lane};
  transport::ChunkPost post;
  post.lease = out.lease;
  post.transfer = out.id;
  post.source = &out.arrays.payload;
  post.offset = action.offset;
  post.bytes = action.bytes;
  post.critical = action.critical;
  post.cookie = chunk.packed();
  if (!transports_[lane.transport]->try_post_chunk(lane.id, post)) {
    chunks_.erase(chunk);
    arbiter_.give_credit(action.lane, scheduler::CreditKind::data);
    return false;
  }
  ++out.chunks_in_flight;
  out.posted_end = action.offset + action.bytes;
  return true;
}

void Node::Core::on_chunk_done(std::uint32_t, const Event& event) noexcept {
  const Handle<Chunk> handle = Handle<Chunk>::unpack(event.cookie);
  const Chunk chunk = *must(chunks_.get(handle));  // one completion per chunk is the contract
  chunks_.erase(handle);
  arbiter_.give_credit(chunk.lane, scheduler::CreditKind::data);
  const bool ok = event.status.ok();
  scheduler_.chunk_done(chunk.lane, chunk.bytes, event.posted_ns, event.completed_ns, ok, now_);
  if (Lane* lane = lane_at(chunk.lane); lane != nullptr && ok) heard(*lane);
  Outgoing& out = *must(outs_.get(chunk.out));
  KVRAIL_ASSERT(out.chunks_in_flight > 0);
  --out.chunks_in_flight;
  if (ok) {
    out.acknowledged_bytes += chunk.bytes;
    counters_.payload_bytes_out += chunk.bytes;
  } else {
    out.chunk_failed = true;
  }
  if (out.chunks_in_flight > 0) return;
  if (out.state == OutState::draining || out.restart_wanted) return want(Kind::out, chunk.out.index);
  if (out.state == OutState::sending && out.posted_end == out.spans[out.span_at].end) span_done(chunk.out.index);
}

void Node::Core::span_done(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  drop_flow(out);
  if (++out.span_at < out.span_count) return want(Kind::out, index);
  const bool ask = out.chunk_failed || out.outcome_pending;
  out.retry_ns = 0;
  begin_finishing(index);
  if (ask) begin_query(index);
}

}  // namespace kvrail::engine
