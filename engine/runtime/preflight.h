// What the machine must have for a configuration, asked before anything is built on it, by the
// engine at its start and by `kvraild --check-config`: the line at the start is worth more than a
// refusal of every agent later. Nothing is left behind, and nothing waits for another machine.
// Thread: the Conductor.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/store/store.h"
#include "kvrail/base/result.h"

namespace kvrail::engine {

struct MachineReport {
  std::vector<Error> errors;          // each refuses the start; in the order of docs/config.md
  std::vector<std::string> warnings;  // the engine goes on, with less
};

// Cores, memory, its locking and huge pages, the key file, the congestion control, the profile with
// its basis, the folder of the tier. `config` is a valid one.
[[nodiscard]] MachineReport check_machine(const Config& config);

// What the configuration means for the store.
[[nodiscard]] StoreOptions store_options(const Config& config);

}  // namespace kvrail::engine
