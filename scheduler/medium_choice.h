// What to send: candidates by the sender, the pick by the receiver (design.md: Who decides, Cost,
// Hysteresis). cost_m = w*T_m + sum_r s_r*price_r*w̄; T_m = wait + pipelined(encode, transmit,
// decode) + recompute + loss. All times integer ns; pure arithmetic over fixed tables.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail::scheduler {

inline constexpr std::size_t kMaxCandidates = 8;
// What the receiver weighs: what was offered, and a split that it makes of one of these and its own compute.
inline constexpr std::size_t kMaxWeighed = kMaxCandidates + 1;

// Loss and extra tokens by medium until a calibration profile exists (codec issue).
struct MediumLoss {
  std::uint32_t epsilon_ppm = 0;
  std::uint32_t kappa_milli = 1000;      // λ = exp(-κ ε), 1000 in what weighed() made
  std::uint32_t extra_tokens_milli = 0;  // C_loss = extra tokens × decode time per token
};
struct LossProfile {
  std::array<MediumLoss, kMediumCount> media;
  [[nodiscard]] static LossProfile built_in() noexcept;
};
// The same by context depth, as a calibration measures it (engine/config/profile.h).
struct DepthLoss {
  static constexpr std::size_t kDepths = 4;
  // Rising; the first that is not exceeded counts, the last for all that is deeper.
  std::array<std::uint64_t, kDepths> up_to_tokens;
  std::array<LossProfile, kDepths> depths;
  // At every depth the same.
  DepthLoss(const LossProfile& all = LossProfile::built_in()) noexcept {
    up_to_tokens.fill(UINT64_MAX);
    depths.fill(all);
  }
  [[nodiscard]] const LossProfile& at(std::uint64_t tokens) const noexcept {
    std::size_t depth = 0;
    while (depth + 1 < kDepths && tokens > up_to_tokens[depth]) ++depth;
    return depths[depth];
  }
};

// The same with κ ε for ε and 1 for κ. κ is of a medium, and what has come by several media has no one κ; but λ multiplies
// along a lineage, so what is kept of a context's loss, told to peers and added up is κ ε.
[[nodiscard]] DepthLoss weighed(const DepthLoss& loss) noexcept;
// The most loss, in these units, that leaves λ at `floor_ppm` or above; a floor of 0 is under everything.
[[nodiscard]] std::uint32_t most_loss_ppm(std::uint32_t floor_ppm) noexcept;

// One way to make the transfer, as offered; sizes follow bytes = fixed + block*missing + tail.
struct CandidateCost {
  Medium medium = Medium::tokens;
  std::uint64_t fixed_bytes = 0, block_bytes = 0, tail_bytes = 0;
  std::uint64_t wait_ns = 0;  // from the decision until the first byte arrives
  std::uint64_t encode_ns_per_block = 0;
  std::uint64_t rate_bytes_per_s = 0;
  std::uint64_t price_ns = 0;
  std::uint32_t epsilon_ppm = 0;
  Medium values = Medium::full;  // topk, window, split: what their rows are coded as; block and tail are of these
  std::uint32_t rows = 0;        // topk, window: of how many tokens
  // int4: so many blocks at the ends of the context come as int8. What they take more is in fixed_bytes, which moves
  // where any block does.
  std::uint16_t first_blocks = 0, last_blocks = 0;
};

// A coded medium as the codec library makes it of the Layout at hand; 0 bytes: it can't be made.
struct CodedFacts {
  std::uint64_t block_bytes = 0, tail_bytes = 0;
  std::uint64_t encode_ns_per_block = 0;  // 0 where the planes are there already
  bool came_so = false;  // the source's rows were decoded from these planes, and perhaps finer ones
  std::uint64_t fixed_bytes = 0;                    // what protected blocks take more
  std::uint16_t first_blocks = 0, last_blocks = 0;  // which these are
};

// topk or window as the sender would make it; 0 rows: it can't.
struct SparseFacts {
  std::uint32_t rows = 0;
  Medium values = Medium::full;
  std::uint64_t fixed_bytes = 0;  // all that travels
  std::uint64_t block_bytes = 0, tail_bytes = 0;
  std::uint64_t encode_ns_per_block = 0;
};

