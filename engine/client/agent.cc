#include "kvrail/agent.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/client/socket_channel.h"
#include "engine/client/state.h"

namespace kvrail {
namespace {

using client::Bytes;
using client::Deadline;
using client::error_of;
using engine::ipc::Command;
using engine::ipc::SubmitRecord;

Deadline call_deadline() noexcept { return Deadline(kCallTimeout); }

std::uint32_t to_ppm(double fraction) noexcept {
  return static_cast<std::uint32_t>(std::lround(fraction * 1e6));
}

Error bad_name(const Error& error, std::string_view text, const char* what) {
  return Error{error.status, std::string(what) + " '" + std::string(text) + "': " + error.message};
}

Error importance_error(Error error) {
  if (error.status.code == Code::invalid_argument) {
    error.message += "; give at least one float, and none for a token that the version has not";
  } else if (error.status.code == Code::not_found) {
    error.message += "; only the agent that committed a version says what its tokens mean";
  }
  return error;
}

Error not_built_in(const char* what) {
  return Error{{Code::not_built_in}, std::string(what) + " need a build with GPU support"};
}

// The fields that a send and a fetch share.
template <class Options>
Result<SubmitRecord> transfer_record(Command command, std::string_view context, const Options& options) {
  const Result<Name> name = make_name(context);
  if (!name.ok()) return bad_name(name.error(), context, "context");
  if (options.deadline.count() < 0) return Error{{Code::timed_out}, "the deadline has passed already"};
  // Not a number is in no range.
  if (!(options.fidelity_floor >= 0.0 && options.fidelity_floor <= 1.0)) {
    return Error{{Code::invalid_argument}, "fidelity_floor " + std::to_string(options.fidelity_floor) +
                                               " is out of range: 0 (any loss) to 1 (no loss)"};
  }
  SubmitRecord record;
  record.command = command;
  record.name = *name;
  record.b = options.deadline.count();
  record.c = options.task.id;
  record.d = to_ppm(options.fidelity_floor);
  record.medium = static_cast<std::uint8_t>(options.medium);
  if (options.critical) record.flags |= engine::ipc::kFlagCritical;
  if (options.background) record.flags |= engine::ipc::kFlagBackground;
  return record;
}

}  // namespace

Agent::Agent(std::unique_ptr<client::State> state) noexcept : state_(std::move(state)) {}
Agent::Agent(Agent&&) noexcept = default;
Agent& Agent::operator=(Agent&&) noexcept = default;
Agent::~Agent() = default;

Result<Agent> Agent::attach(const AttachOptions& options) {
  Result<std::shared_ptr<client::Session>> session = client::attach_socket(options);
  if (!session.ok()) return std::move(session).error();
  return Agent(std::make_unique<client::State>(options, client::attach_socket, std::move(*session)));
}

Result<void> Agent::detach(Nanoseconds timeout) {
  client::Session& session = *state_->session;
  if (const Status alive = session.alive(); !alive.ok() && !state_->detaching) return error_of(alive, "cannot detach");
  Result<void> done = session.channel().detach(timeout.count());
  state_->detaching = !done.ok() && done.status().code == Code::timed_out;
  session.end({Code::cancelled, Scope::engine});
  if (!state_->detaching) session.leave();
  return done;
}

Result<void> Agent::reattach(Nanoseconds timeout) {
  const Deadline deadline(timeout);
  state_->session->leave();
  AttachOptions options = state_->options;
  for (;;) {
    const TimeNs left_ns = deadline.left_ns();
    options.timeout = std::min<Nanoseconds>(options.timeout, Nanoseconds(left_ns));
    Result<std::shared_ptr<client::Session>> session = state_->connect(options);
    if (session.ok()) {
      state_->session = std::move(*session);
      state_->detaching = false;
      break;
    }
    const Code code = session.status().code;
    // Of a restarting engine these are the signs; the last also of one that has not noticed yet that
    // the agent was gone.
    const bool passing = code == Code::unreachable || code == Code::busy || code == Code::peer_down ||
                         code == Code::shutting_down || code == Code::already_exists;
    if (!passing || deadline.left_ns() == 0) return std::move(session).error();
    static_cast<void>(::poll(nullptr, 0, 5));
  }
  state_->deliveries.clear();
  state_->summaries.clear();
  state_->summary_replies.clear();
  state_->claims.clear();
  state_->ended_reservations.clear();
  for (auto& [id, ticket] : state_->tickets) {
    if (ticket.refused.ok() && ticket.outcomes.size() < ticket.expected) {
      ticket.refused = {Code::unknown, Scope::engine};
    }
  }
  return {};
}

bool Agent::attached() const noexcept { return state_->session->alive().ok(); }
std::string_view Agent::tenant() const noexcept { return state_->session->attachment().tenant.view(); }
const Layout& Agent::layout() const noexcept { return state_->session->layout(); }

Result<Task> Agent::begin_task(const TaskOptions& options, Nanoseconds timeout) {
  if (options.deadline.count() < 0) return Error{{Code::timed_out}, "the deadline has passed already"};
  const Result<Name> workflow = make_name(options.workflow);
  if (!workflow.ok()) return bad_name(workflow.error(), options.workflow, "workflow");
  SubmitRecord record;
  record.command = Command::begin_task;
  record.name = *workflow;
  record.b = options.deadline.count();
  auto reply = state_->call(record, {}, Deadline(timeout), "cannot begin a task");
  if (!reply.ok()) return std::move(reply).error();
  return Task{reply->task};
}

Result<void> Agent::end_task(Task task) {
  SubmitRecord record;
  record.command = Command::end_task;
  record.flags = engine::ipc::kFlagAnswer;
  record.a = task.id;
  auto reply = state_->call(record, {}, call_deadline(), "cannot end the task");
  return reply.ok() ? Result<void>() : Result<void>(std::move(reply).error());
}

Result<Blocks> Agent::allocate(const Layout& layout, std::uint32_t count, Place place, Nanoseconds timeout) {
  if (place.kind != Place::Kind::host) return not_built_in("blocks in device memory");
  if (layout != this->layout()) {
    return Error{{Code::layout_mismatch}, "blocks have the layout that the agent attached with"};
  }
  return state_->allocate(count, Deadline(timeout));
}

Result<Blocks> Agent::import(const ImportSource& source, Nanoseconds timeout) {
  using Kind = ImportSource::Kind;
  if (source.kind == Kind::dmabuf_fd || source.kind == Kind::cuda_ipc || source.device >= 0) {
    return not_built_in("imports of device memory");
  }
  const std::uint64_t block_bytes = layout().block_bytes();
  if (source.bytes == 0 || source.bytes % block_bytes != 0) {
    return Error{{Code::invalid_argument}, "an import has whole block slots of " + std::to_string(block_bytes) + " bytes"};
  }
  const Deadline deadline(timeout);
  const TimeNs left_ns = std::max<TimeNs>(timeout.count(), 0);
  const bool pages = source.kind == Kind::host_pages;
  if (pages && source.pages == nullptr) return Error{{Code::invalid_argument}, "pages to import are missing"};
  if (const Status alive = state_->session->alive(); !alive.ok()) return error_of(alive, "cannot import");
  client::Channel& channel = state_->session->channel();
  Result<client::ImportedRange> range = pages
                                            ? channel.import_pages(source.pages, source.bytes, left_ns)
                                            : channel.import_fd(source.fd, source.offset, source.bytes, left_ns);
  if (range.ok()) {
    state_->session->keep(*range);
    return state_->blocks_of(range->arena, range->count, range->offset, deadline);
  }
  if (range.status().scope == Scope::engine && range.status().code == Code::peer_down) {
    state_->session->end(range.status());
  }
  if (range.status().code != Code::unsupported) return std::move(range).error();
  return pages ? state_->copy_pages({source.pages, source.bytes}, deadline) : state_->copy_fd(source, deadline);
}

namespace {

Result<void> wait_fence(const Fence& fence, const Deadline& deadline) {
  if (fence.kind == Fence::Kind::none) return {};
  if (fence.kind == Fence::Kind::external) return not_built_in("fences of a GPU's runtime");
  const TimeNs left_ns = deadline.left_ns();
  if (!engine::ipc::wait_readable(fence.fd, left_ns)) return Error{{Code::timed_out}, "the fence was not signalled in time"};
  return {};
}

}  // namespace

Result<Context> Agent::commit(std::string_view name, std::span<const TokenId> tokens, Blocks& blocks,
                              const Fence& fence, const Delivery* prefix, Nanoseconds timeout) {
  const Deadline deadline(timeout);
  const Result<Name> context = make_name(name);
  if (!context.ok()) return bad_name(context.error(), name, "context");
  const std::uint64_t all = div_ceil(tokens.size(), layout().block_tokens);
  const std::uint64_t first = blocks.size_ == 0 ? all : std::min<std::uint64_t>(blocks.first_block_, all);
  const std::uint64_t needed = all - first;
  if (tokens.empty() || blocks.size_ < needed) {
    return Error{{Code::invalid_argument}, "a context of " + std::to_string(tokens.size()) + " tokens needs " +
                                               std::to_string(needed) + " blocks, not " + std::to_string(blocks.size_)};
  }
  if (blocks.size_ != 0 && blocks.session_ != state_->session) {
    return Error{{Code::generation_mismatch}, "the blocks are of an earlier attachment"};
  }
  if (Result<void> fenced = wait_fence(fence, deadline); !fenced.ok()) return std::move(fenced).error();
  std::vector<engine::ipc::ExtentRecord> extents;
  std::uint64_t left = needed;
  for (const Blocks::Run& run : blocks.runs_) {
    if (left == 0) break;
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, run.count));
    extents.push_back({run.arena, count, run.offset});
    left -= count;
  }
  SubmitRecord record;
  record.command = Command::commit;
  record.name = *context;
  record.count = static_cast<std::uint32_t>(extents.size());
  record.a = prefix == nullptr ? 0 : prefix->handle_;
  record.d = static_cast<std::uint32_t>(first);
  const std::array<Bytes, 2> payload{std::as_bytes(std::span{extents}), std::as_bytes(tokens)};
  auto reply = state_->call(record, payload, deadline, "cannot commit");
  if (!reply.ok()) return std::move(reply).error();
  blocks.committed_ = std::max<std::size_t>(blocks.committed_, needed);
  return Context{*context, reply->version_number};
}

