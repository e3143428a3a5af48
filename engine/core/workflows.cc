#include "engine/core/workflows.h"

#include <array>

#include "codec/hash.h"
#include "engine/core/transfer.h"

namespace kvrail::engine {

std::uint64_t name_key(const Name& name) noexcept { return codec::hash_of(name.view()).low; }

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
  Workflow* entry = find_exact(text.tenant, text.workflow);
  if (entry == nullptr) entry = make_room(text.tenant);
  if (entry == nullptr) return Status{Code::out_of_capacity, Scope::engine, static_cast<std::int32_t>(kMost)};
  entry->text = text;
  entry->graph = graph;
  entry->serial = next_serial_++;
  entry->told = peer == kNoIndex ? 0 : std::uint64_t{1} << peer;
  return Status{};
}

Workflow* Workflows::make_room(const Name& tenant) noexcept {
  std::uint32_t count = 0;
  Workflow* oldest = nullptr;
  table_.for_each([&](Handle<Workflow>, Workflow& one) {
    if (one.text.tenant != tenant) return;
    ++count;
    if (oldest == nullptr || one.serial < oldest->serial) oldest = &one;
  });
  if (count >= kMostOfTenant || (table_.full() && oldest != nullptr)) return oldest;
  if (table_.full()) return oldest_of_the_richest();
  const Handle<Workflow> made = table_.try_emplace();
  return table_.get(made);
}

// In a full table the tenant with the most gives its oldest to one that has none; those of the configuration stay.
Workflow* Workflows::oldest_of_the_richest() noexcept {
  Workflow* goes = nullptr;
  std::uint32_t most = 0;
  table_.for_each([&](Handle<Workflow>, Workflow& one) {
    if (one.text.tenant.length() == 0) return;
    std::uint32_t count = 0;
    table_.for_each([&](Handle<Workflow>, const Workflow& other) { count += other.text.tenant == one.text.tenant ? 1 : 0; });
    if (count < most || (count == most && goes != nullptr && one.serial >= goes->serial)) return;
    most = count;
    goes = &one;
  });
  return goes;
}

Workflow* Workflows::find_exact(const Name& tenant, const Name& workflow) noexcept {
  Workflow* found = nullptr;
  table_.for_each([&](Handle<Workflow>, Workflow& one) {
    if (one.text.tenant == tenant && one.text.workflow == workflow) found = &one;
  });
  return found;
}

Workflow* Workflows::find(const Name& tenant, const Name& workflow) noexcept {
  Workflow* own = find_exact(tenant, workflow);
  return own != nullptr ? own : find_exact(Name{}, workflow);
}

void Workflows::forget_peer(std::uint32_t peer) noexcept {
  table_.for_each([&](Handle<Workflow>, Workflow& one) { one.told &= ~(std::uint64_t{1} << peer); });
}

}  // namespace kvrail::engine
