// The C API: translates, and lets no exception out.
#include "kvrail/c_api.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ipc/protocol.h"
#include "kvrail/agent.h"

struct kvrail_agent {
  kvrail::Agent agent;
  std::size_t summary_bytes = 0;
};
struct kvrail_blocks {
  kvrail::Blocks blocks;
};
struct kvrail_delivery {
  kvrail::Delivery delivery;
  std::string owner;
  std::string context;
};

namespace {

using namespace kvrail;

static_assert(KVRAIL_INTERNAL == static_cast<int>(Code::internal) && kCodeCount == KVRAIL_INTERNAL + 1);
static_assert(KVRAIL_LAYOUT_MISMATCH == static_cast<int>(Code::layout_mismatch));
static_assert(KVRAIL_TIMED_OUT == static_cast<int>(Code::timed_out));
static_assert(KVRAIL_MEDIUM_SPLIT == static_cast<int>(Medium::split));
static_assert(KVRAIL_FP8_E5M2 == static_cast<int>(Dtype::fp8_e5m2));

thread_local std::string last_error;  // NOLINT: its destructor at thread exit is what is wanted

kvrail_code code_of(Status status) noexcept { return static_cast<kvrail_code>(status.code); }

kvrail_code fail(Code code, const char* text) noexcept {
  try {
    last_error = text;
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
  return static_cast<kvrail_code>(code);
}

kvrail_code fail(const Error& error) noexcept {
  return fail(error.status.code, error.message.empty() ? name(error.status.code) : error.message.c_str());
}

// Runs a call that may run out of memory. Nothing else throws in here.
template <class Call>
kvrail_code guarded(Call call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return fail(Code::out_of_memory, "this process is out of memory");
  } catch (...) {
    return fail(Code::internal, "a callback threw an exception");
  }
}

std::string_view text_of(const char* text) noexcept { return text == nullptr ? std::string_view{} : text; }

Layout layout_of(const kvrail_layout& from) noexcept {
  Layout layout;
  layout.model_id = {from.model_id[0], from.model_id[1]};
  layout.layers = from.layers;
  layout.kv_heads = from.kv_heads;
  layout.head_dim = from.head_dim;
  layout.block_tokens = from.block_tokens;
  layout.dtype = static_cast<Dtype>(from.dtype <= 0xff ? from.dtype : 0);
  layout.rope_base = from.rope_base;
  layout.rope_scale = from.rope_scale;
  return layout;
}

kvrail_layout layout_of(const Layout& from) noexcept {
  kvrail_layout layout{};
  layout.model_id[0] = from.model_id.low;
  layout.model_id[1] = from.model_id.high;
  layout.layers = from.layers;
  layout.kv_heads = from.kv_heads;
  layout.head_dim = from.head_dim;
  layout.block_tokens = from.block_tokens;
  layout.dtype = static_cast<std::uint32_t>(from.dtype);
  layout.rope_base = from.rope_base;
  layout.rope_scale = from.rope_scale;
  return layout;
}

ComputeProfile compute_of(const kvrail_compute& from) noexcept {
  return {from.prefill_fixed_ns, from.prefill_per_token_ns, from.prefill_quadratic_ns_q20,
          from.decode_per_token_ns};
}

// What the caller knows of a struct, the rest as the defaults have it.
template <class Struct>
bool known_part(const Struct* given, Struct& out) noexcept {
  if (given == nullptr) return true;
  if (given->size < sizeof(std::size_t) || given->size > 4096) return false;
  std::memcpy(&out, given, std::min(given->size, sizeof(Struct)));
  return true;
}

template <class Options>
bool transfer_options(const kvrail_send_options* given, Options& out) noexcept {
  kvrail_send_options options;
  kvrail_send_options_init(&options);
  if (!known_part(given, options) || options.medium >= kMediumCount) return false;
  out.task = Task{options.task};
  out.deadline = Nanoseconds(options.deadline_ns);
  out.medium = static_cast<Medium>(options.medium);
  out.critical = options.critical != 0;
  out.background = options.background != 0;
  out.fidelity_floor = options.fidelity_floor;
  return true;
}

kvrail_code give(Result<Blocks> result, kvrail_blocks** out) {
  if (!result.ok()) return fail(result.error());
  *out = new kvrail_blocks{std::move(*result)};
  return KVRAIL_OK;
}

kvrail_code done(const Result<void>& result) noexcept { return result.ok() ? KVRAIL_OK : fail(result.error()); }

constexpr const char* kBadOptions = "options are missing, not initialised, or hold an unknown medium";

}  // namespace

