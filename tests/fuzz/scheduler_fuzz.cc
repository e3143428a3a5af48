// The event stream of the order of bytes: flows of all classes, reservations, encoders that are slow, transports that
// are full, completions in any order, time that stands or leaps. Whatever comes: each byte of a flow is posted once and
// in order, only what is ready, what is in flight stays in its bound, and in the end everything has gone.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kvrail/base/assert.h"
#include "scheduler/scheduler.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/seeds.h"

namespace {

using kvrail::test::Bytes;
using namespace kvrail;
using namespace kvrail::scheduler;

constexpr LaneIndex kLanes = 3;
constexpr std::size_t kMostFlows = 64;

struct Live {
  FlowHandle handle;
  FlowSpec spec;
  std::uint64_t at = 0, ready = 0;
};
struct Posted {
  LaneIndex lane = 0;
  std::uint32_t bytes = 0;
  TimeNs posted_ns = 0;
};

class Stream {
 public:
  explicit Stream(Bytes bytes) : bytes_(bytes) {
    for (LaneIndex lane = 0; lane < kLanes; ++lane) scheduler_.lane_up(lane, 1 + bytes_.number(1U << 30), 0);
  }
  void run() {
    for (int i = 0; i < 2000 && !bytes_.empty(); ++i) event();
    for (Live& flow : flows_) make_ready(flow, flow.spec.total_bytes);
    for (int i = 0; i < 200'000 && !flows_.empty(); ++i) {
      now_ += kMillisecondNs;
      complete(true);
      step(false);
      std::erase_if(flows_, [&](const Live& flow) {
        if (flow.at < flow.spec.total_bytes) return false;
        scheduler_.remove_flow(flow.handle);
        return true;
      });
    }
    KVRAIL_ASSERT_MSG(flows_.empty(), "a flow was never served");
    complete(true);
    for (LaneIndex lane = 0; lane < kLanes; ++lane) {
      const LaneEstimate estimate = scheduler_.estimate(lane);
      KVRAIL_ASSERT(estimate.queued_bytes == 0 && estimate.in_flight_bytes == 0);
      scheduler_.lane_down(lane);
    }
  }

