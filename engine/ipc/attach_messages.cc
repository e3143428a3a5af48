// What clients say to the attach server.
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <linux/magic.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/ipc/connection.h"
#include "kvrail/base/checked.h"

namespace kvrail::engine::ipc {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

Error refusal(Code code, std::string text, int detail = 0) {
  return Error{{code, Scope::engine, detail}, std::move(text)};
}

// What can be told of the memory before it is mapped. Whatever is refused as unsupported the agent itself
// can copy.
Result<void> judge_memory(int fd, const ImportMessage& message) {
  struct stat info {};
  struct statfs system {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || ::fstatfs(fd, &system) != 0) {
    return refusal(Code::unsupported, "only a memfd can be imported in place", errno);
  }
  if (message.bytes == 0 || message.offset % kPageBytes != 0 ||
      !range_fits(message.offset, message.bytes, static_cast<std::uint64_t>(std::max<off_t>(info.st_size, 0)))) {
    return refusal(Code::invalid_argument, "the range to import does not lie in the memory, or not on a page");
  }
  // The seals are the store's to judge. A hole punched into huge pages cannot always be filled again.
  if (static_cast<unsigned long>(system.f_type) == HUGETLBFS_MAGIC) {
    return refusal(Code::unsupported, "memory of huge pages cannot be imported in place");
  }
  return {};
}

}  // namespace

void AttachServer::on_message(Connection& connection, Received& message) {
  connection.sequence = message.header.sequence;
  const bool attached = connection.stage == Connection::Stage::serving;
  const bool brings_fds = message.fd_count != 0;
  const MessageType type = message.header.type;
  if (brings_fds != (type == MessageType::import)) {
    ++counters_.malformed;
    return leave(connection, DropReason::protocol_breach);
  }
  if (type == MessageType::attach && !attached) return on_attach(connection, message);
  if (type == MessageType::get_status) return on_get_status(connection, message);
  if (type == MessageType::get_arena && attached) return on_get_arena(connection, message);
  if (type == MessageType::import && attached) return on_import(connection, message);
  if (type == MessageType::detach && attached && message.size == sizeof(MessageHeader)) {
    connection.polite = true;
    return leave(connection, DropReason::detached);
  }
  ++counters_.malformed;
  leave(connection, DropReason::protocol_breach);
}

void AttachServer::on_attach(Connection& connection, const Received& message) {
  AttachMessage attach;
  // The version comes first: another version's ATTACH may well have another size.
  std::uint16_t oldest = kProtocolOldest;
  if (message.size >= sizeof(MessageHeader) + sizeof(oldest)) {
    std::memcpy(&oldest, message.bytes.data() + sizeof(MessageHeader), sizeof(oldest));
  }
  if (message.header.version < kProtocolOldest || oldest > kProtocolVersion) {
    ++counters_.refused_request;
    refuse(connection, refusal(Code::version_mismatch,
                               "the engine speaks protocol " + std::to_string(kProtocolOldest) + " to " +
                                   std::to_string(kProtocolVersion) + ", the agent " + std::to_string(oldest) +
                                   " to " + std::to_string(message.header.version) + ": update the older one"));
    return close(connection);
  }
  if (!message.as(attach)) {
    ++counters_.malformed;
    return leave(connection, DropReason::protocol_breach);
  }
  if (const Result<void> adopted = adopt(connection, attach); !adopted.ok()) {
    refuse(connection, adopted.error());
    close(connection);
  }
}

