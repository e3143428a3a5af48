// The agent's side of kvrail: attach to the engine of this machine, put KV into its memory, hand
// contexts to other agents and receive theirs.
//
// Threads: one thread at a time per Agent and all that came from it (Blocks, Delivery, ...).
// Several Agents in one process are independent.
// Errors: Status and Result, never an exception. A call that may wait takes a timeout and ends by
// it; 0 means "do not wait". When the engine dies, every call answers Code::peer_down with
// Scope::engine at once; reattach() comes back to a new one.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/probe.h"
#include "kvrail/types.h"

namespace kvrail {

using Nanoseconds = std::chrono::nanoseconds;

// Default of every call that waits for the engine itself (not for other agents).
inline constexpr Nanoseconds kCallTimeout = std::chrono::seconds(5);
inline constexpr const char* kDefaultSocketPath = "/run/kvrail/kvraild.sock";

// Every medium that needs nothing special of the agent.
inline constexpr MediumMask kDefaultAccepted =
    mask_of(Medium::tokens) | mask_of(Medium::full) | mask_of(Medium::lossless) |
    mask_of(Medium::int8) | mask_of(Medium::int4) | mask_of(Medium::exact) |
    mask_of(Medium::lowrank) | mask_of(Medium::reference);

struct AttachOptions {
  std::string socket_path = kDefaultSocketPath;
  std::string name;
  std::string tenant;                 // empty: the one the engine's policy gives this user
  RoleWeight role = kRoleExecutor;
  Layout layout;
  MediumMask accepted = kDefaultAccepted;
  Hash128 tokenizer;                  // tokens can be handed to agents with an equal one
  ComputeProfile compute;
  std::uint64_t arena_bytes = 0;      // 0: the engine's default
  std::uint32_t scratch_bytes = 0;    // 0: 1 MiB; a commit needs 4 bytes for each of its tokens
  bool accepts_mask = false;          // can use the per-head bitmaps of the medium topk; no engine sends any yet
  std::uint64_t summary_bytes = 0;    // size of the summaries that on_summary() makes; 0: none
  Nanoseconds summary_time{0};        // what one takes
  Nanoseconds spin{0};                // how long a wait looks before it sleeps; calls that only the engine
                                      // answers look up to 100 us while answers come that soon
  Nanoseconds timeout = kCallTimeout;
};

// Where blocks are to lie. Device memory needs a build with GPU support.
struct Place {
  enum class Kind : std::uint8_t { host, device };
  Kind kind = Kind::host;
  int device_index = -1;
  [[nodiscard]] static Place host() noexcept { return {}; }
  [[nodiscard]] static Place device(int index) noexcept { return {Kind::device, index}; }
};

// Orders a commit after work on a GPU; opaque to the engine's core.
struct Fence {
  enum class Kind : std::uint8_t { none, eventfd, external };
  Kind kind = Kind::none;
  int fd = -1;                              // eventfd: readable when the KV is written
  std::array<std::byte, 64> external{};     // external: a handle of the GPU's runtime
  [[nodiscard]] static Fence none() noexcept { return {}; }
};

// Memory that the agent owns already and wants to send from.
struct ImportSource {
  enum class Kind : std::uint8_t { host_fd, host_pages, dmabuf_fd, cuda_ipc };
  Kind kind = Kind::host_fd;
  int device = -1;
  int fd = -1;                        // host_fd, dmabuf_fd: stays the caller's
  std::byte* pages = nullptr;         // host_pages; stay mapped until the agent has been detached
  std::uint64_t offset = 0;           // in the fd
  std::uint64_t bytes = 0;            // whole block slots
};

namespace client {
class Session;   // one attachment: rings and mappings
struct State;
}  // namespace client

// Block slots that the agent may write. Slots that no commit took go back to the engine with the
// object. After a commit the first rows are immutable: others may read them at any moment; rows
// behind them may still be written, for the next commit of the same context.
class Blocks {
 public:
  Blocks() noexcept;
  Blocks(Blocks&&) noexcept;
  Blocks& operator=(Blocks&&) noexcept;
  ~Blocks();

  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] std::span<std::byte> slot(std::size_t index) const noexcept;
  // Row of one token in one (layer, K|V) of a slot; kv is 0 for K and 1 for V.
  [[nodiscard]] std::span<std::byte> row(std::size_t index, std::uint32_t layer, std::uint32_t kv,
                                         std::uint32_t token) const noexcept;
  // Takes over the slots of `more`, behind its own: how a context grows.
  void append(Blocks&& more);
  // Which block of the context slot 0 is. Those before it are not copied: a commit shares them with the
  // prefix that it is given, or, without one, with the context's version before.
  void start_at(std::uint32_t block) noexcept { first_block_ = block; }
  [[nodiscard]] std::uint32_t first_block() const noexcept { return first_block_; }
  // Bytes that an import had to copy, 0 where the memory is used in place.
  [[nodiscard]] std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }

 private:
  friend class Agent;
  friend struct client::State;
  struct Run {  // slots that lie side by side
    std::uint32_t arena = 0;
    std::uint32_t count = 0;
    std::uint64_t offset = 0;
    std::byte* base = nullptr;
  };
  void give_back() noexcept;
  std::shared_ptr<client::Session> session_;
  std::vector<Run> runs_;
  std::size_t size_ = 0;
  std::size_t committed_ = 0;   // slots from the front that a commit was given
  std::uint64_t claim_ = 0;     // tells which slots are still these
  std::uint64_t copied_bytes_ = 0;
  std::uint32_t first_block_ = 0;
};