 private:
  void event() {
    switch (bytes_.u8() % 10) {
      case 0:
      case 1: return add();
      case 2: return step(true);
      case 3: return step(false);
      case 4: return complete(false);
      case 5: {
        if (Live* const flow = any()) make_ready(*flow, flow->ready + bytes_.number(200) * 1024);
        return;
      }
      case 6: return remove();
      case 7: return reserve();
      case 8: return close();
      default: now_ += static_cast<TimeNs>(bytes_.number(255) * 10'000); return;
    }
  }
  Live* any() { return flows_.empty() ? nullptr : &flows_[bytes_.u8() % flows_.size()]; }
  void make_ready(Live& flow, std::uint64_t ready) {
    flow.ready = std::max(flow.ready, std::min(ready, flow.spec.total_bytes));
    scheduler_.set_ready(flow.handle, flow.ready, now_);
  }
  void add() {
    FlowSpec spec;
    spec.lane = bytes_.u8() % kLanes;
    spec.total_bytes = std::min<std::uint64_t>(bytes_.number(255) * 1000 + bytes_.u8(), 4U << 20);
    spec.start_offset = std::min(spec.total_bytes, bytes_.number(255) * 500);
    spec.ready_bytes = bytes_.one_in(2) ? spec.total_bytes : std::min(spec.total_bytes, bytes_.number(255) * 700);
    spec.weight = bytes_.u8();
    spec.base_milli = static_cast<std::uint32_t>(bytes_.number(10'000));
    spec.submitted_ns = now_ - static_cast<TimeNs>(bytes_.number(255)) * kMillisecondNs;
    if (bytes_.one_in(4)) spec.deadline_ns = now_ + static_cast<TimeNs>(bytes_.number(255)) * kMillisecondNs;
    spec.critical = bytes_.one_in(8);
    spec.background = !spec.critical && bytes_.one_in(8);
    if (!budgets_.empty() && bytes_.one_in(2)) {
      const auto& [budget, lane] = budgets_[bytes_.u8() % budgets_.size()];
      if (lane == spec.lane) spec.budget = budget;
    }
    const FlowHandle handle = scheduler_.add_flow(spec, now_);
    KVRAIL_ASSERT(handle.valid() == (flows_.size() < kMostFlows));
    if (handle.valid()) flows_.push_back({handle, spec, spec.start_offset, std::max(spec.ready_bytes, spec.start_offset)});
  }
  void remove() {
    if (flows_.empty()) return;
    const auto at = flows_.begin() + static_cast<std::ptrdiff_t>(bytes_.u8() % flows_.size());
    scheduler_.remove_flow(at->handle);
    flows_.erase(at);
  }
  void reserve() {
    const LaneIndex lane = bytes_.u8() % kLanes;
    const TimeNs period = 1 + static_cast<TimeNs>(bytes_.number(255)) * 100'000;
    const BudgetHandle budget =
        scheduler_.open_budget({lane, period, static_cast<TimeNs>(bytes_.number(255)) % period, 1 + bytes_.number(255) * 2000}, now_);
    if (budget.valid()) budgets_.emplace_back(budget, lane);
  }
  void close() {
    if (budgets_.empty()) return;
    const auto at = budgets_.begin() + static_cast<std::ptrdiff_t>(bytes_.u8() % budgets_.size());
    scheduler_.close_budget(at->first);
    budgets_.erase(at);
  }
  void step(bool full) {
    std::array<PostAction, 12> actions;
    const std::size_t count = scheduler_.step(now_, std::span(actions).first(1 + bytes_.u8() % 12));
    // A transport that is full takes the first ones of each lane.
    const std::size_t kept = full ? bytes_.u8() % (count + 1) : count;
    for (std::size_t i = count; i > kept; --i) scheduler_.unpost(actions[i - 1]);
    for (std::size_t i = 0; i < kept; ++i) take(actions[i]);
  }
  void take(const PostAction& action) {
    const auto flow = std::find_if(flows_.begin(), flows_.end(), [&](const Live& it) { return it.handle == action.flow; });
    KVRAIL_ASSERT_MSG(flow != flows_.end(), "a chunk of a flow that was removed");
    KVRAIL_ASSERT(action.lane == flow->spec.lane && action.bytes > 0 && action.offset == flow->at);
    KVRAIL_ASSERT(action.critical == (flow->spec.critical || action.reserved));
    KVRAIL_ASSERT_MSG(!action.reserved || flow->spec.budget.valid(), "nobody pays for it");
    flow->at += action.bytes;
    KVRAIL_ASSERT_MSG(flow->at <= flow->ready, "bytes that are not ready");
    flight_.push_back({action.lane, action.bytes, now_});
  }
  void complete(bool all) {
    for (std::size_t left = all ? flight_.size() : bytes_.u8() % 8; left > 0 && !flight_.empty(); --left) {
      const auto at = flight_.begin() + static_cast<std::ptrdiff_t>(all ? 0 : bytes_.u8() % flight_.size());
      scheduler_.chunk_done(at->lane, at->bytes, at->posted_ns, now_, bytes_.u8() % 8 != 7, now_);
      flight_.erase(at);
    }
  }

  Bytes bytes_;
  Scheduler scheduler_{SchedulerOptions{.max_lanes = kLanes, .max_flows = kMostFlows, .max_budgets = 40}};
  std::vector<Live> flows_;
  std::vector<Posted> flight_;
  std::vector<std::pair<BudgetHandle, LaneIndex>> budgets_;
  TimeNs now_ = kSecondNs;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Stream(Bytes(data, size)).run();
  return 0;
}

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  std::vector<FuzzInput> seeds;
  for (std::uint8_t kind = 0; kind < 10; ++kind) {  // each kind of event often, among all others
    FuzzInput seed{255, 255, 255};
    for (std::uint32_t i = 0; i < 400; ++i) {
      seed.push_back(static_cast<std::uint8_t>(i % 3 == 0 ? kind : i * 37 + kind));
    }
    seeds.push_back(seed);
  }
  return seeds;
}
