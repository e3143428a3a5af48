// Clients that are not the library: everything on the socket and in the shared memory may be wrong.
// The engine drops them with a counted reason, and serves the others as if nothing had been.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "engine/client/socket_channel.h"
#include "kvrail/base/prng.h"
#include "tests/ipc/engine_rig.h"

namespace kvrail::test {
namespace {

using client::Session;
using engine::ipc::AttachMessage;
using engine::ipc::Command;
using engine::ipc::CompletionRecord;
using engine::ipc::ControlView;
using engine::ipc::DropReason;
using engine::ipc::header_of;
using engine::ipc::MessageHeader;
using engine::ipc::MessageType;
using engine::ipc::SubmitRecord;
using engine::ipc::UniqueFd;

UniqueFd connect(EngineRig& rig) {
  Result<UniqueFd> socket = engine::ipc::connect_to(rig.socket());
  REQUIRE_MESSAGE(socket.ok(), socket.error().message);
  return std::move(*socket);
}

AttachMessage attach_message(const std::string& name) {
  Result<AttachMessage> message = client::attach_message(options_of("", name));
  REQUIRE(message.ok());
  message->header = header_of<AttachMessage>(MessageType::attach, 1);
  return *message;
}

void send_raw(const UniqueFd& socket, const void* bytes, std::size_t size, std::span<const int> fds = {}) {
  iovec part{const_cast<void*>(bytes), size};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(fds.size_bytes()));
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  static_cast<void>(::sendmsg(socket.get(), &header, MSG_NOSIGNAL));
}

bool is_closed(const UniqueFd& socket) {
  std::array<char, 512> buffer;
  return ::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

// The end of the connection, whatever was said before it.
bool ends(EngineRig& rig, const UniqueFd& socket) {
  return rig.until([&] { return is_closed(socket); });
}

// An attached client whose rings the test writes by hand. Attaching needs the engine to run.
struct Attached {
  explicit Attached(EngineRig& rig, const std::string& name = "evil") {
    rig.serve([&] {
      Result<std::shared_ptr<Session>> made = client::attach_socket(options_of(rig.socket(), name));
      REQUIRE_MESSAGE(made.ok(), made.error().message);
      session = std::move(*made);
    });
    view = engine::ipc::view_control(session->attachment().control_map.base, session->attachment().control);
  }
  [[nodiscard]] RingMemory& submit_ring() const { return *reinterpret_cast<RingMemory*>(view.submit.data()); }
  [[nodiscard]] RingMemory& completion_ring() const { return *reinterpret_cast<RingMemory*>(view.completion.data()); }
  void wake() const { session->channel().ring(); }

  std::shared_ptr<Session> session;
  ControlView view;
};

// A good client still gets everything it asks for.
void check_service(EngineRig& rig) {
  rig.serve([&] {
    Result<Agent> agent = Agent::attach(options_of(rig.socket(), "good"));
    REQUIRE_MESSAGE(agent.ok(), agent.error().message);
    Result<Blocks> blocks = agent->allocate(small_layout(), 2, Place::host(), kSoon);
    REQUIRE(blocks.ok());
    fill(blocks->slot(0), 4);
    const Result<Context> context = agent->commit("c", tokens_of(20), *blocks, Fence::none(), nullptr, kSoon);
    REQUIRE_MESSAGE(context.ok(), context.error().message);
    REQUIRE(agent->fetch("good", "c").ok());
    const Result<Delivery> delivery = agent->receive(kSoon);
    REQUIRE_MESSAGE(delivery.ok(), delivery.error().message);
    CHECK(holds(delivery->blocks()[0].data, 4));
  });
  rig.node().check();
}

}  // namespace

TEST_CASE("hostile / messages that are none end the connection and are counted") {
  EngineRig rig;
  AttachMessage good = attach_message("evil");
  struct Case {
    const char* what;
    std::function<void(const UniqueFd&)> send;
  };
  const std::vector<Case> cases{
      {"a foreign program", [](const UniqueFd& s) { send_raw(s, "GET / HTTP/1.1\r\n\r\n", 18); }},
      {"one byte", [](const UniqueFd& s) { send_raw(s, "K", 1); }},
      {"half a header", [&](const UniqueFd& s) { send_raw(s, &good, 8); }},
      {"half an attach", [&](const UniqueFd& s) { send_raw(s, &good, sizeof(good) / 2); }},
      {"one byte short", [&](const UniqueFd& s) { send_raw(s, &good, sizeof(good) - 1); }},
      {"one byte too long",
       [&](const UniqueFd& s) {
         std::vector<std::byte> bytes(sizeof(good) + 1);
         std::memcpy(bytes.data(), &good, sizeof(good));
         send_raw(s, bytes.data(), bytes.size());
       }},
      {"the most a socket takes",
       [&](const UniqueFd& s) {
         std::vector<std::byte> bytes(100'000);
         std::memcpy(bytes.data(), &good, sizeof(good));
         send_raw(s, bytes.data(), bytes.size());
       }},
      {"a lying length",
       [&](const UniqueFd& s) {
         AttachMessage bad = good;
         bad.header.bytes = 0xffffffff;
         send_raw(s, &bad, sizeof(bad));
       }},
      {"wrong magic",
       [&](const UniqueFd& s) {
         AttachMessage bad = good;
         bad.header.magic ^= 1;
         send_raw(s, &bad, sizeof(bad));
       }},
      {"an answer instead of a question",
       [&](const UniqueFd& s) {
         const auto bad = header_of<MessageHeader>(MessageType::attached, 1);
         send_raw(s, &bad, sizeof(bad));
       }},
      {"an unknown type",
       [&](const UniqueFd& s) {
         const auto bad = header_of<MessageHeader>(static_cast<MessageType>(777), 1);
         send_raw(s, &bad, sizeof(bad));
       }},
      {"detach before attach",
       [&](const UniqueFd& s) {
         const auto bad = header_of<MessageHeader>(MessageType::detach, 1);
         send_raw(s, &bad, sizeof(bad));
       }},
      {"get_arena before attach",
       [&](const UniqueFd& s) {
         engine::ipc::GetArenaMessage bad;
         bad.header = header_of<engine::ipc::GetArenaMessage>(MessageType::get_arena, 1);
         send_raw(s, &bad, sizeof(bad));
       }},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    const std::uint64_t before = rig.server().counters().malformed;
    const UniqueFd socket = connect(rig);
    each.send(socket);
    CHECK(ends(rig, socket));
    CHECK(rig.server().counters().malformed == before + 1);
  }
  CHECK(rig.server().empty());
  check_service(rig);
}

TEST_CASE("hostile / another version is refused with a line, not as garbage") {
  EngineRig rig;
  AttachMessage message = attach_message("future");
  message.header.version = 9;
  message.oldest_version = 9;
  const UniqueFd socket = connect(rig);
  send_raw(socket, &message, sizeof(message));
  engine::ipc::Received received;
  REQUIRE(rig.until([&] {
    return engine::ipc::receive_message(socket.get(), received) == engine::ipc::ReceiveOutcome::message;
  }));
  engine::ipc::RefusedMessage refused;
  REQUIRE(received.as(refused));
  CHECK(refused.status.code == Code::version_mismatch);
  CHECK(std::string(refused.text.data()).find("protocol") != std::string::npos);
}

TEST_CASE("hostile / many descriptors, and descriptors where none belong, are all closed") {
  // The test may itself have been given some.
  const auto count_devnull = [] {
    std::array<char, 64> target;
    int count = 0;
    for (int fd = 0; fd < 1000; ++fd) {
      const std::string link = "/proc/self/fd/" + std::to_string(fd);
      const ssize_t length = ::readlink(link.c_str(), target.data(), target.size());
      if (length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length)) == "/dev/null") ++count;
    }
    return count;
  };
  const int before = count_devnull();
  EngineRig rig;
  const int devnull = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const AttachMessage good = attach_message("evil");
  for (const std::size_t count : {1, 3, 5, 100, 253}) {
    CAPTURE(count);
    const UniqueFd socket = connect(rig);
    const std::vector<int> fds(count, devnull);
    send_raw(socket, &good, sizeof(good), fds);
    CHECK(ends(rig, socket));
  }
  const UniqueFd socket = connect(rig);
  const std::vector<int> fds(300, devnull);  // The kernel itself takes no more than 253.
  send_raw(socket, &good, sizeof(good), fds);
  ::close(devnull);
  CHECK(rig.server().counters().malformed == 5);
  CHECK(count_devnull() == before);
  check_service(rig);
}