// A committed version of one of the agent's contexts.
struct Context {
  Name name;
  std::uint64_t version = 0;
};

struct Task {
  TaskId id = 0;
};

struct TaskOptions {
  std::string workflow = "default";
  Nanoseconds deadline{0};            // 0: none
};

// Who hands over to whom in a workflow. Without circles: an agent that has its turn several times has several steps.
struct WorkflowDescription {
  struct Step {
    std::string agent;
    Nanoseconds duration{0};          // from its last input to what it hands over, about; 0: not known
  };
  struct HandOver {
    std::uint32_t from = 0, to = 0;   // indices of steps
  };
  std::vector<Step> steps;            // 1 to 64
  std::vector<HandOver> hand_overs;   // at most 256
};

// What is set aside for sends to one agent of another node: so many bytes of each period go before all else. Periods
// start `offset` after their multiples of CLOCK_MONOTONIC of the sending machine.
struct ReserveOptions {
  std::uint64_t bytes = 0;            // payload each period
  Nanoseconds period{0};              // at most an hour
  Nanoseconds offset{0};              // less than the period
};

struct Reservation {
  std::uint16_t id = 0;               // 0: none
};

// Bytes per second; of a refusal for another reason than the lane's rate they are 0, or counts of what is used up.
struct ReservationFigures {
  std::uint64_t needed = 0;           // by what was asked for
  std::uint64_t available = 0;        // that may still be reserved of the lane
  std::uint64_t half = 0;             // of the lane: the most that can be
};

// A reservation that the engine ended: limit (the lane became slower than all that was reserved of it, or the next one
// has no room), not_found (the receiver has left), peer_down, peer_restarted.
struct ReservationEnd {
  Reservation reservation;
  Status why;
};

struct SendOptions {
  Task task{};
  Nanoseconds deadline{0};            // from this call; 0: none
  bool critical = false;
  bool background = false;
  Medium medium = Medium::automatic;
  double fidelity_floor = 0.0;        // least Fidelity that is of use, 0 to 1
  Reservation reservation{};          // that pays for it, to the receiver that it was made for
};

struct FetchOptions {
  Task task{};
  Nanoseconds deadline{0};
  bool critical = false;
  bool background = false;
  Medium medium = Medium::automatic;
  double fidelity_floor = 0.0;
  std::uint64_t version = 0;          // 0: the newest
};

struct Ticket {
  std::uint64_t id = 0;
  friend bool operator==(const Ticket&, const Ticket&) noexcept = default;
};

