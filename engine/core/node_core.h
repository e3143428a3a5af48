// The state of a node and its handlers, one class spread over this folder by protocol event (README
// has the map). Private to engine/core.
//
// Thread: the scheduler worker. Nothing here allocates outside of the functions that node.h marks
// Conductor.
//
// Ownership of a transfer's memory over time, sender: the version is pinned and the arrays are held
// from `sending` until the last chunk has completed, whatever ended the transfer before. Receiver:
// the staging and the arrays are held from `receiving` until every transport on which the lease was
// exposed has reported it withdrawn; only then does the memory go to the reader or to the pool.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/hash.h"
#include "engine/core/codec_work.h"
#include "engine/core/flat_map.h"
#include "engine/core/node.h"
#include "engine/core/node_tables.h"
#include "engine/core/payload_plan.h"
#include "engine/core/scratch.h"
#include "engine/core/tier_port.h"
#include "engine/core/timers.h"
#include "engine/core/transfer.h"
#include "kvrail/base/no_alloc.h"
#include "kvrail/base/prng.h"
#include "scheduler/arbiter.h"
#include "scheduler/cost.h"
#include "scheduler/inflow.h"
#include "scheduler/medium_choice.h"
#include "scheduler/record.h"
#include "transport/wire/codec.h"
#include "transport/wire/frame.h"

namespace kvrail::engine {

class Node::Core {
 public:
  Core(const NodeOptions& options, Clock& clock, std::unique_ptr<Store> store);

  // cycle.cc: the duty cycle and what it walks over
  std::size_t cycle(TimeNs now) noexcept;
  std::size_t poll_transports() noexcept;
  void dispatch(std::uint32_t transport, const Event& event) noexcept;
  void on_frame(std::uint32_t lane, std::span<const std::byte> bytes) noexcept;
  template <class M>
  [[nodiscard]] bool handle(std::uint32_t lane, std::span<const std::byte> bytes, M& message,
                            void (Core::*handler)(std::uint32_t, const M&) noexcept) noexcept;
  void on_keepalive(std::uint32_t lane, const wire::Keepalive& message) noexcept;
  std::size_t run_timers() noexcept;
  std::size_t run_work() noexcept;
  void run_out(std::uint32_t out) noexcept;
  void run_in(std::uint32_t in) noexcept;
  std::size_t housekeep() noexcept;
  [[nodiscard]] TimeNs next_deadline() const noexcept;
  [[nodiscard]] bool arm() noexcept;
  [[nodiscard]] std::uint32_t open_transfers() const noexcept;
  void check() const noexcept;

  // Timer and work ids: one range per kind of entity.
  enum class Kind : std::uint8_t { out, in, peer, dial, fetch, commit, restore, local_wait };
  [[nodiscard]] std::array<std::uint32_t, 7> entity_sizes() const noexcept;
  [[nodiscard]] std::uint32_t entity(Kind kind, std::uint32_t index) const noexcept;
  [[nodiscard]] std::uint32_t entity_count() const noexcept;
  [[nodiscard]] Kind kind_of(std::uint32_t id, std::uint32_t& index) const noexcept;

  // peers.cc
  std::uint32_t add_transport(transport::Transport& transport);
  Result<void> connect(std::string_view address, std::uint32_t transport);
  [[nodiscard]] Status dial_state(std::uint32_t dial) const noexcept { return dial_states_[dial].load(); }
  void run_dial(std::uint32_t dial) noexcept;
  void on_lane_up(std::uint32_t transport, const Event& event) noexcept;
  void on_lane_down(std::uint32_t transport, const Event& event) noexcept;
  void tell_dial(std::uint32_t dial, Status state) noexcept { dial_states_[dial].store(state); }
  void dial_failed(std::uint32_t dial) noexcept;
  [[nodiscard]] std::uint32_t find_lane(std::uint32_t transport, LaneId id) const noexcept;
  [[nodiscard]] std::uint32_t find_peer(NodeId id) const noexcept;
  [[nodiscard]] std::uint32_t make_peer(NodeId id) noexcept;
  [[nodiscard]] std::uint32_t best_lane(std::uint32_t peer) const noexcept;
  void drop_duplicates(std::uint32_t peer) noexcept;
  void heard(Lane& lane) noexcept;
  void peer_timer(std::uint32_t peer) noexcept;
  void fail_peer(std::uint32_t peer, Code code) noexcept;
  void forget_peer(std::uint32_t peer) noexcept;
  void lose_out(std::uint32_t out, Status status) noexcept;     // its peer is gone
  void lose_in(std::uint32_t in, Status status, bool restarted) noexcept;
  void close_lane(std::uint32_t lane) noexcept;
  void resume_peer(std::uint32_t peer) noexcept;   // a lane is there: give it to those without one

