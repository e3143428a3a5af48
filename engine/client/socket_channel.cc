#include "engine/client/socket_channel.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace kvrail::client {
namespace {

using ipc::MessageType;
using ipc::ReceiveOutcome;
using ipc::UniqueFd;

Error gone(const char* what) {
  return Error{{Code::peer_down, Scope::engine}, std::string("the engine ended the connection ") + what};
}

Error strange(const char* what) {
  return Error{{Code::protocol_error, Scope::engine}, std::string("the engine answered with ") + what};
}

template <class Message>
Bytes bytes_of(const Message& message) noexcept {
  return std::as_bytes(std::span{&message, 1});
}

Result<ArenaMap> map_fd(int fd, std::uint64_t bytes, int protection) {
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0 || info.st_size < 0 ||
      static_cast<std::uint64_t>(info.st_size) < bytes || bytes == 0) {
    return strange("memory that is smaller than it said");
  }
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return Error{{Code::limit, Scope::engine, errno}, "cannot map the engine's memory: " + std::string(std::strerror(errno))};
  }
  return ArenaMap{static_cast<std::byte*>(base), bytes, true};
}

class SocketChannel final : public Channel {
 public:
  explicit SocketChannel(UniqueFd socket) noexcept : socket_(std::move(socket)) {}

  void set_submit_bell(UniqueFd bell) noexcept { submit_bell_ = std::move(bell); }
  [[nodiscard]] int fd() const noexcept override { return socket_.get(); }

  Status wait(TimeNs timeout_ns) override {
    if (!ipc::wait_readable(socket_.get(), timeout_ns)) return Code::timed_out;
    return check();
  }

  // Takes one message in: a bell, or the end. More of them wake the next wait() at once.
  Status check() override {
    switch (ipc::receive_message(socket_.get(), received_)) {
      case ReceiveOutcome::none: return {};
      case ReceiveOutcome::message: return judge_unasked();
      case ReceiveOutcome::closed: return {Code::peer_down, Scope::engine};
      case ReceiveOutcome::malformed: return {Code::protocol_error, Scope::engine};
    }
    KVRAIL_UNREACHABLE();
  }

  void close() noexcept override { socket_.reset(); }

  void ring() noexcept override { static_cast<void>(::eventfd_write(submit_bell_.get(), 1)); }

  Result<ArenaMap> arena(std::uint32_t id, TimeNs timeout_ns) override {
    ipc::GetArenaMessage question;
    question.header = ipc::header_of<ipc::GetArenaMessage>(MessageType::get_arena, ++sequence_);
    question.arena_id = id;
    if (Result<void> asked = ask(bytes_of(question), MessageType::arena, timeout_ns, {}); !asked.ok()) {
      return std::move(asked).error();
    }
    ipc::ArenaMessage reply;
    if (!received_.as(reply)) return strange("an arena message of another size");
    if (!reply.status.ok()) return Error{reply.status, "this arena cannot be read"};
    Result<ArenaMap> map = map_fd(received_.fds[0].get(), reply.bytes, PROT_READ);
    received_.close_fds();
    return map;
  }

  Result<ImportedRange> import_fd(int fd, std::uint64_t offset, std::uint64_t bytes, TimeNs timeout_ns) override {
    ipc::ImportMessage question;
    question.header = ipc::header_of<ipc::ImportMessage>(MessageType::import, ++sequence_);
    question.offset = offset;
    question.bytes = bytes;
    if (Result<void> asked = ask(bytes_of(question), MessageType::imported, timeout_ns, {&fd, 1}); !asked.ok()) {
      return std::move(asked).error();
    }
    ipc::ImportedMessage reply;
    if (!received_.as(reply)) return strange("an import message of another size");
    if (!reply.status.ok()) return Error{reply.status, "the engine cannot use this memory"};
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (base == MAP_FAILED) {
      return Error{{Code::limit, Scope::transfer, errno}, "cannot map the memory to import for writing"};
    }
    return ImportedRange{reply.arena_id, reply.count, reply.offset,
                         ArenaMap{static_cast<std::byte*>(base), bytes, true}};
  }

  Result<ImportedRange> import_pages(std::byte*, std::uint64_t, TimeNs) override {
    return Error{{Code::unsupported}, "pages of another process can only be copied"};
  }

