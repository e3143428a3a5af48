#include "engine/ipc/sessions.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvrail/base/no_alloc.h"

namespace kvrail::engine::ipc {
namespace {

void add(SessionCounters& sum, const SessionCounters& more) noexcept {
  sum.records += more.records;
  sum.refused += more.refused;
  sum.breaches += more.breaches;
  sum.events += more.events;
  sum.full += more.full;
  sum.bells += more.bells;
}

// Edge-triggered: each write to the eventfd wakes once, and nobody has to read it. The agent holds
// the same eventfd, and could make a read block or come back empty; so the engine never reads.
bool watch(int epoll, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<SessionLink>> SessionLink::create(std::atomic<bool>& commands_waiting) {
  auto link = std::make_unique<SessionLink>();
  link->commands_waiting = &commands_waiting;
  link->command_bell = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  link->notice_bell = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!link->command_bell || !link->notice_bell) {
    return Error{{Code::limit, Scope::engine, errno}, "cannot make an eventfd: raise the limit of open files"};
  }
  return link;
}

SessionLink::~SessionLink() {
  SessionCommand command;
  while (commands.pop(command)) StoreMemoryPtr(command.import.memory).reset();
}

void SessionLink::send(const SessionCommand& command) noexcept {
  const bool pushed = commands.push(command);
  KVRAIL_ASSERT_MSG(pushed, "more than one request open per session");
  commands_waiting->store(true, std::memory_order_release);  // N1 -> N2
  static_cast<void>(::eventfd_write(command_bell.get(), 1));
}

void SessionLink::report(const SessionNotice& notice) noexcept {
  const bool pushed = notices.push(notice);
  KVRAIL_ASSERT_MSG(pushed, "more notices than requests");
  static_cast<void>(::eventfd_write(notice_bell.get(), 1));
}

Sessions::Sessions(const SessionsOptions& options, SessionHost& host)
    : options_(options),
      host_(host),
      claimed_(std::make_unique<std::atomic<bool>[]>(options.max_links)),
      by_agent_(options.max_agents, nullptr),
      payload_(kMaxScratchBytes) {
  live_.reserve(options.max_agents);
  leaving_.reserve(options.max_agents);
}


Result<std::unique_ptr<Sessions>> Sessions::create(const SessionsOptions& options, SessionHost& host) {
  KVRAIL_ASSERT(options.max_agents > 0 && options.max_links > 0 && options.records_per_session > 0);
  std::unique_ptr<Sessions> sessions(new Sessions(options, host));
  sessions->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  sessions->wait_fd_ = sessions->epoll_.get();
  for (std::uint32_t i = 0; i < options.max_links; ++i) {
    Result<std::unique_ptr<SessionLink>> link = SessionLink::create(sessions->commands_waiting_);
    if (!link.ok()) return std::move(link).error();
    if (!sessions->epoll_ || !watch(sessions->epoll_.get(), (*link)->command_bell.get())) {
      return Error{{Code::limit, Scope::engine, errno}, "cannot make an epoll: raise the limit of open files"};
    }
    (*link)->last_id = std::uint64_t{i} << 48;  // More than a thousand attachments a second, for thousands of years.
    sessions->links_.push_back(std::move(*link));
  }
  return sessions;
}

SessionLink* Sessions::claim_link() noexcept {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    // Acquire pairs with the release in give_back_link(): the queues are as the last owner left them.
    if (!claimed_[i].exchange(true, std::memory_order_acquire)) return links_[i].get();
  }
  return nullptr;
}

void Sessions::give_back_link(SessionLink* link) noexcept {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].get() == link) {
      claimed_[i].store(false, std::memory_order_release);  // pairs with claim_link()
      return;
    }
  }
  KVRAIL_UNREACHABLE();
}

std::size_t Sessions::cycle(TimeNs now_ns) noexcept {
  if (armed_) disarm();
  const std::size_t commands = control();
  const std::size_t records = poll(now_ns);
  let_go();
  return commands + records;
}

// Tells who has left in the meantime, and that there is memory to be given back.
void Sessions::let_go() noexcept {
  for (std::size_t i = 0; i < leaving_.size();) {
    if (host_.lends(leaving_[i].agent)) {
      ++i;
      continue;
    }
    leaving_[i].link->report(leaving_[i].notice);
    leaving_[i] = leaving_.back();
    leaving_.pop_back();
  }
  const std::uint64_t retirements = host_.retirements();
  if (retirements == retirements_told_) return;
  retirements_told_ = retirements;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!claimed_[i].load(std::memory_order_relaxed)) continue;  // a bell too many or too few harms nothing
    static_cast<void>(::eventfd_write(links_[i]->notice_bell.get(), 1));
  }
}