TEST_CASE("hostile / who says nothing is shown out, and a flood of them leaves room for others") {
  EngineRig rig([](engine::ipc::AttachServerOptions& options) {
    options.hello_timeout_ns = 200 * kMillisecondNs;
    options.max_half_open = 8;
  });
  std::vector<UniqueFd> silent;
  const std::size_t flood = is_long() ? 5000 : 200;
  for (std::size_t i = 0; i < flood; ++i) {
    Result<UniqueFd> socket = engine::ipc::connect_to(rig.socket());
    if (socket.ok()) silent.push_back(std::move(*socket));
    if (silent.size() > 100) silent.erase(silent.begin());
    rig.round();
  }
  check_service(rig);
  CHECK(rig.server().counters().evicted > 0);
  CHECK(rig.until([&] { return rig.server().empty(); }));
  CHECK(rig.server().counters().hello_timeouts > 0);
  for (const UniqueFd& socket : silent) CHECK(is_closed(socket));
}

TEST_CASE("hostile / the shared memory cannot be shrunk, grown, or sealed further") {
  EngineRig rig;
  const UniqueFd socket = connect(rig);
  const AttachMessage message = attach_message("evil");
  send_raw(socket, &message, sizeof(message));
  engine::ipc::Received received;
  REQUIRE(rig.until([&] {
    return engine::ipc::receive_message(socket.get(), received) == engine::ipc::ReceiveOutcome::message;
  }));
  REQUIRE(received.header.type == MessageType::attached);
  REQUIRE(received.fd_count == engine::ipc::kAttachedFds);
  for (const std::size_t i : {0, 1, 2}) {
    CAPTURE(i);
    const int fd = received.fds[i].get();
    CHECK(::ftruncate(fd, 0) != 0);
    CHECK(::ftruncate(fd, 1 << 30) != 0);
    CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  }
  const int receive = received.fds[2].get();
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, receive, 0) == MAP_FAILED);
  // Not by opening it anew either.
  const int again = ::open(("/proc/self/fd/" + std::to_string(receive)).c_str(), O_RDWR);
  if (again >= 0) {
    CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
    CHECK(::pwrite(again, "x", 1, 0) != 1);
    ::close(again);
  }
  // A blocking, full eventfd stops only who waits on it.
  const int bell = received.fds[3].get();
  REQUIRE(::fcntl(bell, F_SETFL, 0) == 0);
  const std::uint64_t full = ~std::uint64_t{0} - 1;
  REQUIRE(::write(bell, &full, sizeof(full)) == sizeof(full));
  check_service(rig);
}