Result<void> AttachServer::adopt(Connection& connection, const AttachMessage& message) {
  if (shutting_down_) return refusal(Code::shutting_down, "the engine is shutting down");
  const auto of_user = std::count_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
    return entry.second->session != nullptr && entry.second->caller.uid == connection.caller.uid;
  });
  if (agents() >= options_.max_agents || static_cast<std::uint32_t>(of_user) >= options_.max_agents_per_uid) {
    ++counters_.refused_limit;
    return refusal(Code::out_of_capacity, "the engine serves its most agents: detach some, or raise max_agents");
  }
  Name wish;
  const bool wishes = message.tenant.bytes[0] != '\0';
  if (wishes && !clean_name(message.tenant, wish)) {
    ++counters_.refused_request;
    return refusal(Code::invalid_argument, "a tenant's name must have 1 to 63 bytes without spaces");
  }
  const Result<Name> tenant = options_.policy.tenant_for(connection.caller, wish.view());
  if (!tenant.ok()) {
    ++counters_.refused_policy;
    last_policy_refusal_ = tenant.error().message;
    return tenant.error();
  }
  Result<AgentInfo> info = agent_info(message, *tenant, options_.limits);
  if (!info.ok()) {
    ++counters_.refused_request;
    return std::move(info).error();
  }
  Result<AttachMemory> attach_memory = sessions_.prepare(*info);
  if (!attach_memory.ok()) {
    ++counters_.refused_limit;
    return std::move(attach_memory).error();
  }
  UniqueFd submit_bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  Result<ControlMemory> memory = create_control_memory(scratch_bytes_of(message));
  if (!memory.ok() || !submit_bell) {
    ++counters_.refused_limit;
    return memory.ok() ? refusal(Code::limit, "the engine has no descriptor left: raise its limit of open files")
                       : memory.error();
  }
  connection.session = std::make_unique<AgentSession>(connection.id, *info, std::move(*memory),
                                                      Bell::socket(connection.socket.get()), std::move(submit_bell));
  connection.session->lend(std::move(*attach_memory));
  connection.stage = Connection::Stage::adopting;
  listen(connection, false);
  SessionCommand command;
  command.kind = SessionCommand::Kind::adopt;
  command.id = connection.id;
  command.session = connection.session.get();
  link_.send(command);
  return {};
}

void AttachServer::on_get_arena(Connection& connection, const Received& message) {
  GetArenaMessage question;
  if (!message.as(question) || question.reserved != 0) {
    ++counters_.malformed;
    return leave(connection, DropReason::protocol_breach);
  }
  connection.stage = Connection::Stage::asking;
  listen(connection, false);
  SessionCommand command;
  command.kind = SessionCommand::Kind::arena;
  command.id = connection.id;
  command.arena_id = question.arena_id;
  link_.send(command);
}

void AttachServer::on_get_status(Connection& connection, const Received& message) {
  if (message.size != sizeof(MessageHeader)) {
    ++counters_.malformed;
    return leave(connection, DropReason::protocol_breach);
  }
  StatusPageMessage reply;
  reply.header = header_of<StatusPageMessage>(MessageType::status_page, connection.sequence);
  UniqueFd fd;
  if (options_.status_page == nullptr) {
    reply.status = Code::not_found;
  } else if (Result<int> opened = options_.status_page->read_only_fd(); opened.ok()) {
    fd = UniqueFd(*opened);
    reply.bytes = options_.status_page->bytes();
  } else {
    reply.status = opened.status();
  }
  const int raw = fd.get();
  answer(connection, std::as_bytes(std::span{&reply, 1}), fd ? std::span{&raw, 1} : std::span<const int>{});
}

void AttachServer::on_import(Connection& connection, Received& message) {
  ImportMessage import;
  if (!message.as(import) || message.fd_count != 1) {
    ++counters_.malformed;
    return leave(connection, DropReason::protocol_breach);
  }
  UniqueFd fd = std::move(message.fds[0]);
  if (const Result<void> sound = judge_memory(fd.get(), import); !sound.ok()) {
    ++counters_.imports_refused;
    return refuse(connection, sound.error());
  }
  const Result<ImportMemory> memory = sessions_.prepare_import(
      connection.session->info().layout, {fd.get(), nullptr, import.offset, import.bytes});
  if (!memory.ok()) {
    ++counters_.imports_refused;
    return refuse(connection, memory.error());
  }
  connection.stage = Connection::Stage::asking;
  listen(connection, false);
  SessionCommand command;
  command.kind = SessionCommand::Kind::import;
  command.id = connection.id;
  command.import = *memory;
  link_.send(command);
}

}  // namespace kvrail::engine::ipc
