#include <doctest/doctest.h>

#include <string_view>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/cost.h"
#include "scheduler/medium_choice.h"
#include "tests/unit/scheduler/choice_facts.h"

using namespace kvrail;
using namespace kvrail::scheduler;
using namespace kvrail::scheduler::testing;


TEST_CASE("candidates / sizes follow the layout") {
  const auto all = offer(sender_facts());
  REQUIRE(all.size() == 3);
  const CandidateCost* const full = find(all, Medium::full);
  REQUIRE(full != nullptr);
  CHECK(full->block_bytes == 64 * 131'072);
  CHECK(full->tail_bytes == 40 * 131'072);
  const CandidateCost* const int8 = find(all, Medium::int8);
  REQUIRE(int8 != nullptr);
  CHECK(int8->block_bytes == kInt8BlockBytes);
  CHECK(int8->encode_ns_per_block == 500'000);
  const CandidateCost* const tokens = find(all, Medium::tokens);
  REQUIRE(tokens != nullptr);
  CHECK(tokens->block_bytes == 256);
  CHECK(tokens->wait_ns == 0);  // there with the offer
  CHECK(full->wait_ns == 100'000);  // the answer, and the first byte
}

TEST_CASE("candidates / what cannot work is not offered, with the reason when nothing can") {
  SenderFacts facts = sender_facts();
  facts.layouts_equal = false;
  facts.summary_bytes = 500;
  auto all = offer(facts);
  CHECK(all.size() == 2);
  CHECK(find(all, Medium::tokens) != nullptr);
  CHECK(find(all, Medium::summary) != nullptr);

  facts.tokenizers_equal = false;
  facts.summary_bytes = 0;
  std::array<CandidateCost, kMaxCandidates> out;
  const char* why = nullptr;
  CHECK(candidates(facts, LossProfile::built_in(), out, &why) == 0);
  CHECK(std::string_view(why).size() > 5);

  facts = sender_facts();
  facts.fidelity_floor_ppm = 999'990;  // int8's 40 ppm are too many
  all = offer(facts);
  CHECK(all.size() == 2);
  CHECK(find(all, Medium::int8) == nullptr);
  facts.source_epsilon_ppm = 1000;  // only the text is exact now
  CHECK(offer(facts).size() == 1);
  CHECK(offer(facts)[0].medium == Medium::tokens);
}

TEST_CASE("candidates / a wish is taken or refused, never replaced") {
  SenderFacts facts = sender_facts();
  facts.wish = Medium::int8;
  CHECK(offer(facts).size() == 1);
  CHECK(offer(facts)[0].medium == Medium::int8);
  facts.wish = Medium::reference;
  CHECK(offer(facts)[0].fixed_bytes == 16 * 16);
  std::array<CandidateCost, kMaxCandidates> out;
  const char* why = nullptr;
  for (const Medium medium : {Medium::lowrank, Medium::topk, Medium::window, Medium::summary}) {
    facts.wish = medium;
    CHECK(candidates(facts, LossProfile::built_in(), out, &why) == 0);
    CHECK(std::string_view(why) != "");
  }
}

TEST_CASE("candidates / all media that work are offered at once, but for those that only a wish selects") {
  SenderFacts facts = sender_facts();
  facts.window = {128, Medium::full, 1000, 100, 60, 0};
  facts.summary_bytes = 400;
  facts.coded.fill({100, 60, 7});
  auto all = offer(facts);
  CHECK(all.size() == 8);
  CHECK(find(all, Medium::lowrank)->block_bytes == 100);
  CHECK(find(all, Medium::window) != nullptr);
  facts.topk = {500, Medium::int8, 2000, 100, 60, 9};
  all = offer(facts);
  CHECK(all.size() == 8);
  CHECK(find(all, Medium::window) == nullptr);  // topk knows better what matters
  CHECK(find(all, Medium::topk) != nullptr);
  CHECK(find(all, Medium::exact) == nullptr);
  CHECK(find(all, Medium::reference) == nullptr);
}

TEST_CASE("candidates / topk and window lose what is left out and what their values' code loses") {
  SenderFacts facts = sender_facts();
  const LossProfile loss = LossProfile::built_in();
  const auto of = [&](Medium medium) { return loss.media[static_cast<std::size_t>(medium)]; };
  facts.topk = {500, Medium::int4, 2000, 100, 60, 9};
  facts.wish = Medium::topk;
  const auto all = offer(facts);
  REQUIRE(all.size() == 1);
  CHECK(all[0].epsilon_ppm == of(Medium::topk).epsilon_ppm + of(Medium::int4).epsilon_ppm);
  CHECK(all[0].fixed_bytes == 2000);
  CHECK(all[0].rows == 500);
  CHECK(all[0].values == Medium::int4);
  ReceiverFacts at = receiver_facts();
  at.decode_ns_per_block[static_cast<std::size_t>(Medium::int4)] = 11;
  const CostLine line = cost_line(all[0], at, loss);
  CHECK(line.blocks == (500 + facts.layout.block_tokens - 1) / facts.layout.block_tokens);
  CHECK(line.bytes == 2000);
  CHECK(line.encode_ns == static_cast<TimeNs>(9 * line.blocks));
  CHECK(line.decode_ns == static_cast<TimeNs>(11 * line.blocks));
  CHECK(line.loss_ns == static_cast<TimeNs>(of(Medium::topk).extra_tokens_milli + of(Medium::int4).extra_tokens_milli) *
                            static_cast<TimeNs>(at.compute.decode_per_token_ns) / 1000);
  at.lease_bytes_free = line.blocks * at.block_slot_bytes + 1999;  // the planes are beside the slots
  CHECK_FALSE(cost_line(all[0], at, loss).allowed);
  ++at.lease_bytes_free;
  CHECK(cost_line(all[0], at, loss).allowed);
  at.fidelity_floor_ppm = 900'000;
  CHECK_FALSE(cost_line(all[0], at, loss).allowed);
  facts.fidelity_floor_ppm = 900'000;
  CHECK(offer(facts).empty());
}

TEST_CASE("candidates / losses within one encoding don't add, those of independent ones do") {
  SenderFacts facts = sender_facts();
  facts.coded.fill({100, 60, 7});
  facts.source_epsilon_ppm = 40;  // came as int8
  CHECK(find(offer(facts), Medium::int4)->epsilon_ppm == 9'500);
  CHECK(find(offer(facts), Medium::int8)->epsilon_ppm == 40);
  for (CodedFacts& coded : facts.coded) coded.came_so = true;
  CHECK(find(offer(facts), Medium::int4)->epsilon_ppm == 9'460);
  CHECK(find(offer(facts), Medium::int8)->epsilon_ppm == 0);
  facts.source_epsilon_ppm = 20'000;
  CHECK(find(offer(facts), Medium::int4)->epsilon_ppm == 0);
  facts.fidelity_floor_ppm = 980'000;  // exp(-0.02)
  CHECK(find(offer(facts), Medium::int4) != nullptr);
  facts.coded[static_cast<std::size_t>(Medium::int4)].came_so = false;
  CHECK(find(offer(facts), Medium::int4) == nullptr);
}

TEST_CASE("candidates, pick / what stays of a lineage keeps its floor, terminal media needn't") {
  // exp(-0.105360) = 0.9000005, exp(-0.105361) < 0.9.
  CHECK(most_loss_ppm(900'000) == 105'360);
  CHECK(most_loss_ppm(0) == UINT32_MAX);
  CHECK(most_loss_ppm(1'000'000) == 0);
  for (const std::uint32_t floor : {1U, 500'000U, 900'000U, 990'000U, 999'999U}) {
    CAPTURE(floor);
    CHECK(fidelity_ppm(MediumLoss{}, most_loss_ppm(floor)) >= floor);
    CHECK(fidelity_ppm(MediumLoss{}, most_loss_ppm(floor) + 8) < floor);
  }
  const MediumLoss plain;
  const struct {
    std::uint32_t fidelity_floor_ppm, lineage_floor_ppm;
  } floors{0, 900'000}, none{0, 0}, own{900'000, 0};
  CHECK(under_floor(floors, plain, Medium::int4, 105'360) == nullptr);
  CHECK(std::string_view(under_floor(floors, plain, Medium::int4, 105'400)) == "below the lineage's floor");
  CHECK(std::string_view(under_floor(floors, plain, Medium::tokens, 105'400)) == "below the lineage's floor");
  CHECK(under_floor(floors, plain, Medium::topk, 500'000) == nullptr);
  CHECK(under_floor(floors, plain, Medium::summary, 500'000) == nullptr);
  CHECK(under_floor(none, plain, Medium::int4, 500'000) == nullptr);
  CHECK(std::string_view(under_floor(own, plain, Medium::topk, 500'000)) == "below the fidelity floor");
}

TEST_CASE("loss / weighed, losses of media with other κ add up in one unit") {
  DepthLoss loss;
  loss.depths[0].media[static_cast<std::size_t>(Medium::full)] = {0, 0, 0};
  loss.depths[0].media[static_cast<std::size_t>(Medium::int4)] = {9'500, 80, 7};
  loss.depths[0].media[static_cast<std::size_t>(Medium::int8)] = {40, 0, 0};
  const DepthLoss out = weighed(loss);
  const auto of = [&](Medium medium) { return out.depths[0].media[static_cast<std::size_t>(medium)]; };
  CHECK(of(Medium::full).epsilon_ppm == 0);
  CHECK(of(Medium::full).kappa_milli == 1000);  // what its source has lost counts
  CHECK(of(Medium::int4).epsilon_ppm == 760);
  CHECK(of(Medium::int4).extra_tokens_milli == 7);
  CHECK(of(Medium::int8).epsilon_ppm == 1);  // lossy is never exact
  CHECK(fidelity_ppm(of(Medium::int4), 760) == fidelity_ppm(loss.depths[0].media[static_cast<std::size_t>(Medium::int4)], 9'500));
}

TEST_CASE("cost / prefill and pipelining follow their formulas") {
  const ComputeProfile compute{1000, 10, std::uint64_t{1} << 20, 0};  // a = 1
  CHECK(prefill_ns(compute, 0, 50) == 0);
  CHECK(prefill_ns(compute, 100, 0) == 1000 + 1000 + 10'000);
  CHECK(prefill_ns(compute, 100, 50) == 1000 + 1000 + 100 * 200);
  CHECK(pipelined_ns(10, 100, 30, 1) == 140);
  CHECK(pipelined_ns(10, 100, 30, 10) == 104);
  CHECK(pipelined_ns(0, 100, 0, 0) == 100);
  CHECK(priced(1000, 500'000, 0) == 500);
  CHECK(priced(1'000'000, 0, 100'000) == 30'000);  // 100/s x 0.3 x 1 ms = 0.03 of 1 ms
}

TEST_CASE("pick / the faster link and the busier machine decide") {
  MediumChooser chooser(LossProfile::built_in());
  SenderFacts sender = sender_facts();
  ReceiverFacts receiver = receiver_facts();
  // 131 MB at 10 Gbit/s: 105 ms; int8 54 ms; recompute 42 ms.
  Pick pick = chooser.pick(offer(sender), receiver, 0);
  CHECK(chosen(pick) == Medium::tokens);
  CHECK(line_of(pick, Medium::full).transmit_ns > 100 * kMillisecondNs);
  CHECK(line_of(pick, Medium::int8).decode_ns == 16 * 300'000);
  CHECK(line_of(pick, Medium::tokens).recompute_ns > 40 * kMillisecondNs);
  receiver.compute_backlog_ns = 500 * kMillisecondNs;
  CHECK(chosen(chooser.pick(offer(sender), receiver, 0)) == Medium::int8);
  sender.lane_rate_bytes_per_s = 50'000'000'000;
  sender.coded[static_cast<std::size_t>(Medium::int8)].encode_ns_per_block = 5'000'000;
  CHECK(chosen(chooser.pick(offer(sender), receiver, 0)) == Medium::full);
}

TEST_CASE("pick / prices move the choice away from what others wait for") {
  MediumChooser chooser(LossProfile::built_in());
  SenderFacts sender = sender_facts();
  sender.lane_rate_bytes_per_s = 6'000'000'000;
  ReceiverFacts receiver = receiver_facts();
  receiver.pair_key = 1;
  CHECK(chosen(chooser.pick(offer(sender), receiver, 0)) == Medium::int8);
  receiver.pair_key = 2;
  sender.nic_price_ppm = 5'000'000;  // each ns on the lane costs others 5 ns
  const Pick pick = chooser.pick(offer(sender), receiver, 0);
  CHECK(chosen(pick) == Medium::tokens);
  CHECK(line_of(pick, Medium::int8).total_ns < line_of(pick, Medium::tokens).total_ns);
}

TEST_CASE("pick / only what is missing is counted") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts receiver = receiver_facts();
  receiver.missing_full_blocks = 0;
  receiver.missing_tail_bytes = 131'072;  // one row of growth
  receiver.held_tokens = 999;
  const Pick pick = chooser.pick(offer(sender_facts()), receiver, 0);
  CHECK(line_of(pick, Medium::full).bytes == 131'072);
  CHECK(line_of(pick, Medium::int8).bytes == kInt8TailBytes);
  CHECK(chosen(pick) == Medium::full);
  CHECK(pick.bytes == 131'072);
  CHECK(pick.predicted_ns == line_of(pick, Medium::full).total_ns);
}

TEST_CASE("pick / what is held with a little loss need not come again with as much") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts receiver = receiver_facts();
  receiver.lossy[0] = {40, 1, false};  // the other blocks came as int8 before
  const Pick pick = chooser.pick(offer(sender_facts()), receiver, 0);
  CHECK(line_of(pick, Medium::int8).bytes == kInt8BlockBytes);
  CHECK(line_of(pick, Medium::full).bytes == 1000 * layout_8b().token_bytes());
  CHECK(chosen(pick) == Medium::int8);
  receiver.lossy[0].missing_full_blocks = 0;
  receiver.pair_key = 2;
  const Pick nothing = chooser.pick(offer(sender_facts()), receiver, 0);
  CHECK(line_of(nothing, Medium::int8).bytes == 0);
  CHECK(line_of(nothing, Medium::int8).decode_ns == 0);
}

TEST_CASE("pick / what is held counts for a medium by that medium's own loss") {
  MediumChooser chooser(LossProfile::built_in());
  SenderFacts sender = sender_facts();
  sender.coded[static_cast<std::size_t>(Medium::int4)] = {kInt8BlockBytes / 2, kInt8TailBytes / 2, 0};
  ReceiverFacts receiver = receiver_facts();
  receiver.lossy[0] = {40, 10, false};    // little is held that well
  receiver.lossy[1] = {9'500, 2, false};  // more came as int4 before
  const Pick pick = chooser.pick(offer(sender), receiver, 0);
  CHECK(line_of(pick, Medium::int8).bytes == 10 * kInt8BlockBytes);
  CHECK(line_of(pick, Medium::int4).bytes == 2 * (kInt8BlockBytes / 2));
}

TEST_CASE("candidates / media that can't be made of the rows are not offered") {
  SenderFacts facts = sender_facts();
  facts.wish = Medium::lossless;
  CHECK(offer(facts).empty());
  facts.coded[static_cast<std::size_t>(Medium::lossless)] = {100, 60, 7};
  const auto all = offer(facts);
  REQUIRE(all.size() == 1);
  CHECK(all[0].block_bytes == 100);
  CHECK(all[0].tail_bytes == 60);
  CHECK(all[0].encode_ns_per_block == 7);
  CHECK(all[0].epsilon_ppm == 0);
}

TEST_CASE("candidates, pick / what protected blocks take more moves where any block does") {
  MediumChooser chooser(LossProfile::built_in());
  SenderFacts sender = sender_facts();
  CodedFacts& int4 = sender.coded[static_cast<std::size_t>(Medium::int4)];
  int4 = {kInt8BlockBytes / 2, kInt8TailBytes / 2, 0};
  int4.fixed_bytes = 7'000;
  int4.first_blocks = 1;
  int4.last_blocks = 2;
  const auto offered = offer(sender);
  const CandidateCost* candidate = find(offered, Medium::int4);
  REQUIRE(candidate != nullptr);
  CHECK(candidate->fixed_bytes == 7'000);
  CHECK(candidate->first_blocks == 1);
  CHECK(candidate->last_blocks == 2);
  CHECK(find(offered, Medium::int8)->fixed_bytes == 0);
  ReceiverFacts receiver = receiver_facts();
  CHECK(line_of(chooser.pick(offered, receiver, 0), Medium::int4).bytes ==
        7'000 + 15 * (kInt8BlockBytes / 2) + kInt8TailBytes / 2);
  receiver.missing_full_blocks = 0;
  receiver.missing_tail = false;
  CHECK(line_of(chooser.pick(offered, receiver, 0), Medium::int4).bytes == 0);
}

TEST_CASE("pick / on the same node full moves no byte and needs no lease") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts receiver = receiver_facts();
  receiver.same_node = true;
  receiver.lease_bytes_free = 0;
  const Pick pick = chooser.pick(offer(sender_facts()), receiver, 0);
  CHECK(chosen(pick) == Medium::full);
  CHECK(pick.bytes == 0);
  CHECK(std::string_view(line_of(pick, Medium::int8).why_not) == "not enough free receive memory");
}

TEST_CASE("pick / constraints name themselves") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts receiver = receiver_facts();
  receiver.lease_bytes_free = 1000;
  Pick pick = chooser.pick(offer(sender_facts()), receiver, 0);
  CHECK(pick.reason == PickReason::only_one);
  CHECK(chosen(pick) == Medium::tokens);

  receiver = receiver_facts();
  receiver.fidelity_floor_ppm = 999'990;
  receiver.pair_key = 2;
  pick = chooser.pick(offer(sender_facts()), receiver, 0);
  CHECK(std::string_view(line_of(pick, Medium::int8).why_not) == "below the fidelity floor");
  receiver.held_tokens = 64;
  receiver.held_epsilon_ppm = 5000;  // what is held is worse than the floor: nothing can help
  pick = chooser.pick(offer(sender_facts()), receiver, 0);
  CHECK(pick.index == -1);
  CHECK(pick.reason == PickReason::none_allowed);
  CHECK(!chooser.any_allowed(offer(sender_facts()), receiver));
  receiver.held_epsilon_ppm = 0;
  CHECK(chooser.any_allowed(offer(sender_facts()), receiver));
}

TEST_CASE("pick / a deadline rules out what misses it, unless all do") {
  MediumChooser chooser(LossProfile::built_in());
  SenderFacts sender = sender_facts();
  sender.nic_price_ppm = 50'000'000;  // the lane is dear but fast
  sender.lane_rate_bytes_per_s = 6'000'000'000;
  ReceiverFacts receiver = receiver_facts();
  receiver.remaining_ns = 30 * kMillisecondNs;
  Pick pick = chooser.pick(offer(sender), receiver, 0);
  CHECK(chosen(pick) != Medium::tokens);
  CHECK(std::string_view(line_of(pick, Medium::tokens).why_not) == "would miss the deadline");
  receiver.remaining_ns = 1000;
  receiver.pair_key = 9;
  pick = chooser.pick(offer(sender), receiver, 0);
  CHECK(chosen(pick) == Medium::tokens);
}

TEST_CASE("pick / nothing offered, nothing picked") {
  MediumChooser chooser(LossProfile::built_in());
  const Pick pick = chooser.pick({}, receiver_facts(), 0);
  CHECK(pick.index == -1);
  CHECK(pick.line_count == 0);
}

TEST_CASE("hysteresis / a gain of 15 % must show twice in a row, one of 50 % once") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts facts = receiver_facts();
  facts.missing_full_blocks = 0;
  facts.missing_tail = false;
  const auto decide = [&](std::uint64_t reference_ns, std::uint64_t full_ns) {
    const std::array both{fixed_ns(Medium::reference, reference_ns),
                          fixed_ns(Medium::full, full_ns)};
    return chooser.pick(both, facts, 0);
  };
  CHECK(chosen(decide(1'000'000, 1'010'000)) == Medium::reference);
  Pick pick = decide(1'000'000, 900'000);  // 11 %: kept, however often
  for (int i = 0; i < 5; ++i) pick = decide(1'000'000, 900'000);
  CHECK(chosen(pick) == Medium::reference);
  CHECK(pick.reason == PickReason::kept_by_hysteresis);
  CHECK(chosen(decide(1'000'000, 800'000)) == Medium::reference);  // 25 % once
  CHECK(chosen(decide(1'000'000, 950'000)) == Medium::reference);  // not in a row
  CHECK(chosen(decide(1'000'000, 800'000)) == Medium::reference);
  CHECK(chosen(decide(1'000'000, 800'000)) == Medium::full);  // twice
  CHECK(chosen(decide(900'000, 1'000'000)) == Medium::full);
  CHECK(chosen(decide(600'000, 1'000'000)) == Medium::reference);  // 67 % at once
}

TEST_CASE("hysteresis / a wish is no choice to stay with") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts facts = receiver_facts();
  facts.missing_full_blocks = 0;
  facts.missing_tail = false;
  const std::array both{fixed_ns(Medium::reference, 1'000'000), fixed_ns(Medium::full, 1'400'000)};
  const std::array wished{fixed_ns(Medium::full, 1'400'000)};
  CHECK(chosen(chooser.pick(both, facts, 0)) == Medium::reference);
  CHECK(chosen(chooser.pick(wished, facts, 0)) == Medium::full);
  CHECK(chosen(chooser.pick(both, facts, 0)) == Medium::reference);
}

TEST_CASE("hysteresis / another key is another choice") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts facts = receiver_facts();
  const std::array slow_full{fixed_ns(Medium::reference, 1'300'000),
                             fixed_ns(Medium::full, 1'400'000)};
  const std::array slow_reference{fixed_ns(Medium::reference, 1'300'000),
                                  fixed_ns(Medium::full, 1'170'000)};
  facts.missing_full_blocks = 0;
  facts.missing_tail = false;
  CHECK(chosen(chooser.pick(slow_full, facts, 0)) == Medium::reference);
  CHECK(chosen(chooser.pick(slow_reference, facts, 0)) == Medium::reference);
  facts.total_tokens *= 4;  // another size octave
  CHECK(chosen(chooser.pick(slow_reference, facts, 0)) == Medium::full);
  facts.total_tokens /= 4;
  facts.pair_key = 43;  // another pair
  CHECK(chosen(chooser.pick(slow_reference, facts, 0)) == Medium::full);
}

TEST_CASE("residuals / predictions follow what is observed, within a factor of two") {
  MediumChooser chooser(LossProfile::built_in());
  SenderFacts sender = sender_facts();
  sender.wish = Medium::full;
  const auto offered = offer(sender);
  const ReceiverFacts facts = receiver_facts();
  const TimeNs raw = line_of(chooser.pick(offered, facts, 0), Medium::full).total_ns;
  const auto learn = [&](double factor) {
    TimeNs predicted = 0;
    for (int i = 0; i < 40; ++i) {
      const CostLine line = line_of(chooser.pick(offered, facts, 0), Medium::full);
      predicted = line.total_ns;
      chooser.observe(0, Medium::full, line.bytes, predicted,
                      static_cast<TimeNs>(static_cast<double>(raw) * factor));
    }
    return static_cast<double>(predicted) / static_cast<double>(raw);
  };
  CHECK(learn(1.4) == doctest::Approx(1.4).epsilon(0.01));
  CHECK(learn(0.7) == doctest::Approx(0.7).epsilon(0.01));
  CHECK(learn(50) == doctest::Approx(2.0).epsilon(0.01));
  CHECK(learn(0.001) == doctest::Approx(0.5).epsilon(0.01));
  // Other lanes, media and sizes know nothing of it.
  CHECK(line_of(chooser.pick(offered, facts, 1), Medium::full).total_ns == raw);
  chooser.observe(0, Medium::full, 1, 0, 5);  // nonsense is ignored
}

TEST_CASE("residuals / a medium that had a bad moment is tried again") {
  MediumChooser chooser(LossProfile::built_in());
  ReceiverFacts facts = receiver_facts();
  facts.missing_full_blocks = 0;
  facts.missing_tail = false;
  const std::array both{fixed_ns(Medium::reference, 1'400'000), fixed_ns(Medium::full, 1'000'000)};
  CHECK(chosen(chooser.pick(both, facts, 0)) == Medium::full);
  for (int i = 0; i < 3; ++i) chooser.observe(0, Medium::full, 1, 1'000'000, 20'000'000);
  CHECK(chosen(chooser.pick(both, facts, 0)) == Medium::full);  // 2.0 ms, 43 % dearer: once
  CHECK(chosen(chooser.pick(both, facts, 0)) == Medium::reference);
  int passed_over = 0;
  while (passed_over < 1000 && chosen(chooser.pick(both, facts, 0)) == Medium::reference) ++passed_over;
  CHECK(passed_over > 20);
  CHECK(passed_over < 100);
}

TEST_CASE("price meter / random arrivals: their rate times the backlog, fading in silence") {
  PriceMeter meter;
  CHECK(meter.price_ppm(0, kSecondNs) == 0);
  Prng prng(3);
  TimeNs now = 1000;
  TimeNs free_at = 0;
  for (int i = 0; i < 2000; ++i) {
    free_at = std::max(free_at, now) + 50 * kMillisecondNs;
    meter.arrival(now, free_at - now);
    now += static_cast<TimeNs>(prng.exponential(100e6));  // 10 a second
  }
  const double price = static_cast<double>(meter.price_ppm(now, 50 * kMillisecondNs)) / 1e6;
  CHECK(price > 0.3);
  CHECK(price < 0.8);
  CHECK(meter.arrivals_milli_per_s(now) > 6'000);
  CHECK(meter.arrivals_milli_per_s(now) < 16'000);
  CHECK(meter.price_ppm(now, 0) == 0);
  // Taken for long, and nobody comes.
  meter.arrival(now, 200 * kSecondNs);
  CHECK(meter.price_ppm(now + 100 * kSecondNs, 50 * kMillisecondNs) < 50'000);
}

TEST_CASE("price meter / who comes only after the one before has ended is delayed by nobody") {
  PriceMeter meter;
  TimeNs now = kSecondNs;
  for (int i = 0; i < 500; ++i) {
    meter.arrival(now, 40 * kMillisecondNs);
    now += 41 * kMillisecondNs;  // 24 a second, one at a time
  }
  CHECK(meter.arrivals_milli_per_s(now) == 0);
  CHECK(meter.price_ppm(now, 40 * kMillisecondNs) == 0);
  // Three at once, again and again: two of them wait.
  for (int i = 0; i < 300; ++i) {
    for (int k = 1; k <= 3; ++k) meter.arrival(now, k * 40 * kMillisecondNs);
    now += 200 * kMillisecondNs;
  }
  CHECK(meter.arrivals_milli_per_s(now) > 12'000);  // two in 120 ms
  CHECK(meter.arrivals_milli_per_s(now) < 20'000);
}

TEST_CASE("price meter / elastic demand counts by the square of the share that is taken") {
  // Pairs, 100 ms apart, take 25 ms each: the second finds the resource taken, which it is half of the time.
  PriceMeter fixed, elastic(Demand::elastic);
  TimeNs now = kSecondNs;
  for (int i = 0; i < 1000; ++i) {
    for (const TimeNs busy : {25 * kMillisecondNs, 50 * kMillisecondNs}) {
      fixed.arrival(now, busy);
      elastic.arrival(now, busy);
    }
    now += 100 * kMillisecondNs;
  }
  // One of two in 50 taken ms: 20 a second. A quarter of that.
  CHECK(fixed.arrivals_milli_per_s(now) == doctest::Approx(20'000).epsilon(0.02));
  CHECK(elastic.arrivals_milli_per_s(now) == doctest::Approx(5'000).epsilon(0.02));
  CHECK(elastic.price_ppm(now, 100 * kMillisecondNs) == doctest::Approx(500'000).epsilon(0.02));
}

TEST_CASE("choice / the size is told apart by quarter octaves") {
  ReceiverFacts facts = receiver_facts();
  const auto key = [&](std::uint64_t tokens) {
    facts.total_tokens = tokens;
    return choice_key({}, facts);
  };
  CHECK(key(4096) == key(5119));  // up to 5/4 of 4,096
  CHECK(key(4096) != key(5120));
  CHECK(key(5120) == key(6143));
  CHECK(key(8191) != key(8192));
}

TEST_CASE("choice / absurd figures saturate instead of wrapping") {
  MediumChooser chooser(LossProfile::built_in());
  const std::uint64_t most = ~std::uint64_t{0};
  CandidateCost absurd{Medium::int8, most, most, most, most, most, 0, most, 4'000'000'000};
  ReceiverFacts facts = receiver_facts();
  facts.missing_full_blocks = facts.total_tokens = most;
  facts.block_slot_bytes = facts.nic_price_ppm = facts.compute_price_ppm = most;
  facts.others_left_bytes = facts.inflow_bytes_per_s = most;
  facts.others_bringing = UINT32_MAX;
  facts.nic_arrivals_milli_per_s = facts.compute_arrivals_milli_per_s = most;
  facts.compute = {most, most, most, most};
  facts.lease_bytes_free = most;
  facts.weight_milli = ~std::uint32_t{0};
  CandidateCost tokens = absurd;
  tokens.medium = Medium::tokens;
  const std::array both{absurd, tokens};
  const Pick pick = chooser.pick(both, facts, 0);
  for (std::size_t i = 0; i < pick.line_count; ++i) {
    const CostLine& line = pick.lines[i];
    for (const TimeNs ns :
         {line.wait_ns, line.encode_ns, line.transmit_ns, line.decode_ns, line.recompute_ns,
          line.loss_ns, line.price_ns, line.total_ns, line.cost_ns}) {
      CHECK(ns >= 0);
    }
  }
}

TEST_CASE("cost / how long a pick takes the receiver's compute") {
  // 30 ms wait there. Token ids that come after 10 ms find 20 ms of it, and compute for 50: until 80 ms.
  CostLine tokens;
  tokens.wait_ns = 4'000'000;
  tokens.transmit_ns = 6'000'000;
  tokens.recompute_ns = 20'000'000 + 50'000'000;
  CHECK(compute_taken_ns(tokens, 30'000'000) == 80'000'000);
  // KV adds nothing to what waits.
  CostLine kv;
  kv.transmit_ns = 6'000'000;
  CHECK(compute_taken_ns(kv, 30'000'000) == 30'000'000);
  // A split computes at once, behind what waits, while its tail is still to come.
  CostLine split = tokens;
  split.head_blocks = 3;
  CHECK(compute_taken_ns(split, 30'000'000) == 70'000'000);
}

TEST_CASE("choice / greedy takes its own least time, whatever that takes from others, and stays with nothing") {
  std::vector<CandidateCost> offered = offer(sender_facts());
  ReceiverFacts facts = receiver_facts();
  facts.nic_price_ppm = 50'000'000;  // 50 ns of others for each ns of the interface
  facts.nic_arrivals_milli_per_s = 50'000;
  facts.compute.prefill_per_token_ns = 400'000;
  for (CandidateCost& it : offered) it.price_ns = it.medium == Medium::tokens ? 0 : kSecondNs;
  MediumChooser chooser(LossProfile::built_in());
  const Pick priced = chooser.pick(offered, facts, 0);
  REQUIRE(priced.index >= 0);
  CHECK(priced.lines[static_cast<std::size_t>(priced.index)].medium == Medium::tokens);
  make_greedy(offered, facts, 1);
  const Pick greedy = chooser.pick(offered, facts, 0);
  REQUIRE(greedy.index >= 0);
  TimeNs least = kNever;
  for (std::size_t i = 0; i < greedy.line_count; ++i) {
    const CostLine& line = greedy.lines[i];
    CHECK(line.price_ns == 0);
    if (line.allowed) least = std::min(least, line.total_ns + line.loss_ns);
  }
  const CostLine& chosen = greedy.lines[static_cast<std::size_t>(greedy.index)];
  CHECK(chosen.total_ns + chosen.loss_ns == least);
  CHECK(chosen.medium != Medium::tokens);
  CHECK(greedy.reason == PickReason::least_cost);
}
