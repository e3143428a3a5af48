#include "engine/ipc/attach_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/ipc/connection.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace kvrail::engine::ipc {
namespace {

constexpr int kBacklog = 128;
constexpr std::size_t kMostEvents = 64;
constexpr TimeNs kAcceptPauseNs = 100 * kMillisecondNs;

bool watch(int epoll, int fd, std::uint64_t key, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool credentials_of(int socket, Credentials& out) noexcept {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  out = {peer.pid, peer.uid, peer.gid};
  return true;
}

// Of the process that connected, not of whoever holds its pid now: SO_PEERPIDFD where the kernel has
// it, else pidfd_open, which can only miss a process that has ended before this line.
UniqueFd pidfd_of(int socket, pid_t pid) noexcept {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  return pid > 0 ? UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) : UniqueFd();
}

}  // namespace

AttachServer::AttachServer(const AttachServerOptions& options, Sessions& sessions, SessionLink& link,
                           const Clock& clock)
    : options_(options), sessions_(sessions), link_(link), clock_(clock) {}

Result<std::unique_ptr<AttachServer>> AttachServer::create(const AttachServerOptions& options,
                                                           Sessions& sessions, const Clock& clock) {
  SessionLink* link = sessions.claim_link();
  if (link == nullptr) {
    return Error{{Code::out_of_capacity, Scope::engine}, "no session link is left for the attach server"};
  }
  std::unique_ptr<AttachServer> server(new AttachServer(options, sessions, *link, clock));
  if (Result<void> started = server->start(); !started.ok()) return std::move(started).error();
  return server;
}

Result<void> AttachServer::start() {
  Result<UniqueFd> listener = listen_at(options_.socket_path, options_.socket_mode, kBacklog);
  if (!listener.ok()) return std::move(listener).error();
  listener_ = std::move(*listener);
  socket_file_ = transport::socket_file_at(options_.socket_path);
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !watch(epoll_.get(), listener_.get(), kListenerKey, EPOLLIN) ||
      !watch(epoll_.get(), link_.notice_bell.get(), kNoticeKey, EPOLLIN)) {
    return Error{{Code::limit, Scope::engine, errno}, "cannot watch the attach socket: raise the limit of open files"};
  }
  return {};
}

AttachServer::~AttachServer() {
  if (listener_) transport::unlink_own(options_.socket_path, socket_file_);
  connections_.clear();
  sessions_.give_back_link(&link_);
}

std::size_t AttachServer::poll() {
  const TimeNs now_ns = clock_.now_ns();
  std::array<epoll_event, kMostEvents> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  std::size_t done = take_notices();
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[static_cast<std::size_t>(i)].data.u64;
    if (key == kListenerKey) {
      done += accept_all(now_ns);
    } else if (key != kNoticeKey) {
      on_event(key);
      ++done;
    }
  }
  return done + expire(now_ns);
}

std::size_t AttachServer::accept_all(TimeNs now_ns) {
  if (shutting_down_ || now_ns < accept_again_ns_) return 0;
  std::size_t accepted = 0;
  while (accepted < kMostEvents) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // The listener stays readable: without a pause this would spin.
        ++counters_.accept_errors;
        evict_oldest();
        accept_again_ns_ = now_ns + kAcceptPauseNs;
        static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr));
      }
      break;
    }
    ++accepted;
    accept_one(std::move(socket), now_ns);
  }
  counters_.accepted += accepted;
  return accepted;
}

void AttachServer::accept_one(UniqueFd socket, TimeNs now_ns) {
  auto connection = std::make_unique<Connection>();
  connection->id = link_.next_id();
  connection->socket = std::move(socket);
  connection->deadline_ns = add_saturating(now_ns, options_.hello_timeout_ns);
  if (!credentials_of(connection->socket.get(), connection->caller)) return;
  if (!options_.policy.admits(connection->caller)) {
    ++counters_.refused_policy;
    const Result<Name> why = options_.policy.tenant_for(connection->caller, {});
    KVRAIL_ASSERT(!why.ok());
    last_policy_refusal_ = why.error().message;
    // Unasked, with the sequence number 0: it may not have said anything yet.
    return refuse(*connection, why.error());
  }
  const auto half_open = std::count_if(connections_.begin(), connections_.end(),
                                       [](const auto& entry) { return entry.second->half_open(); });
  // A client says what it wants at once, so the oldest that has not is the one to go.
  if (static_cast<std::uint32_t>(half_open) >= options_.max_half_open) evict_oldest();
  connection->pidfd = pidfd_of(connection->socket.get(), connection->caller.pid);
  if (!watch(epoll_.get(), connection->socket.get(), socket_key(connection->id), EPOLLIN | EPOLLRDHUP)) return;
  if (connection->pidfd) {
    static_cast<void>(watch(epoll_.get(), connection->pidfd.get(), pidfd_key(connection->id), EPOLLIN));
  }
  connections_.emplace(connection->id, std::move(connection));
}

void AttachServer::evict_oldest() {
  Connection* oldest = nullptr;
  for (auto& [id, connection] : connections_) {
    if (connection->half_open() && (oldest == nullptr || id < oldest->id)) oldest = connection.get();
  }
  if (oldest == nullptr) return;
  // Who has spoken is heard, however many came after it in the same moment.
  const std::uint64_t id = oldest->id;
  read(*oldest);
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second->half_open()) return;
  ++counters_.evicted;
  close(*found->second);
}

