#include "engine/runtime/host.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/config/agent_graph.h"
#include "engine/config/calibration.h"
#include "engine/config/profile.h"
#include "engine/runtime/preflight.h"
#include "engine/tier/create.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kResolveAgainNs = 2 * kSecondNs;
constexpr TimeNs kPeersLookNs = 500 * kMillisecondNs;   // at most two lines a second for each peer
constexpr TimeNs kRefusalsLookNs = 500 * kMillisecondNs;
constexpr TimeNs kStallNs = 5 * kSecondNs;
constexpr TimeNs kDrainLookNs = 5 * kMillisecondNs;
constexpr TimeNs kOwnCoreSpinNs = 20 * kMicrosecondNs;

std::uint64_t random_id() {
  std::uint64_t value = 0;
  while (value == 0) {
    if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) continue;  // interrupted
    value &= INT64_MAX;  // ids are shown and configured as positive numbers
  }
  return value;
}

// A state of Node::dial_state() for the log: what is wrong, and what to do.
std::string dial_text(Status state) {
  const std::string reason = state.detail > 0 ? std::string(": ") + std::strerror(state.detail) : std::string();
  switch (state.code) {
    case Code::ok:
      return "connected";
    case Code::unreachable:
      return "cannot be reached" + reason + "; check the address and that the peer runs; tried again";
    case Code::timed_out:
      return "does not answer; check the address and that a kvrail node listens there; tried again";
    case Code::authentication_failed:
      return "the handshake failed; give both nodes the same tcp.psk_file; tried again";
    case Code::version_mismatch:
      return "speaks no protocol version that this node knows; update the older one; tried again";
    case Code::protocol_error:
      return "what listens there is no kvrail node; check the address; tried again";
    case Code::already_exists:
      return "has this node's id, or is this node; give each node its own node.id, and list no node as its own peer; "
             "tried again";
    case Code::invalid_argument:
      return "its address has no form that its transport knows; a shm peer is @name or an absolute path; tried again";
    case Code::lane_lost:
      return "the connection is lost; dialled again";
    default:
      return std::string(name(state.code)) + "; tried again";
  }
}

void copy_text(std::string_view from, std::span<char> to) noexcept {
  to[from.copy(to.data(), to.size() - 1)] = '\0';
}

WorkerOptions worker_options(const Config& config, const char* name, int core, const char* core_key) {
  WorkerOptions options;
  options.name = name;
  options.idle = config.idle;
  options.core = core;
  options.core_key = core_key;
  options.spin_ns = config.spin_ns >= 0 ? config.spin_ns : (core >= 0 ? kOwnCoreSpinNs : 0);
  if (config.spin_ns < 0) options.most_spin_ns = adaptive_spin_ns();
  return options;
}

}  // namespace

class Host::NodePoll final : public Pollable {
 public:
  explicit NodePoll(Node& node) : node_(node) {}
  std::size_t cycle(TimeNs now_ns) noexcept override { return node_.cycle(now_ns); }
  bool arm() noexcept override { return node_.arm(); }
  std::span<const int> wait_fds() const noexcept override { return node_.wait_fds(); }
  TimeNs next_deadline_ns() const noexcept override { return node_.next_deadline_ns(); }

 private:
  Node& node_;
};

Host::Host(const Config& config, Clock& clock, LogSink log)
    : config_(config), clock_(clock), log_(std::move(log)) {}

Result<std::unique_ptr<Host>> Host::create(const Config& config, Clock& clock, LogSink log) {
  if (auto valid = validate(config); !valid.ok()) return std::move(valid).error();
  std::unique_ptr<Host> host(new Host(config, clock, std::move(log)));
  if (auto built = host->build(); !built.ok()) return std::move(built).error();
  return host;
}

Host::~Host() {
  if (worker_) worker_->stop();
  if (lane_worker_) lane_worker_->stop();
}

// ---- building ------------------------------------------------------------------------------------