Result<void> Agent::drop_context(std::string_view name) {
  const Result<Name> context = make_name(name);
  if (!context.ok()) return bad_name(context.error(), name, "context");
  SubmitRecord record;
  record.command = Command::drop_context;
  record.flags = engine::ipc::kFlagAnswer;
  record.name = *context;
  auto reply = state_->call(record, {}, call_deadline(), "cannot drop the context");
  return reply.ok() ? Result<void>() : Result<void>(std::move(reply).error());
}

Result<void> Agent::set_importance(const Context& context, std::uint32_t first_token,
                                   std::span<const float> importance, Nanoseconds timeout) {
  constexpr std::size_t kPiece = 8 * 1024;  // floats; half of the smallest scratch
  const Deadline deadline(timeout);
  SubmitRecord record;
  record.command = Command::set_importance;
  record.flags = engine::ipc::kFlagAnswer;
  record.name = context.name;
  record.a = context.version;
  record.d = first_token;
  do {
    const auto piece = importance.first(std::min(importance.size(), kPiece));
    importance = importance.subspan(piece.size());
    record.count = static_cast<std::uint32_t>(piece.size());
    const Bytes payload = std::as_bytes(piece);
    auto reply = state_->call(record, {&payload, 1}, deadline, "cannot set importance");
    if (!reply.ok()) return importance_error(std::move(reply).error());
    if (piece.size() > std::numeric_limits<std::uint32_t>::max() - record.d) break;  // the engine refuses what follows
    record.d += record.count;
  } while (!importance.empty());
  return {};
}

