// The medium split: where head and tail meet, and when it is worth it.
#include <doctest/doctest.h>

#include <algorithm>

#include "scheduler/cost.h"
#include "scheduler/split.h"
#include "tests/unit/scheduler/choice_facts.h"

using namespace kvrail;
using namespace kvrail::scheduler;
using namespace kvrail::scheduler::testing;

TEST_CASE("split / head and tail cross where both take as long") {
  // 100 ns a token of compute, blocks of 10; 1,000 ns a block of transfer: equal speeds, so half of it each.
  SplitFacts facts;
  facts.compute = {0, 100, 0, 0};
  facts.block_tokens = 10;
  facts.blocks = 20;
  facts.all_blocks_ns = 20'000;
  CHECK(split_point(facts).head_blocks == 10);
  CHECK(split_point(facts).total_ns() == 10'000);
  // 3,000 until the first byte: 1,000 h = 3,000 + 1,000 (20 - h), h = 11.5: twelve blocks, or eleven, take 12,000.
  facts.wait_ns = 3'000;
  CHECK(split_point(facts).total_ns() == 12'000);
  // A queue of 5,000 before the compute: 5,000 + 1,000 h = 3,000 + 1,000 (20 - h), h = 9.
  facts.compute_backlog_ns = 5'000;
  CHECK(split_point(facts).head_blocks == 9);
  CHECK(split_point(facts).total_ns() == 14'000);
  // A compute that is ten times slower than that: 5,000 + 10,000 h against 3,000 + 1,000 (20 - h): 1 and 22,000 (0: 23,000).
  facts.compute.prefill_per_token_ns = 1000;
  CHECK(split_point(facts).head_blocks == 1);
  CHECK(split_point(facts).total_ns() == 22'000);
  facts.compute_backlog_ns = 100'000;
  CHECK(split_point(facts).head_blocks == 0);
  CHECK(split_point(facts).total_ns() == 23'000);
  facts.wait_ns = 10'000'000;
  CHECK(split_point(facts).head_blocks == 20);
}

TEST_CASE("split / 32K tokens of an 8B model at 10 Gbit/s, lossless: half again as fast as the better side alone") {
  // At 400 TFLOP/s a token takes 2 P / F = 40 us and 2 L d / F = 0.655 ns for each before it; its KV is 131,072 B at a
  // ratio of 4/3. Alone: 2.01 s and 2.58 s.
  SplitFacts facts;
  facts.compute = {1'000'000, 40'000, 687'194, 0};
  facts.block_tokens = 64;
  facts.blocks = 512;
  facts.wait_ns = 100'000;
  facts.all_blocks_ns = static_cast<TimeNs>(32'768.0 * 131'072 / (4.0 / 3.0) / 1.25e9 * 1e9);
  const SplitPoint point = split_point(facts);
  const TimeNs alone = std::min(prefill_ns(facts.compute, 32'768, 0), facts.all_blocks_ns + facts.wait_ns);
  CHECK(static_cast<double>(alone) / static_cast<double>(point.total_ns()) > 1.85);
  // No other division is better.
  for (std::uint64_t head = 0; head <= 512; ++head) {
    const TimeNs recompute = head == 0 ? 0 : prefill_ns(facts.compute, head * 64, 0);
    const TimeNs transfer = facts.wait_ns + facts.all_blocks_ns / 512 * static_cast<TimeNs>(512 - head);
    CHECK(std::max(recompute, transfer) + 1'000 >= point.total_ns());
  }
}

TEST_CASE("pick / a split is taken where it gains a tenth, and says why where it is not") {
  // 1,000 tokens: full takes 1,000 * 131,072 B / 1.25 GB/s = 105 ms.
  SenderFacts sender = sender_facts();
  sender.receiver_accepts = mask_of(Medium::tokens) | mask_of(Medium::full);
  ReceiverFacts receiver = receiver_facts();
  const auto weighed = [&](MediumChooser& chooser) {
    std::vector<CandidateCost> all = offer(sender);
    CandidateCost split;
    REQUIRE(chooser.split_of(all, receiver, split));
    all.push_back(split);
    return chooser.pick(all, receiver, 0);
  };
  {
    receiver.compute = {0, 105'000, 0, 0};  // as fast as the network
    MediumChooser chooser(LossProfile::built_in());
    const Pick pick = weighed(chooser);
    CHECK(chosen(pick) == Medium::split);
    const CostLine& line = pick.lines[static_cast<std::size_t>(pick.index)];
    CHECK(line.head_blocks == 8);  // of sixteen, of which the last is a shorter one
    CHECK(line.bytes < line_of(pick, Medium::full).bytes * 6 / 10);
    CHECK(pick.predicted_ns < line_of(pick, Medium::full).total_ns * 6 / 10);
  }
  {
    receiver.compute = {0, 2'000'000, 0, 0};  // twenty times slower
    MediumChooser chooser(LossProfile::built_in());
    const Pick pick = weighed(chooser);
    CHECK(chosen(pick) == Medium::full);
    CHECK(std::string_view(line_of(pick, Medium::split).why_not) != "");
  }
  {
    receiver.compute = {0, 105'000, 0, 0};
    receiver.compute_backlog_ns = 90'000'000;  // the machine is busy: 90 + 1 blocks' worth
    MediumChooser chooser(LossProfile::built_in());
    const Pick pick = weighed(chooser);
    CHECK(chosen(pick) == Medium::full);
    CHECK(std::string_view(line_of(pick, Medium::split).why_not) == "gains less than a tenth");
  }
}

TEST_CASE("pick / a wished split leaves something to either side, and is what was asked for") {
  SenderFacts sender = sender_facts();
  sender.wish = Medium::split;
  ReceiverFacts receiver = receiver_facts();
  receiver.split_wished = true;
  for (const std::uint64_t per_token_ns : {std::uint64_t{1}, std::uint64_t{50'000'000}}) {  // far faster, far slower than the network
    receiver.compute = {0, per_token_ns, 0, 0};
    MediumChooser chooser(LossProfile::built_in());
    std::vector<CandidateCost> all = offer(sender);
    CandidateCost split;
    REQUIRE(chooser.split_of(all, receiver, split));
    all.push_back(split);
    const Pick pick = chooser.pick(all, receiver, 0);
    CHECK(chosen(pick) == Medium::split);
    CHECK(line_of(pick, Medium::split).head_blocks == (per_token_ns == 1 ? 15 : 1));
    CHECK(std::string_view(line_of(pick, Medium::full).why_not) == "a split is wished for");
  }
}

TEST_CASE("candidates / the wish for a split offers what its tail may come in, to who takes splits") {
  SenderFacts facts = sender_facts();
  facts.wish = Medium::split;
  const auto all = offer(facts);
  CHECK(find(all, Medium::full) != nullptr);
  CHECK(find(all, Medium::int8) != nullptr);
  CHECK(find(all, Medium::tokens) == nullptr);
  facts.receiver_accepts &= ~mask_of(Medium::split);
  CHECK(offer(facts).empty());
}
