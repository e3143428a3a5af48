#include <unistd.h>

#include <atomic>
#include <deque>

#include "tests/conformance/harness.h"
#include "transport/shm/shm_transport.h"

#include <doctest/doctest.h>

namespace kvrail::test {
namespace {

namespace shm = kvrail::transport::shm;

class ShmWorld final : public World {
 public:
  ShmWorld() {
    static std::atomic<int> worlds{0};
    name_ = "@kvrail-test-" + std::to_string(::getpid()) + "-" + std::to_string(worlds++) + "-";
    for (const int which : {0, 1}) start(which);
  }

  transport::Transport* side(int which) override { return sides_[index(which)].get(); }
  std::string address(int which) override { return "shm:" + name_ + std::to_string(which); }
  std::string dead_address() override { return "shm:" + name_ + "nobody"; }
  void kill(int which) override { sides_[index(which)].reset(); }
  void restart(int which) override {
    ++restarts_[index(which)];
    start(which);
    for (const auto& memory : memory_[index(which)]) add(which, *memory);
  }
  std::byte* memory(int which, std::size_t bytes) override {
    auto& made = memory_[index(which)].emplace_back(std::make_unique<SharedMemory>(bytes));
    add(which, *made);
    return made->base();
  }
  TimeNs now_ns() override { return clock_.now_ns(); }

 private:
  static std::size_t index(int which) { return static_cast<std::size_t>(which); }
  void add(int which, const SharedMemory& memory) {
    transport::Transport* one = side(which);
    if (one == nullptr) return;
    // Every third range stays unknown to the peer, as plain heap memory is: it goes by staging.
    const int fd = ++registered_ % 3 == 0 ? -1 : memory.fd();
    REQUIRE(one->register_memory(memory.base(), memory.bytes(), fd).ok());
  }
  void start(int which) {
    shm::ShmOptions options;
    options.node = node(which);
    options.incarnation = incarnation(which);
    options.listen_path = name_ + std::to_string(which);
    auto opened = shm::ShmTransport::open(options);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.error().message));
    sides_[index(which)] = std::move(*opened);
  }

  SteadyClock clock_;
  std::string name_;
  int registered_ = 0;
  std::array<std::deque<std::unique_ptr<SharedMemory>>, 2> memory_;
  std::array<std::unique_ptr<shm::ShmTransport>, 2> sides_;
};

}  // namespace

std::unique_ptr<World> make_shm_world() {
  return std::make_unique<ShmWorld>();
}

}  // namespace kvrail::test