std::size_t Sessions::control() noexcept {
  // Relaxed: what is missed now is seen in the next cycle, and arm() looks at the queues themselves.
  if (!commands_waiting_.load(std::memory_order_relaxed)) return 0;
  static_cast<void>(commands_waiting_.exchange(false, std::memory_order_acquire));  // N2 <- N1
  std::size_t handled = 0;
  for (const std::unique_ptr<SessionLink>& link : links_) {
    SessionCommand command;
    while (link->commands.pop(command)) {
      // Once in the life of an agent or an arena, never per transfer.
      const AllowAllocScope rare;
      execute(*link, command);
      ++handled;
    }
  }
  return handled;
}

void Sessions::execute(SessionLink& link, const SessionCommand& command) {
  switch (command.kind) {
    case SessionCommand::Kind::adopt: return adopt(link, command);
    case SessionCommand::Kind::arena: return look_up(link, command);
    case SessionCommand::Kind::import: return import(link, command);
    case SessionCommand::Kind::drop: {
      // A session that the worker dropped itself is not there any more; its `gone` is under way.
      const std::size_t index = find(command.id);
      if (index < live_.size()) drop(index, command.reason);
      return;
    }
  }
  KVRAIL_UNREACHABLE();
}

namespace {

Result<ArenaView> view_arena(const mempool::Arena& arena, bool fds, bool writable) {
  ArenaView view{arena.base(), arena.bytes(), -1, arena.fd() < 0};
  if (!fds) return view;
  if (writable) {
    view.fd = ::fcntl(arena.fd(), F_DUPFD_CLOEXEC, 0);
  } else if (Result<int> fd = arena.read_only_fd(); fd.ok()) {
    view.fd = *fd;
  }
  if (view.fd < 0) {
    return Error{{Code::limit, Scope::engine, errno},
                 "the engine cannot hand out a descriptor of an arena: raise its limit of open files"};
  }
  return view;
}

}  // namespace

void Sessions::adopt(SessionLink& link, const SessionCommand& command) {
  AgentSession& session = *command.session;
  SessionNotice notice;
  notice.id = session.id();
  const Result<void> admitted = admit(session, command.fds, notice);
  if (admitted.ok()) {
    live_.push_back({&session, &link});
    notice.kind = SessionNotice::Kind::adopted;
  } else {
    notice.kind = SessionNotice::Kind::refused;
    notice.status = admitted.status();
    notice.tenant_known = host_.knows(session.info().tenant);
    const std::string& text = admitted.error().message;
    std::memcpy(notice.text.data(), text.data(), std::min(text.size(), notice.text.size() - 1));
  }
  link.report(notice);
}

Result<void> Sessions::admit(AgentSession& session, bool fds, SessionNotice& notice) {
  if (live_.size() + leaving_.size() >= options_.max_agents) {
    return Error{{Code::out_of_capacity, Scope::engine}, "the engine serves its most agents: raise max_agents"};
  }
  Result<AgentGrant> grant = host_.attach(session.info(), session.take_attach_memory());
  if (!grant.ok()) return std::move(grant).error();
  const AgentHandle agent = grant->agent;
  KVRAIL_ASSERT(agent.valid() && agent.index < by_agent_.size() && by_agent_[agent.index] == nullptr);
  Result<ArenaView> own = view_arena(*grant->arena, fds, true);
  Result<ArenaView> receive = view_arena(*grant->receive, fds, false);
  const bool watched = own.ok() && receive.ok() && watch(epoll_.get(), session.submit_bell());
  if (!watched) {
    const int error = errno;
    host_.detach(agent);
    if (own.ok()) UniqueFd(own->fd).reset();
    if (receive.ok()) UniqueFd(receive->fd).reset();
    return Error{{Code::limit, Scope::engine, error},
                 "the engine has no descriptor left for another agent: raise its limit of open files"};
  }
  session.bind(agent);
  by_agent_[agent.index] = &session;
  notice.agent = agent;
  notice.arena_id = grant->arena_id;
  notice.receive_id = grant->receive_id;
  notice.arena = *own;
  notice.receive = *receive;
  return {};
}

