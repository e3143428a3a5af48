// Random lives of a scheduler: bytes are conserved at every step, nothing is allocated, and the
// same events give the same actions.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <vector>

#include "kvrail/base/no_alloc.h"
#include "kvrail/base/prng.h"
#include "scheduler/record.h"
#include "scheduler/replay.h"
#include "scheduler/scheduler.h"

using namespace kvrail;
using namespace kvrail::scheduler;

namespace {

constexpr std::uint32_t kLanes = 5;
constexpr std::uint32_t kFlows = 64;

class RandomLife {
 public:
  explicit RandomLife(std::uint64_t seed, std::uint32_t suspend_below_ppm = 400'000)
      : prng_(seed), scheduler_({.max_lanes = kLanes, .max_flows = kFlows, .suspend_below_ppm = suspend_below_ppm}) {
  }

  void record(Recorder& recorder) { scheduler_.record(&recorder); }
  [[nodiscard]] static SchedulerOptions options() { return {.max_lanes = kLanes, .max_flows = kFlows}; }

  // A digest of every action and estimate.
  std::uint64_t run(int steps) {
    for (LaneIndex lane = 0; lane < kLanes; ++lane) scheduler_.lane_up(lane, 125'000'000ULL << lane, 0);
    for (int i = 0; i < steps; ++i) {
      now_ += static_cast<TimeNs>(prng_.uniform(400'000));
      if (prng_.chance(0.2)) add_flow();
      encode_some();
      post_some();
      for (LaneIndex lane = 0; lane < kLanes; ++lane) {
        complete_some(lane);
        check_lane(lane);
      }
      remove_some();
    }
    return digest_;
  }

 private:
  struct Live {
    FlowHandle flow;
    FlowSpec spec;
    std::uint64_t ready = 0, posted = 0;
  };
  struct Sent {
    PostAction action;
    TimeNs posted_ns = 0;
  };

  void mix(std::uint64_t value) {
    digest_ = (digest_ ^ value) * 0x9E3779B97F4A7C15ULL + (digest_ >> 29);
  }

  void add_flow() {
    FlowSpec spec;
    spec.cookie = ++cookie_;
    spec.total_bytes = prng_.between(1, 3'000'000);
    spec.weight = static_cast<std::uint32_t>(prng_.between(1, 9));
    spec.base_milli = spec.weight * 1000;
    spec.lane = static_cast<LaneIndex>(prng_.uniform(kLanes));
    spec.start_offset = prng_.chance(0.2) ? prng_.uniform(spec.total_bytes) : 0;
    spec.ready_bytes = prng_.chance(0.5) ? spec.total_bytes : 0;
    spec.critical = prng_.chance(0.1);
    spec.background = prng_.chance(0.1);
    spec.submitted_ns = now_;
    spec.deadline_ns =
        prng_.chance(0.3) ? now_ + static_cast<TimeNs>(prng_.uniform(50'000'000)) : 0;
    FlowHandle flow;
    {
      NoAllocScope no_alloc;
      flow = scheduler_.add_flow(spec, now_);
    }
    CHECK(flow.valid() == (live_.size() < kFlows));
    if (flow)
      live_[cookie_] = {flow, spec, std::max(spec.ready_bytes, spec.start_offset),
                        spec.start_offset};
  }

  void encode_some() {
    NoAllocScope no_alloc;
    for (auto& [cookie, it] : live_) {
      if (it.ready == it.spec.total_bytes || !prng_.chance(0.3)) continue;
      it.ready = prng_.between(it.ready, it.spec.total_bytes);
      scheduler_.set_ready(it.flow, it.ready, now_);
    }
  }

  // The transport takes some of the actions; the rest is given back, last first.
  void post_some() {
    std::array<PostAction, 20> actions;
    std::size_t count = 0;
    {
      NoAllocScope no_alloc;
      count = scheduler_.step(now_, std::span(actions).first(prng_.uniform(actions.size() + 1)));
      const std::size_t refused = count > 0 && prng_.chance(0.2) ? prng_.uniform(count + 1) : 0;
      for (std::size_t i = 0; i < refused; ++i) scheduler_.unpost(actions[--count]);
    }
    for (const PostAction& action : std::span(actions).first(count)) {
      Live& it = live_.at(action.cookie);
      REQUIRE(action.flow == it.flow);
      REQUIRE(action.offset == it.posted);
      REQUIRE(action.lane == it.spec.lane);
      it.posted += action.bytes;
      REQUIRE(it.posted <= it.ready);
      sent_[action.lane].push_back({action, now_});
      mix(action.cookie * 31 + action.offset);
      mix(action.bytes);
    }
  }

  void complete_some(LaneIndex lane) {
    std::vector<Sent>& sent = sent_[lane];
    while (!sent.empty() && prng_.chance(0.4)) {
      const std::size_t which = prng_.chance(0.9) ? 0 : prng_.uniform(sent.size());
      const Sent done = sent[which];
      sent.erase(sent.begin() + static_cast<std::ptrdiff_t>(which));
      NoAllocScope no_alloc;
      scheduler_.chunk_done(lane, done.action.bytes, done.posted_ns, now_, prng_.chance(0.95),
                            now_);
    }
  }

  void check_lane(LaneIndex lane) {
    std::uint64_t in_flight = 0, queued = 0;
    for (const Sent& it : sent_[lane]) in_flight += it.action.bytes;
    for (const auto& [cookie, it] : live_) {
      if (it.spec.lane == lane) queued += it.spec.total_bytes - it.posted;
    }
    const LaneEstimate estimate = scheduler_.estimate(lane);
    REQUIRE(estimate.in_flight_bytes == in_flight);
    REQUIRE(estimate.queued_bytes == queued);
    mix(estimate.capacity_bytes_per_s ^ estimate.planning_bytes_per_s << 1);
  }

  void remove_some() {
    for (auto it = live_.begin(); it != live_.end();) {
      const bool whole = it->second.posted == it->second.spec.total_bytes;
      if (whole || prng_.chance(0.002)) {
        scheduler_.remove_flow(it->second.flow);
        it = live_.erase(it);
      } else {
        ++it;
      }
    }
  }

  Prng prng_;
  Scheduler scheduler_;
  TimeNs now_ = 0;
  std::uint64_t cookie_ = 0;
  std::uint64_t digest_ = 0;
  std::map<std::uint64_t, Live> live_;
  std::array<std::vector<Sent>, kLanes> sent_;
};

}  // namespace

TEST_CASE("replay / bytes are conserved through random lives, and the same events repeat them") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const std::uint64_t first = RandomLife(seed).run(3000);
    CHECK(first == RandomLife(seed).run(3000));
    CHECK(first != RandomLife(seed + 100).run(3000));
  }
}

// Recorded once: the same on every machine, compiler and build type. A change of a rule or constant
// changes it on purpose; then record the new one.
TEST_CASE("replay / a recorded life repeats bit by bit") {
  CHECK(RandomLife(42, 0).run(5000) == 2671950956924769491ULL);
  CHECK(RandomLife(42).run(5000) == 10625173367662216677ULL);
}

namespace {

std::vector<std::byte> recorded_life(std::uint64_t seed, std::size_t room) {
  std::vector<std::byte> memory(room);
  Recorder recorder(memory, RandomLife::options(), DepthLoss{});
  RandomLife life(seed);
  life.record(recorder);
  static_cast<void>(life.run(500));
  memory.resize(recorder.head().used_bytes);
  return memory;
}

}  // namespace

TEST_CASE("replay / what was recorded is decided again, all alike") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    const auto replayed = replay(recorded_life(seed, 8U << 20));
    REQUIRE_MESSAGE(replayed.ok(), replayed.error().message);
    CHECK(replayed->differ == 0);
    CHECK(replayed->complete);
    CHECK(replayed->steps >= 400);
    CHECK(replayed->actions > 100);
  }
}

