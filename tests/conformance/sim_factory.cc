#include <deque>

#include "tests/conformance/harness.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"

namespace kvrail::test {
namespace {

namespace sim = kvrail::transport::sim;

class SimWorld final : public World {
 public:
  SimWorld() : network_(options()) {
    for (const int which : {0, 1}) start(which);
  }

  transport::Transport* side(int which) override { return sides_[index(which)].get(); }
  std::string address(int which) override { return "sim:" + std::to_string(node(which)); }
  std::string dead_address() override { return "sim:999"; }
  void kill(int which) override { sides_[index(which)].reset(); }
  void restart(int which) override {
    ++restarts_[index(which)];
    start(which);
  }
  std::byte* memory(int, std::size_t bytes) override {
    return memory_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
  }
  TimeNs now_ns() override { return network_.now_ns(); }
  bool is_virtual() const override { return true; }
  void wait(TimeNs most_ns) override {
    const TimeNs next = network_.next_event_ns();
    network_.advance_to(std::min(next, network_.now_ns() + most_ns));
  }

 private:
  static std::size_t index(int which) { return static_cast<std::size_t>(which); }
  static sim::NetworkOptions options() {
    sim::NetworkOptions options;
    options.link.jitter_mean_ns = 30 * kMicrosecondNs;
    options.link.queue_bytes = 1u << 20;
    return options;
  }
  void start(int which) {
    sides_[index(which)] = network_.add_node(node(which), incarnation(which));
  }

  std::deque<std::unique_ptr<std::byte[]>> memory_;
  sim::SimNetwork network_;
  std::array<std::unique_ptr<sim::SimTransport>, 2> sides_;
};

}  // namespace

std::unique_ptr<World> make_sim_world() {
  return std::make_unique<SimWorld>();
}

}  // namespace kvrail::test