// How a send ended for one receiver, or a fetch as a whole.
struct Outcome {
  std::uint16_t receiver = 0;         // index in the list given to send()
  Status status;
  Medium medium = Medium::automatic;  // what the engine chose
  TransferId transfer = 0;
  std::uint64_t bytes = 0;            // payload that moved
  std::uint64_t missing_blocks = 0;   // blocks the receiver did not hold before
  TimeNs predicted_ns = 0;
  TimeNs observed_ns = 0;
};

// KV of up to block_tokens tokens: one slot in the Layout's canonical order.
struct BlockView {
  std::span<const std::byte> data;    // a whole slot; rows behind `tokens` have no meaning
  std::uint32_t tokens = 0;           // valid rows
  std::uint32_t position = 0;         // of the first token in the context
  double epsilon = 0.0;               // loss estimate, 0 = lossless; fidelity is exp(-epsilon)
};

// The blocks of a delivery, in order of position; views are made on demand.
class BlockList {
 public:
  class Iterator {
   public:
    Iterator(const BlockList* list, std::size_t index) noexcept : list_(list), index_(index) {}
    [[nodiscard]] BlockView operator*() const noexcept { return (*list_)[index_]; }
    Iterator& operator++() noexcept {
      ++index_;
      return *this;
    }
    friend bool operator==(const Iterator&, const Iterator&) noexcept = default;

   private:
    const BlockList* list_;
    std::size_t index_;
  };
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] BlockView operator[](std::size_t index) const noexcept;
  [[nodiscard]] Iterator begin() const noexcept { return {this, 0}; }
  [[nodiscard]] Iterator end() const noexcept { return {this, size_}; }

 private:
  friend class Delivery;
  friend struct client::State;
  const client::Session* session_ = nullptr;
  const std::byte* records_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t block_bytes_ = 0;
};

// A context that was handed to this agent. The memory behind its spans is read-only and stays as it
// is until the Delivery is destroyed, which gives it back: at once, or for an agent that spins and at most
// 64 KiB with its next call.
class Delivery {
 public:
  Delivery() noexcept;
  Delivery(Delivery&&) noexcept;
  Delivery& operator=(Delivery&&) noexcept;
  ~Delivery();

  [[nodiscard]] std::string_view owner() const noexcept;    // agent that committed it
  [[nodiscard]] std::string_view context() const noexcept;
  [[nodiscard]] std::uint64_t version() const noexcept;
  [[nodiscard]] Medium medium() const noexcept { return medium_; }
  [[nodiscard]] bool critical() const noexcept { return critical_; }
  [[nodiscard]] const Layout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::span<const TokenId> tokens() const noexcept { return tokens_; }
  // Blocks that have KV here. Tokens that no block covers must be recomputed.
  [[nodiscard]] const BlockList& blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::uint32_t first_token() const noexcept { return first_token_; }  // window; split: of the tail, once it is there
  // topk: of every row, block after block, ascending; what is not named was left out. K has the RoPE of these
  // positions. Empty for all other media, where the rows of a block are neighbours.
  [[nodiscard]] std::span<const std::uint32_t> positions() const noexcept { return positions_; }
  [[nodiscard]] std::span<const std::byte> summary() const noexcept { return summary_; }
  [[nodiscard]] std::uint8_t summary_kind() const noexcept { return summary_kind_; }
  [[nodiscard]] double epsilon() const noexcept { return epsilon_; }
  [[nodiscard]] Task task() const noexcept { return task_; }
  [[nodiscard]] TransferId transfer() const noexcept { return transfer_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t missing_blocks() const noexcept { return missing_blocks_; }
  [[nodiscard]] TimeNs predicted_ns() const noexcept { return predicted_ns_; }
  [[nodiscard]] TimeNs observed_ns() const noexcept { return observed_ns_; }
  // What it cost to recompute what did not come as KV; told to the engine with the release.
  void set_recompute(Nanoseconds cost) noexcept { recompute_ns_ = cost.count(); }

 private:
  friend class Agent;
  friend struct client::State;
  void give_back() noexcept;
  static constexpr std::size_t kArenas = 4;  // more than that, and it holds all that are mapped
  std::shared_ptr<client::Session> session_;
  std::shared_ptr<void> claims_;  // while it lives the answer to a claim has somebody to go to
  std::array<std::uint32_t, kArenas> arenas_{};
  std::uint32_t arena_count_ = 0;
  std::uint64_t handle_ = 0;
  Name owner_;
  Name context_;
  std::uint64_t version_ = 0;
  Layout layout_;
  std::span<const TokenId> tokens_;
  BlockList blocks_;
  std::span<const std::byte> summary_;
  std::span<const std::uint32_t> positions_;
  Task task_;
  TransferId transfer_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t missing_blocks_ = 0;
  TimeNs predicted_ns_ = 0;
  TimeNs observed_ns_ = 0;
  TimeNs recompute_ns_ = 0;
  double epsilon_ = 0.0;
  std::uint32_t first_token_ = 0;
  Medium medium_ = Medium::tokens;
  bool divided_ = false;  // a split whose tail is not there yet
  std::uint8_t summary_kind_ = 0;
  bool critical_ = false;
};

// Tokens of a context that the agent is to compute.
struct Claim {
  std::uint32_t first_token = 0;
  std::uint32_t tokens = 0;
};

struct Summary {
  enum class Kind : std::uint8_t { text = 0, token_ids = 1, vector = 2 };  // UTF-8, u32, f32
  Kind kind = Kind::text;
  std::vector<std::byte> bytes;       // empty: the agent has no summary to give
};

// What on_summary() is asked to shorten: one of the agent's own contexts.
struct SummaryRequest {
  std::string_view context;
  std::uint64_t version = 0;
  std::span<const TokenId> tokens;    // valid during the call
};

class Agent {
 public:
  [[nodiscard]] static Result<Agent> attach(const AttachOptions& options);
  // For agents in the engine's own process: engine/ipc/embedded_port.h makes the session.
  explicit Agent(std::unique_ptr<client::State> state) noexcept;
  Agent(Agent&&) noexcept;
  Agent& operator=(Agent&&) noexcept;
  ~Agent();                           // leaves at once; the engine returns all that was held