  // directory.cc
  std::size_t announce() noexcept;
  void announce_all(std::uint32_t peer) noexcept;
  void on_agent_up(std::uint32_t lane, const wire::AgentUp& message) noexcept;
  void on_agent_down(std::uint32_t lane, const wire::AgentDown& message) noexcept;
  // Those that were last announced before `before`.
  void forget_agents_of(std::uint32_t peer, TimeNs before) noexcept;
  [[nodiscard]] const AgentWhere* where(const Name& tenant, const Name& name) const noexcept;

  // agents.cc
  [[nodiscard]] static Result<AttachMemory> prepare(const StoreOptions& options, const AgentInfo& info, bool with_tenant);
  Result<AgentHandle> attach(const AgentInfo& info, AttachMemory memory);
  [[nodiscard]] Result<AgentHandle> try_attach(const AgentInfo& info, AttachMemory& memory);
  void detach(AgentHandle agent) noexcept;
  void drop_open_work(AgentHandle agent) noexcept;
  void cancel_revoked() noexcept;
  void register_arena(std::uint32_t arena_id);
  static void unregister_arena(void* core, const mempool::Arena& arena) noexcept;
  Result<Extent> import_range(AgentHandle agent, StoreMemoryPtr memory);
  [[nodiscard]] LocalAgent* agent(AgentHandle handle) noexcept;
  [[nodiscard]] bool reserve_events(AgentHandle agent, std::uint32_t count) noexcept;
  void release_reserved(AgentHandle agent, std::uint32_t count) noexcept;
  void push_event(AgentHandle agent, const AgentEvent& event) noexcept;   // uses one reservation
  std::size_t flush_events() noexcept;
  std::size_t flush_agent(AgentHandle handle, LocalAgent& agent) noexcept;
  void drop_events(LocalAgent& agent) noexcept;
  Status allocate(AgentHandle agent, TicketId ticket, std::uint32_t blocks) noexcept;
  Status commit(AgentHandle agent, TicketId ticket, const Name& name, std::span<const TokenId> tokens,
                std::span<const Extent> slots, DeliveryHandle prefix, std::uint32_t first_block) noexcept;
  void run_commit(std::uint32_t agent) noexcept;
  void push_committed(AgentHandle agent, TicketId ticket, const Result<VersionHandle>& version) noexcept;
  Status release(AgentHandle agent, DeliveryHandle delivery, std::int64_t recompute_ns) noexcept;

  // reservations.cc
  Status reserve(AgentHandle handle, TicketId ticket, const Name& receiver, const ReservationAsk& ask) noexcept;
  Status unreserve(AgentHandle handle, ReservationId id) noexcept;
  [[nodiscard]] Handle<OpenReservation> find_reservation(AgentHandle agent, ReservationId id) const noexcept;
  [[nodiscard]] scheduler::Refusal admit(OpenReservation& reservation, std::uint32_t lane) noexcept;
  void leave_lane(OpenReservation& reservation) noexcept;
  void end_reservation(Handle<OpenReservation> handle, Status why) noexcept;  // with a notice
  template <class Which>
  void end_reservations(Status why, Which which) noexcept;
  void end_reservations_to(const Name& tenant, const Name& to, std::uint32_t peer) noexcept;
  void end_reservations_at(std::uint32_t peer, Status why) noexcept;
  void drop_reservations_of(AgentHandle agent) noexcept;
  void reservations_lose(std::uint32_t lane) noexcept;
  void admit_again(std::uint32_t peer) noexcept;
  void fit_reservations() noexcept;
  // What pays for a transfer's chunks on its lane now.
  [[nodiscard]] scheduler::BudgetHandle budget_of(const Outgoing& out) const noexcept;
  void show_reservations(StatusData& data) noexcept;

  // state.cc
  std::size_t send_states() noexcept;
  void on_state(std::uint32_t lane, const wire::State& message) noexcept;
  void store_total(std::uint64_t& total, std::uint64_t& free) const noexcept;

  // prices.cc
  [[nodiscard]] TimeNs sending_backlog_ns() const noexcept;
  [[nodiscard]] std::uint64_t sending_price_ppm() const noexcept;
  void note_sending(const Outgoing& out, TimeNs use_ns) noexcept;
  [[nodiscard]] static TimeNs sending_use_ns(const Outgoing& out, const wire::Accept& message) noexcept;
  [[nodiscard]] bool through_interface(std::uint32_t peer) noexcept;
  void note_arrival(std::uint32_t in, std::uint64_t bytes) noexcept;
  void note_receiving(const Incoming& in) noexcept;

