// Which agent is where: names of a tenant to local agents and to agents of peers. AGENT_UP and
// AGENT_DOWN are owed per (agent, peer) as one bit each, so a full lane only delays them.
#include "engine/core/node_core.h"

namespace kvrail::engine {

const AgentWhere* Node::Core::where(const Name& tenant, const Name& name) const noexcept {
  return directory_.find(AgentKey{tenant, name});
}

void Node::Core::announce_all(std::uint32_t peer) noexcept {
  const std::uint64_t mask = std::uint64_t{1} << peer;
  agents_.for_each([&](AgentHandle, LocalAgent& agent) {
    if (!agent.leaving) agent.up_pending |= mask;
    agent.down_pending &= ~mask;  // a peer that connects learns of it by silence
  });
  announce_dirty_ = true;
}

std::size_t Node::Core::announce() noexcept {
  if (!announce_dirty_) return 0;
  std::size_t posted = 0;
  bool owed = false;
  agents_.for_each([&](AgentHandle handle, LocalAgent& agent) {
    for (std::uint64_t mask = agent.up_pending | agent.down_pending; mask != 0; mask &= mask - 1) {
      const auto peer = static_cast<std::uint32_t>(std::countr_zero(mask));
      const std::uint64_t one = std::uint64_t{1} << peer;
      const std::uint32_t lane = best_lane(peer);
      if (lane == kNoIndex) {  // told when it connects
        agent.up_pending &= ~one;
        agent.down_pending &= ~one;
        continue;
      }
      const AgentInfo& info = agent.info;
      const bool done = agent.leaving
                            ? post(lane, wire::AgentDown{info.tenant, info.name})
                            : post(lane, wire::AgentUp{info.tenant, info.name, info.role, info.accepted,
                                                       info.tokenizer, info.layout, info.compute,
                                                       codecs_.lowrank_code(info.layout)});
      if (!done) {
        owed = true;
        continue;
      }
      ++posted;
      agent.up_pending &= ~one;
      if (agent.leaving) agent.down_pending &= ~one;
    }
    if (agent.leaving && agent.down_pending == 0) agents_.erase(handle);
  });
  announce_dirty_ = owed;
  return posted;
}

void Node::Core::on_agent_up(std::uint32_t lane, const wire::AgentUp& message) noexcept {
  const std::uint32_t peer = lane_at(lane)->peer;
  const AgentKey key{message.tenant, message.agent};
  const AgentWhere* known = directory_.find(key);
  if (known != nullptr && known->local.valid()) {
    ++counters_.unknown_messages;  // the name is taken here; ours is the one that local senders mean
    return;
  }
  RemoteAgent* agent = nullptr;
  if (known != nullptr) {
    agent = remotes_.get(remotes_.handle_at(known->remote));
  } else {
    const Handle<RemoteAgent> handle = remotes_.try_emplace();
    if (!handle.valid() || directory_.insert(key, AgentWhere{AgentHandle{}, handle.index}) == nullptr) {
      if (handle.valid()) remotes_.erase(handle);
      ++counters_.unknown_messages;
      return;
    }
    agent = remotes_.get(handle);
  }
  *agent = RemoteAgent{message.tenant, message.agent,  peer,           message.role,    message.accepted,
                       message.tokenizer, message.layout, message.compute, message.lowrank, now_};
}

void Node::Core::on_agent_down(std::uint32_t lane, const wire::AgentDown& message) noexcept {
  const std::uint32_t peer = lane_at(lane)->peer;
  const AgentKey key{message.tenant, message.agent};
  const AgentWhere* known = directory_.find(key);
  if (known == nullptr || known->local.valid()) return;
  const Handle<RemoteAgent> handle = remotes_.handle_at(known->remote);
  if (remotes_.get(handle)->peer != peer) return;  // it has moved to another node since
  end_reservations_to(message.tenant, message.agent, peer);
  remotes_.erase(handle);
  directory_.erase(key);
}

void Node::Core::forget_agents_of(std::uint32_t peer, TimeNs before) noexcept {
  remotes_.for_each([&](Handle<RemoteAgent> handle, RemoteAgent& agent) {
    if (agent.peer != peer || agent.confirmed_ns >= before) return;
    end_reservations_to(agent.tenant, agent.name, peer);
    directory_.erase(AgentKey{agent.tenant, agent.name});
    remotes_.erase(handle);
  });
}

}  // namespace kvrail::engine
