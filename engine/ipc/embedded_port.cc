#include "engine/ipc/embedded_port.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/client/socket_channel.h"
#include "engine/client/state.h"
#include "engine/ipc/attach_request.h"

namespace kvrail::engine::ipc {

using client::ArenaMap;
using client::deadline_after;
using client::ImportedRange;
using client::now_ns;

// The port's end of its link: sends commands, sorts notices by session.
class EmbeddedPort::Hub {
 public:
  Hub(Sessions& sessions, SessionLink& link, std::function<void()> drive)
      : sessions_(sessions), link_(link), drive_(std::move(drive)) {}
  ~Hub() { sessions_.give_back_link(&link_); }
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  [[nodiscard]] bool is_inline() const noexcept { return drive_ != nullptr; }
  void drive() { drive_(); }
  [[nodiscard]] std::uint64_t next_id() noexcept { return link_.next_id(); }
  void send(const SessionCommand& command) noexcept { link_.send(command); }
  [[nodiscard]] Sessions& sessions() noexcept { return sessions_; }

  // The next notice about a session; nothing if none comes until the deadline.
  std::optional<SessionNotice> wait(std::uint64_t id, TimeNs deadline_ns) {
    for (;;) {
      eventfd_t signals = 0;
      static_cast<void>(::eventfd_read(link_.notice_bell.get(), &signals));
      take();
      if (const auto found = notices_.find(id); found != notices_.end()) {
        SessionNotice notice = found->second;
        notices_.erase(found);
        return notice;
      }
      const TimeNs left_ns = deadline_ns - now_ns();
      if (left_ns <= 0) return std::nullopt;
      if (is_inline()) {
        drive();
      } else {
        static_cast<void>(wait_readable(link_.notice_bell.get(), left_ns));
      }
    }
  }
  // Whether the worker has dropped the session, so far as is known.
  [[nodiscard]] bool is_gone(std::uint64_t id) {
    take();
    const auto found = notices_.find(id);
    return found != notices_.end() && found->second.kind == SessionNotice::Kind::gone;
  }

 private:
  void take() {
    SessionNotice notice;
    while (link_.notices.pop(notice)) notices_.emplace(notice.id, notice);
    sessions_.free_retired();
  }

  Sessions& sessions_;
  SessionLink& link_;
  std::function<void()> drive_;
  std::unordered_multimap<std::uint64_t, SessionNotice> notices_;
};

// Thread: the port's.
class EmbeddedChannel final : public client::Channel {
 public:
  EmbeddedChannel(std::shared_ptr<EmbeddedPort::Hub> hub, std::unique_ptr<AgentSession> session, UniqueFd bell) noexcept
      : hub_(std::move(hub)), session_(std::move(session)), bell_(std::move(bell)), id_(session_->id()) {}

  ~EmbeddedChannel() override {
    // If no worker takes it back in time, nobody can say when the session's memory may go: it stays.
    if (!leave(kLeaveTimeoutNs)) static_cast<void>(session_.release());
  }

  void adopted() noexcept { lent_ = true; }

  Status wait(TimeNs timeout_ns) override {
    if (hub_->is_inline()) {
      hub_->drive();
      return engine_there();
    }
    if (!wait_readable(bell_.get(), timeout_ns)) return Code::timed_out;
    return check();
  }
  [[nodiscard]] bool drives() const noexcept override { return hub_->is_inline(); }
  Status check() override {
    eventfd_t signals = 0;
    static_cast<void>(::eventfd_read(bell_.get(), &signals));
    return engine_there();
  }
  void ring() noexcept override { static_cast<void>(::eventfd_write(session_->submit_bell(), 1)); }
  [[nodiscard]] int fd() const noexcept override { return bell_.get(); }

  Result<ArenaMap> arena(std::uint32_t id, TimeNs timeout_ns) override {
    SessionCommand command = question(SessionCommand::Kind::arena);
    command.arena_id = id;
    Result<SessionNotice> notice = ask(command, timeout_ns);
    if (!notice.ok()) return std::move(notice).error();
    if (!notice->status.ok()) return Error{notice->status, "this arena cannot be read"};
    return ArenaMap{notice->arena.base, notice->arena.bytes, false, notice->arena.lent};
  }

