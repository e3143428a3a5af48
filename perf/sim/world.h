// A cluster in virtual time under one policy. What is decided, and in which order bytes go, is the scheduler library's
// own doing, fed with just what the nodes of a real cluster would know: the sender's estimates travel in its
// offer, the receiver adds its own facts and picks. Time, links, GPUs and agents are the simulator's.
//
// Thread: one. One workload and policy give one result, bit by bit.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "perf/sim/event_queue.h"
#include "perf/sim/link.h"
#include "perf/sim/policy.h"
#include "perf/sim/result.h"
#include "perf/sim/scenario.h"
#include "perf/sim/workload.h"
#include "scheduler/arbiter.h"
#include "scheduler/inflow.h"
#include "scheduler/medium_choice.h"
#include "scheduler/scheduler.h"

namespace kvrail::simulation {

class World {
 public:
  // Scenario and workload must outlive the world.
  World(const Scenario& scenario, const Workload& workload, const Policy& policy);
  [[nodiscard]] RunResult run();

 private:
  // ---- what there is ----
  struct Chunk {
    std::uint32_t bytes = 0;
    TimeNs posted_ns = 0;
    TimeNs acked_ns = 0;
    std::uint32_t last_of = kNone;  // the job whose last byte it carries
    bool announced = false;         // its receiver knew that it would come
  };
  // Fifo and slots give the scheduler one flow at a time; the others wait here.
  struct Gate {
    std::array<std::deque<std::uint32_t>, 2> waiting;  // critical, ordinary
    std::uint32_t exposed = kNone;
    std::uint64_t hidden_bytes = 0;  // of all that wait, the exposed one left out
    bool turn_armed = false;
  };
  struct Lane {
    std::uint32_t sender = 0, receiver = 0;  // nodes
    std::uint32_t index = 0;                 // the scheduler's, at the sender
    Link path;
    std::deque<Chunk> flight;
    std::size_t at_nic = 0;  // chunks of `flight` that have passed the receiver's interface
    Gate gate;
    scheduler::BudgetHandle budget;  // of its beats
  };
  struct SenderNode {
    std::unique_ptr<scheduler::Scheduler> order;  // none: the node sends nothing
    std::vector<std::uint32_t> lanes;
    Link nic;
    scheduler::PriceMeter price{scheduler::Demand::elastic};
    TimeNs encoder_free_ns = 0;
  };
  struct Peer {
    scheduler::PriceMeter others_price{scheduler::Demand::elastic};
    std::uint32_t place = 0;  // in the inflow
  };
  struct ReceiverNode {
    std::unique_ptr<scheduler::MediumChooser> chooser;
    std::unordered_map<std::uint32_t, Peer> peers;  // by sending node
    std::vector<std::uint32_t> peer_order;          // so that walks don't hang on hashes
    std::unique_ptr<scheduler::Inflow> inflow;
    Link nic;
    TimeNs decoder_free_ns = 0;
  };
  struct Agent {
    TimeNs gpu_free_ns = 0, gpu_busy_ns = 0;
    scheduler::PriceMeter price;
    std::unordered_set<std::uint64_t> held;  // hashes of blocks
  };
  struct Offer {  // between a sender's facts and the receiver's pick
    std::array<scheduler::CandidateCost, scheduler::kMaxWeighed> candidates;
    std::uint32_t count = 0;
    bool split = false;  // the receiver has added one behind these
  };
  struct Open {  // a job under way
    TimeNs submitted_ns = 0;
    TimeNs decided_ns = 0, predicted_ns = 0;
    TimeNs accepted_ns = 0, first_post_ns = 0;
    TimeNs loss_ns = 0;
    TimeNs first_arrival_ns = 0;
    TimeNs encode_piece_ns = 0;
    std::uint64_t pick_bytes = 0;
    std::uint64_t total_bytes = 0, posted_bytes = 0, ready_bytes = 0;
    std::uint64_t raw_bytes = 0;     // of plain KV, that codecs work on
    std::uint64_t lease_bytes = 0;
    scheduler::LeaseHandle lease;
    scheduler::FlowHandle flow;
    std::uint32_t offer = kNone;     // in offers_
    std::uint32_t predecessors = 0;  // that have not ended
    std::uint32_t laters = 0;
    std::uint32_t blocks = 1;
    TimeNs computed_ns = 0;          // when the head of a split is there
    Medium medium = Medium::automatic;
    Medium rows = Medium::automatic; // what the bytes are coded as: the medium, or that of a split's tail
    bool kv_offered = false;
    bool refused = false;  // what the policy wished never fits
  };