TEST_CASE("hostile / wild ring indices drop the client and nobody else") {
  EngineRig rig;
  Prng prng(3);
  const int rounds = by_mode(20, 40, 1000);
  for (int round = 0; round < rounds; ++round) {
    Attached evil(rig);
    const std::uint64_t before = rig.server().counters().dropped[static_cast<std::size_t>(DropReason::ring_corrupt)];
    const std::uint64_t wild = prng.next_u64() | (std::uint64_t{1} << (20 + prng.uniform(40)));
    if (round % 2 == 0) {
      evil.submit_ring().tail.store(wild);
    } else {
      // Seen when the engine wants to write: one sound record asks for an answer.
      evil.completion_ring().head.store(wild);
      SubmitRecord record;
      record.command = Command::end_task;
      record.flags = engine::ipc::kFlagAnswer;
      record.ticket = 1;
      static_cast<void>(evil.session->submit(record, {}, client::Deadline(kSoon)));
    }
    evil.wake();
    CHECK(rig.until([&] { return rig.server().empty(); }));
    CHECK(rig.server().counters().dropped[static_cast<std::size_t>(DropReason::ring_corrupt)] == before + 1);
  }
  check_service(rig);
}

TEST_CASE("hostile / indices and records that change all the time while the engine reads") {
  EngineRig rig;
  const auto clients = by_mode<std::uint64_t>(3, 6, 1000);
  for (std::uint64_t seed = 1; seed <= clients; ++seed) {
    Attached evil(rig);
    std::atomic<bool> stop{false};
    std::thread attacker([&] {
      Prng prng(seed);
      while (!stop.load()) {
        const std::size_t at = prng.uniform(evil.view.submit.size() / 8) * 8;
        const std::uint64_t word = prng.uniform(3) == 0 ? prng.next_u64() : prng.uniform(300);
        // Not within a lock-free type's rules, as a stranger's writes are not; whole words at least.
        reinterpret_cast<std::atomic<std::uint64_t>*>(evil.view.submit.data() + at)->store(word, std::memory_order_relaxed);
        reinterpret_cast<std::atomic<std::uint64_t>*>(evil.view.scratch.data() + at % evil.view.scratch.size())
            ->store(prng.next_u64(), std::memory_order_relaxed);
        if (prng.uniform(8) == 0) evil.submit_ring().tail.fetch_add(prng.uniform(4));
        if (prng.uniform(64) == 0) evil.completion_ring().head.store(evil.completion_ring().tail.load());
        if (prng.uniform(64) == 0) evil.wake();
      }
    });
    static_cast<void>(rig.until([&] { return rig.server().empty(); }, 300 * kMillisecondNs));
    stop.store(true);
    attacker.join();
    evil.session.reset();
    CHECK(rig.until([&] { return rig.server().empty(); }));
    rig.node().check();
  }
  check_service(rig);
}

