#include "engine/ipc/agent_session.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>

#include <cstring>

#include "kvrail/base/prng.h"
#include "tests/unit/ipc/recording_commands.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::ipc;
using kvrail::engine::ipc::test::RecordingCommands;

namespace {

// A session and the agent's side of its memory, on one thread.
struct Rig {
  Rig() {
    Result<ControlMemory> memory = create_control_memory(kMinScratchBytes);
    REQUIRE(memory.ok());
    view = view_control(memory->arena->base(), memory->layout);
    submit.emplace(view.submit, memory->layout.submit_capacity);
    completion.emplace(view.completion, memory->layout.completion_capacity);
    bell = UniqueFd(::eventfd(0, EFD_NONBLOCK));
    session.emplace(1, AgentInfo{}, std::move(*memory), Bell::eventfd(bell.get()),
                    UniqueFd(::eventfd(0, EFD_NONBLOCK)));
    session->bind(AgentHandle{7, 3});
  }
  void push(const SubmitRecord& record) {
    REQUIRE(submit->try_push(record));
    static_cast<void>(submit->publish());
  }
  std::size_t poll(std::size_t budget = 1000) { return session->poll(commands, payload, 1'000'000, budget); }
  CompletionRecord pop() {
    CompletionRecord record;
    REQUIRE(completion->try_pop(record));
    return record;
  }
  bool rang() {
    eventfd_t count = 0;
    return ::eventfd_read(bell.get(), &count) == 0;
  }
  template <class T>
  void scratch(std::uint32_t offset, const T& value) {
    std::memcpy(view.scratch.data() + offset, &value, sizeof(value));
  }

  ControlView view;
  std::optional<RingProducer<SubmitRecord>> submit;
  std::optional<RingConsumer<CompletionRecord>> completion;
  UniqueFd bell;
  std::optional<AgentSession> session;
  RecordingCommands commands;
  std::vector<std::byte> payload = std::vector<std::byte>(kMaxScratchBytes);
};

SubmitRecord allocate(std::uint64_t ticket, std::uint32_t count) {
  SubmitRecord record;
  record.command = Command::allocate;
  record.ticket = ticket;
  record.count = count;
  return record;
}

}  // namespace

TEST_CASE("agent session / records wait while a command of the agent takes its time") {
  Rig rig;
  rig.push(allocate(1, 1));
  rig.commands.accepts = false;
  CHECK(rig.poll() == 0);
  CHECK_FALSE(rig.session->prepare_park());  // there is something to do
  rig.commands.accepts = true;
  CHECK(rig.poll() == 1);
  CHECK(rig.commands.calls.size() == 1);
}

TEST_CASE("agent session / a commit arrives with its extents and tokens, copied once") {
  Rig rig;
  rig.scratch(64, ExtentRecord{5, 2, 4096});
  rig.scratch(64 + 16, std::array<TokenId, 3>{10, 20, 30});
  SubmitRecord record;
  record.command = Command::commit;
  record.ticket = 9;
  record.count = 1;
  record.payload_offset = 64;
  record.payload_bytes = 16 + 12;
  record.a = DeliveryHandle{1, 2}.packed();
  record.d = 4;
  record.name = *make_name("doc");
  rig.push(record);
  CHECK(rig.poll() == 1);
  REQUIRE(rig.commands.calls.size() == 1);
  const auto& call = rig.commands.calls[0];
  CHECK(call.what == "commit");
  CHECK(call.agent == AgentHandle{7, 3});
  CHECK(call.ticket == 9);
  CHECK(call.name == "doc");
  CHECK(call.tokens == std::vector<TokenId>{10, 20, 30});
  REQUIRE(call.extents.size() == 1);
  CHECK(call.extents[0].arena == 5);
  CHECK(call.extents[0].count == 2);
  CHECK(call.extents[0].offset == 4096);
  CHECK(call.number == record.a);
  CHECK(call.time_ns == 4);  // the first block
  CHECK(rig.view.shared->processed.load() == 1);
  CHECK(rig.completion->available() == 0);  // the event comes from the core
}