  // sender_offer.cc
  Status send(AgentHandle agent, TicketId ticket, const Name& name, std::uint64_t version,
              std::span<const Name> receivers, const SendOptions& options) noexcept;
  void send_to(AgentHandle agent, TicketId ticket, const Name& name, VersionHandle version,
               const VersionView& view, const Name& receiver, std::uint16_t at,
               const SendOptions& options) noexcept;
  [[nodiscard]] OutHandle start_out(const OutRequest& request) noexcept;
  void park_or_offer(std::uint32_t out) noexcept;
  void begin_offer(std::uint32_t out) noexcept;
  [[nodiscard]] Status choose_candidates(Outgoing& out, const VersionView& view, const RemoteAgent& to) noexcept;
  void choose_base(Outgoing& out, const VersionView& view) noexcept;
  void run_offering(std::uint32_t out) noexcept;
  [[nodiscard]] bool post_offer(Outgoing& out, const VersionView& view) noexcept;
  [[nodiscard]] bool post_tokens(Outgoing& out, const VersionView& view) noexcept;
  [[nodiscard]] static BeliefKey belief_key(const Outgoing& out) noexcept;

  // sender_answer.cc
  void on_accept(std::uint32_t lane, const wire::Accept& message) noexcept;
  void begin_finishing(std::uint32_t out) noexcept;
  void on_later(std::uint32_t lane, const wire::Later& message) noexcept;
  void on_reject(std::uint32_t lane, const wire::Reject& message) noexcept;
  void on_done(std::uint32_t lane, const wire::Done& message) noexcept;
  void out_timer(std::uint32_t out) noexcept;
  void move(Outgoing& out, OutState to) noexcept;
  void arm_out(std::uint32_t out) noexcept;          // its timer: the state's or the deadline
  [[nodiscard]] std::uint32_t find_out(std::uint32_t lane, TransferId id) noexcept;
  void note_belief(const Outgoing& out) noexcept;
  void restart(std::uint32_t out) noexcept;          // under a new id, without excluded media

  // sender_chunks.cc
  void begin_sending(std::uint32_t out) noexcept;
  void run_sending(std::uint32_t out) noexcept;
  [[nodiscard]] PayloadShape shape_of(const Outgoing& out, const VersionView& view) const noexcept;
  void check_encodings(Outgoing& out, const VersionView& view, const PayloadShape& shape) noexcept;
  [[nodiscard]] Hash128 encodings_of(std::span<const BlockHandle> blocks, const PayloadShape& shape) const noexcept;
  [[nodiscard]] bool take_coding(Outgoing& out, const scheduler::CandidateCost& offered) noexcept;
  [[nodiscard]] bool attach_planes(Outgoing& out, const VersionView& view, std::uint64_t& budget) noexcept;
  void release_planes(Outgoing& out, std::uint64_t budget) noexcept;
  [[nodiscard]] bool build(std::uint32_t out, const VersionView& view, const PayloadShape& shape) noexcept;
  void prepare(std::uint32_t out, const VersionView& view, const PayloadShape& shape) noexcept;
  [[nodiscard]] bool prepare_raw(Outgoing& out, const VersionView& view, const PayloadShape& shape) noexcept;
  [[nodiscard]] bool prepare_planes(Outgoing& out, const VersionView& view, const PayloadShape& shape) noexcept;
  void add_span_flow(std::uint32_t out) noexcept;
  void drop_flow(Outgoing& out) noexcept;
  std::size_t post_chunks() noexcept;
  [[nodiscard]] bool post_chunk(const scheduler::PostAction& action) noexcept;
  void on_chunk_done(std::uint32_t transport, const Event& event) noexcept;
  void span_done(std::uint32_t out) noexcept;

  // query.cc
  void begin_query(std::uint32_t out) noexcept;
  void run_querying(std::uint32_t out) noexcept;
  void on_query(std::uint32_t lane, const wire::Query& message) noexcept;
  void on_outcome(std::uint32_t lane, const wire::Outcome& message) noexcept;
  void resume_spans(std::uint32_t out, const wire::Outcome& message) noexcept;
  void offer_again(std::uint32_t out) noexcept;
  void out_lane_lost(std::uint32_t out) noexcept;
  void out_lane_found(std::uint32_t out) noexcept;
  void fill_outcome(const Incoming& in, wire::Outcome& message) const noexcept;

  // cancel.cc
  Status cancel(AgentHandle agent, TicketId ticket) noexcept;
  void end_out(std::uint32_t out, Status status, std::uint64_t bytes, TimeNs observed_ns) noexcept;
  void cancel_out(std::uint32_t out, Status status) noexcept;
  void push_sent(const Outgoing& out, std::uint64_t bytes, TimeNs observed_ns) noexcept;
  void release_followers(std::uint32_t out) noexcept;
  void leave_leader(std::uint32_t out) noexcept;
  void run_draining(std::uint32_t out) noexcept;
  void free_out(std::uint32_t out) noexcept;
  void on_cancel(std::uint32_t lane, const wire::Cancel& message) noexcept;