Result<void> Host::build() {
  node_id_ = config_.node_id != 0 ? config_.node_id : random_id();
  incarnation_ = random_id();
  auto page = mempool::Arena::create({.bytes = sizeof(StatusPage), .name = "kvrail-status"});
  if (!page.ok()) return std::move(page).error();
  status_page_ = std::move(page).value();
  for (const auto step : {&Host::check, &Host::read_profile, &Host::build_key, &Host::build_tcp, &Host::build_shm, &Host::build_verbs, &Host::build_node,
                          &Host::build_sessions}) {
    if (auto done = (this->*step)(); !done.ok()) return done;
  }
  for (const PeerConfig& peer : config_.peers) {
    const auto at = static_cast<std::uint32_t>(shown_peers_.size());
    pending_peers_.push_back({.address = peer.address, .at = at, .transport = peer.transport, .told = false});
    StatusDial& shown = shown_peers_.emplace_back();
    copy_text(peer.address, shown.address);
    copy_text(peer.transport, shown.transport);
    shown.since_ns = clock_.now_ns();
  }
  return {};
}

Result<void> Host::check() {
  MachineReport report = check_machine(config_);
  for (const std::string& line : report.warnings) log_(LogLevel::warning, line);
  if (!report.errors.empty()) return std::move(report.errors.front());
  return {};
}

// What is to be said of it check() has said.
Result<void> Host::build_key() {
  if (config_.psk_file.empty()) return {};
  auto loaded = transport::load_psk(config_.psk_file);
  if (!loaded.ok()) return std::move(loaded).error();
  psk_ = std::move(loaded.value().psk);
  return {};
}

Result<void> Host::read_profile() {
  if (config_.profile.empty()) return {};
  auto loaded = load_calibration(config_.profile);
  if (!loaded.ok()) return Error{loaded.status(), "codec.profile: " + loaded.error().message};
  loss_ = loss_of(loaded->profile);
  protection_ = loaded->profile.protection;
  if (loaded->basis) lowrank_ = std::make_shared<LowRankBasis>(std::move(*loaded->basis), loaded->profile.theta);
  return {};
}

NodeOptions Host::node_options() const {
  NodeOptions options;
  options.node_id = node_id_;
  options.incarnation = incarnation_;
  options.store = store_options(config_);
  options.store.lowrank = lowrank_;
  options.scheduler.slice_ns = config_.slice_ns;
  options.scheduler.suspend_below_ppm = config_.suspend_below_percent * 10'000;
  options.loss = loss_;
  options.protection = protection_;
  options.integrity = config_.integrity;
  options.policy = config_.policy;
  options.choice = config_.choice == ChoiceSetting::greedy ? scheduler::ChoicePolicy::greedy : scheduler::ChoicePolicy::model;
  options.lineage_floor_ppm = config_.lineage_floor_ppm;
  options.refresh = config_.refresh;
  options.offload_below_ppm = config_.offload_below_percent * 10'000;
  options.offload_until_ppm = config_.offload_until_percent * 10'000;
  options.eager_limit_bytes = config_.eager_limit_bytes;
  options.window_tokens = config_.window_tokens;
  options.topk_percent = config_.topk_percent;
  options.sparse_values = config_.sparse_values;
  options.summary_tokens = config_.summary_tokens;
  options.summary_separators = config_.summary_separators;
  options.keepalive_period_ns = config_.keepalive_ns;
  options.dead_after_ns = config_.dead_after_ns;
  options.lane_rate_hint_bytes_per_s = config_.rate_hint_bytes_per_s;
  options.status_page = {status_page_->base(), sizeof(StatusPage)};
  if (recording_) options.recording = recording_->memory();
  return options;
}

