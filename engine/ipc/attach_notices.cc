// What the worker answers to the attach server.
#include <sys/eventfd.h>

#include <array>

#include "engine/ipc/connection.h"

namespace kvrail::engine::ipc {

std::size_t AttachServer::take_notices() {
  eventfd_t signals = 0;
  static_cast<void>(::eventfd_read(link_.notice_bell.get(), &signals));
  std::size_t taken = 0;
  SessionNotice notice;
  while (link_.notices.pop(notice)) {
    ++taken;
    on_notice(notice);
  }
  sessions_.free_retired();
  return taken;
}

void AttachServer::on_notice(SessionNotice& notice) {
  const UniqueFd arena_fd(notice.arena.fd);
  const UniqueFd receive_fd(notice.receive.fd);
  const auto found = connections_.find(notice.id);
  if (found == connections_.end()) {
    // The worker dropped the session while a question about it was under way to it.
    KVRAIL_ASSERT(notice.kind == SessionNotice::Kind::arena || notice.kind == SessionNotice::Kind::imported);
    KVRAIL_ASSERT(!notice.status.ok());
    return;
  }
  Connection& connection = *found->second;
  switch (notice.kind) {
    case SessionNotice::Kind::adopted: return on_adopted(connection, notice);
    case SessionNotice::Kind::arena: return on_arena(connection, notice);
    case SessionNotice::Kind::imported: return on_imported(connection, notice);
    case SessionNotice::Kind::gone: return on_gone(connection, notice.reason);
    case SessionNotice::Kind::refused:
      ++counters_.refused_limit;
      if (!notice.tenant_known) sessions_.forget(connection.session->info().tenant);
      refuse(connection, Error{notice.status, notice.text.data()});
      return close(connection);
  }
}

void AttachServer::on_adopted(Connection& connection, const SessionNotice& notice) {
  KVRAIL_ASSERT(connection.stage == Connection::Stage::adopting);
  connection.stage = Connection::Stage::serving;
  if (connection.leaving != DropReason::none) return leave(connection, connection.leaving);
  ++counters_.attached;
  AttachedMessage message;
  message.header = header_of<AttachedMessage>(MessageType::attached, connection.sequence);
  message.agent = notice.agent.packed();
  message.node = options_.node_id;
  message.incarnation = options_.incarnation;
  message.arena_bytes = notice.arena.bytes;
  message.receive_bytes = notice.receive.bytes;
  message.arena_id = notice.arena_id;
  message.receive_id = notice.receive_id;
  message.control = connection.session->memory().layout;
  message.tenant = connection.session->info().tenant;
  const std::array<int, kAttachedFds> fds{connection.session->memory().arena->fd(), notice.arena.fd,
                                          notice.receive.fd, connection.session->submit_bell()};
  listen(connection, true);
  answer(connection, std::as_bytes(std::span{&message, 1}), fds);
}

void AttachServer::on_arena(Connection& connection, const SessionNotice& notice) {
  if (connection.stage != Connection::Stage::asking) return;  // It hung up meanwhile.
  connection.stage = Connection::Stage::serving;
  ArenaMessage message;
  message.header = header_of<ArenaMessage>(MessageType::arena, connection.sequence);
  message.status = notice.status;
  message.arena_id = notice.arena_id;
  message.bytes = notice.arena.bytes;
  const int fd = notice.arena.fd;
  listen(connection, true);
  answer(connection, std::as_bytes(std::span{&message, 1}), fd >= 0 ? std::span{&fd, 1} : std::span<const int>{});
}

void AttachServer::on_imported(Connection& connection, const SessionNotice& notice) {
  if (!notice.status.ok()) ++counters_.imports_refused;
  if (connection.stage != Connection::Stage::asking) return;
  connection.stage = Connection::Stage::serving;
  ImportedMessage message;
  message.header = header_of<ImportedMessage>(MessageType::imported, connection.sequence);
  message.status = notice.status;
  message.arena_id = notice.extent.arena;
  message.count = notice.extent.count;
  message.offset = notice.extent.offset;
  listen(connection, true);
  answer(connection, std::as_bytes(std::span{&message, 1}), {});
}

void AttachServer::on_gone(Connection& connection, DropReason reason) {
  ++counters_.dropped[static_cast<std::size_t>(reason)];
  if (connection.polite) {
    const MessageHeader message = header_of<MessageHeader>(MessageType::detached, connection.sequence);
    static_cast<void>(send_message(connection.socket.get(), message));
  } else if (reason == DropReason::ring_corrupt || reason == DropReason::protocol_breach) {
    GoodbyeMessage message;
    message.header = header_of<GoodbyeMessage>(MessageType::goodbye, 0);
    message.status = {Code::protocol_error, Scope::engine, static_cast<std::int32_t>(reason)};
    static_cast<void>(send_message(connection.socket.get(), message));
  }
  close(connection);
}

}  // namespace kvrail::engine::ipc