Result<Ticket> Agent::send(const Context& context, std::span<const std::string_view> receivers,
                           const SendOptions& options) {
  Result<SubmitRecord> record = transfer_record(Command::send, context.name.view(), options);
  if (!record.ok()) return std::move(record).error();
  if (receivers.empty() || receivers.size() > engine::ipc::kMaxReceivers) {
    return Error{{Code::invalid_argument}, "a send has 1 to " + std::to_string(engine::ipc::kMaxReceivers) + " receivers"};
  }
  // Bytes, which nobody clears: 64 empty names would take as long as the rest.
  std::array<std::byte, engine::ipc::kMaxReceivers * sizeof(Name)> names;
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    const Result<Name> receiver = make_name(receivers[i]);
    if (!receiver.ok()) return bad_name(receiver.error(), receivers[i], "receiver");
    std::memcpy(names.data() + i * sizeof(Name), receiver->bytes.data(), sizeof(Name));
  }
  const auto count = static_cast<std::uint32_t>(receivers.size());
  record->count = count;
  record->a = context.version;
  record->reservation = options.reservation.id;
  const Bytes payload = Bytes(names).first(count * sizeof(Name));
  return state_->post(*record, {&payload, 1}, count, "cannot send");
}

Result<Ticket> Agent::send(const Context& context, std::initializer_list<std::string_view> receivers,
                           const SendOptions& options) {
  return send(context, std::span{receivers.begin(), receivers.size()}, options);
}