TEST_CASE("hostile / block references outside, unaligned, twice, freed, of others: typed, never bytes") {
  EngineRig rig;
  // Another agent of the tenant with a committed block, whose arena id the attacker knows.
  Attached other(rig, "other");
  Attached evil(rig);
  const std::uint32_t own = evil.session->attachment().arena_id;
  const std::uint32_t foreign = other.session->attachment().arena_id;
  const std::uint32_t receive = evil.session->attachment().receive_id;
  const std::uint64_t block = small_layout().block_bytes();
  std::uint64_t ticket = 0;
  const auto ask = [&](SubmitRecord record, std::span<const client::Bytes> payload) {
    record.ticket = ++ticket;
    // A commit that was taken tells its end by an event.
    const bool by_event = record.command == Command::commit;
    if (!by_event) record.flags |= engine::ipc::kFlagAnswer;
    REQUIRE(evil.session->submit(record, payload, client::Deadline(kSoon)).ok());
    CompletionRecord answer;
    REQUIRE(rig.until([&] {
      return evil.session->take(answer) && answer.ticket == ticket &&
             (by_event || answer.kind == engine::ipc::CompletionKind::answer);
    }));
    return answer;
  };
  SubmitRecord allocate;
  allocate.command = Command::allocate;
  allocate.count = 2;
  static_cast<void>(ask(allocate, {}));
  CompletionRecord drained;
  while (evil.session->take(drained)) continue;

  const auto commit = [&](std::vector<engine::ipc::ExtentRecord> extents, std::size_t tokens, std::uint64_t prefix = 0) {
    SubmitRecord record;
    record.command = Command::commit;
    record.name = *make_name("c");
    record.count = static_cast<std::uint32_t>(extents.size());
    record.a = prefix;
    const std::vector<TokenId> ids = tokens_of(tokens);
    const std::array<client::Bytes, 2> payload{std::as_bytes(std::span{extents}), std::as_bytes(std::span{ids})};
    return ask(record, payload).status;
  };
  constexpr std::uint64_t kTop = ~std::uint64_t{0};
  CHECK_FALSE(commit({{own, 1, kTop}}, 16).ok());
  CHECK_FALSE(commit({{own, 1, kTop - block + 1}}, 16).ok());
  CHECK_FALSE(commit({{own, 0xffffffff, 0}}, 16).ok());
  CHECK_FALSE(commit({{own, 1, 1 << 20}}, 16).ok());
  CHECK_FALSE(commit({{own, 1, 8}}, 16).ok());
  CHECK_FALSE(commit({{own, 1, 5 * block}}, 16).ok());  // not allocated
  CHECK_FALSE(commit({{own, 1, 0}, {own, 1, 0}}, 32).ok());
  CHECK_FALSE(commit({{own, 0, 0}}, 16).ok());
  CHECK_FALSE(commit({{own, 1, 0}}, 17).ok());
  CHECK_FALSE(commit({{foreign, 1, 0}}, 16).ok());
  CHECK_FALSE(commit({{receive, 1, 0}}, 16).ok());
  CHECK_FALSE(commit({{0, 1, 0}}, 16).ok());
  CHECK_FALSE(commit({{0xffffffff, 1, 0}}, 16).ok());
  const auto free_blocks = [&](std::uint32_t arena, std::uint64_t offset, std::uint32_t count) {
    SubmitRecord record;
    record.command = Command::free_blocks;
    record.d = arena;
    record.c = offset;
    record.count = count;
    return ask(record, {}).status;
  };
  CHECK_FALSE(free_blocks(foreign, 0, 1).ok());
  CHECK_FALSE(free_blocks(receive, 0, 1).ok());
  CHECK_FALSE(free_blocks(own, kTop, 1).ok());
  CHECK_FALSE(free_blocks(own, 0, 0xffffffff).ok());
  CHECK_FALSE(free_blocks(own, 1, 1).ok());
  CHECK_FALSE(free_blocks(own, 0, 0).ok());
  CHECK(free_blocks(own, 0, 1).ok());
  CHECK_FALSE(free_blocks(own, 0, 1).ok());  // twice
  CHECK_FALSE(commit({{own, 1, 0}}, 16).ok());  // freed
  // Guessed deliveries, tasks and requests of others.
  for (const std::uint64_t guess : {std::uint64_t{0}, std::uint64_t{1} << 32, (std::uint64_t{1} << 32) | 1, kTop}) {
    SubmitRecord record;
    record.command = Command::release;
    record.a = guess;
    CHECK_FALSE(ask(record, {}).status.ok());
    record.command = Command::end_task;
    CHECK_FALSE(ask(record, {}).status.ok());
    record.command = Command::summary;
    static_cast<void>(ask(record, {}));
  }
  CHECK(rig.server().agents() == 2);
  rig.node().check();
  other.session.reset();
  evil.session.reset();
  check_service(rig);
}

