// What this node knows of workflows: who hands over to whom, as their agents, peers or the configuration say it. Fixed
// memory: of each tenant the workflow that was described longest ago gives way to a new one.
//
// Private to engine/core. Thread: the scheduler worker.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "scheduler/workflow.h"
#include "transport/wire/messages.h"

namespace kvrail::engine {

namespace wire = transport::wire;

[[nodiscard]] std::uint64_t name_key(const Name& name) noexcept;
[[nodiscard]] std::uint64_t workflow_key(const Name& tenant, const Name& workflow) noexcept;  // never 0

struct Workflow {
  wire::Workflow text;                // as it goes to peers; an empty tenant: of all, from the configuration
  scheduler::WorkflowGraph graph;
  std::uint64_t serial = 0;           // of its description
  std::uint64_t told = 0;             // peers (bit per index) that have it
};

class Workflows {
 public:
  static constexpr std::uint32_t kMost = 64;
  static constexpr std::uint32_t kMostOfTenant = 16;

  // Takes the place of an earlier description under that name. `peer`: who said it, and so has it; kNoIndex: nobody.
  // Status detail: the scheduler::WorkflowGraph::Fault.
  [[nodiscard]] Status describe(const wire::Workflow& text, std::uint32_t peer) noexcept;
  // That of the tenant, else the one of all tenants, else nullptr. Until the next call of describe().
  [[nodiscard]] Workflow* find(const Name& tenant, const Name& workflow) noexcept;
  void forget_peer(std::uint32_t peer) noexcept;

 private:
  [[nodiscard]] std::uint32_t find_exact(const Name& tenant, const Name& workflow) const noexcept;  // kMost: none
  [[nodiscard]] std::uint32_t make_room(const Name& tenant) const noexcept;
  [[nodiscard]] std::uint32_t oldest_of_the_richest() const noexcept;

  // Apart from the entries, which are large: each send of a task looks here.
  std::array<std::uint64_t, kMost> keys_{};
  std::unique_ptr<Workflow[]> table_ = std::make_unique<Workflow[]>(kMost);
  std::uint32_t count_ = 0;
  std::uint64_t next_serial_ = 1;
};

}  // namespace kvrail::engine
