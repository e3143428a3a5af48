// Two verbs nodes on one device of this machine, which talk to each other through it.
#include <doctest/doctest.h>

#include <cstdio>
#include <deque>

#include "tests/conformance/harness.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::test {
namespace {

namespace verbs = kvrail::transport::verbs;

class VerbsWorld final : public World {
 public:
  VerbsWorld(verbs::WriteMode mode, std::string host) : mode_(mode), host_(std::move(host)) {
    for (const int which : {0, 1}) {
      start(which);
      addresses_[index(which)] = sides_[index(which)]->listen_address();
    }
  }

  transport::Transport* side(int which) override { return sides_[index(which)].get(); }
  std::string address(int which) override { return addresses_[index(which)]; }
  std::string dead_address() override { return host_ + ":1"; }
  void kill(int which) override { sides_[index(which)].reset(); }
  void restart(int which) override {
    ++restarts_[index(which)];
    start(which);
    for (const auto& one : memory_[index(which)])
      REQUIRE(sides_[index(which)]->register_memory(one->base(), one->bytes(), -1).ok());
  }
  std::byte* memory(int which, std::size_t bytes) override {
    const auto& made = memory_[index(which)].emplace_back(std::make_unique<SharedMemory>(bytes));
    if (side(which) != nullptr)
      REQUIRE(sides_[index(which)]->register_memory(made->base(), made->bytes(), -1).ok());
    return made->base();
  }
  TimeNs now_ns() override { return clock_.now_ns(); }

 private:
  static std::size_t index(int which) { return static_cast<std::size_t>(which); }
  void start(int which) {
    verbs::VerbsOptions options;
    options.node = node(which);
    options.incarnation = incarnation(which);
    options.mode = mode_;
    const std::string& before = addresses_[index(which)];
    options.listen_address = before.empty() ? host_ + ":0" : before;
    // One thread drives both sides: while it works on one, the other is silent.
    options.silent_after_ns = 15 * kSecondNs;
    auto made = verbs::VerbsTransport::create(options);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    sides_[index(which)] = std::move(made).value();
  }

  verbs::WriteMode mode_;
  std::string host_;
  SteadyClock clock_;
  std::array<std::string, 2> addresses_;
  std::array<std::deque<std::unique_ptr<SharedMemory>>, 2> memory_;
  std::array<std::unique_ptr<verbs::VerbsTransport>, 2> sides_;
};

std::unique_ptr<World> make(const char* name, verbs::WriteMode mode) {
  static const std::string host = verbs::own_address();
  if (host.empty()) {
    const std::string why = verbs::why_unavailable();
    std::printf("SKIP: %s: %s\n", name, why.empty() ? "no RDMA port has an address" : why.c_str());
    return nullptr;
  }
  return std::make_unique<VerbsWorld>(mode, host);
}

}  // namespace

std::unique_ptr<World> make_verbs_world() {
  return make("verbs", verbs::WriteMode::automatic);
}
std::unique_ptr<World> make_verbs_send_world() {
  return make("verbs-send", verbs::WriteMode::write_then_send);
}

}  // namespace kvrail::test