Result<void> Host::build_node() {
  if (!config_.record.empty()) {
    auto recording = Recording::create(config_.record, config_.record_bytes);
    if (!recording.ok()) return Error{recording.status(), "runtime.record: " + recording.error().message};
    recording_ = std::move(recording).value();
  }
  auto node = Node::create(node_options(), clock_);
  if (!node.ok()) return std::move(node).error();
  node_ = std::move(node).value();
  for (const WorkflowFile& file : config_.workflows) {
    const auto workflow = load_workflow(file.name, file.file);
    if (!workflow.ok()) return Error{workflow.status(), "workflow.file: " + workflow.error().message};
    KVRAIL_ASSERT(node_->describe_for_all(workflow->name, workflow->steps, workflow->edges).ok());
  }
  if (config_.mode == WorkerMode::dedicated) {
    lane_worker_ =
        std::make_unique<LaneWorker>(*tcp_, worker_options(config_, "kvrail-lanes", config_.lane_core, "runtime.lane_core"), clock_);
    lane_proxy_ = std::make_unique<LaneProxy>(*lane_worker_);
    // The node registers memory with its transports, which the lane worker does on its own thread.
    if (auto started = lane_worker_->start(); !started.ok()) return started;
    tcp_index_ = node_->add_transport(*lane_proxy_);
  } else {
    tcp_index_ = node_->add_transport(*tcp_);
  }
  if (shm_) shm_index_ = node_->add_transport(*shm_);
  if (verbs_) verbs_index_ = node_->add_transport(*verbs_);
  std::vector<std::string> warnings;
  auto tier = create_tier(config_, &warnings);
  if (!tier.ok()) return std::move(tier).error();
  for (const std::string& line : warnings) log_(LogLevel::warning, line);
  tier_ = std::move(tier).value();
  if (tier_) node_->set_tier(*tier_);
  return {};
}

Result<void> Host::build_sessions() {
  session_host_ = std::make_unique<ipc::NodeHost>(*node_, node_options().store);
  auto sessions = ipc::Sessions::create({.max_agents = config_.max_agents}, *session_host_);
  if (!sessions.ok()) return std::move(sessions).error();
  sessions_ = std::move(sessions).value();
  node_->set_sink(*sessions_);
  node_poll_ = std::make_unique<NodePoll>(*node_);
  worker_ = std::make_unique<Worker>(worker_options(config_, "kvrail-sched", config_.core, "runtime.core"), clock_);
  worker_->add(*sessions_);
  worker_->add(*node_poll_);
  return {};
}

Result<void> Host::start() {
  KVRAIL_ASSERT(!started_);
  if (auto worker = worker_->start(); !worker.ok()) return worker;
  std::vector<ipc::AttachRule> rules;
  for (const TenantRule& rule : config_.tenants) rules.push_back({.uid = static_cast<uid_t>(rule.uid), .gid = {}, .tenant = rule.tenant});
  auto policy = ipc::AttachPolicy::create(std::move(rules), config_.any_uid);
  if (!policy.ok()) return std::move(policy).error();
  ipc::AttachServerOptions options;
  options.socket_path = config_.socket;
  options.policy = std::move(policy).value();
  options.node_id = node_id_;
  options.incarnation = incarnation_;
  options.max_agents = config_.max_agents;
  options.max_agents_per_uid = config_.max_agents;
  options.status_page = status_page_.get();
  auto server = ipc::AttachServer::create(options, *sessions_, clock_);
  if (!server.ok()) return std::move(server).error();
  attach_server_ = std::move(server).value();
  started_ = true;
  for (std::uint32_t at = 0; at < shown_peers_.size(); ++at) show_peer(at, false, "");
  resolve_peers();
  return {};
}

// ---- running -------------------------------------------------------------------------------------

void Host::step(TimeNs longest_ns, int wake_fd) {
  KVRAIL_ASSERT(started_);
  TimeNs now_ns = clock_.now_ns();
  TimeNs until_ns = std::min(add_saturating(now_ns, longest_ns), attach_server_->next_deadline_ns());
  if (!pending_peers_.empty()) until_ns = std::min(until_ns, resolve_again_ns_);
  if (draining_) until_ns = std::min(until_ns, drain_look_ns_);
  const TimeNs wait_ns = std::max<TimeNs>(until_ns - now_ns, 0);
  const timespec timeout{.tv_sec = wait_ns / kSecondNs, .tv_nsec = wait_ns % kSecondNs};
  std::array<pollfd, 2> fds{{{.fd = attach_server_->wait_fd(), .events = POLLIN, .revents = 0},
                             {.fd = wake_fd, .events = POLLIN, .revents = 0}}};
  static_cast<void>(::ppoll(fds.data(), fds.size(), &timeout, nullptr));
  attach_server_->poll();
  now_ns = clock_.now_ns();
  if (!pending_peers_.empty() && now_ns >= resolve_again_ns_) resolve_peers();
  watch(now_ns);
  watch_peers(now_ns);
  watch_refusals(now_ns);
  if (!draining_ || drained_ || now_ns < drain_look_ns_) return;
  drain_look_ns_ = now_ns + kDrainLookNs;
  bool idle = false;
  with_node([&idle](Node& node) { idle = node.drained(); });
  if (!idle && now_ns < drain_until_ns_) return;
  if (attach_server_->agents() > 0 || !attach_server_->empty()) attach_server_->shut_down();
  drained_ = attach_server_->empty() || now_ns >= drain_until_ns_;
}

