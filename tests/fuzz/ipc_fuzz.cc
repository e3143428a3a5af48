// The IPC command stream of a hostile agent against a real node. The engine lives through all
// inputs; each input is one agent from adoption to its end: ring slots and scratch are written, and
// indices moved, as the bytes say.
#include <sys/eventfd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/node.h"
#include "engine/ipc/node_host.h"
#include "engine/ipc/sessions.h"
#include "kvrail/base/no_alloc.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/seeds.h"

namespace {

using kvrail::test::Bytes;
using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::ipc;

struct Engine {
  Engine() {
    NodeOptions options;
    options.node_id = 7;
    options.incarnation = 9;
    options.store.receive_arena_bytes = 4 << 20;
    options.store.agent_arena_bytes = 64 << 10;
    options.store.table_bytes = 16 << 20;
    options.store.max_blocks = 1 << 12;
    options.store.context_ttl_ns = kMillisecondNs;
    auto made = Node::create(options, clock);
    KVRAIL_ASSERT(made.ok());
    node = std::move(*made);
    host = std::make_unique<NodeHost>(*node, options.store);
    auto created = Sessions::create({}, *host);
    KVRAIL_ASSERT(created.ok());
    sessions = std::move(*created);
    node->set_sink(*sessions);
    link = sessions->claim_link();
  }
  void cycle() {
    clock.advance(100 * kMicrosecondNs);
    const NoAllocScope duty_cycle;
    sessions->cycle(clock.now_ns());
    node->cycle(clock.now_ns());
  }

  void take_notices() {
    SessionNotice notice;
    while (link->notices.pop(notice)) notices.push_back(notice);
  }
  SessionNotice take(std::uint64_t id, SessionNotice::Kind kind) {
    take_notices();
    const auto found = std::find_if(notices.begin(), notices.end(),
                                    [&](const SessionNotice& notice) { return notice.id == id && notice.kind == kind; });
    if (found == notices.end()) return {};
    const SessionNotice notice = *found;
    notices.erase(found);
    return notice;
  }
  SessionNotice take_adopted(std::uint64_t id) {
    const SessionNotice notice = take(id, SessionNotice::Kind::adopted);
    KVRAIL_ASSERT(notice.id == id);
    return notice;
  }
  bool take_gone(std::uint64_t id) { return take(id, SessionNotice::Kind::gone).id == id; }

  std::vector<SessionNotice> notices;
  VirtualClock clock{kSecondNs};
  std::unique_ptr<Node> node;
  std::unique_ptr<NodeHost> host;
  std::unique_ptr<Sessions> sessions;
  SessionLink* link = nullptr;
  std::uint64_t inputs = 0;
};

AgentInfo info_of(std::string_view name) {
  AgentInfo info;
  info.tenant = *make_name("fuzz");
  info.name = *make_name(name);
  info.layout.layers = 1;
  info.layout.kv_heads = 1;
  info.layout.head_dim = 16;
  info.layout.block_tokens = 16;
  info.accepted = (MediumMask{1} << kMediumCount) - 1;
  info.summary_bytes = 64;
  return info;
}

// One attached agent whose shared memory is the fuzzer's to write.
class Agent {
 public:
  Agent(Engine& engine, std::string_view name) : engine_(engine) {
    auto memory = create_control_memory(kMinScratchBytes);
    KVRAIL_ASSERT(memory.ok());
    view_ = view_control(memory->arena->base(), memory->layout);
    bell_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    session_ = std::make_unique<AgentSession>(engine.link->next_id(), info_of(name), std::move(*memory),
                                              Bell::eventfd(bell_.get()),
                                              UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)));
    SessionCommand command;
    command.kind = SessionCommand::Kind::adopt;
    command.id = session_->id();
    command.session = session_.get();
    command.fds = false;
    engine.link->send(command);
    engine.cycle();
    arena_ = engine.take_adopted(session_->id()).arena_id;
  }
  ~Agent() {
    SessionCommand command;
    command.kind = SessionCommand::Kind::drop;
    command.id = session_->id();
    command.reason = DropReason::hung_up;
    engine_.link->send(command);
    engine_.cycle();
    KVRAIL_ASSERT_MSG(engine_.take_gone(session_->id()), "one notice of the end, whoever ended it");
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  [[nodiscard]] const ControlView& view() const { return view_; }
  [[nodiscard]] std::uint32_t arena() const { return arena_; }
  [[nodiscard]] RingMemory& submit_ring() { return *reinterpret_cast<RingMemory*>(view_.submit.data()); }
  [[nodiscard]] RingMemory& completion_ring() { return *reinterpret_cast<RingMemory*>(view_.completion.data()); }
  void submit(const SubmitRecord& record) {
    const std::uint64_t tail = submit_ring().tail.load();
    std::memcpy(view_.submit.data() + sizeof(RingMemory) + (tail % kSubmitCapacity) * sizeof(record), &record, sizeof(record));
    submit_ring().tail.store(tail + 1);
  }
  void read_completions() { completion_ring().head.store(completion_ring().tail.load()); }
  // What the engine said last, as a client that wants to guess well would use it.
  [[nodiscard]] CompletionRecord last() {
    CompletionRecord record;
    const std::uint64_t tail = completion_ring().tail.load();
    if (tail != 0) std::memcpy(&record, view_.completion.data() + sizeof(RingMemory) + ((tail - 1) % kCompletionCapacity) * sizeof(record), sizeof(record));
    return record;
  }

 private:
  Engine& engine_;
  ControlView view_;
  UniqueFd bell_;
  std::unique_ptr<AgentSession> session_;
  std::uint32_t arena_ = 0;
};

