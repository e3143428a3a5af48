#include "scheduler/replay.h"

#include <cstring>
#include <memory>
#include <vector>

#include "scheduler/record.h"

namespace kvrail::scheduler {
namespace {

Error bad(const std::string& what) { return Error{{Code::invalid_argument}, what}; }

// Reads parts of one record; what is beyond its end reads as zeros and counts.
class Parts {
 public:
  explicit Parts(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T next() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      good_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> rest() {
    std::vector<T> many(bytes_.size() / sizeof(T));
    if (bytes_.size() % sizeof(T) != 0) good_ = false;
    for (T& one : many) one = next<T>();
    return many;
  }
  [[nodiscard]] bool good() const { return good_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool good_ = true;
};

bool same(const PostAction& a, const PostAction& b) {
  return a.flow == b.flow && a.cookie == b.cookie && a.lane == b.lane && a.offset == b.offset && a.bytes == b.bytes &&
         a.critical == b.critical && a.reserved == b.reserved;
}

class Player {
 public:
  explicit Player(const RecordHead& head) : scheduler_(head.scheduler), chooser_(head.loss) {}

  // False: the record is damaged.
  bool play(RecordKind kind, std::span<const std::byte> bytes) {
    Parts in(bytes);
    ++out.records;
    switch (kind) {
      case RecordKind::lane_up: {
        const auto it = in.next<LaneUpEvent>();
        if (in.good()) scheduler_.lane_up(it.lane, it.rate_bytes_per_s, it.now_ns, it.shares != 0);
        break;
      }
      case RecordKind::lane_down: {
        const auto lane = in.next<LaneIndex>();
        if (in.good()) scheduler_.lane_down(lane);
        break;
      }
      case RecordKind::open_budget: {
        const auto spec = in.next<ReservationSpec>();
        const auto now = in.next<TimeNs>();
        const auto handle = in.next<BudgetHandle>();
        if (in.good()) expect(scheduler_.open_budget(spec, now) == handle, "a budget's handle");
        break;
      }
      case RecordKind::close_budget: {
        const auto handle = in.next<BudgetHandle>();
        if (in.good()) scheduler_.close_budget(handle);
        break;
      }
      case RecordKind::add_flow: {
        const auto spec = in.next<FlowSpec>();
        const auto now = in.next<TimeNs>();
        const auto handle = in.next<FlowHandle>();
        if (in.good()) expect(scheduler_.add_flow(spec, now) == handle, "a flow's handle");
        break;
      }
      case RecordKind::set_ready: {
        const auto flow = in.next<FlowHandle>();
        const auto ready = in.next<std::uint64_t>();
        const auto now = in.next<TimeNs>();
        if (in.good()) scheduler_.set_ready(flow, ready, now);
        break;
      }
      case RecordKind::remove_flow: {
        const auto flow = in.next<FlowHandle>();
        if (in.good()) scheduler_.remove_flow(flow);
        break;
      }
      case RecordKind::step: step(in); break;
      case RecordKind::unpost: {
        const auto action = in.next<PostAction>();
        if (in.good()) scheduler_.unpost(action);
        break;
      }
      case RecordKind::chunk_done: {
        const auto it = in.next<ChunkDoneEvent>();
        if (in.good()) scheduler_.chunk_done(it.lane, it.bytes, it.posted_ns, it.completed_ns, it.ok != 0, it.now_ns);
        break;
      }
      case RecordKind::rate: {
        const auto lane = in.next<LaneIndex>();
        const auto moved = in.next<std::uint64_t>();
        const auto now = in.next<TimeNs>();
        const auto rate = in.next<std::uint64_t>();
        ++out.rates;
        if (in.good()) expect(scheduler_.rate_for_choice(lane, moved, now) == rate, "a rate for a choice");
        break;
      }
      case RecordKind::pick: pick(in); break;
      case RecordKind::observe: {
        const auto it = in.next<ObserveEvent>();
        if (in.good()) chooser_.observe(it.lane, static_cast<Medium>(it.medium), it.bytes, it.predicted_ns, it.observed_ns);
        break;
      }
      default: return false;
    }
    return in.good();
  }

  Replay out;

 private:
  void step(Parts& in) {
    const auto now = in.next<TimeNs>();
    const auto room = in.next<std::uint64_t>();
    const auto was = in.rest<PostAction>();
    constexpr std::uint64_t kMostRoom = 1 << 20;
    if (!in.good() || room > kMostRoom) return;
    ++out.steps;
    actions_.resize(room);
    const std::size_t count = scheduler_.step(now, actions_);
    out.actions += count;
    bool equal = count == was.size();
    for (std::size_t i = 0; equal && i < count; ++i) equal = same(actions_[i], was[i]);
    expect(equal, "the actions of a step");
  }
  void pick(Parts& in) {
    const auto facts = in.next<ReceiverFacts>();
    const auto lane = in.next<std::uint32_t>();
    const auto count = in.next<std::uint32_t>();
    std::vector<CandidateCost> candidates;
    for (std::uint32_t i = 0; i < count && i < kMaxWeighed; ++i) candidates.push_back(in.next<CandidateCost>());
    const auto was = in.next<PickOutcome>();
    if (!in.good() || count > kMaxWeighed) return;
    ++out.decisions;
    expect(outcome_of(chooser_.pick(candidates, facts, lane)) == was, "a choice");
  }
  void expect(bool equal, const char* what) {
    if (equal) return;
    if (out.differ++ == 0) out.first = std::string(what) + ", record " + std::to_string(out.records);
  }

  Scheduler scheduler_;
  MediumChooser chooser_;
  std::vector<PostAction> actions_;
};

}  // namespace

Result<Replay> replay(std::span<const std::byte> recording) {
  RecordHead head;
  if (recording.size() < sizeof(head)) return bad("is no recording");
  std::memcpy(&head, recording.data(), sizeof(head));
  if (head.magic != RecordHead::kMagic) return bad("is no recording");
  if (head.layout != record_layout()) return bad("was recorded by another build; replay it with that one");
  if (head.check != record_check(head)) return bad("is damaged: its head");
  if (head.used_bytes < sizeof(head) || head.used_bytes > recording.size()) return bad("is damaged: its length is wrong");
  Player player(head);
  player.out.complete = head.full == 0;
  for (std::uint64_t at = sizeof(head); at < head.used_bytes;) {
    std::uint64_t frame = 0, check = 0;
    const std::uint64_t left = head.used_bytes - at;
    if (left >= Recorder::kFrame) {
      std::memcpy(&frame, recording.data() + at, sizeof(frame));
      std::memcpy(&check, recording.data() + at + sizeof(frame), sizeof(check));
    }
    const std::uint64_t bytes = frame >> 32;
    if (bytes < Recorder::kFrame || bytes > left ||
        check != (record_check(recording.subspan(at + Recorder::kFrame, bytes - Recorder::kFrame)) ^ frame) ||
        !player.play(static_cast<RecordKind>(frame & 0xffff), recording.subspan(at + Recorder::kFrame, bytes - Recorder::kFrame))) {
      return bad("is damaged at byte " + std::to_string(at));
    }
    at += bytes;
  }
  return std::move(player.out);
}

}  // namespace kvrail::scheduler