  // ---- the loop ----
  void make_nodes();
  void make_lanes();
  void reserve();
  void handle(const Event& event);
  void note(std::uint64_t what, std::uint64_t value) noexcept;
  [[nodiscard]] TimeNs now() const noexcept { return events_.now_ns(); }
  [[nodiscard]] std::uint32_t lane_between(std::uint32_t sender, std::uint32_t receiver) const;
  [[nodiscard]] const ReceiverAgent& place_of(const Job& job) const { return workload_.receivers[job.receiver]; }
  [[nodiscard]] const RunModel& model_of(const Job& job) const { return workload_.models[place_of(job).model]; }
  [[nodiscard]] std::uint64_t held_tokens(const Job& job) const;

  // ---- the sender ----
  void submit(std::uint32_t job);
  void offer_context(std::uint32_t job);
  [[nodiscard]] scheduler::SenderFacts sender_facts(std::uint32_t job, const Lane& lane);
  void fill_coded(const Job& job, scheduler::SenderFacts& facts) const;
  [[nodiscard]] TimeNs backlog_ns(const Lane& lane, bool critical) const;
  [[nodiscard]] TimeNs sending_backlog_ns(const SenderNode& node) const;
  [[nodiscard]] TimeNs control(std::uint32_t lane, std::uint64_t bytes);  // when it arrives
  void on_accept(std::uint32_t job);
  void begin_sending(std::uint32_t job);
  void begin_encoding(std::uint32_t job);
  void on_ready(std::uint32_t job);
  void add_flow(std::uint32_t job, std::uint64_t start_offset);
  void pump(std::uint32_t node);
  void post(const scheduler::PostAction& action, std::uint32_t lane);
  void on_nic(std::uint32_t lane);
  void on_ack(std::uint32_t lane);
  void refresh_gate(std::uint32_t lane);
  [[nodiscard]] std::uint32_t next_at_gate(const Gate& gate) const;
  void arrive(const Chunk& chunk, TimeNs at_ns);

  // ---- the receiver ----
  void on_offer(std::uint32_t job);
  [[nodiscard]] scheduler::ReceiverFacts receiver_facts(std::uint32_t job, std::uint64_t memory_bytes);
  [[nodiscard]] std::span<const scheduler::CandidateCost> weighed(std::uint32_t job) const;
  [[nodiscard]] scheduler::Pick pick(std::uint32_t job, scheduler::ReceiverFacts& facts);
  void note_receiving(std::uint32_t job, const scheduler::CostLine& chosen);
  void note_flap(std::uint32_t job, const scheduler::ReceiverFacts& facts, Medium medium);
  void answer(std::uint32_t job, const scheduler::CostLine& chosen);
  [[nodiscard]] bool take_memory(std::uint32_t job, std::uint64_t bytes);
  void answer_later(std::uint32_t job);
  void refuse(std::uint32_t job);
  TimeNs compute(std::uint32_t job, std::uint64_t tokens);  // until when
  void on_delivered(std::uint32_t job);
  void on_finished(std::uint32_t job);
  void start_successors(std::uint32_t job);
  void on_release(std::uint32_t job);

  [[nodiscard]] std::uint32_t take_offer();
  void give_offer(std::uint32_t job);

  const Scenario& scenario_;
  const Workload& workload_;
  const Policy policy_;
  scheduler::DepthLoss loss_;
  EventQueue events_;
  std::vector<Lane> lanes_;
  std::vector<std::uint32_t> first_lane_;  // of each node, its lanes by receiver
  std::vector<SenderNode> senders_;
  std::vector<ReceiverNode> receivers_;
  std::vector<Agent> agents_;
  std::unique_ptr<scheduler::Arbiter> arbiter_;
  std::vector<Open> open_;
  std::vector<Offer> offers_;
  std::vector<std::uint32_t> free_offers_;
  std::unordered_map<std::uint64_t, Medium> last_medium_;  // by the key of hysteresis
  RunResult result_;
};

}  // namespace kvrail::simulation