struct SenderFacts {
  Layout layout;
  std::uint64_t total_tokens = 0;
  std::uint64_t believed_missing_tokens = 0;
  bool layouts_equal = true;
  bool tokenizers_equal = true;
  bool source_has_kv = true;  // false: only tokens are held
  MediumMask receiver_accepts = 0;
  MediumMask sender_can = 0;
  Medium wish = Medium::automatic;
  std::uint32_t source_epsilon_ppm = 0;
  std::uint32_t fidelity_floor_ppm = 0;
  std::uint32_t lineage_floor_ppm = 0;  // likewise, of media whose blocks stay; terminal ones end a lineage
  std::uint64_t lane_rate_bytes_per_s = 0;
  TimeNs lane_backlog_ns = 0;
  TimeNs round_trip_ns = 0;
  std::array<CodedFacts, kMediumCount> coded{};     // by medium
  SparseFacts topk, window;                         // without a wish topk goes before window
  std::uint64_t summary_bytes = 0, summary_ns = 0;  // 0 bytes: none can be made
  std::uint64_t nic_price_ppm = 0;                  // λ̂·V of our NIC (PriceMeter)
  std::uint64_t nic_arrivals_milli_per_s = 0;  // λ̂: with it the price counts the bytes offered too
};
// What the smallest KV medium would move of the tokens believed missing, without the losing of tokens.
[[nodiscard]] std::uint64_t least_kv_bytes(const SenderFacts& facts) noexcept;
// Fills `out` best guess first; returns the count (0: nothing is possible, with the reason in why).
[[nodiscard]] std::size_t candidates(const SenderFacts& facts, const DepthLoss& by_depth,
                                     std::array<CandidateCost, kMaxCandidates>& out,
                                     const char** why) noexcept;

struct ReceiverFacts {
  std::uint64_t pair_key = 0;  // hash of (sender agent, receiver agent)
  std::uint64_t total_tokens = 0;
  std::uint64_t missing_full_blocks = 0;  // for exact media
  bool missing_tail = false;
  std::uint64_t missing_tail_bytes = 0;  // raw rows; 0 with missing_tail false
  // For media that lose something: what is held with no more loss than theirs need not come again.
  // That of the largest ε up to theirs counts; where there is none they are treated as exact ones.
  struct Lossy {
    std::uint32_t epsilon_ppm = 0;  // of the medium; 0: no such entry
    std::uint64_t missing_full_blocks = 0;
    bool missing_tail = false;
  };
  std::array<Lossy, 2> lossy{};
  std::uint64_t held_tokens = 0;         // leading tokens held: recompute starts there
  std::uint32_t held_epsilon_ppm = 0;
  std::uint32_t block_tokens = 64;
  ComputeProfile compute;
  TimeNs compute_backlog_ns = 0;
  std::array<std::uint64_t, kMediumCount> decode_ns_per_block{};  // of coded media
  std::uint64_t nic_price_ppm = 0;
  std::uint64_t compute_price_ppm = 0;
  std::uint64_t nic_arrivals_milli_per_s = 0;  // λ̂ of each, 0: the price leaves out what this
  std::uint64_t compute_arrivals_milli_per_s = 0;  // transfer itself adds to the backlog
  // What other peers still bring through our interface, how many of them, and how fast all comes in (Inflow).
  std::uint64_t others_left_bytes = 0;
  std::uint32_t others_bringing = 0;
  std::uint64_t inflow_bytes_per_s = 0;
  std::uint64_t lease_bytes_free = 0;
  std::uint64_t block_slot_bytes = 0;  // what one missing block takes of the lease pool
  TimeNs remaining_ns = 0;             // 0: no deadline
  std::uint32_t fidelity_floor_ppm = 0;
  std::uint32_t lineage_floor_ppm = 0;
  std::uint32_t weight_milli = 1000;  // w relative to w̄
  std::uint32_t source_epsilon_ppm = 0;
  bool same_node = false;
  bool split_wished = false;  // taken wherever it is possible, though one side alone were faster
};

struct CostLine {  // one line of `explain`
  Medium medium = Medium::tokens;
  bool allowed = false;
  std::uint64_t blocks = 0;  // that are missing, for this medium
  std::uint64_t head_blocks = 0;  // split: those of them that are computed here meanwhile
  std::uint64_t bytes = 0;
  TimeNs wait_ns = 0, encode_ns = 0, transmit_ns = 0, decode_ns = 0, recompute_ns = 0, loss_ns = 0;
  TimeNs price_ns = 0;
  TimeNs total_ns = 0;       // T_m after residual correction
  TimeNs cost_ns = 0;        // what is compared
  const char* why_not = "";  // static text when not allowed
};
enum class PickReason : std::uint8_t {
  least_cost,
  kept_by_hysteresis,
  only_one,
  wished,
  none_allowed
};
struct Pick {
  std::int32_t index = -1;  // into candidates; -1: reject
  PickReason reason = PickReason::none_allowed;
  TimeNs predicted_ns = 0;
  std::uint64_t bytes = 0;
  std::size_t line_count = 0;
  std::array<CostLine, kMaxWeighed> lines;
};