  // eager.cc
  void choose_eager(Outgoing& out, const VersionView& view) noexcept;
  [[nodiscard]] bool post_eager(Outgoing& out, const VersionView& view) noexcept;
  void on_eager(std::uint32_t lane, const wire::Eager& message) noexcept;
  [[nodiscard]] bool place_eager(const Incoming& in, std::span<const std::byte> bytes) noexcept;

  // receiver_offer.cc
  void on_offer(std::uint32_t lane, const wire::Offer& message) noexcept;
  [[nodiscard]] bool on_duplicate_offer(std::uint32_t in, std::uint32_t lane, const wire::Offer& message) noexcept;
  [[nodiscard]] bool answer_from_memory(std::uint32_t lane, const wire::Offer& message) noexcept;
  void fill_incoming(Incoming& in, std::uint32_t lane, const wire::Offer& message) noexcept;
  [[nodiscard]] bool copy_base(Incoming& in, const wire::Offer& message) noexcept;
  void on_tokens(std::uint32_t lane, const wire::Tokens& message) noexcept;
  void take_tokens(std::uint32_t in, std::uint64_t first, std::span<const std::byte> bytes) noexcept;
  void decide(std::uint32_t in) noexcept;
  void look(Incoming& in) const noexcept;
  void run_deciding(std::uint32_t in) noexcept;
  [[nodiscard]] bool decide_step(std::uint32_t in, std::uint64_t& budget) noexcept;
  void choose(std::uint32_t in) noexcept;
  void no_memory(std::uint32_t in, Status status) noexcept;
  void choose_limits(Incoming& in) const noexcept;
  [[nodiscard]] bool cut_in(std::uint32_t index) noexcept;

  // ---- split ----
  [[nodiscard]] Split& split_at(std::uint32_t index) noexcept { return *must(splits_.get(splits_.handle_at(index))); }
  [[nodiscard]] static bool can_split(const Incoming& in) noexcept;
  void begin_split(Incoming& in, InHandle handle) noexcept;
  [[nodiscard]] static std::uint64_t stream_end(const Incoming& in, const PayloadShape& shape, std::uint64_t at) noexcept;
  [[nodiscard]] std::uint64_t needed_bytes(const Incoming& in) const noexcept;
  [[nodiscard]] std::uint64_t needed_runs(const Incoming& in) const noexcept;
  void move_tail(const Incoming& in, Split& split) noexcept;
  [[nodiscard]] std::uint32_t grant(const Incoming& in, Split& split, std::uint32_t most) const noexcept;
  Status claim(AgentHandle handle, TicketId ticket, DeliveryHandle delivery, std::uint32_t most_tokens) noexcept;
  void answer_claim(Split& split, Status status) noexcept;
  void answer_last(std::uint32_t index) noexcept;
  void leave_head(Incoming& in) noexcept;
  [[nodiscard]] bool cut_split(std::uint32_t index) noexcept;
  void end_split(Incoming& in, const AgentEvent& last) noexcept;
  void drop_split(AgentHandle handle, DeliveryHandle delivery) noexcept;
  void erase_split(std::uint32_t index) noexcept;
  void drop_splits_of(AgentHandle handle) noexcept;

  [[nodiscard]] bool await_cut(std::uint32_t index) noexcept;
  [[nodiscard]] bool take_coding(Incoming& in) noexcept;
  void fill_coded(const VersionView& view, const RemoteAgent& to, scheduler::SenderFacts& facts) const noexcept;
  [[nodiscard]] ProtectedEnds protected_of(const VersionView& view) const noexcept;
  // Of an offered medium, of a context of so many tokens; sizes of plane 2 and the basis are still to be filled in.
  [[nodiscard]] static Coding coding_of(const scheduler::CandidateCost& offered, const Layout& layout, std::uint64_t tokens) noexcept;
  void fill_facts(const Incoming& in, scheduler::ReceiverFacts& facts) noexcept;
  void filter_candidates(Incoming& in) noexcept;
  [[nodiscard]] scheduler::ReceiverFacts facts_of(const Incoming& in, std::uint64_t memory_bytes) noexcept;
  [[nodiscard]] bool any_medium(const Incoming& in, std::uint64_t memory_bytes) noexcept;
  [[nodiscard]] bool add_split(Incoming& in, const scheduler::ReceiverFacts& facts) noexcept;
  [[nodiscard]] bool pick_medium(Incoming& in, std::uint64_t memory_bytes) noexcept;
  [[nodiscard]] Status begin_stage(Incoming& in) noexcept;
  void accept_staged(std::uint32_t in) noexcept;
  [[nodiscard]] bool list_missing(Incoming& in) noexcept;
  void plan_lease(std::uint32_t in) noexcept;
  void receive_by_lease(std::uint32_t in) noexcept;
  [[nodiscard]] PayloadShape shape_of(const Incoming& in) const noexcept;
  [[nodiscard]] bool open_lease(std::uint32_t in) noexcept;
  void expose_on(std::uint32_t in, std::uint32_t transport) noexcept;
  void refuse(std::uint32_t lane, TransferId id, std::uint64_t fetch_id, Status status) noexcept;
  void answer_later(std::uint32_t in) noexcept;
  [[nodiscard]] std::uint32_t find_in(std::uint32_t lane, TransferId id) noexcept;
  void move(Incoming& in, InState to) noexcept;
  void arm_in(std::uint32_t in) noexcept;
  void in_timer(std::uint32_t in) noexcept;
  void run_answers(std::uint32_t in) noexcept;   // ACCEPT and OUTCOME that are to be posted

