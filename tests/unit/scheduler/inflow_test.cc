// What others bring through the receiver's interface: the ledger, the rate learned, and what both cost a candidate.
#include "scheduler/inflow.h"

#include "tests/unit/scheduler/choice_facts.h"

using namespace kvrail;
using namespace kvrail::scheduler;
using namespace kvrail::scheduler::testing;

namespace {

constexpr std::uint64_t kLane = 1'000'000'000;
constexpr std::uint64_t kEnough = std::uint64_t{1} << 40;

// Pieces of 1 MB, one each `apart_ns`, from peers 0 and 1 in turn.
TimeNs in_turn(Inflow& inflow, TimeNs now, TimeNs apart_ns, int pieces) {
  for (int i = 0; i < pieces; ++i) {
    now += apart_ns;
    inflow.arrived(static_cast<std::uint32_t>(i % 2), 1'000'000, now);
  }
  return now;
}

// A full block each of `missing` at 1 GB/s, where others bring so much.
CostLine shared_line(std::uint64_t bytes, std::uint64_t wait_ns, std::uint64_t left, std::uint32_t bringing,
                     std::uint64_t inflow_bytes_per_s) {
  CandidateCost it = fixed_ns(Medium::full, wait_ns);
  it.fixed_bytes = bytes;
  ReceiverFacts facts = receiver_facts();
  facts.missing_full_blocks = 0;
  facts.missing_tail = false;
  facts.others_left_bytes = left;
  facts.others_bringing = bringing;
  facts.inflow_bytes_per_s = inflow_bytes_per_s;
  return cost_line(it, facts, LossProfile::built_in());
}

}  // namespace

TEST_CASE("inflow / what others bring, counted down as it comes") {
  Inflow inflow(3);
  inflow.open(0, 1000);
  inflow.open(1, 500);
  inflow.open(1, 500);
  inflow.open(2, 0);  // nothing of it comes through the interface
  ReceiverFacts facts;
  inflow.fill(0, kLane, facts);
  CHECK(facts.others_left_bytes == 1000);
  CHECK(facts.others_bringing == 1);
  CHECK(facts.inflow_bytes_per_s == kLane);
  inflow.fill(2, kLane, facts);
  CHECK(facts.others_left_bytes == 2000);
  CHECK(facts.others_bringing == 2);
  CHECK(inflow.others_ns(2, kLane) == 2000);
  inflow.arrived(1, 900, 1);
  inflow.fill(2, kLane, facts);
  CHECK(facts.others_left_bytes == 1100);
  CHECK(facts.others_bringing == 2);
  inflow.close(1, 100);
  inflow.arrived(0, 1000, 2);
  inflow.fill(2, kLane, facts);
  CHECK(facts.others_left_bytes == 0);
  CHECK(facts.others_bringing == 0);
}

TEST_CASE("inflow / the rate is what several peers bring at once, and at least the lane's") {
  Inflow inflow(2);
  inflow.open(0, kEnough);
  // 1 MB each 0.25 ms of one alone: 4 GB/s, which its sender knows.
  TimeNs now = 0;
  for (int i = 0; i < 100; ++i) inflow.arrived(0, 1'000'000, now += 250'000);
  CHECK(inflow.bytes_per_s(kLane) == kLane);
  inflow.open(1, kEnough);
  now = in_turn(inflow, now, 500'000, 20);  // 9.5 ms after the first of them
  CHECK(inflow.bytes_per_s(kLane) == kLane);
  now = in_turn(inflow, now, 500'000, 1);  // 20 MB in 10 ms
  CHECK(inflow.bytes_per_s(kLane) == 2'000'000'000);
  CHECK(inflow.bytes_per_s(3'000'000'000) == 3'000'000'000);
}

TEST_CASE("inflow / what a pause had kept back is not taken for a faster interface") {
  Inflow inflow(2);
  inflow.open(0, kEnough);
  inflow.open(1, kEnough);
  TimeNs now = kSecondNs;
  for (std::uint32_t i = 0; i < 50; ++i) inflow.arrived(i % 2, 1'000'000, now);  // all found at once
  now = in_turn(inflow, now, 1'000'000, 10);
  CHECK(inflow.bytes_per_s(1) == 1'000'000'000);
}

TEST_CASE("inflow / a slower interface is believed after some hundred samples of it") {
  Inflow inflow(2);
  inflow.open(0, kEnough);
  inflow.open(1, kEnough);
  TimeNs now = in_turn(inflow, 0, 500'000, 21);
  CHECK(inflow.bytes_per_s(1) == 2'000'000'000);
  const auto samples = static_cast<int>(WindowedMax::kRounds * Inflow::kSamplesPerRound);
  now = in_turn(inflow, now, 1'000'000, 10 * samples / 2);
  CHECK(inflow.bytes_per_s(1) == 2'000'000'000);
  in_turn(inflow, now, 1'000'000, 10 * samples);
  CHECK(inflow.bytes_per_s(1) == 1'000'000'000);
}

TEST_CASE("cost / an interface that others share") {
  // 10 MB by a lane of 1 GB/s: 10 ms. Nobody else.
  CHECK(shared_line(10'000'000, 0, 0, 0, kLane).wait_ns == 0);
  // One other brings 4 MB: all of these pass before our last byte, 14 MB in 14 ms; and are late by as much.
  CostLine line = shared_line(10'000'000, 0, 4'000'000, 1, kLane);
  CHECK(line.wait_ns == 4'000'000);
  CHECK(line.transmit_ns == 10'000'000);
  CHECK(line.price_ns == 4'000'000);
  // Two bring 100 MB each: of each 10 MB.
  line = shared_line(10'000'000, 0, 200'000'000, 2, kLane);
  CHECK(line.wait_ns == 20'000'000);
  CHECK(line.price_ns == 20'000'000);
  // So a small one waits hardly: 2 KB take 2 us.
  CHECK(shared_line(1'000, 0, 200'000'000, 2, kLane).wait_ns == 2'000);
  // What waits on the lane meanwhile does not wait twice: 12 of the 20 ms are the lane's own.
  CHECK(shared_line(10'000'000, 12'000'000, 200'000'000, 2, kLane).wait_ns == 20'000'000);
  CHECK(shared_line(10'000'000, 25'000'000, 200'000'000, 2, kLane).wait_ns == 25'000'000);
  // An interface of three lanes' width has room for all three.
  CHECK(shared_line(10'000'000, 0, 200'000'000, 2, 3 * kLane).wait_ns == 0);
}

TEST_CASE("pick / token ids where the interface is taken, though the lane is empty") {
  MediumChooser chooser(LossProfile::built_in());
  SenderFacts sender = sender_facts();
  sender.lane_rate_bytes_per_s = 6'000'000'000;
  ReceiverFacts receiver = receiver_facts();
  CHECK(is_kv(chosen(chooser.pick(offer(sender), receiver, 0))));
  receiver.pair_key = 2;
  receiver.others_left_bytes = kEnough;
  receiver.others_bringing = 4;
  receiver.inflow_bytes_per_s = sender.lane_rate_bytes_per_s;
  CHECK(chosen(chooser.pick(offer(sender), receiver, 0)) == Medium::tokens);
}
