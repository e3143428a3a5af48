#include "engine/runtime/preflight.h"

#include <utility>

#include "engine/config/agent_graph.h"
#include "engine/config/calibration.h"
#include "engine/runtime/recording.h"
#include "engine/runtime/worker.h"
#include "engine/store/table_size.h"
#include "engine/tier/create.h"
#include "mempool/system_memory.h"
#include "transport/handshake.h"
#include "transport/tcp/socket_setup.h"

namespace kvrail::engine {
namespace {

using Keys = std::initializer_list<std::string_view>;
using mempool::size_text;

class Check {
 public:
  explicit Check(const Config& config) : config_(config) {}

  void cores() {
    if (config_.core >= 0) take(probe_core(config_.core, "runtime.core"), {"runtime.core"});
    if (config_.lane_core >= 0)
      take(probe_core(config_.lane_core, "runtime.lane_core"), {"runtime.lane_core"});
  }

  void tables() {
    const std::uint64_t least = least_table_bytes(store_options(config_));
    if (config_.table_bytes < least) {
      refuse(Code::invalid_argument, {"memory.tables", "memory.max_blocks"},
             "memory.tables: " + size_text(config_.table_bytes) +
                 " are too small for memory.max_blocks = " + std::to_string(config_.max_blocks) +
                 ", which needs " + size_text(least) +
                 " before any context; raise memory.tables or lower memory.max_blocks");
    }
    if (room_ && config_.table_bytes > room_->bytes) {
      refuse(
          Code::out_of_memory, {"memory.tables"},
          "memory.tables: " + size_text(config_.table_bytes) + " are wanted, but " + left_text());
    }
  }

  // One tenant with one agent is the least that is of use. The pages of an arena are taken when it
  // is made, so without room for them every agent would be refused.
  void arenas() {
    const std::uint64_t arenas = config_.receive_arena_bytes + config_.agent_arena_bytes;
    if (room_ && arenas > room_->bytes) {
      refuse(Code::out_of_memory, {"memory.receive_arena", "memory.agent_arena"},
             "memory.receive_arena: it and memory.agent_arena are " +
                 size_text(config_.receive_arena_bytes) + " and " +
                 size_text(config_.agent_arena_bytes) + ", but " + left_text());
    } else if (room_ && config_.table_bytes <= room_->bytes &&
               arenas > room_->bytes - config_.table_bytes) {
      warn({"memory.receive_arena", "memory.tables"},
           "memory.receive_arena: with memory.agent_arena and memory.tables " +
               size_text(arenas + config_.table_bytes) + " come to be taken, but " + left_text());
    }
    if (config_.lock_memory) {
      if (auto lock = mempool::probe_lock(arenas); !lock.ok()) {
        refuse(lock.status(), {"memory.lock"}, "memory.lock: " + lock.error().message);
      }
    }
    if (config_.hugepages && !mempool::probe_hugetlb(arenas)) {
      warn({"memory.hugepages"},
           "memory.hugepages: the system has no " + size_text(arenas) +
               " of free 2 MiB pages, arenas get other ones; raise vm.nr_hugepages");
    }
  }

  void key() {
    if (config_.psk_file.empty()) return;
    const auto loaded = transport::load_psk(config_.psk_file);
    if (!loaded.ok())
      return refuse(loaded.status(), {"tcp.psk_file"}, "tcp." + loaded.error().message);
    if (!loaded->warning.empty()) warn({"tcp.psk_file"}, "tcp." + loaded->warning);
  }

  void congestion() {
    if (const auto known = transport::tcp::check_congestion_control(config_.congestion);
        !known.ok()) {
      refuse(known.status(), {"tcp.congestion"}, "tcp.congestion: " + known.error().message);
    }
  }

  void profile() {
    bool has_basis = false;
    if (!config_.profile.empty()) {
      const auto loaded = load_calibration(config_.profile);
      if (!loaded.ok())
        return refuse(loaded.status(), {"codec.profile"}, "codec.profile: " + loaded.error().message);
      has_basis = loaded->basis.has_value();
    }
    if (config_.policy == Medium::lowrank && !has_basis) {
      refuse(Code::invalid_argument, {"transfer.medium", "codec.profile"},
             "transfer.medium: lowrank needs a calibrated basis; name a profile that has one in "
             "codec.profile, or choose another medium");
    }
  }

  void recording() {
    if (!config_.record.empty()) take(Recording::check(config_.record), "runtime.record: ", {"runtime.record"});
  }

  void workflows() {
    for (std::size_t i = 0; i < config_.workflows.size(); ++i) {
      const WorkflowFile& workflow = config_.workflows[i];
      if (const auto loaded = load_workflow(workflow.name, workflow.file); !loaded.ok()) {
        refuse(loaded.status(), {"workflow[" + std::to_string(i) + "].file"}, "workflow.file: " + loaded.error().message);
      }
    }
  }

  void offload() {
    if (config_.offload_directory.empty()) return;
    take(tier::Directory::check(config_.offload_directory, tier_options(config_).direct), {"offload.directory"});
    take(tier_files(config_), {"offload.capacity", "offload.segment"});
  }

  [[nodiscard]] MachineReport report() && { return std::move(report_); }

 private:
  void refuse(Status status, Keys keys, const std::string& message) {
    report_.errors.push_back(setting_error(config_, status, keys, message));
  }
  void warn(Keys keys, const std::string& message) {
    report_.warnings.push_back(setting_error(config_, {}, keys, message).message);
  }
  void take(const Result<void>& done, Keys keys) { take(done, "", keys); }
  void take(const Result<void>& done, const char* before, Keys keys) {
    if (!done.ok()) refuse(done.status(), keys, before + done.error().message);
  }
  [[nodiscard]] std::string left_text() const {
    return room_->limited_by + " has only " + size_text(room_->bytes) +
           " left; lower it or raise that limit";
  }

  const Config& config_;
  const std::optional<mempool::MemoryRoom> room_ = mempool::memory_room();
  MachineReport report_;
};

}  // namespace

StoreOptions store_options(const Config& config) {
  StoreOptions options;
  options.max_agents = config.max_agents;
  options.max_blocks = config.max_blocks;
  options.table_bytes = config.table_bytes;
  options.receive_arena_bytes = config.receive_arena_bytes;
  options.agent_arena_bytes = config.agent_arena_bytes;
  options.hugetlb = config.hugepages;
  options.lock_memory = config.lock_memory;
  return options;
}

MachineReport check_machine(const Config& config) {
  Check check(config);
  check.cores();
  check.tables();
  check.arenas();
  check.key();
  check.congestion();
  check.profile();
  check.workflows();
  check.recording();
  check.offload();
  return std::move(check).report();
}

}  // namespace kvrail::engine