  // receiver_chunks.cc
  void on_chunk_received(std::uint32_t transport, const Event& event) noexcept;
  void on_corrupt(std::uint32_t in, std::uint64_t offset, std::uint64_t length) noexcept;
  void check_complete(std::uint32_t in) noexcept;
  void seal(std::uint32_t in) noexcept;
  void withdraw(std::uint32_t in) noexcept;
  void lease_returned(std::uint32_t in) noexcept;
  void on_lease_withdrawn(std::uint32_t transport, const Event& event) noexcept;
  void lease_free(std::uint32_t slot) noexcept;
  void run_decoding(std::uint32_t in) noexcept;
  [[nodiscard]] bool decode_step(Incoming& in) noexcept;   // false: budget or bytes are missing
  void publish(std::uint32_t in) noexcept;
  void deliver(std::uint32_t in, VersionHandle version) noexcept;
  void fail_in(std::uint32_t in, Status status, Answer answer = Answer::done) noexcept;
  void close_in(std::uint32_t in, Answer answer, Status status) noexcept;
  void run_closing(std::uint32_t in) noexcept;
  void drop_in(std::uint32_t in) noexcept;
  [[nodiscard]] static TimeNs predicted_ns(const Incoming& in) noexcept;
  [[nodiscard]] static std::uint64_t payload_bytes(const Incoming& in) noexcept;
  [[nodiscard]] static ByteSpan unit_bounds(const transport::Payload& payload, std::uint32_t first, std::uint32_t count) noexcept;
  void free_in(std::uint32_t in) noexcept;
  void remember_ended(const Incoming& in) noexcept;
  void forget_ended(TimeNs before) noexcept;

  // summary.cc
  void begin_summary(std::uint32_t out) noexcept;
  void run_summarising(std::uint32_t out) noexcept;
  Status summary(AgentHandle agent, TransferId request, std::uint8_t kind, std::span<const std::byte> bytes) noexcept;
  void on_summary(std::uint32_t lane, const wire::Summary& message) noexcept;
  [[nodiscard]] bool start_local_summary(const LocalRequest& request) noexcept;
  [[nodiscard]] bool ask_for_summary(AgentHandle from, TransferId request, VersionHandle version) noexcept;
  void end_local_wait(std::uint32_t index, Status status, VersionHandle version) noexcept;

  // gather.cc
  void fill_sparse(const Outgoing& out, const VersionView& view, scheduler::SenderFacts& facts) const noexcept;
  [[nodiscard]] bool gather(std::uint32_t out, const VersionView& view) noexcept;
  [[nodiscard]] bool stage_gather(Outgoing& out, const VersionView& view, Status& status) noexcept;
  [[nodiscard]] bool copy_gather(Outgoing& out, const VersionView& view) noexcept;
  void release_gather(Outgoing& out) noexcept;
  void without_medium(std::uint32_t out) noexcept;
  [[nodiscard]] std::span<const BlockHandle> blocks_of(const Outgoing& out, const VersionView& view) const noexcept;

  // extract.cc
  [[nodiscard]] std::uint64_t summary_limit() const noexcept;  // bytes
  [[nodiscard]] std::uint32_t extract_tokens(AgentHandle from, const VersionView& view) noexcept;
  [[nodiscard]] bool begin_extract(ExtractWork& work, const VersionView& view, std::uint32_t tokens) noexcept;
  [[nodiscard]] bool step_extract(ExtractWork& work, const VersionView& view) noexcept;
  void release_extract(ExtractWork& work) noexcept;
  [[nodiscard]] bool run_extract(std::uint32_t out) noexcept;
  void run_local_extract(std::uint32_t index) noexcept;