void AttachServer::on_event(std::uint64_t key) {
  const auto found = connections_.find(key / 2);
  if (found == connections_.end()) return;  // Closed by an earlier event of the same batch.
  Connection& connection = *found->second;
  if (key == pidfd_key(connection.id)) {
    leave(connection, DropReason::hung_up);
    return;
  }
  if (connection.stage == Connection::Stage::hello || connection.stage == Connection::Stage::serving) {
    read(connection);
    return;
  }
  // Only hang-ups are watched in the other stages.
  leave(connection, DropReason::hung_up);
}

void AttachServer::read(Connection& connection) {
  switch (receive_message(connection.socket.get(), received_)) {
    case ReceiveOutcome::none: break;
    case ReceiveOutcome::closed: leave(connection, DropReason::hung_up); break;
    case ReceiveOutcome::malformed:
      ++counters_.malformed;
      leave(connection, DropReason::protocol_breach);
      break;
    case ReceiveOutcome::message: on_message(connection, received_); break;
  }
  received_.close_fds();
}

std::size_t AttachServer::expire(TimeNs now_ns) {
  if (accept_again_ns_ != 0 && now_ns >= accept_again_ns_ && !shutting_down_) {
    accept_again_ns_ = 0;
    static_cast<void>(watch(epoll_.get(), listener_.get(), kListenerKey, EPOLLIN));
  }
  std::size_t expired = 0;
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = *(it++)->second;  // close() erases it.
    if (!connection.half_open() || now_ns < connection.deadline_ns) continue;
    ++counters_.hello_timeouts;
    ++expired;
    close(connection);
  }
  return expired;
}

TimeNs AttachServer::next_deadline_ns() const noexcept {
  TimeNs next = accept_again_ns_ == 0 ? kNever : accept_again_ns_;
  for (const auto& [id, connection] : connections_) {
    if (connection->half_open()) next = std::min(next, connection->deadline_ns);
  }
  return next;
}

void AttachServer::listen(Connection& connection, bool messages) {
  epoll_event event{};
  event.events = EPOLLRDHUP | (messages ? static_cast<std::uint32_t>(EPOLLIN) : 0U);
  event.data.u64 = socket_key(connection.id);
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event));
}

void AttachServer::leave(Connection& connection, DropReason reason) {
  KVRAIL_ASSERT(reason != DropReason::none);
  switch (connection.stage) {
    case Connection::Stage::hello:
      ++counters_.dropped[static_cast<std::size_t>(reason)];
      return close(connection);
    case Connection::Stage::adopting:
      if (connection.leaving == DropReason::none) connection.leaving = reason;
      break;
    case Connection::Stage::serving:
    case Connection::Stage::asking: {
      connection.stage = Connection::Stage::leaving;
      SessionCommand command;
      command.kind = SessionCommand::Kind::drop;
      command.id = connection.id;
      command.reason = reason;
      link_.send(command);
      break;
    }
    case Connection::Stage::leaving: break;
  }
  // Nothing more is to be heard of it; a socket that is hung up would stay readable.
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr));
  if (connection.pidfd) {
    static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.pidfd.get(), nullptr));
  }
}

void AttachServer::close(Connection& connection) {
  // Descriptors leave the epoll set when the last copy of them closes; the client may hold a copy of
  // none, but a child of this process might.
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr));
  if (connection.pidfd) {
    static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.pidfd.get(), nullptr));
  }
  connections_.erase(connection.id);
}

void AttachServer::refuse(Connection& connection, const Error& error) {
  RefusedMessage message;
  message.header = header_of<RefusedMessage>(MessageType::refused, connection.sequence);
  message.status = error.status;
  std::memcpy(message.text.data(), error.message.data(),
              std::min(error.message.size(), message.text.size() - 1));
  static_cast<void>(send_message(connection.socket.get(), message));
}

void AttachServer::answer(Connection& connection, std::span<const std::byte> message,
                          std::span<const int> fds) {
  switch (send_message(connection.socket.get(), message, fds)) {
    case SendOutcome::sent: return;
    case SendOutcome::full: return leave(connection, DropReason::not_reading);
    case SendOutcome::closed: return leave(connection, DropReason::hung_up);
  }
}

void AttachServer::shut_down() {
  shutting_down_ = true;
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr));
  transport::unlink_own(options_.socket_path, socket_file_);
  listener_.reset();
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& connection = *(it++)->second;
    GoodbyeMessage message;
    message.header = header_of<GoodbyeMessage>(MessageType::goodbye, 0);
    message.status = {Code::shutting_down, Scope::engine};
    static_cast<void>(send_message(connection.socket.get(), message));
    leave(connection, DropReason::shutting_down);
  }
}

std::size_t AttachServer::agents() const noexcept {
  return static_cast<std::size_t>(std::count_if(connections_.begin(), connections_.end(), [](const auto& entry) {
    return entry.second->session != nullptr;
  }));
}

}  // namespace kvrail::engine::ipc