  Result<ImportedRange> import_pages(std::byte* base, std::uint64_t bytes, TimeNs timeout_ns) override {
    return import_range({-1, base, 0, bytes}, ArenaMap{base, bytes, false}, timeout_ns);
  }

  Result<ImportedRange> import_fd(int fd, std::uint64_t offset, std::uint64_t bytes, TimeNs timeout_ns) override {
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (base == MAP_FAILED) return Error{{Code::invalid_argument}, "the memory to import cannot be mapped"};
    ArenaMap map{static_cast<std::byte*>(base), bytes, true};
    Result<ImportedRange> range = import_range({fd, nullptr, offset, bytes}, map, timeout_ns);
    if (!range.ok()) client::unmap(map);
    return range;
  }

  void close() noexcept override { static_cast<void>(leave(kLeaveTimeoutNs)); }

  Result<void> detach(TimeNs timeout_ns) override {
    if (!leave(timeout_ns)) return Error{{Code::timed_out}, "the engine did not take the agent's leave in time"};
    return {};
  }

 private:
  static constexpr TimeNs kLeaveTimeoutNs = 5 * kSecondNs;

  [[nodiscard]] Status engine_there() {
    return lent_ && hub_->is_gone(id_) ? Status{Code::peer_down, Scope::engine} : Status{};
  }

  [[nodiscard]] SessionCommand question(SessionCommand::Kind kind) const noexcept {
    SessionCommand command;
    command.kind = kind;
    command.id = id_;
    command.fds = false;
    return command;
  }

  Result<SessionNotice> ask(const SessionCommand& command, TimeNs timeout_ns) {
    if (!lent_) return Error{{Code::peer_down, Scope::engine}, "the agent has left"};
    hub_->send(command);
    std::optional<SessionNotice> notice = hub_->wait(id_, deadline_after(timeout_ns));
    if (!notice) return Error{{Code::timed_out}, "the engine did not answer in time"};
    if (notice->kind == SessionNotice::Kind::gone) {
      lent_ = false;
      return Error{{Code::peer_down, Scope::engine}, "the engine dropped the agent"};
    }
    return *notice;
  }

  Result<ImportedRange> import_range(const ImportRequest& request, const ArenaMap& map, TimeNs timeout_ns) {
    if (!lent_) return Error{{Code::peer_down, Scope::engine}, "the agent has left"};
    const Result<ImportMemory> memory = hub_->sessions().prepare_import(session_->info().layout, request);
    if (!memory.ok()) return memory.error();
    SessionCommand command = question(SessionCommand::Kind::import);
    command.import = *memory;
    Result<SessionNotice> notice = ask(command, timeout_ns);
    if (!notice.ok()) return std::move(notice).error();
    if (!notice->status.ok()) return Error{notice->status, "the engine cannot use this memory"};
    return ImportedRange{notice->extent.arena, notice->extent.count, notice->extent.offset, map};
  }

  // True when the worker has given the session back.
  bool leave(TimeNs timeout_ns) {
    if (!lent_) return true;
    if (!leaving_) {
      SessionCommand command = question(SessionCommand::Kind::drop);
      command.reason = DropReason::detached;
      hub_->send(command);
      leaving_ = true;
    }
    const TimeNs deadline_ns = deadline_after(timeout_ns);
    while (std::optional<SessionNotice> notice = hub_->wait(id_, deadline_ns)) {
      if (notice->kind != SessionNotice::Kind::gone) continue;  // The late answer to a question.
      lent_ = false;
      return true;
    }
    return false;
  }