  Result<void> detach(TimeNs timeout_ns) override {
    const auto question = ipc::header_of<ipc::MessageHeader>(MessageType::detach, ++sequence_);
    Result<void> done = ask(bytes_of(question), MessageType::detached, timeout_ns, {});
    if (!done.ok()) socket_.reset();  // that says it as well
    return done;
  }

  // Sends a question and takes in messages until its answer, which stays in received().
  Result<void> ask(Bytes question, MessageType answer, TimeNs timeout_ns, std::span<const int> fds) {
    if (ipc::send_message(socket_.get(), question, fds) != ipc::SendOutcome::sent) {
      // Who is not let in is told so and cut off, maybe before it could ask.
      const bool told = ipc::receive_message(socket_.get(), received_) == ReceiveOutcome::message;
      if (told && received_.header.type == MessageType::refused) return refusal();
      return gone("before a question");
    }
    ipc::MessageHeader asked;
    std::memcpy(&asked, question.data(), sizeof(asked));  // Every message begins with one.
    const TimeNs deadline_ns = deadline_after(timeout_ns);
    for (;;) {
      switch (ipc::receive_message(socket_.get(), received_)) {
        case ReceiveOutcome::closed: return gone("instead of an answer");
        case ReceiveOutcome::malformed: return strange("a message that is none");
        case ReceiveOutcome::none:
          if (!ipc::wait_readable(socket_.get(), std::max<TimeNs>(deadline_ns - now_ns(), 0))) {
            // A late answer would be taken for the next one's, but for the sequence number.
            return Error{{Code::timed_out}, "the engine did not answer in time"};
          }
          break;
        case ReceiveOutcome::message: {
          const bool ours = received_.header.sequence == asked.sequence;
          if (ours && received_.header.type == answer) return {};
          const bool unasked = received_.header.sequence == 0;
          if ((ours || unasked) && received_.header.type == MessageType::refused) return refusal();
          if (const Status end = judge_unasked(); !end.ok()) {
            return Error{end, "the engine said goodbye"};
          }
          break;
        }
      }
    }
  }
  [[nodiscard]] ipc::Received& received() noexcept { return received_; }
  [[nodiscard]] std::uint32_t next_sequence() noexcept { return ++sequence_; }

 private:
  [[nodiscard]] Status judge_unasked() const noexcept {
    if (received_.header.type != MessageType::goodbye) return {};
    ipc::GoodbyeMessage message;
    const bool sound = received_.as(message) && !message.status.ok();
    return sound ? message.status : Status{Code::protocol_error, Scope::engine};
  }

  [[nodiscard]] Error refusal() const {
    ipc::RefusedMessage message;
    if (!received_.as(message) || message.status.ok()) return strange("a refusal without a reason");
    message.text.back() = '\0';
    return Error{message.status, message.text.data()};
  }

  UniqueFd socket_;
  UniqueFd submit_bell_;
  std::uint32_t sequence_ = 0;
  ipc::Received received_;
};

// Tries again while the backlog of the engine is full; any other refusal is the answer.
Result<UniqueFd> connect_by(const std::string& path, TimeNs deadline_ns) {
  for (;;) {
    Result<UniqueFd> socket = ipc::connect_to(path);
    if (socket.ok() || socket.status().code != Code::busy || now_ns() >= deadline_ns) return socket;
    const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
    static_cast<void>(ipc::wait_readable(never.get(), kMillisecondNs));
  }
}

ipc::LayoutRecord record_of(const Layout& layout) noexcept {
  ipc::LayoutRecord record;
  record.model_id = layout.model_id;
  record.layers = layout.layers;
  record.kv_heads = layout.kv_heads;
  record.head_dim = layout.head_dim;
  record.block_tokens = layout.block_tokens;
  record.dtype = static_cast<std::uint32_t>(layout.dtype);
  record.rope_base = layout.rope_base;
  record.rope_scale = layout.rope_scale;
  return record;
}