  // Leaves in order: answers when the engine has taken everything back. Contexts in imported pages
  // (host_pages, used in place) go with the agent: nobody finds them any more, sends from there end.
  // Code::timed_out: others still hold deliveries of them, so the pages must stay; call it again.
  Result<void> detach(Nanoseconds timeout = kCallTimeout);
  // After the engine died or dropped this agent: attaches anew with the same options, trying until
  // the timeout. Blocks and deliveries of the time before stay readable but refer to nothing.
  Result<void> reattach(Nanoseconds timeout);
  [[nodiscard]] bool attached() const noexcept;
  [[nodiscard]] std::string_view tenant() const noexcept;
  [[nodiscard]] const Layout& layout() const noexcept;

  [[nodiscard]] Result<Task> begin_task(const TaskOptions& options, Nanoseconds timeout = kCallTimeout);
  Result<void> end_task(Task task);

  // What tasks of that workflow are like, in place of what was said of it before: hand-overs with time to spare make way
  // for those that have none, a task's deadline is shared by all on the way to its end, and who comes next is known before
  // it was learned. Of this tenant's tasks, on every node that they reach; at most 16 workflows of a tenant (the one
  // described longest ago goes). Code::invalid_argument: no steps, an unknown one, or a circle; the message says which.
  Result<void> describe_workflow(std::string_view name, const WorkflowDescription& description,
                                 Nanoseconds timeout = kCallTimeout);

  [[nodiscard]] Result<Blocks> allocate(const Layout& layout, std::uint32_t count,
                                        Place place = Place::host(), Nanoseconds timeout = kCallTimeout);
  [[nodiscard]] Result<Blocks> import(const ImportSource& source, Nanoseconds timeout = kCallTimeout);

  // Makes a new immutable version of the context `name` from the first slots of `blocks`, as many
  // as the tokens need from blocks.first_block() on. `prefix`: the delivery it was computed on, whose
  // loss it inherits. Blocks without any slot: the prefix, or the version before, holds all of it.
  [[nodiscard]] Result<Context> commit(std::string_view name, std::span<const TokenId> tokens,
                                       Blocks& blocks, const Fence& fence = Fence::none(),
                                       const Delivery* prefix = nullptr,
                                       Nanoseconds timeout = kCallTimeout);
  Result<void> drop_context(std::string_view name);
  // What the tokens from `first_token` on mean, a number for each, larger is more: what topk keeps, and what a
  // summary that the engine makes is taken from. NaN and what was never given is least. Of a version that this agent
  // has committed (0: the newest); kept with it, 4 bytes a token, and may be given anew.
  Result<void> set_importance(const Context& context, std::uint32_t first_token, std::span<const float> importance,
                              Nanoseconds timeout = kCallTimeout);