TEST_CASE("replay / a recording that was full is whole as far as it goes") {
  const auto replayed = replay(recorded_life(1, sizeof(RecordHead) + 20'000));
  REQUIRE(replayed.ok());
  CHECK_FALSE(replayed->complete);
  CHECK(replayed->records > 10);
  CHECK(replayed->differ == 0);
}

TEST_CASE("replay / choices too, with what was learned in between") {
  std::vector<std::byte> memory(1U << 20);
  Recorder recorder(memory, SchedulerOptions{}, DepthLoss{});
  MediumChooser chooser{DepthLoss{}};
  chooser.record(&recorder);
  Prng prng(7);
  for (int i = 0; i < 200; ++i) {
    std::array<CandidateCost, 3> offered{};
    offered[0] = {.medium = Medium::tokens, .fixed_bytes = 4000};
    offered[1] = {.medium = Medium::full, .block_bytes = 8U << 20, .wait_ns = prng.uniform(10'000'000), .rate_bytes_per_s = 1'250'000'000};
    offered[2] = {.medium = Medium::int4, .block_bytes = 2U << 20, .wait_ns = prng.uniform(10'000'000), .rate_bytes_per_s = 1'250'000'000};
    ReceiverFacts facts;
    facts.pair_key = prng.uniform(4);
    facts.total_tokens = 64 * (1 + prng.uniform(100));
    facts.missing_full_blocks = facts.total_tokens / 64;
    facts.compute.prefill_per_token_ns = 60'000;
    facts.lease_bytes_free = UINT64_MAX;
    const Pick pick = chooser.pick(offered, facts, 0);
    REQUIRE(pick.index >= 0);
    chooser.observe(0, offered[static_cast<std::size_t>(pick.index)].medium, pick.bytes, pick.predicted_ns,
                    pick.predicted_ns * static_cast<TimeNs>(1 + prng.uniform(3)));
  }
  memory.resize(recorder.head().used_bytes);
  const auto replayed = replay(memory);
  REQUIRE(replayed.ok());
  CHECK(replayed->decisions == 200);
  CHECK(replayed->differ == 0);
}

TEST_CASE("replay / what is no recording, of another build, cut or damaged is refused") {
  const std::vector<std::byte> good = recorded_life(1, 8U << 20);
  const auto message = [](std::vector<std::byte> bytes) {
    const auto replayed = replay(bytes);
    REQUIRE_FALSE(replayed.ok());
    return replayed.error().message;
  };
  CHECK(message({}) == "is no recording");
  CHECK(message(std::vector<std::byte>(4096)) == "is no recording");
  CHECK(message({good.begin(), good.end() - 1}).find("its length") != std::string::npos);
  auto other = good;
  other[8] ^= std::byte{1};
  CHECK(message(other).find("another build") != std::string::npos);
  auto damaged = good;
  damaged[sizeof(RecordHead)] = std::byte{200};  // no such kind
  CHECK(message(damaged).find("is damaged at byte") != std::string::npos);
  Prng prng(5);
  for (int i = 0; i < 300; ++i) {  // any bit behind magic, layout and length
    damaged = good;
    const std::uint64_t at = prng.between(32, damaged.size() - 1);
    damaged[at] ^= static_cast<std::byte>(1U << prng.uniform(8));
    CHECK(message(damaged).find("is damaged") == 0);
  }
  damaged = good;
  damaged[sizeof(RecordHead) + 4] = std::byte{7};  // shorter than its own frame
  CHECK(message(damaged).find("is damaged at byte") != std::string::npos);
}

TEST_CASE("replay / an outcome that was another one is told") {
  std::vector<std::byte> memory = recorded_life(3, 8U << 20);
  bool changed = false;
  for (std::uint64_t at = sizeof(RecordHead); at < memory.size() && !changed;) {
    std::uint64_t frame = 0;
    std::memcpy(&frame, memory.data() + at, sizeof(frame));
    const std::uint64_t bytes = frame >> 32;
    constexpr std::uint64_t kActionsAt = Recorder::kFrame + 16;
    if ((frame & 0xffff) == static_cast<std::uint64_t>(RecordKind::step) && bytes > kActionsAt) {
      PostAction action;
      std::memcpy(&action, memory.data() + at + kActionsAt, sizeof(action));
      action.offset += 1;
      std::memcpy(memory.data() + at + kActionsAt, &action, sizeof(action));
      const std::uint64_t check = record_check({memory.data() + at + Recorder::kFrame, bytes - Recorder::kFrame}) ^ frame;
      std::memcpy(memory.data() + at + 8, &check, sizeof(check));
      changed = true;
    }
    at += bytes;
  }
  REQUIRE(changed);
  const auto replayed = replay(memory);
  REQUIRE(replayed.ok());
  CHECK(replayed->differ == 1);
  CHECK(replayed->first.find("the actions of a step") == 0);
}
