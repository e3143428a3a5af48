// The RDMA devices of this machine that a transport uses: one protection domain, completion queue
// and event channel each. Thread: owner.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "transport/verbs/port_choice.h"
#include "transport/verbs/windows.h"

namespace kvrail::transport::verbs {

inline constexpr std::size_t kMaxDevices = 8;

struct Device {
  std::uint32_t index = 0;
  std::string name;
  ibv_context* context = nullptr;  // rdma_cm's, shared by the process
  ibv_pd* domain = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* completions = nullptr;
  std::uint32_t max_sge = 1;
  std::uint64_t max_region_bytes = 0;
  std::unique_ptr<WindowPool> windows;  // null: the device has none of type 2
  bool immediates = true;  // iWARP has none
  bool failed = false;     // the device said that it is dead
  std::uint64_t ports_down = 0;  // a bit for each port that said so
  int entries = 0;         // that its completion queue was asked for
  [[nodiscard]] bool is_down(std::uint8_t port) const noexcept {
    return port < 64 && (ports_down >> port & 1u) != 0;
  }
  // Its completion queue overran. Transports of one process share a device's events; whichever
  // reads this one sets the flag of the transport whose queue it is.
  std::unique_ptr<std::atomic<bool>> overran = std::make_unique<std::atomic<bool>>(false);
};

class Devices {
 public:
  Devices() = default;
  Devices(Devices&& other) noexcept
      : list_(std::exchange(other.list_, nullptr)), devices_(std::move(other.devices_)) {
    other.devices_.clear();
  }
  Devices& operator=(Devices&&) = delete;
  Devices(const Devices&) = delete;
  ~Devices();

  /// Opens the named devices (empty: all). completions: entries that each queue should have; fewer
  /// where the device allows no more, which `completions_of_least` tells.
  /// windows: use memory windows where there are some.
  [[nodiscard]] static Result<Devices> open(const std::vector<std::string>& names,
                                            std::uint32_t completions, bool windows);

  [[nodiscard]] Device* find(const ibv_context* context) noexcept;
  [[nodiscard]] std::vector<Device>& all() noexcept { return devices_; }
  [[nodiscard]] std::uint32_t completions_of_least() const noexcept;
  /// A new completion queue in place of one that overran; no queue pair uses it. False: the device
  /// gives none, and has failed.
  [[nodiscard]] static bool renew_completions(Device& device) noexcept;
  /// Notes an overrun at the device that has the queue; before the event is acknowledged.
  static void note_overrun(ibv_cq* completions) noexcept {
    static_cast<std::atomic<bool>*>(completions->cq_context)->store(true);
  }
  /// Whether the port has this GID, read anew.
  [[nodiscard]] static bool has_gid(const Device& device, std::uint8_t port,
                                    const ibv_gid& gid) noexcept;
  /// What rank_ports() wants to know, read anew: GIDs change while a machine runs.
  [[nodiscard]] std::vector<PortView> ports() const;
  [[nodiscard]] std::string names() const;

 private:
  ibv_context** list_ = nullptr;
  std::vector<Device> devices_;
};

}  // namespace kvrail::transport::verbs