extern "C" {

const char* kvrail_code_name(kvrail_code code) { return name(static_cast<Code>(code)); }
const char* kvrail_last_error(void) { return last_error.c_str(); }

void kvrail_attach_options_init(kvrail_attach_options* options) {
  *options = kvrail_attach_options{};
  options->size = sizeof(*options);
  options->role = kRoleExecutor;
  options->accepted = kDefaultAccepted;
  options->layout.block_tokens = Layout{}.block_tokens;
  options->layout.dtype = KVRAIL_BF16;
  options->layout.rope_base = Layout{}.rope_base;
  options->layout.rope_scale = Layout{}.rope_scale;
  options->timeout_ns = Nanoseconds(kCallTimeout).count();
}

kvrail_code kvrail_attach(const kvrail_attach_options* given, kvrail_agent** agent) {
  return guarded([&]() -> kvrail_code {
    kvrail_attach_options from;
    kvrail_attach_options_init(&from);
    if (given == nullptr || agent == nullptr || !known_part(given, from) || from.role > UINT16_MAX) {
      return fail(Code::invalid_argument, kBadOptions);
    }
    AttachOptions options;
    if (from.socket_path != nullptr) options.socket_path = from.socket_path;
    options.name = text_of(from.name);
    options.tenant = text_of(from.tenant);
    options.role = static_cast<RoleWeight>(from.role);
    options.layout = layout_of(from.layout);
    options.accepted = from.accepted;
    options.tokenizer = {from.tokenizer[0], from.tokenizer[1]};
    options.compute = compute_of(from.compute);
    options.arena_bytes = from.arena_bytes;
    options.scratch_bytes = from.scratch_bytes;
    options.summary_bytes = from.summary_bytes;
    options.summary_time = Nanoseconds(from.summary_ns);
    options.timeout = Nanoseconds(from.timeout_ns);
    Result<Agent> attached = Agent::attach(options);
    if (!attached.ok()) return fail(attached.error());
    *agent = new kvrail_agent{std::move(*attached), static_cast<std::size_t>(from.summary_bytes)};
    return KVRAIL_OK;
  });
}

void kvrail_agent_destroy(kvrail_agent* agent) { delete agent; }

kvrail_code kvrail_detach(kvrail_agent* agent, int64_t timeout_ns) {
  return guarded([&] { return done(agent->agent.detach(Nanoseconds(timeout_ns))); });
}

kvrail_code kvrail_reattach(kvrail_agent* agent, int64_t timeout_ns) {
  return guarded([&] { return done(agent->agent.reattach(Nanoseconds(timeout_ns))); });
}

kvrail_code kvrail_begin_task(kvrail_agent* agent, const char* workflow, int64_t deadline_ns, uint64_t* task) {
  return guarded([&]() -> kvrail_code {
    if (task == nullptr) return fail(Error{{Code::invalid_argument}, "task must not be NULL: the new id is put there"});
    TaskOptions options;
    if (workflow != nullptr) options.workflow = workflow;
    options.deadline = Nanoseconds(deadline_ns);
    const Result<Task> begun = agent->agent.begin_task(options);
    if (!begun.ok()) return fail(begun.error());
    *task = begun->id;
    return KVRAIL_OK;
  });
}

kvrail_code kvrail_end_task(kvrail_agent* agent, uint64_t task) {
  return guarded([&] { return done(agent->agent.end_task(Task{task})); });
}

kvrail_code kvrail_allocate(kvrail_agent* agent, uint32_t count, int64_t timeout_ns, kvrail_blocks** blocks) {
  return guarded([&] {
    return give(agent->agent.allocate(agent->agent.layout(), count, Place::host(), Nanoseconds(timeout_ns)), blocks);
  });
}

kvrail_code kvrail_import_fd(kvrail_agent* agent, int fd, uint64_t offset, uint64_t bytes, int64_t timeout_ns,
                             kvrail_blocks** blocks) {
  return guarded([&] {
    ImportSource source;
    source.kind = ImportSource::Kind::host_fd;
    source.fd = fd;
    source.offset = offset;
    source.bytes = bytes;
    return give(agent->agent.import(source, Nanoseconds(timeout_ns)), blocks);
  });
}

kvrail_code kvrail_import_pages(kvrail_agent* agent, void* pages, uint64_t bytes, int64_t timeout_ns,
                                kvrail_blocks** blocks) {
  return guarded([&] {
    ImportSource source;
    source.kind = ImportSource::Kind::host_pages;
    source.pages = static_cast<std::byte*>(pages);
    source.bytes = bytes;
    return give(agent->agent.import(source, Nanoseconds(timeout_ns)), blocks);
  });
}

size_t kvrail_blocks_count(const kvrail_blocks* blocks) { return blocks->blocks.size(); }
uint64_t kvrail_blocks_copied_bytes(const kvrail_blocks* blocks) { return blocks->blocks.copied_bytes(); }

void* kvrail_blocks_slot(const kvrail_blocks* blocks, size_t index, size_t* bytes) {
  if (index >= blocks->blocks.size()) return nullptr;
  const std::span<std::byte> slot = blocks->blocks.slot(index);
  if (bytes != nullptr) *bytes = slot.size();
  return slot.data();
}

void kvrail_blocks_append(kvrail_blocks* blocks, kvrail_blocks* more) {
  blocks->blocks.append(std::move(more->blocks));
}

void kvrail_blocks_start_at(kvrail_blocks* blocks, uint32_t block) { blocks->blocks.start_at(block); }

void kvrail_blocks_destroy(kvrail_blocks* blocks) { delete blocks; }

kvrail_code kvrail_commit(kvrail_agent* agent, const char* context, const uint32_t* tokens, size_t token_count,
                          kvrail_blocks* blocks, const kvrail_delivery* prefix, int64_t timeout_ns,
                          uint64_t* version) {
  return guarded([&]() -> kvrail_code {
    Blocks none;
    const Result<Context> committed = agent->agent.commit(
        text_of(context), {tokens, token_count}, blocks == nullptr ? none : blocks->blocks, Fence::none(),
        prefix == nullptr ? nullptr : &prefix->delivery, Nanoseconds(timeout_ns));
    if (!committed.ok()) return fail(committed.error());
    if (version != nullptr) *version = committed->version;
    return KVRAIL_OK;
  });
}

kvrail_code kvrail_drop_context(kvrail_agent* agent, const char* context) {
  return guarded([&] { return done(agent->agent.drop_context(text_of(context))); });
}

kvrail_code kvrail_set_importance(kvrail_agent* agent, const char* context, uint64_t version, uint32_t first_token,
                                  const float* importance, size_t count, int64_t timeout_ns) {
  return guarded([&]() -> kvrail_code {
    const Result<Name> name = make_name(text_of(context));
    if (!name.ok()) return fail(name.error());
    if (importance == nullptr || count == 0 || count > (std::size_t{1} << 24)) {
      return fail(Code::invalid_argument, "importance: give 1 to 2^24 floats, one for each token");
    }
    return done(agent->agent.set_importance(Context{*name, version}, first_token, {importance, count},
                                            Nanoseconds(timeout_ns)));
  });
}

void kvrail_send_options_init(kvrail_send_options* options) {
  *options = kvrail_send_options{};
  options->size = sizeof(*options);
}

kvrail_code kvrail_send(kvrail_agent* agent, const char* context, uint64_t version, const char* const* receivers,
                        size_t receiver_count, const kvrail_send_options* options, uint64_t* ticket) {
  return guarded([&]() -> kvrail_code {
    SendOptions send;
    if (!transfer_options(options, send)) return fail(Code::invalid_argument, kBadOptions);
    kvrail_send_options known;
    kvrail_send_options_init(&known);
    if (!known_part(options, known) || known.reservation > UINT16_MAX) return fail(Code::invalid_argument, kBadOptions);
    send.reservation.id = static_cast<std::uint16_t>(known.reservation);
    const Result<Name> name = make_name(text_of(context));
    if (!name.ok()) return fail(name.error());
    std::vector<std::string_view> names;
    for (size_t i = 0; i < receiver_count; ++i) names.push_back(text_of(receivers[i]));
    const Result<Ticket> sent = agent->agent.send(Context{*name, version}, std::span{std::as_const(names)}, send);
    if (!sent.ok()) return fail(sent.error());
    if (ticket != nullptr) *ticket = sent->id;
    if (ticket == nullptr) agent->agent.forget(*sent);
    return KVRAIL_OK;
  });
}

kvrail_code kvrail_will_need(kvrail_agent* agent, const char* owner, const char* context, int64_t in_ns, double probability,
                             int64_t timeout_ns) {
  return guarded([&]() -> kvrail_code {
    return done(agent->agent.will_need(text_of(owner), text_of(context), Nanoseconds(in_ns), probability, Nanoseconds(timeout_ns)));
  });
}

kvrail_code kvrail_describe_workflow(kvrail_agent* agent, const char* workflow, const kvrail_workflow_step* steps,
                                     size_t step_count, const kvrail_workflow_hand_over* hand_overs,
                                     size_t hand_over_count, int64_t timeout_ns) {
  return guarded([&]() -> kvrail_code {
    if ((steps == nullptr && step_count > 0) || (hand_overs == nullptr && hand_over_count > 0)) {
      return fail(Error{{Code::invalid_argument}, "steps and hand_overs must not be NULL where their counts are not 0"});
    }
    if (step_count > engine::ipc::kMaxWorkflowSteps || hand_over_count > engine::ipc::kMaxWorkflowEdges) {
      return fail(Error{{Code::invalid_argument}, "a workflow has at most 64 steps and 256 hand-overs"});
    }
    WorkflowDescription description;
    for (size_t i = 0; i < step_count; ++i) description.steps.push_back({std::string(text_of(steps[i].agent)), Nanoseconds(steps[i].duration_ns)});
    for (size_t i = 0; i < hand_over_count; ++i) description.hand_overs.push_back({hand_overs[i].from, hand_overs[i].to});
    return done(agent->agent.describe_workflow(text_of(workflow), description, Nanoseconds(timeout_ns)));
  });
}

kvrail_code kvrail_reserve(kvrail_agent* agent, const char* receiver, uint64_t bytes, int64_t period_ns,
                           int64_t offset_ns, int64_t timeout_ns, kvrail_reservation_figures* figures,
                           uint32_t* reservation) {
  return guarded([&]() -> kvrail_code {
    ReservationFigures known;
    const Result<Reservation> made =
        agent->agent.reserve(text_of(receiver), {bytes, Nanoseconds(period_ns), Nanoseconds(offset_ns)}, &known,
                             Nanoseconds(timeout_ns));
    if (figures != nullptr) *figures = {known.needed, known.available, known.half};
    if (!made.ok()) return fail(made.error());
    *reservation = made->id;
    return KVRAIL_OK;
  });
}

kvrail_code kvrail_release_reservation(kvrail_agent* agent, uint32_t reservation) {
  return guarded([&]() -> kvrail_code {
    if (reservation > UINT16_MAX) return fail(Code::invalid_argument, "no such reservation");
    return done(agent->agent.release_reservation({static_cast<std::uint16_t>(reservation)}));
  });
}

int kvrail_reservation_ended(kvrail_agent* agent, uint32_t* reservation, kvrail_code* why) {
  const std::optional<ReservationEnd> end = agent->agent.reservation_ended();
  if (!end) return 0;
  *reservation = end->reservation.id;
  *why = static_cast<kvrail_code>(end->why.code);
  return 1;
}

kvrail_code kvrail_fetch(kvrail_agent* agent, const char* owner, const char* context, uint64_t version,
                         const kvrail_send_options* options, uint64_t* ticket) {
  return guarded([&]() -> kvrail_code {
    FetchOptions fetch;
    if (!transfer_options(options, fetch)) return fail(Code::invalid_argument, kBadOptions);
    fetch.version = version;
    const Result<Ticket> asked = agent->agent.fetch(text_of(owner), text_of(context), fetch);
    if (!asked.ok()) return fail(asked.error());
    if (ticket != nullptr) *ticket = asked->id;
    if (ticket == nullptr) agent->agent.forget(*asked);
    return KVRAIL_OK;
  });
}

kvrail_code kvrail_cancel(kvrail_agent* agent, uint64_t ticket) {
  return guarded([&] { return done(agent->agent.cancel(Ticket{ticket})); });
}

kvrail_code kvrail_wait(kvrail_agent* agent, uint64_t ticket, int64_t timeout_ns, kvrail_outcome* outcomes,
                        size_t* count) {
  return guarded([&]() -> kvrail_code {
    const Result<std::vector<Outcome>> waited = agent->agent.wait(Ticket{ticket}, Nanoseconds(timeout_ns));
    if (!waited.ok()) return fail(waited.error());
    if (count == nullptr) return KVRAIL_OK;
    const size_t room = outcomes == nullptr ? 0 : *count;
    for (size_t i = 0; i < std::min(room, waited->size()); ++i) {
      const Outcome& from = (*waited)[i];
      outcomes[i] = {from.receiver, code_of(from.status), static_cast<std::uint32_t>(from.medium), from.transfer,
                     from.bytes, from.missing_blocks, from.predicted_ns, from.observed_ns};
    }
    *count = waited->size();
    return KVRAIL_OK;
  });
}

void kvrail_forget(kvrail_agent* agent, uint64_t ticket) { agent->agent.forget(Ticket{ticket}); }

kvrail_code kvrail_receive(kvrail_agent* agent, int64_t timeout_ns, kvrail_delivery** delivery) {
  return guarded([&]() -> kvrail_code {
    Result<Delivery> received = agent->agent.receive(Nanoseconds(timeout_ns));
    if (!received.ok()) return fail(received.error());
    std::string owner(received->owner());
    std::string context(received->context());
    *delivery = new kvrail_delivery{std::move(*received), std::move(owner), std::move(context)};
    return KVRAIL_OK;
  });
}

kvrail_code kvrail_delivery_get(const kvrail_delivery* from, kvrail_delivery_info* info) {
  if (info->size < sizeof(std::size_t) || info->size > 4096) return fail(Code::invalid_argument, kBadOptions);
  const Delivery& delivery = from->delivery;
  kvrail_delivery_info full{};
  full.size = info->size;
  full.owner = from->owner.c_str();
  full.context = from->context.c_str();
  full.version = delivery.version();
  full.medium = static_cast<std::uint32_t>(delivery.medium());
  full.critical = delivery.critical() ? 1 : 0;
  full.layout = layout_of(delivery.layout());
  full.tokens = delivery.tokens().data();
  full.token_count = delivery.tokens().size();
  full.block_count = delivery.blocks().size();
  full.first_token = delivery.first_token();
  full.summary_kind = delivery.summary_kind();
  full.summary = delivery.summary().data();
  full.summary_bytes = delivery.summary().size();
  full.epsilon = delivery.epsilon();
  full.task = delivery.task().id;
  full.transfer = delivery.transfer();
  full.bytes = delivery.bytes();
  full.missing_blocks = delivery.missing_blocks();
  full.predicted_ns = delivery.predicted_ns();
  full.observed_ns = delivery.observed_ns();
  full.positions = delivery.positions().data();
  full.position_count = delivery.positions().size();
  std::memcpy(info, &full, std::min(info->size, sizeof(full)));
  return KVRAIL_OK;
}

kvrail_code kvrail_delivery_block(const kvrail_delivery* delivery, size_t index, kvrail_block* block) {
  if (index >= delivery->delivery.blocks().size()) return fail(Code::invalid_argument, "no such block");
  const BlockView view = delivery->delivery.blocks()[index];
  *block = {view.data.data(), view.data.size(), view.tokens, view.position, view.epsilon};
  return KVRAIL_OK;
}

kvrail_code kvrail_claim(kvrail_agent* agent, kvrail_delivery* delivery, uint32_t most_tokens, int64_t timeout_ns,
                         uint32_t* first_token, uint32_t* tokens) {
  return guarded([&]() -> kvrail_code {
    const auto claimed = agent->agent.claim(delivery->delivery, most_tokens, Nanoseconds(timeout_ns));
    if (!claimed.ok()) return fail(claimed.error());
    *first_token = *claimed ? (*claimed)->first_token : 0;
    *tokens = *claimed ? (*claimed)->tokens : 0;
    return KVRAIL_OK;
  });
}

void kvrail_delivery_destroy(kvrail_delivery* delivery, int64_t recompute_ns) {
  if (delivery == nullptr) return;
  delivery->delivery.set_recompute(Nanoseconds(recompute_ns));
  delete delivery;
}

void kvrail_on_summary(kvrail_agent* agent, kvrail_summary_function function, void* user) {
  const std::size_t capacity = agent->summary_bytes;
  agent->agent.on_summary([function, user, capacity](const SummaryRequest& request) {
    Summary summary;
    if (function == nullptr) return summary;
    summary.bytes.resize(capacity);
    const std::string context(request.context);
    std::uint32_t kind = 0;
    const std::size_t written = function(user, context.c_str(), request.version, request.tokens.data(),
                                         request.tokens.size(), summary.bytes.data(), capacity, &kind);
    const bool sound = written <= capacity && kind <= static_cast<std::uint32_t>(Summary::Kind::vector);
    summary.bytes.resize(sound ? written : 0);
    if (sound) summary.kind = static_cast<Summary::Kind>(kind);
    return summary;
  });
}

void kvrail_probe_init(kvrail_probe* probe) {
  *probe = kvrail_probe{};
  probe->size = sizeof(*probe);
}

void kvrail_update_probe(kvrail_agent* agent, const kvrail_probe* given) {
  kvrail_probe from;
  kvrail_probe_init(&from);
  if (!known_part(given, from)) return;
  Probe probe;
  probe.queue_length = from.queue_length;
  probe.compute_load_ppm = from.compute_load_ppm;
  probe.backlog_ns = from.backlog_ns;
  probe.cache_bytes = from.cache_bytes;
  probe.idle_until_ns = from.idle_until_ns;
  probe.compute = compute_of(from.compute);
  agent->agent.update_probe(probe);
}

int kvrail_event_fd(const kvrail_agent* agent) { return agent->agent.event_fd(); }
int kvrail_arm(kvrail_agent* agent) { return agent->agent.arm() ? 1 : 0; }

kvrail_code kvrail_poll(kvrail_agent* agent) {
  return guarded([&]() -> kvrail_code {
    const Result<std::size_t> polled = agent->agent.poll();
    return polled.ok() ? KVRAIL_OK : fail(polled.error());
  });
}

}  // extern "C"
