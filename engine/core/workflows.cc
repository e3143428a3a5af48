#include "engine/core/workflows.h"

#include <algorithm>
#include <array>

#include "codec/hash.h"
#include "engine/core/transfer.h"
#include "scheduler/keyed_table.h"

namespace kvrail::engine {

std::uint64_t name_key(const Name& name) noexcept { return codec::hash_of(name.view()).low; }

std::uint64_t workflow_key(const Name& tenant, const Name& workflow) noexcept {
  return scheduler::mix_key(scheduler::mix_key(name_key(tenant)) ^ name_key(workflow)) | 1;
}

Status Workflows::describe(const wire::Workflow& text, std::uint32_t peer) noexcept {
  std::array<scheduler::WorkflowStep, wire::kMaxWorkflowSteps> steps;
  std::array<scheduler::WorkflowEdge, wire::kMaxWorkflowEdges> edges;
  for (std::size_t i = 0; i < text.step_count; ++i) {
    steps[i] = {name_key(text.steps[i].agent), static_cast<TimeNs>(text.steps[i].duration_ns)};
  }
  for (std::size_t i = 0; i < text.edge_count; ++i) edges[i] = {text.edges[i].from, text.edges[i].to};
  scheduler::WorkflowGraph graph;
  const auto fault = graph.assign(std::span(steps).first(text.step_count), std::span(edges).first(text.edge_count));
  if (fault != scheduler::WorkflowGraph::Fault::none) {
    return Status{Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(fault)};
  }
  std::uint32_t at = find_exact(text.tenant, text.workflow);
  if (at == kMost) at = make_room(text.tenant);
  if (at == kMost) return Status{Code::out_of_capacity, Scope::engine, static_cast<std::int32_t>(kMost)};
  count_ = std::max(count_, at + 1);
  keys_[at] = workflow_key(text.tenant, text.workflow);
  table_[at] = Workflow{text, graph, next_serial_++, peer == kNoIndex ? 0 : std::uint64_t{1} << peer};
  return Status{};
}

std::uint32_t Workflows::make_room(const Name& tenant) const noexcept {
  std::uint32_t own = 0, oldest = kMost;
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (table_[i].text.tenant != tenant) continue;
    ++own;
    if (oldest == kMost || table_[i].serial < table_[oldest].serial) oldest = i;
  }
  if (own >= kMostOfTenant || (count_ == kMost && oldest != kMost)) return oldest;
  return count_ < kMost ? count_ : oldest_of_the_richest();
}

// In a full table the tenant with the most gives its oldest to one that has none; those of the configuration stay.
std::uint32_t Workflows::oldest_of_the_richest() const noexcept {
  std::uint32_t goes = kMost, most = 0;
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (table_[i].text.tenant.length() == 0) continue;
    const auto of_tenant = static_cast<std::uint32_t>(std::count_if(
        &table_[0], &table_[0] + count_, [&](const Workflow& other) { return other.text.tenant == table_[i].text.tenant; }));
    if (of_tenant < most || (of_tenant == most && table_[i].serial >= table_[goes].serial)) continue;
    most = of_tenant;
    goes = i;
  }
  return goes;
}

std::uint32_t Workflows::find_exact(const Name& tenant, const Name& workflow) const noexcept {
  const std::uint64_t key = workflow_key(tenant, workflow);
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (keys_[i] == key && table_[i].text.tenant == tenant && table_[i].text.workflow == workflow) return i;
  }
  return kMost;
}

Workflow* Workflows::find(const Name& tenant, const Name& workflow) noexcept {
  std::uint32_t at = count_ == 0 ? kMost : find_exact(tenant, workflow);
  if (at == kMost && count_ > 0) at = find_exact(Name{}, workflow);
  return at == kMost ? nullptr : &table_[at];
}

void Workflows::forget_peer(std::uint32_t peer) noexcept {
  for (std::uint32_t i = 0; i < count_; ++i) table_[i].told &= ~(std::uint64_t{1} << peer);
}

}  // namespace kvrail::engine
