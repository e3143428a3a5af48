// A whole engine without threads for the tests of this folder: node, sessions and attach server,
// driven by the test's own thread, so that the test may look inside between two rounds.
#pragma once

#include <poll.h>
#include <sys/stat.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/core/node.h"
#include "engine/ipc/attach_server.h"
#include "engine/ipc/node_host.h"
#include "engine/ipc/sessions.h"
#include "kvrail/agent.h"
#include "kvrail/base/no_alloc.h"
#include "kvrail/base/time.h"
#include "mempool/memory.h"
#include "tests/daemon/process.h"
#include "tests/support/mode.h"

namespace kvrail::test {

inline constexpr TimeNs kSoonNs = 20 * kSecondNs;  // generous: it only bounds a hang
inline constexpr Nanoseconds kSoon{kSoonNs};

// 16 tokens of 2 layers, 2 heads of 32: 512 bytes a token, 8 KiB a block.
inline Layout small_layout() {
  Layout layout;
  layout.model_id = {11, 22};
  layout.layers = 2;
  layout.kv_heads = 2;
  layout.head_dim = 32;
  layout.block_tokens = 16;
  return layout;
}

inline AttachOptions options_of(const std::string& socket, const std::string& name, const std::string& tenant = "test") {
  AttachOptions options;
  options.socket_path = socket;
  options.name = name;
  options.tenant = tenant;
  options.layout = small_layout();
  options.arena_bytes = 1 << 20;
  options.tokenizer = {1, 2};
  options.timeout = kSoon;
  return options;
}

class EngineRig {
 public:
  explicit EngineRig(const std::function<void(engine::ipc::AttachServerOptions&)>& adjust = {}) {
    auto page = mempool::Arena::create({.bytes = sizeof(engine::StatusPage), .name = "kvrail-status"});
    KVRAIL_ASSERT(page.ok());
    status_page_ = std::move(*page);
    engine::NodeOptions options;
    options.node_id = 7;
    options.incarnation = 9;
    options.store.receive_arena_bytes = 16 << 20;
    options.store.agent_arena_bytes = 1 << 20;
    options.store.table_bytes = 32 << 20;
    options.store.max_blocks = 1 << 14;
    options.store.context_ttl_ns = 50 * kMillisecondNs;
    options.status_page = {status_page_->base(), sizeof(engine::StatusPage)};
    auto node = engine::Node::create(options, clock_);
    KVRAIL_ASSERT(node.ok());
    node_ = std::move(*node);
    host_ = std::make_unique<engine::ipc::NodeHost>(*node_, options.store);
    auto sessions = engine::ipc::Sessions::create({}, *host_);
    KVRAIL_ASSERT(sessions.ok());
    sessions_ = std::move(*sessions);
    node_->set_sink(*sessions_);
    engine::ipc::AttachServerOptions server;
    server.socket_path = dir_.path("socket");
    server.node_id = 7;
    server.incarnation = 9;
    server.status_page = status_page_.get();
    if (adjust) adjust(server);
    auto started = engine::ipc::AttachServer::create(server, *sessions_, clock_);
    KVRAIL_ASSERT(started.ok());
    server_ = std::move(*started);
  }
  ~EngineRig() {
    server_->shut_down();
    KVRAIL_ASSERT_MSG(until([this] { return server_->empty(); }), "every connection ends when the server does");
    node_->check();
  }

  [[nodiscard]] std::string socket() const { return dir_.path("socket"); }
  [[nodiscard]] engine::Node& node() { return *node_; }
  [[nodiscard]] engine::ipc::Sessions& sessions() { return *sessions_; }
  [[nodiscard]] engine::ipc::AttachServer& server() { return *server_; }
  [[nodiscard]] const mempool::Arena& status_page() const { return *status_page_; }
  [[nodiscard]] std::string path(const std::string& name) const { return dir_.path(name); }

  // One round of everything; returns the work done.
  std::size_t round() {
    const TimeNs now_ns = clock_.now_ns();
    std::size_t done = 0;
    {
      const NoAllocScope duty_cycle;
      done += sessions_->cycle(now_ns);
      done += node_->cycle(now_ns);
    }
    return done + server_->poll();
  }

  // Rounds until `done` holds, asleep in between where there is nothing to do; false after
  // `timeout_ns`.
  bool until(const std::function<bool()>& done, TimeNs timeout_ns = kSoonNs) {
    const TimeNs deadline_ns = add_saturating(clock_.now_ns(), timeout_ns);
    for (;;) {
      const bool busy = round() != 0;
      if (done()) return true;
      if (clock_.now_ns() >= deadline_ns) return false;
      if (!busy) park();
    }
  }

  // Runs the engine on this thread while `client` runs on another one.
  void serve(const std::function<void()>& client, TimeNs timeout_ns = 3 * kSoonNs) {
    std::atomic<bool> ended{false};
    std::exception_ptr failed;  // a REQUIRE that did not hold
    std::thread thread([&] {
      try {
        client();
      } catch (...) {
        failed = std::current_exception();
      }
      ended.store(true, std::memory_order_release);
    });
    const bool in_time = until([&] { return ended.load(std::memory_order_acquire); }, timeout_ns);
    KVRAIL_ASSERT_MSG(in_time, "the client hangs");
    thread.join();
    if (failed != nullptr) std::rethrow_exception(failed);
  }

  // Whether the store holds nothing of any agent but versions under their TTL.
  [[nodiscard]] std::uint64_t deliveries() { return node_->store().counters().deliveries; }

 private:
  // At most a millisecond: `done` may hold for reasons that no descriptor tells of.
  void park() {
    if (!sessions_->arm() || !node_->arm()) return;
    pollfd fds[3] = {{sessions_->wait_fds()[0], POLLIN, 0}, {server_->wait_fd(), POLLIN, 0}, {-1, POLLIN, 0}};
    static_cast<void>(::poll(fds, 2, 1));
  }

  SteadyClock clock_;
  TempDir dir_;
  std::unique_ptr<mempool::Arena> status_page_;
  std::unique_ptr<engine::Node> node_;
  std::unique_ptr<engine::ipc::NodeHost> host_;
  std::unique_ptr<engine::ipc::Sessions> sessions_;
  std::unique_ptr<engine::ipc::AttachServer> server_;
};

// Bytes that depend on everything that tells two rows apart.
inline std::byte pattern(std::uint64_t seed, std::uint64_t index) {
  return static_cast<std::byte>((seed * 131 + index * 7 + index / 251) & 0xff);
}
inline void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(seed, i);
}
[[nodiscard]] inline bool holds(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern(seed, i)) return false;
  }
  return true;
}
[[nodiscard]] inline std::vector<TokenId> tokens_of(std::size_t count, TokenId first = 100) {
  std::vector<TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

}  // namespace kvrail::test