TEST_CASE("agent session / send and fetch carry names, options and what is left of the deadline") {
  Rig rig;
  rig.scratch(0, std::array<Name, 2>{*make_name("coder"), *make_name("tester")});
  SubmitRecord record;
  record.command = Command::send;
  record.flags = kFlagCritical;
  record.ticket = 4;
  record.count = 2;
  record.payload_bytes = 128;
  record.submitted_ns = 999'000;
  record.a = 6;
  record.b = 5'000;
  record.c = 77;
  record.d = 950'000;
  record.medium = static_cast<std::uint8_t>(Medium::int8);
  record.name = *make_name("doc");
  rig.push(record);
  record.command = Command::fetch;
  record.flags = kFlagBackground;
  record.count = 1;
  record.payload_bytes = 64;
  rig.push(record);
  CHECK(rig.poll() == 2);
  REQUIRE(rig.commands.calls.size() == 2);
  const auto& send = rig.commands.calls[0];
  CHECK(send.what == "send");
  CHECK(send.names == std::vector<std::string>{"coder", "tester"});
  CHECK(send.number == 6);
  CHECK(send.options.deadline_ns == 4'000);
  CHECK(send.options.task == 77);
  CHECK(send.options.critical);
  CHECK_FALSE(send.options.background);
  CHECK(send.options.fidelity_floor_ppm == 950'000);
  CHECK(send.options.medium == Medium::int8);
  const auto& fetch = rig.commands.calls[1];
  CHECK(fetch.what == "fetch");
  CHECK(fetch.name == "doc");
  CHECK(fetch.names == std::vector<std::string>{"coder"});
  CHECK(fetch.options.background);
}

TEST_CASE("agent session / a deadline that passed in the ring is answered, not sent") {
  Rig rig;
  rig.scratch(0, *make_name("coder"));
  SubmitRecord record;
  record.command = Command::send;
  record.ticket = 4;
  record.count = 1;
  record.payload_bytes = 64;
  record.submitted_ns = 1;
  record.b = 10;
  record.name = *make_name("doc");
  rig.push(record);
  rig.poll();
  CHECK(rig.commands.calls.empty());
  const CompletionRecord answer = rig.pop();
  CHECK(answer.kind == CompletionKind::answer);
  CHECK(answer.command == static_cast<std::uint8_t>(Command::send));
  CHECK(answer.ticket == 4);
  CHECK(answer.status.code == Code::timed_out);
}

TEST_CASE("agent session / refusals of the core are answered, success only when asked") {
  Rig rig;
  rig.commands.answer = Code::quota_exceeded;
  rig.push(allocate(1, 5));
  rig.poll();
  CHECK(rig.pop().status.code == Code::quota_exceeded);
  rig.commands.answer = {};
  SubmitRecord record;
  record.command = Command::end_task;
  record.a = 3;
  rig.push(record);
  record.flags = kFlagAnswer;
  record.ticket = 8;
  rig.push(record);
  rig.poll();
  const CompletionRecord answer = rig.pop();
  CHECK(answer.ticket == 8);
  CHECK(answer.status.ok());
  CHECK(rig.completion->available() == 0);
}

TEST_CASE("agent session / breaches are typed, and the eighth ends the session") {
  Rig rig;
  for (int i = 0; i < 7; ++i) {
    SubmitRecord record = allocate(1, 1);
    record.command = static_cast<Command>(99);
    rig.push(record);
    rig.poll();
    CHECK(rig.pop().status.code == Code::protocol_error);
    CHECK(rig.session->drop_reason() == DropReason::none);
  }
  rig.push(allocate(1, 1));  // A sound one in between is served.
  rig.poll();
  CHECK(rig.commands.calls.size() == 1);
  SubmitRecord record = allocate(0, 1);
  rig.push(record);
  rig.push(allocate(1, 1));
  rig.poll();
  CHECK(rig.session->drop_reason() == DropReason::protocol_breach);
  CHECK(rig.commands.calls.size() == 1);  // Nothing behind the last breach is done.
}

TEST_CASE("agent session / names that are none are refused without a call") {
  Rig rig;
  SubmitRecord record;
  record.command = Command::drop_context;
  record.ticket = 1;
  record.flags = kFlagAnswer;
  rig.push(record);  // empty
  record.name.bytes.fill('x');
  rig.push(record);  // no end
  rig.poll();
  CHECK(rig.pop().status.code == Code::invalid_argument);
  CHECK(rig.pop().status.code == Code::invalid_argument);
  CHECK(rig.commands.calls.empty());
}

TEST_CASE("agent session / events wait when the ring is full, answers have their slot") {
  Rig rig;
  AgentEvent event;
  std::size_t pushed = 0;
  while (rig.session->try_push(event)) ++pushed;
  CHECK(pushed == kCompletionCapacity - 1);
  rig.commands.answer = Code::quota_exceeded;
  rig.push(allocate(1, 1));
  rig.push(allocate(2, 1));
  CHECK(rig.poll() == 1);  // One answer fits, the second record stays in the ring.
  CHECK(rig.poll() == 0);
  for (std::size_t i = 0; i < pushed; ++i) static_cast<void>(rig.pop());
  CHECK(rig.pop().ticket == 1);
  CHECK(rig.poll() == 1);
  CHECK(rig.pop().ticket == 2);
  CHECK(rig.session->try_push(event));
}

TEST_CASE("agent session / the bell rings once per sleep") {
  Rig rig;
  CHECK(rig.session->try_push(AgentEvent{}));
  CHECK_FALSE(rig.rang());
  static_cast<void>(rig.pop());
  REQUIRE(rig.completion->prepare_park());
  CHECK(rig.session->try_push(AgentEvent{}));
  CHECK(rig.session->try_push(AgentEvent{}));
  CHECK(rig.rang());
  CHECK_FALSE(rig.rang());
}

TEST_CASE("agent session / the bell rings for what the agent waits for, and for all when the ring is half full") {
  Rig rig;
  AgentEvent sent, delivery;
  sent.kind = AgentEventKind::sent;
  delivery.kind = AgentEventKind::delivery;
  REQUIRE(rig.completion->prepare_park(kWakeDelivery | kWakeReply));
  CHECK(rig.session->try_push(sent));
  CHECK_FALSE(rig.rang());
  CHECK(rig.session->try_push(delivery));
  CHECK(rig.rang());
  for (int i = 0; i < 2; ++i) static_cast<void>(rig.pop());
  REQUIRE(rig.completion->prepare_park(kWakeOutcome | kWakeReply));
  CHECK(rig.session->try_push(delivery));
  CHECK_FALSE(rig.rang());
  rig.push(allocate(1, 1));
  rig.commands.answer = Code::quota_exceeded;
  rig.poll();  // A refusal is a reply.
  CHECK(rig.rang());
  for (int i = 0; i < 2; ++i) static_cast<void>(rig.pop());
  REQUIRE(rig.completion->prepare_park(kWakeReply));
  bool rang = false;
  std::uint32_t events = 0;
  for (; !rang && rig.session->try_push(sent); ++events) rang = rig.rang();
  CHECK(rang);
  CHECK(events > kCompletionCapacity / 4);
  CHECK(events <= kCompletionCapacity / 2 + 1);
}

TEST_CASE("agent session / an agent that waits for room is rung when its records are done") {
  Rig rig;
  rig.push(allocate(1, 1));
  rig.view.shared->room_wanted.store(1);
  rig.poll();
  CHECK(rig.rang());
  CHECK(rig.view.shared->room_wanted.load() == 0);
  CHECK(rig.view.shared->processed.load() == 1);
}

TEST_CASE("agent session / the budget bounds one poll") {
  Rig rig;
  for (std::uint64_t i = 1; i <= 10; ++i) rig.push(allocate(i, 1));
  CHECK(rig.poll(4) == 4);
  CHECK(rig.poll(4) == 4);
  CHECK(rig.poll(4) == 2);
}

TEST_CASE("agent session / wild ring indices end the session and touch nothing") {
  Prng prng(42);
  for (int round = 0; round < 200; ++round) {
    Rig rig;
    rig.push(allocate(1, 1));
    auto& submit_ring = *reinterpret_cast<RingMemory*>(rig.view.submit.data());
    auto& completion_ring = *reinterpret_cast<RingMemory*>(rig.view.completion.data());
    const std::uint64_t wild = prng.next_u64() | (std::uint64_t{1} << 40);
    if (round % 2 == 0) {
      submit_ring.tail.store(wild);
    } else {
      completion_ring.head.store(wild);
    }
    for (int i = 0; i < 8 && rig.session->drop_reason() == DropReason::none; ++i) {
      rig.poll();
      static_cast<void>(rig.session->try_push(AgentEvent{}));
    }
    CHECK(rig.session->drop_reason() == DropReason::ring_corrupt);
  }
}

TEST_CASE("agent session / a probe is read whole or not at all, and its lies are bounded") {
  Rig rig;
  Probe probe;
  CHECK_FALSE(rig.session->read_probe(probe));
  rig.view.probe->words[static_cast<std::size_t>(ProbeWord::compute_load_ppm)].store(~std::uint64_t{0});
  rig.view.probe->words[static_cast<std::size_t>(ProbeWord::prefill_fixed_ns)].store(~std::uint64_t{0});
  rig.view.probe->words[static_cast<std::size_t>(ProbeWord::accepted)].store(~std::uint64_t{0});
  rig.view.probe->words[static_cast<std::size_t>(ProbeWord::idle_until_ns)].store(~std::uint64_t{0});
  rig.view.probe->sequence.store(1);
  CHECK_FALSE(rig.session->read_probe(probe));  // being written
  rig.view.probe->sequence.store(2);
  REQUIRE(rig.session->read_probe(probe));
  CHECK(probe.compute_load_ppm == 1'000'000);
  CHECK(probe.compute.prefill_fixed_ns == 3600ULL * 1'000'000'000ULL);
  CHECK(probe.accepted == (MediumMask{1} << kMediumCount) - 1);
  CHECK(probe.idle_until_ns >= 0);
  CHECK_FALSE(rig.session->read_probe(probe));  // nothing new
}

TEST_CASE("agent session / a full completion ring lets the worker sleep, and reading wakes it") {
  Rig rig;
  CHECK(rig.session->prepare_park());
  rig.session->cancel_park();
  while (rig.session->try_push(AgentEvent{})) continue;  // The last one waits in the core.
  rig.commands.answer = Code::quota_exceeded;
  rig.push(allocate(1, 1));
  rig.push(allocate(2, 1));
  CHECK(rig.poll() == 1);  // the slot that is kept for an answer
  CHECK(rig.session->prepare_park());
  CHECK(rig.view.shared->reading_wanted.load() == 1);
  rig.session->cancel_park();
  static_cast<void>(rig.pop());
  CHECK_FALSE(rig.session->prepare_park());  // The second record can be answered now.
  CHECK(rig.poll() == 1);
  CHECK_FALSE(rig.session->try_push(AgentEvent{}));
  CHECK(rig.session->prepare_park());
  rig.session->cancel_park();
  static_cast<void>(rig.pop());
  CHECK(rig.session->prepare_park());  // One slot is kept for answers: no event fits.
  rig.session->cancel_park();
  static_cast<void>(rig.pop());
  CHECK_FALSE(rig.session->prepare_park());
  CHECK(rig.session->try_push(AgentEvent{}));
}
