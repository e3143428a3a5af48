// Transfers in virtual time, each compared with its time by hand.
#include <doctest/doctest.h>

#include "perf/sim/figures.h"
#include "perf/sim/world.h"
#include "scheduler/cost.h"

using namespace kvrail;
using namespace kvrail::simulation;

namespace {

constexpr TimeNs kRtt = 100 * kMicrosecondNs;
constexpr std::uint64_t kRate = 1'250'000'000;
constexpr std::uint64_t kTokenBytes = 131'072;

TimeNs sending(std::uint64_t bytes) {
  return scheduler::sending_ns(bytes, kRate);
}
// An offer: 256 bytes and four for each token id.
TimeNs offer_ns(std::uint64_t tokens) {
  return sending(256 + 4 * tokens) + kRtt / 2;
}

struct Rig {
  Rig() {
    scenario.cluster.receivers = 2;
    scenario.traffic.transfers = 0;
    workload = *make_workload(scenario, 1, nullptr, {}, {});
  }
  Job& add(TimeNs at, std::uint32_t tokens, std::uint32_t receiver = 0) {
    Job job;
    job.submitted_ns = at;
    job.tokens = tokens;
    job.receiver = receiver;
    workload.jobs.push_back(job);
    return workload.jobs.back();
  }
  RunResult run(const char* policy) { return World(scenario, workload, *find_policy(policy)).run(); }

  Scenario scenario;
  Workload workload;
};

}  // namespace

TEST_CASE("world / token ids: the offer's way and the prefill, one after the other on one GPU") {
  Rig rig;
  rig.add(0, 1000);
  rig.add(0, 2000);
  rig.add(0, 2000, 1);
  const RunResult result = rig.run("tokens");
  // 40 us a token and 687,195 / 2^20 ns a token squared: 655,360,221 / 1,000 .. of x = 1,000 that is 655,360 ns
  const TimeNs of_1000 = 40'000'000 + 687'195LL * 1'000'000 / (1 << 20);
  const TimeNs of_2000 = 80'000'000 + 687'195LL * 4'000'000 / (1 << 20);
  CHECK(result.jobs[0].latency_ns == offer_ns(1000) + of_1000);
  // Its ids come behind the first ones; its prefill waits for theirs.
  CHECK(result.jobs[1].latency_ns == offer_ns(1000) + of_1000 + of_2000);
  CHECK(result.jobs[2].latency_ns == sending(256 + 4000) + sending(256 + 8000) + offer_ns(2000) + of_2000);
  CHECK(result.prefill_ns == of_1000 + 2 * of_2000);
  CHECK(result.jobs[1].queued_ns == result.jobs[1].latency_ns - of_2000 - sending(256 + 4000) - offer_ns(2000));
}

TEST_CASE("world / full KV: offer, answer, the bytes, half a round trip") {
  Rig rig;
  rig.add(0, 64);  // 8 MiB: four chunks of 2 MiB
  const RunResult result = rig.run("full");
  const TimeNs bytes = 4 * sending(2U << 20);
  // Two chunks go at once and then one for each that came back, so pauses of a round trip may lie between.
  CHECK(result.jobs[0].latency_ns >= offer_ns(64) + kRtt / 2 + bytes + kRtt / 2);
  CHECK(result.jobs[0].latency_ns <= offer_ns(64) + kRtt / 2 + bytes + kRtt / 2 + 2 * kRtt);
  CHECK(result.bytes == 64 * kTokenBytes + 4 * 64);
  CHECK(result.jobs[0].medium == Medium::full);
}

TEST_CASE("world / int4: a block more for each codec, and 20 ms of decoding for what it loses") {
  Rig rig;
  rig.add(0, 6400);
  const RunResult result = rig.run("int4");
  const TimeNs bytes = sending(static_cast<std::uint64_t>(6400.0 * kTokenBytes / 3.76));
  const TimeNs block = static_cast<TimeNs>(64.0 * kTokenBytes / 10e9 * 1e9);
  const TimeNs least = offer_ns(6400) + kRtt + bytes + 2 * block + 20 * kMillisecondNs;
  CHECK(result.jobs[0].latency_ns >= least - 1000);  // blocks are rounded down
  CHECK(result.jobs[0].latency_ns <= least + 4 * kRtt);
}