// How a node chooses: by the whole model, or greedily, each transfer by its own least time (waits, residuals and constraints
// as ever), without the prices of what it takes from others and without staying with an earlier choice.
enum class ChoicePolicy : std::uint8_t { model, greedy };
// Makes a decision a greedy one. `serial`: another one for each, so that no earlier choice is found.
void make_greedy(std::span<CandidateCost> candidates, ReceiverFacts& facts, std::uint64_t serial) noexcept;

class Recorder;  // record.h

// Keeps residuals EWMA(log(observed/predicted)) per (lane, medium, size octave), clamped to
// x1/2..2, and the last choice per (pair, size octave, missing octave, backlog octave).
class MediumChooser {
 public:
  explicit MediumChooser(const DepthLoss& loss, std::uint32_t table_slots = 4096);
  MediumChooser(const MediumChooser&) = delete;
  MediumChooser& operator=(const MediumChooser&) = delete;
  ~MediumChooser();
  void record(Recorder* recorder) noexcept;  // as Scheduler::record()
  // One decision: it counts for hysteresis.
  [[nodiscard]] Pick pick(std::span<const CandidateCost> candidates, const ReceiverFacts& facts,
                          std::uint32_t lane) noexcept;
  // The split that costs least, of what was offered. False: the tail can come by none of these.
  [[nodiscard]] bool split_of(std::span<const CandidateCost> candidates, const ReceiverFacts& facts,
                              CandidateCost& out) const noexcept;
  // Whether pick() would find anything; no decision.
  [[nodiscard]] bool any_allowed(std::span<const CandidateCost> candidates,
                                 const ReceiverFacts& facts) const noexcept;
  void observe(std::uint32_t lane, Medium medium, std::uint64_t bytes, TimeNs predicted_ns,
               TimeNs observed_ns) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Who else wants a resource. The bytes of an interface may go as fewer ones, or as token ids, so who finds it
// taken now and then loses little by going elsewhere; a prefill has to be made where the agent is.
enum class Demand : std::uint8_t { fixed, elastic };

// Price of a resource held by its owner: the rate λ̂ at which others come while it is taken, times
// the backlog V found there, in millionths (ns of delay to others per ns of use). Only who comes
// meanwhile is delayed: in a round of agents that wait for each other nobody is, however often they
// come. Under random arrivals λ̂ is the plain rate; with elastic demand it counts by the square of the share of the
// time in which the resource is taken. What a transfer adds to V itself is added where its cost is computed, from
// arrivals_milli_per_s(). See docs/scheduling.md, "Prices".
class PriceMeter {
 public:
  explicit PriceMeter(Demand demand = Demand::fixed) noexcept : demand_(demand) {}
  // Somebody came, and the resource is taken for busy_ns from now on: by the backlog found and by
  // what this one adds (0 when it went elsewhere).
  void arrival(TimeNs now_ns, TimeNs busy_ns) noexcept;
  [[nodiscard]] std::uint64_t price_ppm(TimeNs now_ns, TimeNs backlog_ns) const noexcept;
  [[nodiscard]] std::uint64_t arrivals_milli_per_s(TimeNs now_ns) const noexcept;

 private:
  // Before the first arrival: as if nobody had come for a second of use. It is forgotten like all
  // else.
  static constexpr std::uint64_t kFirstBusyNs = kSecondNs;
  // And that had been an eighth of the time.
  static constexpr std::uint64_t kFirstElapsedNs = 8 * kFirstBusyNs;

  [[nodiscard]] std::uint64_t taken_since_last(TimeNs now_ns) const noexcept;
  [[nodiscard]] std::uint64_t since_last(TimeNs now_ns) const noexcept;
  [[nodiscard]] std::uint64_t interval_ns(TimeNs now_ns) const noexcept;  // between who counts; 0: no rate known
  Demand demand_;
  TimeNs last_ns_ = 0, busy_until_ns_ = 0;
  // Sums over the arrivals so far, each older one weighing 127/128 of the next.
  std::uint64_t met_q10_ = 0;               // those that found the resource taken, x 1024
  std::uint64_t taken_ns_ = kFirstBusyNs;    // how long it had been, from one arrival to the next
  std::uint64_t elapsed_ns_ = kFirstElapsedNs;  // how long that was
};

}  // namespace kvrail::scheduler