  std::shared_ptr<EmbeddedPort::Hub> hub_;
  std::unique_ptr<AgentSession> session_;
  UniqueFd bell_;
  std::uint64_t id_;
  bool lent_ = false;     // the worker has the session
  bool leaving_ = false;
};

EmbeddedPort::EmbeddedPort(std::shared_ptr<Hub> hub) noexcept : hub_(std::move(hub)) {}
EmbeddedPort::EmbeddedPort(EmbeddedPort&&) noexcept = default;
EmbeddedPort& EmbeddedPort::operator=(EmbeddedPort&&) noexcept = default;
EmbeddedPort::~EmbeddedPort() = default;

Result<EmbeddedPort> EmbeddedPort::create(Sessions& sessions, std::function<void()> drive) {
  SessionLink* link = sessions.claim_link();
  if (link == nullptr) {
    return Error{{Code::out_of_capacity, Scope::engine}, "all session links are taken: raise max_links"};
  }
  return EmbeddedPort(std::make_shared<Hub>(sessions, *link, std::move(drive)));
}

namespace {

Result<AgentInfo> info_of(const AttachOptions& options) {
  Result<AttachMessage> message = client::attach_message(options);
  if (!message.ok()) return std::move(message).error();
  Result<Name> tenant = make_name(options.tenant.empty() ? "uid-" + std::to_string(::getuid()) : options.tenant);
  if (!tenant.ok()) return std::move(tenant).error();
  return agent_info(*message, *tenant, AttachLimits{});
}

}  // namespace

Result<Agent> EmbeddedPort::attach(const AttachOptions& options) {
  const client::Connect connect = [hub = hub_](const AttachOptions& wanted) -> Result<std::shared_ptr<client::Session>> {
    Result<AgentInfo> info = info_of(wanted);
    if (!info.ok()) return std::move(info).error();
    AttachMessage sizes;
    sizes.scratch_bytes = wanted.scratch_bytes;
    Result<ControlMemory> memory = create_control_memory(scratch_bytes_of(sizes));
    if (!memory.ok()) return std::move(memory).error();
    UniqueFd bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    UniqueFd submit_bell(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!bell || !submit_bell) return Error{{Code::limit, Scope::engine, errno}, "cannot make an eventfd: raise the limit of open files"};
    client::Attachment attachment;
    attachment.control = memory->layout;
    attachment.control_map = {memory->arena->base(), memory->arena->bytes(), false};
    attachment.tenant = info->tenant;
    Result<AttachMemory> attach_memory = hub->sessions().prepare(*info);
    if (!attach_memory.ok()) return std::move(attach_memory).error();
    auto session = std::make_unique<AgentSession>(hub->next_id(), *info, std::move(*memory),
                                                  Bell::eventfd(bell.get()), std::move(submit_bell));
    session->lend(std::move(*attach_memory));
    SessionCommand command;
    command.kind = SessionCommand::Kind::adopt;
    command.fds = false;
    command.id = session->id();
    command.session = session.get();
    hub->send(command);
    const std::uint64_t id = session->id();
    auto channel = std::make_unique<EmbeddedChannel>(hub, std::move(session), std::move(bell));
    const std::optional<SessionNotice> notice = hub->wait(id, deadline_after(wanted.timeout.count()));
    if (notice && notice->kind == SessionNotice::Kind::refused) {
      if (!notice->tenant_known) hub->sessions().forget(info->tenant);
      return Error{notice->status, notice->text.data()};
    }
    channel->adopted();  // Also when no answer came: the worker may have the session, so it is asked back.
    if (!notice) return Error{{Code::timed_out, Scope::engine}, "the engine's worker did not answer in time"};
    attachment.agent = notice->agent.packed();
    attachment.arena_id = notice->arena_id;
    attachment.receive_id = notice->receive_id;
    attachment.arena = {notice->arena.base, notice->arena.bytes, false};
    attachment.receive = {notice->receive.base, notice->receive.bytes, false};
    // Inline, a wait drives the engine, and there is nobody to look for.
    const TimeNs spin_ns = wanted.spin.count();
    const SpinBudget calls = hub->is_inline() ? SpinBudget(spin_ns, spin_ns) : client::call_spin(wanted);
    return std::make_shared<client::Session>(std::move(channel), attachment, wanted.layout, calls, spin_ns);
  };
  Result<std::shared_ptr<client::Session>> session = connect(options);
  if (!session.ok()) return std::move(session).error();
  return Agent(std::make_unique<client::State>(options, connect, std::move(*session)));
}

}  // namespace kvrail::engine::ipc