Result<Attachment> map_attachment(ipc::Received& received) {
  ipc::AttachedMessage message;
  if (!received.as(message) || received.fd_count != ipc::kAttachedFds || !ipc::sound(message.control)) {
    return strange("an attachment that is not complete");
  }
  Attachment attachment;
  attachment.agent = message.agent;
  attachment.node = message.node;
  attachment.incarnation = message.incarnation;
  attachment.tenant = message.tenant;
  attachment.control = message.control;
  attachment.arena_id = message.arena_id;
  attachment.receive_id = message.receive_id;
  const auto map = [&received](ipc::AttachedFd which, std::uint64_t bytes, int protection, ArenaMap& out) {
    Result<ArenaMap> mapped = map_fd(received.fds[static_cast<std::size_t>(which)].get(), bytes, protection);
    if (mapped.ok()) out = *mapped;
    return mapped.ok() ? Result<void>() : Result<void>(mapped.error());
  };
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  Result<void> mapped = map(ipc::AttachedFd::control, message.control.bytes, kReadWrite, attachment.control_map);
  if (mapped.ok()) mapped = map(ipc::AttachedFd::arena, message.arena_bytes, kReadWrite, attachment.arena);
  if (mapped.ok()) mapped = map(ipc::AttachedFd::receive, message.receive_bytes, PROT_READ, attachment.receive);
  if (!mapped.ok()) {
    unmap(attachment.control_map);
    unmap(attachment.arena);
    return std::move(mapped).error();
  }
  return attachment;
}

}  // namespace

Result<ipc::AttachMessage> attach_message(const AttachOptions& options) {
  const Result<Name> agent = make_name(options.name);
  if (!agent.ok()) return Error{agent.status(), "agent '" + options.name + "': " + agent.error().message};
  ipc::AttachMessage message;
  message.agent = *agent;
  if (!options.tenant.empty()) {
    const Result<Name> tenant = make_name(options.tenant);
    if (!tenant.ok()) return Error{tenant.status(), "tenant '" + options.tenant + "': " + tenant.error().message};
    message.tenant = *tenant;
  }
  message.flags = options.accepts_mask ? ipc::kFlagAcceptsMask : std::uint16_t{0};
  message.role = options.role;
  message.accepted = options.accepted;
  message.scratch_bytes = options.scratch_bytes;
  message.arena_bytes = options.arena_bytes;
  message.summary_bytes = options.summary_bytes;
  message.summary_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(options.summary_time.count(), 0));
  message.layout = record_of(options.layout);
  message.tokenizer = options.tokenizer;
  message.compute = options.compute;
  return message;
}

Result<std::shared_ptr<Session>> attach_socket(const AttachOptions& options) {
  Result<ipc::AttachMessage> message = attach_message(options);
  if (!message.ok()) return std::move(message).error();
  const TimeNs deadline_ns = deadline_after(options.timeout.count());
  Result<UniqueFd> socket = connect_by(options.socket_path, deadline_ns);
  if (!socket.ok()) return std::move(socket).error();
  auto channel = std::make_unique<SocketChannel>(std::move(*socket));
  message->header = ipc::header_of<ipc::AttachMessage>(MessageType::attach, channel->next_sequence());
  const TimeNs left_ns = std::max<TimeNs>(deadline_ns - now_ns(), 0);
  if (Result<void> asked = channel->ask(bytes_of(*message), MessageType::attached, left_ns, {}); !asked.ok()) {
    return std::move(asked).error();
  }
  Result<Attachment> attachment = map_attachment(channel->received());
  if (!attachment.ok()) return std::move(attachment).error();
  channel->set_submit_bell(std::move(channel->received().fds[static_cast<std::size_t>(ipc::AttachedFd::submit)]));
  channel->received().close_fds();
  return std::make_shared<Session>(std::move(channel), *attachment, options.layout,
                                   call_spin(options), options.spin.count());
}

Result<ArenaMap> map_status_page(const std::string& socket_path, TimeNs timeout_ns) {
  const TimeNs deadline_ns = deadline_after(timeout_ns);
  Result<UniqueFd> socket = connect_by(socket_path, deadline_ns);
  if (!socket.ok()) return std::move(socket).error();
  SocketChannel channel(std::move(*socket));
  const auto question = ipc::header_of<ipc::MessageHeader>(MessageType::get_status, channel.next_sequence());
  Result<void> asked = channel.ask(bytes_of(question), MessageType::status_page,
                                   std::max<TimeNs>(deadline_ns - now_ns(), 0), {});
  if (!asked.ok()) return std::move(asked).error();
  ipc::StatusPageMessage reply;
  if (!channel.received().as(reply)) return strange("a status page of another size");
  if (!reply.status.ok()) return Error{reply.status, "the engine has no status page"};
  return map_fd(channel.received().fds[0].get(), reply.bytes, PROT_READ);
}

}  // namespace kvrail::client