void Sessions::look_up(SessionLink& link, const SessionCommand& command) {
  SessionNotice notice;
  notice.kind = SessionNotice::Kind::arena;
  notice.id = command.id;
  notice.arena_id = command.arena_id;
  notice.status = Code::not_found;
  const std::size_t index = find(command.id);
  if (index < live_.size()) {
    const mempool::Arena* arena = host_.arena(live_[index].session->agent(), command.arena_id);
    if (arena != nullptr) {
      const Result<ArenaView> view = view_arena(*arena, command.fds, false);
      notice.status = view.status();
      if (view.ok()) notice.arena = *view;
    }
  }
  link.report(notice);
}

void Sessions::import(SessionLink& link, const SessionCommand& command) {
  SessionNotice notice;
  notice.kind = SessionNotice::Kind::imported;
  notice.id = command.id;
  notice.status = Code::not_found;
  const std::size_t index = find(command.id);
  const AgentHandle agent = index < live_.size() ? live_[index].session->agent() : AgentHandle{};
  const Result<Extent> extent = host_.import(agent, command.import);
  notice.status = extent.status();
  if (extent.ok()) notice.extent = *extent;
  link.report(notice);
}

void Sessions::drop(std::size_t index, DropReason reason) noexcept {
  KVRAIL_ASSERT(index < live_.size() && reason != DropReason::none);
  const Entry entry = live_[index];
  const AgentHandle agent = entry.session->agent();
  host_.detach(agent);
  by_agent_[agent.index] = nullptr;
  static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry.session->submit_bell(), nullptr));
  add(gone_, entry.session->counters());
  live_[index] = live_.back();
  live_.pop_back();
  SessionNotice notice;
  notice.kind = SessionNotice::Kind::gone;
  notice.id = entry.session->id();
  notice.reason = reason;
  // From `gone` on the session is the attaching side's again, and so are pages that it lent.
  leaving_.push_back({entry.link, agent, notice});
}

std::size_t Sessions::find(std::uint64_t id) const noexcept {
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if (live_[i].session->id() == id) return i;
  }
  return live_.size();
}

std::size_t Sessions::poll(TimeNs now_ns) noexcept {
  const std::size_t budget = options_.records_per_cycle;
  std::size_t done = 0;
  const std::size_t rounds = live_.size();
  for (std::size_t i = 0; i < rounds && done < budget && !live_.empty(); ++i) {
    if (next_ >= live_.size()) next_ = 0;
    AgentSession& session = *live_[next_].session;
    Probe probe;
    if (session.read_probe(probe)) host_.probe(session.agent(), probe);
    done += session.poll(host_.commands(), payload_, now_ns,
                         std::min(options_.records_per_session, budget - done));
    if (session.drop_reason() != DropReason::none) {
      drop(next_, session.drop_reason());  // Another one moves to this place.
    } else {
      ++next_;
    }
  }
  return done;
}

bool Sessions::try_push(AgentHandle agent, const AgentEvent& event) noexcept {
  AgentSession* session = agent.index < by_agent_.size() ? by_agent_[agent.index] : nullptr;
  KVRAIL_ASSERT_MSG(session != nullptr && session->agent() == agent, "an event for an agent that is gone");
  return session->try_push(event);
}

bool Sessions::arm() noexcept {
  armed_ = true;
  if (std::any_of(leaving_.begin(), leaving_.end(), [this](const Leaving& one) { return !host_.lends(one.agent); }) ||
      host_.retirements() != retirements_told_) {
    disarm();
    return false;
  }
  for (const std::unique_ptr<SessionLink>& link : links_) {
    if (link->commands.read_available() != 0) {
      disarm();
      return false;
    }
  }
  for (const Entry& entry : live_) {
    if (!entry.session->prepare_park()) {
      disarm();
      return false;
    }
  }
  return true;
}

void Sessions::disarm() noexcept {
  armed_ = false;
  for (const Entry& entry : live_) entry.session->cancel_park();
  // Takes the edges that have fired, so that the descriptor is not readable for what is about to be
  // polled anyway. More than fit stay and wake once for nothing.
  std::array<epoll_event, 64> fired;
  static_cast<void>(::epoll_wait(epoll_.get(), fired.data(), static_cast<int>(fired.size()), 0));
}

SessionCounters Sessions::counters() const noexcept {
  SessionCounters sum = gone_;
  for (const Entry& entry : live_) add(sum, entry.session->counters());
  return sum;
}

}  // namespace kvrail::engine::ipc