  // fetch.cc
  Status fetch(AgentHandle agent, TicketId ticket, const Name& owner, const Name& context,
               std::uint64_t version, const SendOptions& options) noexcept;
  [[nodiscard]] Handle<Fetch> open_fetch(AgentHandle agent, TicketId ticket, std::uint32_t peer, const Name& owner,
                                         const Name& context, std::uint64_t version, const SendOptions& options) noexcept;
  void run_fetch(std::uint32_t index) noexcept;
  void on_fetch(std::uint32_t lane, const wire::Fetch& message) noexcept;
  void await_offer(Incoming& in) noexcept;
  void end_fetch(std::uint32_t index, Status status, const Incoming* in) noexcept;
  [[nodiscard]] std::uint32_t find_fetch(std::uint64_t id) noexcept;
  void fetch_timer(std::uint32_t index) noexcept;

  // refresh.cc
  void note_lossy(const Incoming& in) noexcept;
  void run_refresh() noexcept;
  [[nodiscard]] bool may_refresh(const Refresh& of, VersionView& view) noexcept;
  void yield_refresh() noexcept;
  [[nodiscard]] bool refresh_first(std::uint32_t out, const VersionView& view) noexcept;
  void end_refresh(Handle<Fetch> handle, const Fetch& fetch, Status status) noexcept;
  [[nodiscard]] TimeNs refresh_deadline() const noexcept;