  // This agent will ask for that context in so long, as sure as that (0: not any more): what of it has left the node's
  // memory for a tier is brought back in time if it is needed more probably than not, and stays until it is asked for, or
  // the time has passed by a second and a quarter of the announcement. Code::not_found: nothing of it is known here;
  // out_of_capacity: 256 such hints are open.
  Result<void> will_need(std::string_view owner, std::string_view context, Nanoseconds in, double probability = 1.0,
                         Nanoseconds timeout = kCallTimeout);

  // Sets a part of the lane to the receiver's node aside, at most half of it over all agents. Refused: Code::limit with
  // the figures (also in the message); unsupported: the receiver is on this node, where nothing moves; not_found;
  // lane_lost: no lane now; out_of_capacity. It lasts until release_reservation(), the agent's end, or a ReservationEnd;
  // a lane that is lost takes it along to the next one.
  [[nodiscard]] Result<Reservation> reserve(std::string_view receiver, const ReserveOptions& options,
                                            ReservationFigures* figures = nullptr, Nanoseconds timeout = kCallTimeout);
  Result<void> release_reservation(Reservation reservation);
  // The next reservation that the engine ended, as far as wait(), receive() or poll() have taken it in.
  [[nodiscard]] std::optional<ReservationEnd> reservation_ended() noexcept;

  // A context of this agent, or (version 0) the newest one that it holds under that name.
  [[nodiscard]] Result<Ticket> send(const Context& context, std::span<const std::string_view> receivers,
                                    const SendOptions& options = {});
  [[nodiscard]] Result<Ticket> send(const Context& context, std::initializer_list<std::string_view> receivers,
                                    const SendOptions& options = {});
  [[nodiscard]] Result<Ticket> fetch(std::string_view owner, std::string_view context,
                                     const FetchOptions& options = {});
  Result<void> cancel(Ticket ticket);
  // The outcomes of a ticket when all are there: one per receiver of a send, one of a fetch.
  // Code::timed_out leaves the ticket as it is; success forgets it.
  [[nodiscard]] Result<std::vector<Outcome>> wait(Ticket ticket, Nanoseconds timeout);
  // Nobody will wait() for this ticket.
  void forget(Ticket ticket) noexcept;

  // The next context that was handed to this agent. Code::timed_out when none came.
  [[nodiscard]] Result<Delivery> receive(Nanoseconds timeout);

  // Of a delivery of the medium split: the next tokens, from the head of the context on, that this agent is to compute
  // while the tail arrives; whole blocks, one at least, else at most `most_tokens`. Nothing: there are none left, and the
  // delivery has the blocks that came; what no block covers is this agent's to compute: it was claimed, or the transfer's
  // deadline came. Code::timed_out: claim again. Any other error ends the split (a deadline before the first whole block is
  // Code::cancelled; a dead peer is noticed when its node is given up): no tail comes. An agent that does not claim gets
  // no tail either.
  [[nodiscard]] Result<std::optional<Claim>> claim(Delivery& delivery, std::uint32_t most_tokens, Nanoseconds timeout);

  // Called inside wait(), receive() and poll(), on their thread.
  void on_summary(std::function<Summary(const SummaryRequest&)> callback);
  void update_probe(const Probe& probe) noexcept;

  // For event loops: sleep on event_fd() only after arm() said true; when it is readable, poll().
  [[nodiscard]] int event_fd() const noexcept;
  [[nodiscard]] bool arm() noexcept;
  // Takes in what the engine has reported, without waiting. Deliveries then wait for receive(0).
  Result<std::size_t> poll();

 private:
  std::unique_ptr<client::State> state_;
};

}  // namespace kvrail