TEST_CASE("hostile / arenas of other tenants, and arenas that are none, look the same") {
  EngineRig rig;
  rig.serve([&] {
    Result<std::shared_ptr<Session>> blue = client::attach_socket(options_of(rig.socket(), "a", "blue"));
    Result<std::shared_ptr<Session>> green = client::attach_socket(options_of(rig.socket(), "a", "green"));
    REQUIRE(blue.ok());
    REQUIRE(green.ok());
    client::Channel& channel = (*blue)->channel();
    Result<client::ArenaMap> own = channel.arena((*blue)->attachment().receive_id, kSoonNs);
    CHECK(own.ok());
    if (own.ok()) client::unmap(*own);
    const Result<client::ArenaMap> theirs = channel.arena((*green)->attachment().receive_id, kSoonNs);
    const Result<client::ArenaMap> arena = channel.arena((*green)->attachment().arena_id, kSoonNs);
    const Result<client::ArenaMap> none = channel.arena(0xfffffff0, kSoonNs);
    for (const auto* answer : {&theirs, &arena, &none}) {
      REQUIRE_FALSE(answer->ok());
      CHECK(answer->status() == Status{Code::not_found});
      CHECK(answer->error().message == none.error().message);
    }
  });
}

TEST_CASE("hostile / imports of what is no memory are refused one by one") {
  EngineRig rig;
  rig.serve([&] {
    Result<std::shared_ptr<Session>> session = client::attach_socket(options_of(rig.socket(), "evil"));
    REQUIRE(session.ok());
    client::Channel& channel = (*session)->channel();
    const std::uint64_t block = small_layout().block_bytes();
    const auto refused = [&](int fd, std::uint64_t offset, std::uint64_t bytes) {
      const Result<client::ImportedRange> range = channel.import_fd(fd, offset, bytes, kSoonNs);
      CHECK_FALSE(range.ok());
    };
    std::array<int, 2> pipe{};
    REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
    refused(pipe[0], 0, block);
    refused(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC), 0, block);
    refused(::open("/dev/zero", O_RDWR | O_CLOEXEC), 0, block);
    refused(::open("/", O_PATH | O_CLOEXEC), 0, block);
    refused(::eventfd(0, EFD_CLOEXEC), 0, block);
    const int empty = ::memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    refused(empty, 0, block);
    const int small = ::memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(::ftruncate(small, static_cast<off_t>(2 * block)) == 0);
    refused(small, 0, 3 * block);
    refused(small, block, 2 * block);
    refused(small, 0, 0);
    refused(small, 0, block / 2);
    refused(small, 1, block);
    refused(small, ~std::uint64_t{0} - 4095, block);
    refused(small, 4096, ~std::uint64_t{0} & ~(block - 1));
    const int unsealable = ::memfd_create("unsealable", MFD_CLOEXEC);
    REQUIRE(::ftruncate(unsealable, static_cast<off_t>(block)) == 0);
    refused(unsealable, 0, block);
    CHECK(channel.check().ok());
  });
  CHECK(rig.server().counters().imports_refused >= 13);
  check_service(rig);
}