  // restore.cc
  [[nodiscard]] Handle<Restore> restore_of(VersionHandle stub, const VersionView& view) noexcept;
  [[nodiscard]] bool restore_first(std::uint32_t in) noexcept;
  [[nodiscard]] Handle<Restore> begin_restore(const StageRequest& request) noexcept;
  void run_restore(std::uint32_t index) noexcept;
  [[nodiscard]] bool restore_step(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept;
  [[nodiscard]] bool look_for(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept;
  [[nodiscard]] bool stage_restore(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept;
  [[nodiscard]] TimeNs without_tier_ns(const Incoming& in) noexcept;
  [[nodiscard]] bool read_blocks(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept;
  void on_block_back(const TierCompletion& done) noexcept;
  void end_restore(std::uint32_t index, VersionHandle version) noexcept;
  void restore_overdue(std::uint32_t index) noexcept;
  void release_waiters(Handle<Restore> restore, InHandle in, VersionHandle version, bool partial) noexcept;
  [[nodiscard]] VersionHandle ids_with_head(VersionHandle stub) noexcept;
  void resume_local(std::uint32_t index, VersionHandle version, bool partial) noexcept;
  void begin_out(std::uint32_t out, const VersionView& view) noexcept;
  [[nodiscard]] bool wait_for_restore(const LocalRequest& request, const VersionView& view) noexcept;
  void forget_restore(Incoming& in) noexcept;
  // offload.cc
  std::size_t poll_tier() noexcept;
  void look_at_memory() noexcept;
  void tell_costs() noexcept;
  [[nodiscard]] std::uint64_t publications() const noexcept;
  [[nodiscard]] TimeNs tier_deadline() const noexcept;
  void begin_offload(VersionHandle version) noexcept;
  void run_offload() noexcept;
  void end_offload() noexcept;

  // recall.cc
  void put_name(const VersionView& view) noexcept;
  [[nodiscard]] bool begin_recall(const Recall& wanted) noexcept;
  void on_name_back(std::uint32_t index, const TierCompletion& done) noexcept;
  [[nodiscard]] VersionHandle stub_of(const Recall& recall) noexcept;
  void end_recall(std::uint32_t index, Status status) noexcept;
  void drop_overdue_recalls() noexcept;

  // prefetch.cc
  Status will_need(AgentHandle agent, const Name& owner, const Name& context, std::int64_t in_ns, std::uint32_t probability_ppm) noexcept;
  Status expect_use(AgentHandle agent, const LocalAgent& asker, const Hint& hint) noexcept;
  void drop_a_learned_one() noexcept;
  [[nodiscard]] Handle<Expected> find_expected(std::uint64_t agent, std::uint64_t key) noexcept;
  void drop_expected(const scheduler::PrefetchPlan::Item& item) noexcept;
  void drop_expected_of(AgentHandle agent) noexcept;
  void run_prefetch() noexcept;
  void drop_overdue() noexcept;
  void start_prefetch(const scheduler::PrefetchPlan::Item& item) noexcept;
  void prefetched(Handle<Restore> restore, VersionHandle version) noexcept;
  void note_used(AgentHandle agent, TenantHandle tenant, const Name& owner, const Name& context) noexcept;
  [[nodiscard]] TimeNs prefetch_deadline() const noexcept;
  void show_prefetch(StatusData& data) noexcept;

  // local_delivery.cc
  // The terminal events of both sides, at once; only a summary ends later.
  void deliver_locally(const LocalRequest& request, const VersionView& view) noexcept;
  // What the receiver can use of the version: it, its token ids, or (medium summary, no version) a
  // summary that is to be asked for.
  [[nodiscard]] Status version_for_local(const LocalRequest& request, const VersionView& view, Medium& medium, VersionHandle& version) noexcept;
  // The receiver's delivery event must have been reserved, the asker's was with its command.
  void finish_locally(const LocalRequest& request, Medium medium, Status status, VersionHandle version) noexcept;
  void note_local_turn(const LocalRequest& request, VersionHandle version) noexcept;

  // explain.cc
  void count_row() noexcept;
  void add_row(const StatusTransfer& row) noexcept;
  void explain_out(const Outgoing& out, std::uint64_t bytes, TimeNs observed_ns) noexcept;
  void explain_in(const Incoming& in) noexcept;
  void explain_local(const LocalRequest& request, Medium medium, Status status) noexcept;
  void explain_recompute(std::uint64_t serial, std::int64_t recompute_ns) noexcept;
  void show_agents(StatusData& data) noexcept;
  void show_lanes(StatusData& data) noexcept;
  void show_memory(StatusData& data) noexcept;
  void show_contexts(StatusData& data) noexcept;
  void show_peers_and_tasks(StatusData& data) noexcept;
  void refresh_status() noexcept;

  // Posts one message as a frame. False: the lane is full or gone; the state that wanted it stays.
  template <class M>
  [[nodiscard]] bool post(std::uint32_t lane_index, const M& message) noexcept;
  [[nodiscard]] Lane* lane_at(std::uint32_t index) noexcept {
    return index == kNoIndex ? nullptr : lanes_.get(lanes_.handle_at(index));
  }
  [[nodiscard]] Outgoing& out_at(std::uint32_t index) noexcept { return *must(outs_.get(outs_.handle_at(index))); }
  [[nodiscard]] Incoming& in_at(std::uint32_t index) noexcept { return *must(ins_.get(ins_.handle_at(index))); }
  [[nodiscard]] Peer& peer_at(std::uint32_t index) noexcept { return *must(peers_.get(peers_.handle_at(index))); }
  template <class T>
  [[nodiscard]] static T* must(T* pointer) noexcept {
    KVRAIL_ASSERT(pointer != nullptr);
    return pointer;
  }
  void tick() noexcept { now_ = std::max(now_, clock_.now_ns()); }
  void want(Kind kind, std::uint32_t index) noexcept { work_.push(entity(kind, index)); }
  // Blocked by a full lane or table: tried again in the next cycle, without counting as work.
  void want_later(Kind kind, std::uint32_t index) noexcept {
    ++blocked_;
    want(kind, index);
  }
  [[nodiscard]] TimeNs jittered(TimeNs ns) noexcept {
    return ns / 2 + static_cast<TimeNs>(prng_.uniform(static_cast<std::uint64_t>(ns) + 1));
  }
  [[nodiscard]] std::uint64_t message_limit(const Lane& lane) const noexcept;

  // One user's share of steps_. A little is left for each even when those are used up, so that what is
  // small never waits behind what is large.
  struct Steps {
    static constexpr std::uint64_t kLeast = 128;
    explicit Steps(Core& of) noexcept : core(of), given(std::max(of.steps_, kLeast)), left(given) {}
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;
    ~Steps() { core.steps_ -= std::min(core.steps_, given - left); }
    Core& core;
    std::uint64_t given;
    std::uint64_t left;
  };

  NodeOptions options_;
  Clock& clock_;
  std::unique_ptr<Store> store_;
  scheduler::Scheduler scheduler_;
  scheduler::DepthLoss loss_;
  scheduler::MediumChooser chooser_;
  std::optional<scheduler::Recorder> recorder_;
  scheduler::Arbiter arbiter_;
  Scratch scratch_;
  Prng prng_;
  AgentSink* sink_ = nullptr;

  TimeNs now_ = 0;
  std::uint64_t budget_ = 0;          // bytes that digests and codecs may still touch in this cycle
  std::uint64_t steps_ = 0;           // blocks that may still be looked at or taken in this cycle
  std::uint32_t blocked_ = 0;         // entities that wait for room in this cycle
  bool draining_ = false;
  TimeNs drain_deadline_ns_ = 0;
  TransferId next_transfer_ = 1;
  std::uint64_t next_fetch_ = 1;
  std::uint64_t next_task_ = 1;
  TimeNs next_slice_ns_ = 0, next_status_ns_ = 0, next_forget_ns_ = 0;
  bool status_dirty_ = true, announce_dirty_ = false, contexts_due_ = false;
  StatusCounters counters_;
  scheduler::PriceMeter sending_price_{scheduler::Demand::elastic};  // of our sending side, over all peers
  CodecWork codecs_;
  TierPort* tier_ = nullptr;
  std::array<TierCompletion, 64> tier_done_;
  Offload offload_;
  Refreshes refreshes_;
  std::uint32_t lineage_most_ppm_;    // loss that leaves a lineage at its floor
  static constexpr std::uint32_t kMaxExpected = 256;
  scheduler::PrefetchPlan plan_{kMaxExpected};
  SlotTable<Expected> expected_{kMaxExpected};
  TimeNs next_memory_look_ns_ = 0, next_expected_look_ns_ = 0, next_contexts_ns_ = 0;
  std::uint64_t looked_after_ = 0;    // publications

  std::array<transport::Transport*, kMaxTransports> transports_{};
  std::uint32_t transport_count_ = 0;
  std::uint32_t max_leases_ = 0;
  std::array<int, kMaxTransports + 1> wait_fds_{};  // the tier's is the last
  std::uint32_t wait_fd_count_ = 0;
  std::vector<std::byte> frame_;      // sized at construction
  std::vector<std::byte> eager_;
  std::vector<Event> events_;
  std::vector<scheduler::PostAction> actions_;

  SlotTable<LocalAgent, AgentTag> agents_;
  SlotTable<RemoteAgent> remotes_;
  FlatMap<AgentKey, AgentWhere, AgentKeyHash> directory_;
  SlotTable<Peer> peers_;
  SlotTable<Lane> lanes_;
  FlatMap<TransferKey, std::uint32_t, TransferKeyHash> lane_ids_;  // (transport, lane id)
  std::vector<Dial> dials_;
  std::unique_ptr<DialState[]> dial_states_;      // by dial
  SlotTable<Outgoing> outs_;
  FlatMap<TransferId, std::uint32_t, WordHash> out_ids_;
  FlatMap<TransferKey, std::uint32_t, TransferKeyHash> leaders_;   // (peer, version) -> its first transfer
  SlotTable<Incoming> ins_;
  FlatMap<TransferKey, std::uint32_t, TransferKeyHash> in_ids_;
  SlotTable<Chunk> chunks_;
  std::vector<LeaseSlot> leases_;
  std::uint32_t lease_free_head_ = kNoIndex, lease_free_tail_ = kNoIndex;
  std::uint64_t leased_bytes_ = 0;
  scheduler::Inflow inflow_;
  FlatMap<TransferKey, Ended, TransferKeyHash> ended_;
  std::vector<EndedAt> ended_order_;              // ring, oldest first
  std::uint64_t ended_head_ = 0, ended_tail_ = 0;
  std::uint64_t lanes_up_ = 0;                    // ever
  FlatMap<BeliefKey, Belief, BeliefKeyHash> beliefs_;
  SlotTable<Fetch> fetches_;
  class TaskDesk;                     // task_desk.h
  std::unique_ptr<TaskDesk> desk_;
  SlotTable<OpenReservation> reservations_;
  ReservationId last_reservation_ = 0;
  SlotTable<LocalWait> local_waits_;
  FlatMap<std::uint64_t, OpenDelivery, WordHash> open_deliveries_;
  SlotTable<Restore> restores_;
  Handle<Restore> staging_restore_;   // that takes its memory
  SlotTable<Recall> recalls_;
  SlotTable<Split> splits_;
  FlatMap<std::uint64_t, std::uint32_t, WordHash> split_of_;      // by the delivery of its ids
  std::vector<EventNode> event_nodes_;
  std::uint32_t event_free_ = kNoIndex;
  std::uint32_t events_used_ = 0, events_reserved_ = 0;
  std::uint32_t direct_events_ = 0;   // in this cycle, without the queue
  std::uint32_t open_commits_ = 0;

  Timers timers_;
  WorkQueue work_;
  WorkQueue event_agents_;            // with events that their rings have not taken
  StatusPage* page_ = nullptr;
  std::uint64_t rows_ = 0;
};

template <class M>
bool Node::Core::post(std::uint32_t lane_index, const M& message) noexcept {
  Lane* lane = lane_at(lane_index);
  if (lane == nullptr || lane->closing) return false;
  const std::size_t bytes = wire::encode(message, frame_);
  KVRAIL_ASSERT_MSG(bytes != 0, "messages are cut to the frame's size before");
  if (!transports_[lane->transport]->try_post_frame(lane->id, std::span(frame_).first(bytes))) {
    ++counters_.posts_refused;
    return false;
  }
  lane->last_sent_ns = now_;
  return true;
}

}  // namespace kvrail::engine