void Host::drain() {
  if (draining_) return;
  draining_ = true;
  const TimeNs now_ns = clock_.now_ns();
  drain_until_ns_ = add_saturating(now_ns, config_.drain_ns);
  drain_look_ns_ = now_ns;
  with_node([this](Node& node) { node.drain(drain_until_ns_); });
}

void Host::resolve_peers() {
  resolve_again_ns_ = clock_.now_ns() + kResolveAgainNs;
  std::erase_if(pending_peers_, [this](PendingPeer& peer) {
    if (peer.transport == "shm") {
      connect(peer, "shm:" + peer.address);
      return true;
    }
    auto address = resolve_address(peer.address);
    if (address.ok()) {
      connect(peer, address.value());
      return true;
    }
    if (!peer.told) {
      log_(LogLevel::warning, "peer " + address.error().message + "; tried again every 2 s");
      show_peer(peer.at, false, address.error().message);
    }
    peer.told = true;
    return false;
  });
}

void Host::connect(const PendingPeer& peer, const std::string& address) {
  Result<void> dialled;
  const std::uint32_t transport = peer.transport == "shm" ? shm_index_ : peer.transport == "verbs" ? verbs_index_ : tcp_index_;
  with_node([&](Node& node) { dialled = node.connect(address, transport); });
  if (dialled.ok()) {
    dialled_peers_.push_back({.address = peer.address, .at = peer.at, .told = {}});
  } else {
    log_(LogLevel::error, "peer " + peer.address + ": " + dialled.error().message);
    show_peer(peer.at, false, dialled.error().message);
  }
}

void Host::show_peer(std::uint32_t at, bool up, std::string_view why) {
  StatusDial& shown = shown_peers_[at];
  if (up != (shown.up != 0)) shown.since_ns = clock_.now_ns();
  shown.up = up ? 1 : 0;
  copy_text(why, shown.why);
  with_node([&](Node& node) { node.show_dial(at, shown); });
}

void Host::watch_peers(TimeNs now_ns) {
  if (now_ns < peers_look_ns_) return;
  peers_look_ns_ = now_ns + kPeersLookNs;
  for (std::uint32_t i = 0; i < dialled_peers_.size(); ++i) {
    DialledPeer& peer = dialled_peers_[i];
    const Status state = node_->dial_state(i);
    if (state.code == peer.told.code && state.detail == peer.told.detail) continue;
    peer.told = state;
    const std::string text = dial_text(state);
    log_(state.ok() ? LogLevel::info : LogLevel::warning, "peer " + peer.address + ": " + text);
    show_peer(peer.at, state.ok(), state.ok() ? std::string_view() : std::string_view(text));
  }
}

void Host::watch_refusals(TimeNs now_ns) {
  const std::uint64_t refused = attach_server_->counters().refused_policy;
  if (refused == refusals_told_ || now_ns < refusals_look_ns_) return;
  const std::uint64_t others = refused - refusals_told_ - 1;
  log_(LogLevel::warning, "attach refused: " + attach_server_->last_policy_refusal() +
                              (others == 0 ? std::string() : std::string(" (and ").append(std::to_string(others)).append(" more)")));
  refusals_told_ = refused;
  refusals_look_ns_ = now_ns + kRefusalsLookNs;
}

void Host::watch(TimeNs now_ns) {
  const TimeNs stalled_ns = worker_->stalled_for_ns(now_ns);
  if (stalled_ns > kStallNs && !stall_told_) {
    log_(LogLevel::error, "the scheduler worker has been in one duty cycle for " +
                              std::to_string(stalled_ns / kMillisecondNs) + " ms");
  }
  stall_told_ = stalled_ns > kStallNs;
}

std::string_view Host::tcp_address() const noexcept { return tcp_->listen_address(); }
std::string_view Host::verbs_address() const noexcept { return verbs_ ? verbs_->listen_address() : std::string_view(); }

}  // namespace kvrail::engine