TEST_CASE("hostile / detach twice, and words after the last") {
  EngineRig rig;
  const UniqueFd socket = connect(rig);
  const AttachMessage message = attach_message("evil");
  send_raw(socket, &message, sizeof(message));
  const auto detach = header_of<MessageHeader>(MessageType::detach, 2);
  send_raw(socket, &detach, sizeof(detach));
  send_raw(socket, &detach, sizeof(detach));
  send_raw(socket, &message, sizeof(message));
  CHECK(ends(rig, socket));
  CHECK(rig.until([&] { return rig.server().empty(); }));
  CHECK(rig.server().counters().dropped[static_cast<std::size_t>(DropReason::detached)] == 1);
  check_service(rig);
}

TEST_CASE("hostile / a client that asks and never reads the answers is dropped") {
  EngineRig rig;
  const UniqueFd socket = connect(rig);
  const AttachMessage message = attach_message("evil");
  send_raw(socket, &message, sizeof(message));
  const auto question = header_of<MessageHeader>(MessageType::get_status, 2);
  const bool dropped = rig.until([&] {
    for (int i = 0; i < 16; ++i) static_cast<void>(engine::ipc::send_message(socket.get(), question));
    return rig.server().counters().dropped[static_cast<std::size_t>(DropReason::not_reading)] == 1;
  });
  CHECK(dropped);
  check_service(rig);
}

TEST_CASE("hostile / at the most agents the next is refused with a reason") {
  EngineRig rig([](engine::ipc::AttachServerOptions& options) { options.max_agents = 2; });
  rig.serve([&] {
    Result<Agent> first = Agent::attach(options_of(rig.socket(), "a"));
    Result<Agent> second = Agent::attach(options_of(rig.socket(), "b"));
    const Result<Agent> third = Agent::attach(options_of(rig.socket(), "c"));
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    CHECK(third.status().code == Code::out_of_capacity);
    CHECK(first->detach(kSoon).ok());
    CHECK(Agent::attach(options_of(rig.socket(), "c")).ok());
  });
  CHECK(rig.server().counters().refused_limit == 1);
}

}  // namespace kvrail::test
