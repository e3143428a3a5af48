// A client that gets itself into one state of the protocol, says so, and stays there until it is
// killed: victim SOCKET NAME STATE PARTNER FILE; FILE comes into being when it is there.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/client/socket_channel.h"
#include "tests/ipc/engine_rig.h"

namespace kvrail::test {
namespace {

using client::Session;
using engine::ipc::Command;
using engine::ipc::MessageType;
using engine::ipc::SubmitRecord;

[[noreturn]] void give_up(const std::string& text) {
  std::printf("failed: %s\n", text.c_str());
  std::fflush(stdout);
  std::_Exit(3);
}

template <class T>
T must(Result<T> result) {
  if (!result.ok()) give_up(result.error().message);
  return std::move(*result);
}

std::string ready_path;

void ready() {
  const int fd = ::open(ready_path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) give_up("cannot make " + ready_path);
  ::close(fd);
}

[[noreturn]] void stay() {
  ready();
  for (;;) ::pause();
}

struct Victim {
  std::string socket;
  std::string name;
  std::string partner;

  [[nodiscard]] AttachOptions options() const { return options_of(socket, name); }
  [[nodiscard]] Agent attach() const { return must(Agent::attach(options())); }
  [[nodiscard]] std::shared_ptr<Session> session() const { return must(client::attach_socket(options())); }
  [[nodiscard]] Context commit(Agent& agent, Blocks& blocks) const {
    return must(agent.commit("victims", tokens_of(40), blocks, Fence::none(), nullptr, kSoon));
  }
  [[nodiscard]] static Blocks allocate(Agent& agent) {
    return must(agent.allocate(small_layout(), 3, Place::host(), kSoon));
  }
};

void connected(const Victim& victim) {
  const auto socket = must(engine::ipc::connect_to(victim.socket));
  stay();
}

void half_attached(const Victim& victim) {
  const auto socket = must(engine::ipc::connect_to(victim.socket));
  auto message = must(client::attach_message(victim.options()));
  message.header = engine::ipc::header_of<engine::ipc::AttachMessage>(MessageType::attach, 1);
  static_cast<void>(engine::ipc::send_message(socket.get(), message));
  stay();
}

void attached(const Victim& victim) {
  const Agent agent = victim.attach();
  stay();
}

void allocated(const Victim& victim) {
  Agent agent = victim.attach();
  const Blocks blocks = Victim::allocate(agent);
  stay();
}

void writing(const Victim& victim) {
  Agent agent = victim.attach();
  const Blocks blocks = Victim::allocate(agent);
  ready();
  for (std::uint64_t seed = 0;; ++seed) fill(blocks.slot(seed % 3), seed);
}

void allocating(const Victim& victim) {
  Agent agent = victim.attach();
  ready();
  for (;;) static_cast<void>(Victim::allocate(agent));
}

void committed(const Victim& victim) {
  Agent agent = victim.attach();
  Blocks blocks = Victim::allocate(agent);
  static_cast<void>(victim.commit(agent, blocks));
  stay();
}

void committing(const Victim& victim) {
  Agent agent = victim.attach();
  ready();
  for (;;) {
    Blocks blocks = Victim::allocate(agent);
    static_cast<void>(victim.commit(agent, blocks));
    static_cast<void>(agent.drop_context("victims"));
  }
}

void dropped_commit(const Victim& victim) {
  Agent agent = victim.attach();
  Blocks blocks = Victim::allocate(agent);
  static_cast<void>(victim.commit(agent, blocks));
  static_cast<void>(agent.drop_context("victims"));
  stay();
}

// The record is in the ring and nobody waits for what comes of it.
void submitted(const Victim& victim) {
  const auto session = victim.session();
  SubmitRecord record;
  record.command = Command::allocate;
  record.ticket = 1;
  record.count = 3;
  for (int i = 0; i < 20; ++i) static_cast<void>(session->submit(record, {}, client::Deadline(kCallTimeout)));
  stay();
}

// Scratch and ring slots are written, but never published; the probe is left in the middle of a write.
void torn(const Victim& victim) {
  const auto session = victim.session();
  const auto& attachment = session->attachment();
  const auto view = engine::ipc::view_control(attachment.control_map.base, attachment.control);
  std::memset(view.scratch.data(), 0xee, view.scratch.size());
  std::memset(view.submit.data() + sizeof(RingMemory), 0xee, view.submit.size() - sizeof(RingMemory));
  view.probe->sequence.store(7);
  stay();
}

void sending(const Victim& victim) {
  Agent agent = victim.attach();
  Blocks blocks = Victim::allocate(agent);
  const Context context = victim.commit(agent, blocks);
  const std::string_view partner = victim.partner;
  ready();
  for (int i = 0; i < 200; ++i) static_cast<void>(must(agent.send(context, {partner})));
  for (;;) ::pause();
}

void asking(const Victim& victim) {
  Agent agent = victim.attach();
  ready();
  for (;;) {
    const Ticket ticket = must(agent.fetch(victim.partner, "witness"));
    static_cast<void>(agent.wait(ticket, kSoon));
    static_cast<void>(agent.receive(Nanoseconds(0)));
  }
}

void holding(const Victim& victim) {
  Agent agent = victim.attach();
  std::vector<Delivery> deliveries;
  for (int i = 0; i < 5; ++i) {
    static_cast<void>(must(agent.fetch(victim.partner, "witness")));
    deliveries.push_back(must(agent.receive(kSoon)));
  }
  stay();
}

// Deliveries are in its ring and it has not looked.
void unread(const Victim& victim) {
  Agent agent = victim.attach();
  for (int i = 0; i < 5; ++i) static_cast<void>(must(agent.fetch(victim.partner, "witness")));
  stay();
}

void parked(const Victim& victim) {
  Agent agent = victim.attach();
  ready();
  for (;;) static_cast<void>(agent.receive(kSoon));
}

void in_task(const Victim& victim) {
  Agent agent = victim.attach();
  static_cast<void>(must(agent.begin_task({}, kSoon)));
  stay();
}

void imported(const Victim& victim) {
  Agent agent = victim.attach();
  const int fd = ::memfd_create("cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ImportSource source;
  source.fd = fd;
  source.bytes = 4 * small_layout().block_bytes();
  if (::ftruncate(fd, static_cast<off_t>(source.bytes)) != 0) give_up("ftruncate");
  const Blocks blocks = must(agent.import(source, kSoon));
  stay();
}

// Dies, but a child of its keeps the socket open: only the pidfd tells.
void orphaned(const Victim& victim) {
  const Agent agent = victim.attach();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
    ::alarm(20);
    for (;;) ::pause();
  }
  stay();
}

void leaving(const Victim& victim) {
  ready();
  for (;;) {
    Agent agent = victim.attach();
    static_cast<void>(agent.detach(kSoon));
  }
}

}  // namespace

const std::map<std::string, void (*)(const Victim&)> kStates{
    {"connected", connected},   {"half_attached", half_attached}, {"attached", attached},
    {"allocated", allocated},   {"writing", writing},             {"allocating", allocating},
    {"committed", committed},   {"committing", committing},       {"dropped_commit", dropped_commit},
    {"submitted", submitted},   {"torn", torn},                   {"sending", sending},
    {"asking", asking},         {"holding", holding},             {"unread", unread},
    {"parked", parked},         {"in_task", in_task},             {"imported", imported},
    {"orphaned", orphaned},     {"leaving", leaving}};

}  // namespace kvrail::test

int main(int argc, char** argv) {
  using namespace kvrail::test;
  if (argc == 2 && std::string(argv[1]) == "--states") {
    for (const auto& [name, run] : kStates) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (argc != 6) return 2;
  ready_path = argv[5];
  const auto state = kStates.find(argv[3]);
  if (state == kStates.end()) return 2;
  state->second({argv[1], argv[2], argv[4]});
  return 0;
}