// Bent so little that it gets past the form: everything behind the form is then reached as well.
void mend(SubmitRecord& record, Agent& agent, Bytes& bytes) {
  record.command = static_cast<Command>(1 + static_cast<std::uint16_t>(record.command) % (kCommandCount - 1));
  record.flags &= kKnownSubmitFlags;
  record.reservation = record.command == Command::send ? bytes.u8() % 4 : 0;
  record.ticket = 1 + record.ticket % 8;
  record.b &= 0xffffff;
  record.medium %= kMediumCount;
  if (record.command != Command::free_blocks) record.d %= 1'000'001;
  constexpr std::string_view kNames[] = {"a", "b", "fuzz", "first", "second"};
  record.name = *make_name(kNames[bytes.u8() % 5]);
  record.payload_offset = 0;
  record.payload_bytes = 0;
  const CompletionRecord last = agent.last();
  if (bytes.u8() % 2 == 0) record.a = last.delivery != 0 ? last.delivery : last.version_number;
  switch (record.command) {
    case Command::unreserve: record.a = bytes.u8() % 4; break;
    case Command::reserve: record.c &= 0xffffff; break;
    case Command::allocate: record.count %= 64; break;
    case Command::free_blocks:
      record.count %= 16;
      record.d = bytes.u8() % 4 == 0 ? record.d : agent.arena();
      record.c = bytes.u8() % 4 == 0 ? record.c : std::uint64_t{bytes.u8()} * 1024;
      break;
    case Command::commit: {
      record.count %= 4;
      for (std::uint32_t i = 0; i < record.count; ++i) {
        const ExtentRecord extent{bytes.u8() % 8 == 0 ? bytes.u8() : agent.arena(), bytes.u8() % 4U, std::uint64_t{bytes.u8() % 64U} * 1024};
        std::memcpy(agent.view().scratch.data() + i * sizeof(extent), &extent, sizeof(extent));
      }
      record.payload_bytes = record.count * 16 + (1 + bytes.u8() % 64U) * 4;
      break;
    }
    case Command::send:
    case Command::fetch: {
      record.count = record.command == Command::fetch ? 1 : 1 + record.count % 3;
      record.payload_bytes = record.count * 64;
      for (std::uint32_t i = 0; i < record.count; ++i) {
        const Name name = *make_name(kNames[bytes.u8() % 5]);
        std::memcpy(agent.view().scratch.data() + i * 64, &name, 64);
      }
      if (bytes.u8() % 2 == 0) record.a = 0;
      break;
    }
    case Command::summary:
      record.payload_bytes = bytes.u8();
      record.a = bytes.u8() % 2 == 0 ? last.transfer : record.a;
      break;
    case Command::set_importance:
      record.count %= 64;
      record.payload_bytes = record.count * 4;
      record.d = bytes.u8() % 80;
      if (bytes.u8() % 2 == 0) record.a = 0;
      break;
    case Command::describe_workflow: {
      record.count = 1 + record.count % 4;
      const std::size_t edges = bytes.u8() % 6;
      record.payload_bytes = static_cast<std::uint32_t>(record.count * sizeof(WorkflowStepRecord) + edges * 2);
      std::byte* at = agent.view().scratch.data();
      for (std::uint32_t i = 0; i < record.count; ++i, at += sizeof(WorkflowStepRecord)) {
        const WorkflowStepRecord step{*make_name(kNames[bytes.u8() % 5]), bytes.u8() * 1'000'000};
        std::memcpy(at, &step, sizeof(step));
      }
      for (std::size_t i = 0; i < 2 * edges; ++i) at[i] = std::byte{static_cast<std::uint8_t>(bytes.u8() % 5)};
      break;
    }
    case Command::will_need:
      record.payload_bytes = sizeof(Name);
      record.b = bytes.u8();
      record.d = bytes.u8() * 4'000U;
      break;
    default: break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Engine& engine = *new Engine;
  Bytes bytes(data, size);
  {
    Agent first(engine, "first");
    Agent second(engine, "second");
    for (int step = 0; !bytes.empty() && step < 512; ++step) {
      Agent& agent = bytes.u8() % 2 == 0 ? first : second;
      switch (bytes.u8() % 16) {
        case 0: engine.cycle(); break;
        case 1: agent.read_completions(); break;
        case 2: agent.submit_ring().tail.fetch_add(bytes.u8()); break;
        case 3: agent.completion_ring().head.fetch_add(bytes.u8()); break;
        case 4: bytes.take(agent.view().scratch.first(64)); break;
        case 5: agent.view().probe->words[bytes.u8() % kProbeWords].store(bytes.u8() % 2 == 0 ? ~std::uint64_t{0} : bytes.u8()); [[fallthrough]];
        case 6: agent.view().probe->sequence.fetch_add(1 + bytes.u8() % 2U); break;
        case 7:
        case 8: {
          SubmitRecord record;
          bytes.take(std::as_writable_bytes(std::span{&record, 1}));
          agent.submit(record);
          break;
        }
        default: {
          SubmitRecord record;
          std::byte head[64];
          bytes.take(std::span(head).first(24));
          std::memcpy(static_cast<void*>(&record), head, 24);
          record.a = bytes.u8();
          record.c = bytes.u8();
          record.d = bytes.u8();
          record.medium = bytes.u8();
          mend(record, agent, bytes);
          agent.submit(record);
          engine.cycle();
          if (bytes.u8() % 4 != 0) agent.read_completions();
        }
      }
    }
    for (int i = 0; i < 4; ++i) engine.cycle();
  }
  engine.cycle();
  KVRAIL_ASSERT(engine.sessions->size() == 0);
  KVRAIL_ASSERT(engine.node->store().counters().deliveries == 0);
  if (++engine.inputs % 64 == 0) engine.node->check();
  return 0;
}

namespace {

// Steps as LLVMFuzzerTestOneInput reads them, so that a whole life of an agent is one seed.
class Script {
 public:
  Script& bytes(std::initializer_list<std::uint8_t> more) {
    input_.insert(input_.end(), more);
    return *this;
  }
  // A record that mend() makes sound: its first 24 bytes, a, c, d, medium, then what mend() asks for.
  Script& submit(std::uint8_t agent, Command command, std::uint32_t count, std::initializer_list<std::uint8_t> asked,
                 std::uint8_t a = 0, std::uint8_t medium = 0) {
    SubmitRecord record;
    record.command = static_cast<Command>(static_cast<std::uint16_t>(command) - 1);
    record.flags = kFlagAnswer;
    record.count = count;
    record.ticket = static_cast<std::uint64_t>(command);
    bytes({agent, 9});
    const auto* raw = reinterpret_cast<const std::uint8_t*>(&record);
    input_.insert(input_.end(), raw, raw + 24);
    return bytes({a, 0, 0, medium}).bytes(asked);
  }
  [[nodiscard]] const kvrail::test::FuzzInput& input() const { return input_; }

 private:
  kvrail::test::FuzzInput input_;
};

}  // namespace

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  // Of `asked`: which name; 1 leaves `a` as it is, 0 takes what the engine said last; then what the command
  // needs; last whether completions are read.
  const auto life = [](Script& script, std::uint8_t agent, std::uint8_t medium) {
    script.submit(agent, Command::begin_task, 0, {0, 1, 1});
    script.submit(agent, Command::allocate, 3, {0, 1, 1});
    script.submit(agent, Command::commit, 2, {2, 1, 1, 1, 0, 1, 1, 1, 20, 1});
    script.submit(agent, Command::set_importance, 20, {2, 1, 0, 0, 1});
    script.submit(agent, Command::send, 1, {2, 1, 4, 0, 1}, 0, medium);
    script.bytes({agent, 0, agent, 0});
    script.submit(agent, Command::will_need, 0, {2, 1, 10, 250, 1});
    script.submit(agent, Command::fetch, 0, {2, 1, 3, 0, 1});
    script.submit(agent, Command::release, 0, {0, 0, 1});
    script.submit(agent, Command::summary, 0, {0, 1, 8, 0, 1});
    script.submit(agent, Command::cancel, 0, {0, 1, 1});
    script.submit(agent, Command::free_blocks, 1, {0, 1, 1, 2, 1});
    script.submit(agent, Command::drop_context, 0, {2, 1, 1});
    script.submit(agent, Command::end_task, 0, {0, 0, 1});
  };
  std::vector<FuzzInput> seeds;
  for (std::uint8_t medium = 0; medium < kMediumCount; ++medium) {
    Script script;
    life(script, static_cast<std::uint8_t>(medium % 2), medium);
    seeds.push_back(script.input());
  }
  Script both;
  life(both, 0, 0);
  life(both, 1, 0);
  seeds.push_back(both.input());
  for (std::uint8_t command = 1; command < kCommandCount; ++command) {
    Script script;
    script.submit(0, static_cast<Command>(command), 1, {2, 1, 1, 1, 1, 1, 1, 1});
    seeds.push_back(script.input());
  }
  // Wild indices, scratch and probe, and a record that is none.
  seeds.push_back(Script().bytes({0, 2, 200, 0, 0, 1, 3, 77, 0, 0}).input());
  seeds.push_back(Script().bytes({0, 4, 1, 2, 3, 4, 0, 5, 3, 0, 0, 0}).input());
  seeds.push_back(Script().bytes({0, 7, 255, 255, 255, 255, 1, 1, 1, 1, 0, 0}).input());
  return seeds;
}
