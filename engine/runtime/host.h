// A whole engine in one process, put together from a Config: transports, node, sessions, workers,
// attach server. kvraild is a main() around it; a program that embeds an engine uses it directly.
//
// Threads    the caller's thread is the Conductor: create(), start(), step(), drain() and the
//            destructor run there, and it may block there. The scheduler worker (and in dedicated mode
//            the lane worker) run in between, started by start().
// Invariant  what a worker polls is destroyed only after that worker has stopped (order of members).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"
#include "engine/core/node.h"
#include "engine/ipc/attach_server.h"
#include "engine/ipc/node_host.h"
#include "engine/ipc/sessions.h"
#include "engine/runtime/recording.h"
#include "engine/runtime/lane_worker.h"
#include "engine/runtime/worker.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "mempool/memory.h"
#include "transport/handshake.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::engine {

enum class LogLevel : std::uint8_t { debug, info, warning, error };
using LogSink = std::function<void(LogLevel, std::string_view)>;

class Host {
 public:
  // Builds everything that can fail on what the config asks for: one line says what is in the way.
  [[nodiscard]] static Result<std::unique_ptr<Host>> create(const Config& config, Clock& clock, LogSink log);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  // Starts the workers and opens the attach socket.
  [[nodiscard]] Result<void> start();
  // One round of the Conductor: sleeps until there is something to do, `wake_fd` (or -1) is readable,
  // or `longest_ns` has passed.
  void step(TimeNs longest_ns, int wake_fd);
  // Takes nothing new; transfers in flight go on, at most for the configured time.
  void drain();
  [[nodiscard]] bool drained() const noexcept { return drained_; }
  // Runs `function(Node&)` on the scheduler worker between two duty cycles.
  template <class F>
  void with_node(F&& function) {
    worker_->call([&] { function(*node_); });
  }

  [[nodiscard]] NodeId node_id() const noexcept { return node_id_; }
  // Where peers can dial, with the port that the kernel chose; empty when not listening.
  [[nodiscard]] std::string_view tcp_address() const noexcept;
  [[nodiscard]] std::string_view verbs_address() const noexcept;
  // One line each: what this engine has, and what it was built without.
  [[nodiscard]] std::vector<std::string> capabilities() const;
  [[nodiscard]] const Worker& worker() const noexcept { return *worker_; }
  [[nodiscard]] ipc::Sessions& sessions() noexcept { return *sessions_; }
  [[nodiscard]] const mempool::Arena& status_page() const noexcept { return *status_page_; }

 private:
  class NodePoll;
  struct PendingPeer {
    std::string address;
    std::uint32_t at = 0;          // in the configuration
    std::string transport;         // as the config has it
    bool told = false;             // that the name does not resolve; said once
  };
  struct DialledPeer {             // in the order of Node::connect()
    std::string address;           // as the config has it
    std::uint32_t at = 0;
    Status told;                   // the last state that the log was told
  };

  Host(const Config& config, Clock& clock, LogSink log);
  [[nodiscard]] Result<void> build();
  [[nodiscard]] Result<void> check();          // what preflight.h knows
  [[nodiscard]] Result<void> read_profile();
  [[nodiscard]] Result<void> build_key();
  [[nodiscard]] Result<void> build_tcp();
  [[nodiscard]] Result<void> build_shm();
  [[nodiscard]] Result<void> build_verbs();
  [[nodiscard]] bool dials(std::string_view transport) const noexcept;
  [[nodiscard]] Result<void> build_node();
  [[nodiscard]] Result<void> build_sessions();
  [[nodiscard]] NodeOptions node_options() const;
  [[nodiscard]] std::string verbs_line() const;   // of capabilities()
  // Dials the peers whose names resolve by now; the others are tried again by step().
  void resolve_peers();
  void connect(const PendingPeer& peer, const std::string& address);
  // Tells the log when a peer comes, is lost or cannot be reached for another reason than before.
  void watch_peers(TimeNs now_ns);
  // What `kvrailctl peers` shows of the `at`-th peer; `why` as the log was told, empty when nothing failed.
  void show_peer(std::uint32_t at, bool up, std::string_view why);
  // Tells the log whom the attach policy turns away, in at most two lines a second.
  void watch_refusals(TimeNs now_ns);
  void watch(TimeNs now_ns);

  Config config_;
  scheduler::DepthLoss loss_;
  codec::Protection protection_;
  LowRankBasisPtr lowrank_;
  Clock& clock_;
  LogSink log_;
  NodeId node_id_ = 0;
  Incarnation incarnation_ = 0;
  std::unique_ptr<Recording> recording_;   // none, or the node's decisions go there
  std::unique_ptr<mempool::Arena> status_page_;
  transport::Psk psk_;
  std::unique_ptr<transport::shm::ShmTransport> shm_;   // only where the config speaks of it
  std::unique_ptr<transport::verbs::VerbsTransport> verbs_;  // likewise
  std::unique_ptr<transport::tcp::TcpTransport> tcp_;
  std::unique_ptr<LaneWorker> lane_worker_;       // dedicated mode
  std::unique_ptr<LaneProxy> lane_proxy_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<TierPort> tier_;                // after the node, whose memory it reads and writes; null: none
  std::unique_ptr<ipc::NodeHost> session_host_;
  std::unique_ptr<ipc::Sessions> sessions_;
  std::unique_ptr<NodePoll> node_poll_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<ipc::AttachServer> attach_server_;
  std::vector<PendingPeer> pending_peers_;
  std::vector<DialledPeer> dialled_peers_;
  std::vector<StatusDial> shown_peers_;           // one for each peer of the config
  std::uint32_t tcp_index_ = 0;
  std::uint32_t shm_index_ = 0;
  std::uint32_t verbs_index_ = 0;
  TimeNs resolve_again_ns_ = 0;
  TimeNs peers_look_ns_ = 0;
  TimeNs refusals_look_ns_ = 0;
  std::uint64_t refusals_told_ = 0;
  TimeNs drain_until_ns_ = 0;
  TimeNs drain_look_ns_ = 0;
  bool started_ = false;
  bool draining_ = false;
  bool drained_ = false;
  bool stall_told_ = false;
};

// "host:port" with the name looked up, as the tcp transport wants it. May block.
[[nodiscard]] Result<std::string> resolve_address(const std::string& address);

}  // namespace kvrail::engine