TEST_CASE("world / a split: the head is computed while the tail arrives") {
  Rig rig;
  rig.scenario.media = {Medium::tokens, Medium::full, Medium::split};
  rig.add(0, 32'768);
  const RunResult alone = rig.run("tokens"), split = rig.run("kvrail");
  CHECK(split.jobs[0].medium == Medium::split);
  // All computed takes 2.01 s, all sent 3.44. Of x tokens computed and the others sent both take 1.17 s at x = 21,600:
  // 40e-6 x + 0.655e-9 x² = 104.9e-6 (32,768 - x).
  CHECK(alone.jobs[0].latency_ns > 2 * kSecondNs);
  CHECK(split.jobs[0].latency_ns * 3 < alone.jobs[0].latency_ns * 2);
  CHECK(split.prefill_ns > 0);
  CHECK(split.prefill_ns < split.jobs[0].latency_ns);
  // Nothing comes twice, and nothing is left out.
  const std::uint64_t sent = (split.bytes - 4 * 32'768) / kTokenBytes;
  CHECK(scheduler::prefill_ns(rig.workload.models[0].compute, 32'768 - sent, 0) == split.prefill_ns);
}

TEST_CASE("world / first come, first served: the second one waits for the first one's bytes") {
  Rig rig;
  rig.add(0, 6400);
  rig.add(1, 64, 1);
  const RunResult result = rig.run("full");
  CHECK(result.jobs[1].latency_ns > result.jobs[0].latency_ns);
  CHECK(result.jobs[1].latency_ns < result.jobs[0].latency_ns + sending(64 * kTokenBytes) + 4 * kRtt);
}

TEST_CASE("world / critical bytes overtake in kvrail's order, and wait in turn") {
  Rig rig;
  rig.scenario.least_chunk_bytes = 4096;
  rig.scenario.media = {Medium::full};
  rig.add(0, 12'800).receiver = 0;  // 1.68 GB: 1.3 s of the lane
  Job& critical = rig.add(100 * kMillisecondNs, 0, 1);
  critical.opaque_bytes = 16 * 1024;
  critical.critical = true;
  const TimeNs in_turn = rig.run("full").jobs[1].latency_ns;
  CHECK(in_turn > kSecondNs);
  World world(rig.scenario, rig.workload, Policy{"k", Choice::fixed, Medium::full, Order::scheduled});
  const TimeNs overtaking = world.run().jobs[1].latency_ns;
  // Behind what is in flight: two chunks and the bandwidth-delay product; then its own way.
  CHECK(overtaking <= 3 * sending(256 * 1024) + 2 * kRtt);
}

TEST_CASE("world / what is held does not come again") {
  Rig rig;
  rig.workload.hashes = {7, 8, 7, 9};
  Job& first = rig.add(0, 1024);
  first.first_hash = 0;
  first.hash_count = 2;
  Job& second = rig.add(10 * kSecondNs, 1024);
  second.first_hash = 2;
  second.hash_count = 2;
  const RunResult result = rig.run("full");
  // Of the second one the leading 512 tokens are there: as KV and as token ids.
  CHECK(result.bytes == (1024 + 512) * (kTokenBytes + 4));
}

TEST_CASE("world / a full pool answers later, and nothing is lost") {
  Rig rig;
  // Rows and the planes that they are decoded from: 1.27 times the plain KV for int4.
  rig.scenario.cluster.pool_bytes = 6400 * kTokenBytes * 13 / 10;
  rig.scenario.cluster.keep_ns = kSecondNs;
  rig.add(0, 6400);
  rig.add(1, 6400, 1);
  const RunResult forced = rig.run("full");
  CHECK(forced.laters > 0);
  CHECK(forced.jobs[1].latency_ns > kSecondNs);
  // With a choice there is no need to wait: token ids take no memory.
  const RunResult chosen = rig.run("kvrail");
  CHECK(chosen.laters == 0);
  CHECK(chosen.jobs[0].medium != Medium::tokens);
  CHECK(chosen.jobs[1].medium == Medium::tokens);
}

TEST_CASE("world / what never fits goes by another medium") {
  Rig rig;
  rig.scenario.cluster.pool_bytes = 64 * kTokenBytes;
  rig.add(0, 6400);
  const RunResult result = rig.run("full");
  CHECK(result.jobs[0].medium == Medium::tokens);
  CHECK(result.laters == 0);
}

TEST_CASE("world / a task goes on when all that its agent waits for is there") {
  Rig rig;
  rig.workload.tasks = 1;
  rig.workload.task_starts = {0};
  rig.workload.successors = {2, 2};
  for (std::uint32_t i = 0; i < 3; ++i) {
    Job& job = rig.add(0, i == 1 ? 2000 : 1000, i == 2 ? 1 : 0);
    job.task = 0;
    job.first_successor = i;
    job.successor_count = i < 2 ? 1 : 0;
  }
  rig.workload.jobs[2].predecessors = 2;
  rig.workload.jobs[2].think_ns = 5 * kMillisecondNs;
  const RunResult result = rig.run("tokens");
  CHECK(result.jobs[2].submitted_ns == result.jobs[1].latency_ns + 5 * kMillisecondNs);
  CHECK(result.task_ns[0] == result.jobs[2].submitted_ns + result.jobs[2].latency_ns);
}

TEST_CASE("world / one workload and policy, one trace") {
  Scenario scenario;
  scenario.traffic.transfers = 400;
  scenario.critical.per_second = 5;
  const Workload one = *make_workload(scenario, 1, nullptr, {}, {});
  const Workload two = *make_workload(scenario, 2, nullptr, {}, {});
  for (const Policy& policy : policies()) {
    const RunResult first = World(scenario, one, policy).run();
    CHECK(first.trace_hash == World(scenario, one, policy).run().trace_hash);
    CHECK(first.trace_hash != World(scenario, two, policy).run().trace_hash);
    for (const JobResult& job : first.jobs) CHECK(job.latency_ns > 0);  // each one has ended
  }
}

TEST_CASE("world / shared interfaces and teams: each transfer ends under each policy") {
  Scenario scenario;
  scenario.traffic.transfers = 300;
  scenario.traffic.per_second = 30;
  scenario.cluster.receivers = 12;
  scenario.cluster.receiver_nodes = 4;
  scenario.cluster.team_nodes = 3;  // the last team is one node: it sends to itself
  scenario.cluster.sender_nic_bytes_per_s = scenario.cluster.receiver_nic_bytes_per_s = kRate;
  const Workload workload = *make_workload(scenario, 3, nullptr, {}, {});
  for (const Policy& policy : policies()) {
    const RunResult result = World(scenario, workload, policy).run();
    for (std::size_t i = 0; i < result.jobs.size(); ++i) {
      const bool moves = workload.jobs[i].sender != workload.receivers[workload.jobs[i].receiver].node;
      CHECK((result.jobs[i].latency_ns > 0) == moves);
    }
    CHECK(result.busiest_lane <= 1.0);
  }
}

TEST_CASE("world / token ids where another sender has taken the receiver's interface") {
  Scenario scenario;
  scenario.traffic.transfers = 0;
  scenario.cluster.senders = 2;
  scenario.cluster.receivers = 2;
  scenario.cluster.receiver_nic_bytes_per_s = kRate;
  scenario.media = {Medium::tokens, Medium::int4};
  Workload workload = *make_workload(scenario, 1, nullptr, {}, {});
  const auto add = [&](TimeNs at, std::uint32_t tokens, std::uint32_t receiver, std::uint32_t sender) {
    Job job;
    job.submitted_ns = at;
    job.tokens = tokens;
    job.receiver = receiver;
    job.sender = sender;
    workload.jobs.push_back(job);
  };
  const std::uint32_t first = workload.lanes[0].sender, second = workload.lanes[1].sender;
  REQUIRE(first != second);
  // 8,000 tokens: 362 ms of computing, 223 + 20 ms as int4; at half of the interface 446 + 20.
  add(0, 8000, 1, second);
  CHECK(World(scenario, workload, *find_policy("kvrail")).run().jobs[0].medium == Medium::int4);
  // 30,000 tokens: 1.8 s of computing, 0.84 s as int4.
  workload.jobs.clear();
  add(0, 30'000, 0, first);
  add(10 * kMillisecondNs, 8000, 1, second);
  add(2 * kSecondNs, 6000, 1, second);  // of another size, so that no last choice is kept
  const RunResult result = World(scenario, workload, *find_policy("kvrail")).run();
  CHECK(result.jobs[0].medium == Medium::int4);
  CHECK(result.jobs[1].medium == Medium::tokens);
  CHECK(result.jobs[2].medium == Medium::int4);
}

TEST_CASE("world / under load the priced choice is below every static medium and below greed") {
  Scenario scenario;
  scenario.traffic.transfers = 3000;
  scenario.traffic.per_second = 20;
  const Workload workload = *make_workload(scenario, 1, nullptr, {}, {});
  const auto mean = [&](const char* policy) {
    return make_figures(scenario, workload, World(scenario, workload, *find_policy(policy)).run(), policy).mean_ms;
  };
  const double kvrail = mean("kvrail");
  for (const char* other : {"tokens", "full", "int8", "int4", "text_or_kv"}) CHECK(kvrail * 1.3 < mean(other));
}
