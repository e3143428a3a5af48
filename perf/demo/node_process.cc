#include "perf/demo/node_process.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "engine/ipc/protocol.h"
#include "engine/ipc/socket_io.h"

namespace kvrail::demo {
namespace {

namespace ipc = engine::ipc;
constexpr TimeNs kStartLimitNs = 10 * kSecondNs;
constexpr TimeNs kAnswerLimitNs = 5 * kSecondNs;

Error refusal(const ipc::Received& received) {
  ipc::RefusedMessage message;
  if (!received.as(message)) return Error{{Code::protocol_error}, "the engine sent no status page"};
  message.text.back() = '\0';
  return Error{message.status, message.text.data()};
}

// Asks for the page; the descriptor and the size come back in `received`.
Result<std::uint64_t> ask_for_page(int socket, ipc::Received& received) {
  const auto question = ipc::header_of<ipc::MessageHeader>(ipc::MessageType::get_status, 1);
  if (ipc::send_message(socket, question) != ipc::SendOutcome::sent) {
    return Error{{Code::peer_down, Scope::engine}, "the engine closed the connection"};
  }
  for (;;) {
    switch (ipc::receive_message(socket, received)) {
      case ipc::ReceiveOutcome::none:
        if (!ipc::wait_readable(socket, kAnswerLimitNs))
          return Error{{Code::timed_out}, "no status page came"};
        continue;
      case ipc::ReceiveOutcome::closed:
        return Error{{Code::peer_down, Scope::engine}, "the engine hung up"};
      case ipc::ReceiveOutcome::malformed:
        return Error{{Code::protocol_error}, "the engine sent no message"};
      case ipc::ReceiveOutcome::message:
        break;
    }
    ipc::StatusPageMessage answer;
    if (received.header.type != ipc::MessageType::status_page || !received.as(answer))
      return refusal(received);
    if (!answer.status.ok() || received.fd_count != 1)
      return Error{{Code::protocol_error}, "no status page to map"};
    return answer.bytes;
  }
}

}  // namespace

std::string config_text(const NodeConfig& config) {
  std::string text = "[node]\nid = " + std::to_string(config.id) + "\n\n[attach]\nsocket = \"" +
                     config.socket +
                     "\"\n\n[memory]\nreceive_arena = \"128 MiB\"\nagent_arena = \"16 "
                     "MiB\"\ntables = \"64 MiB\"\n" +
                     "\n[log]\nlevel = \"info\"\n\n";
  if (config.transport == "shm") {
    text += "[shm]\nlisten = \"" + config.listen + "\"\n";
  } else if (config.transport == "verbs") {
    text += "[tcp]\npsk_file = \"" + config.psk_file + "\"\n[verbs]\nlisten = \"" + config.listen +
            "\"\n";
  } else {
    text += "[tcp]\nlisten = \"" + config.listen + "\"\npsk_file = \"" + config.psk_file + "\"\n";
    if (config.pacing_bytes_per_s > 0) {
      text += "pacing = \"" + std::to_string(config.pacing_bytes_per_s * 8) + " bit/s\"\n";
    }
  }
  if (!config.profile.empty()) text += "\n[codec]\nprofile = \"" + config.profile + "\"\n";
  if (!config.peer.empty()) {
    text +=
        "\n[[peer]]\naddress = \"" + config.peer + "\"\ntransport = \"" + config.transport + "\"\n";
  }
  return text;
}

StatusReader::StatusReader(void* memory, std::size_t bytes)
    : memory_(memory), bytes_(bytes), copy_(std::make_unique<engine::StatusData>()) {}

StatusReader::StatusReader(StatusReader&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      copy_(std::move(other.copy_)) {}

StatusReader::~StatusReader() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

Result<StatusReader> StatusReader::open(const std::string& socket) {
  auto connection = ipc::connect_to(socket);
  if (!connection.ok()) return std::move(connection).error();
  ipc::Received received;
  auto bytes = ask_for_page(connection->get(), received);
  if (!bytes.ok()) return std::move(bytes).error();
  struct stat info {};
  const int fd = received.fds[0].get();
  if (::fstat(fd, &info) != 0 || static_cast<std::uint64_t>(info.st_size) < *bytes || *bytes == 0) {
    return Error{{Code::protocol_error}, "the status page is smaller than the engine said"};
  }
  void* const memory = ::mmap(nullptr, *bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return Error{{Code::limit, Scope::transfer, errno}, "cannot map the status page"};
  StatusReader reader(memory, *bytes);
  if (engine::as_status_page(memory, *bytes) == nullptr) {
    return Error{{Code::version_mismatch}, "the status page is of another build of the engine"};
  }
  return reader;
}

const engine::StatusData* StatusReader::read() {
  const engine::StatusPage* const page = engine::as_status_page(memory_, bytes_);
  return page != nullptr && engine::read_status_page(*page, *copy_) ? copy_.get() : nullptr;
}

Result<NodeProcess> NodeProcess::start(const std::string& kvraild, const NodeConfig& config,
                                       const std::string& folder,
                                       const std::string& network_namespace) {
  const std::string stem = folder + "/node-" + std::to_string(config.id);
  std::ofstream(stem + ".toml") << config_text(config);
  static_cast<void>(::unlink(config.socket.c_str()));
  SpawnOptions spawn;
  spawn.program = kvraild;
  spawn.arguments = {"--config", stem + ".toml"};
  spawn.network_namespace = network_namespace;
  spawn.log = stem + ".log";
  auto process = ChildProcess::start(spawn);
  if (!process.ok()) return std::move(process).error();
  process->set_label("kvraild of node " + std::to_string(config.id));
  const SteadyClock clock;
  const TimeNs deadline_ns = clock.now_ns() + kStartLimitNs;
  for (;;) {
    auto status = StatusReader::open(config.socket);
    if (status.ok())
      return NodeProcess(config, std::move(process).value(), std::move(status).value());
    if (!process->running() || clock.now_ns() > deadline_ns) {
      return Error{status.status(), process->label() + " does not take agents (" +
                                        status.error().message + "):\n" + process->log_tail()};
    }
    ::usleep(10'000);
  }
}

}  // namespace kvrail::demo