Result<Ticket> Agent::fetch(std::string_view owner, std::string_view context, const FetchOptions& options) {
  Result<SubmitRecord> record = transfer_record(Command::fetch, context, options);
  if (!record.ok()) return std::move(record).error();
  const Result<Name> from = make_name(owner);
  if (!from.ok()) return bad_name(from.error(), owner, "owner");
  record->count = 1;
  record->a = options.version;
  const Bytes payload = std::as_bytes(std::span{&*from, 1});
  return state_->post(*record, {&payload, 1}, 1, "cannot fetch");
}

Result<void> Agent::cancel(Ticket ticket) {
  if (ticket.id == 0) return Error{{Code::invalid_argument}, "no ticket"};
  SubmitRecord record;
  record.command = Command::cancel;
  record.ticket = ticket.id;
  const Status told = state_->tell(record);
  return told.ok() ? Result<void>() : Result<void>(error_of(told, "cannot cancel"));
}

Result<std::vector<Outcome>> Agent::wait(Ticket ticket, Nanoseconds timeout) {
  client::State& state = *state_;
  if (!state.tickets.contains(ticket.id)) return Error{{Code::not_found}, "no such ticket, or it was forgotten"};
  const auto complete = [&state, ticket] {
    const client::TicketState& entry = state.tickets.at(ticket.id);
    return !entry.refused.ok() || entry.outcomes.size() >= entry.expected;
  };
  const Status waited = state.wait_until(Deadline(timeout), engine::ipc::kWakeOutcome, complete);
  if (!waited.ok()) return error_of(waited, "the ticket is not done");
  const auto entry = state.tickets.extract(ticket.id);
  if (!entry.mapped().refused.ok()) return error_of(entry.mapped().refused, "the engine did not take it");
  return std::move(entry.mapped().outcomes);
}

void Agent::forget(Ticket ticket) noexcept { state_->tickets.erase(ticket.id); }

Result<Delivery> Agent::receive(Nanoseconds timeout) {
  client::State& state = *state_;
  const Status waited =
      state.wait_until(Deadline(timeout), engine::ipc::kWakeDelivery,
                       [&state] { return !state.deliveries.empty(); });
  if (!waited.ok()) return error_of(waited, "nothing was delivered");
  const engine::ipc::CompletionRecord record = state.deliveries.front();
  state.deliveries.pop_front();
  return state.open(record);
}

void Agent::on_summary(std::function<Summary(const SummaryRequest&)> callback) {
  state_->make_summary = std::move(callback);
}

void Agent::update_probe(const Probe& probe) noexcept {
  state_->set_probe(probe);
}

int Agent::event_fd() const noexcept { return state_->session->channel().fd(); }

bool Agent::arm() noexcept {
  return state_->deliveries.empty() && state_->summaries.empty() && state_->session->arm();
}

Result<std::size_t> Agent::poll() {
  // The bell that woke an event loop is taken in first, else its descriptor would stay readable.
  Status status = state_->session->alive();
  if (status.ok()) status = state_->session->channel().check();
  const std::size_t taken = state_->take_all();
  state_->run_summaries();
  if (!status.ok()) {
    if (state_->session->alive().ok()) state_->session->end(status);
    if (taken == 0) return error_of(status, "the engine is gone");
  }
  return taken;
}

}  // namespace kvrail
