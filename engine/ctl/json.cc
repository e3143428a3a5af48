// The JSON of kvrailctl. Ids are strings, because JSON readers keep only 53 bits of a number.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/ctl/views.h"

namespace kvrail::engine::ctl {
namespace {

using Json = nlohmann::ordered_json;

std::string text(const Name& name) { return std::string(name.view()); }
std::string id(std::uint64_t value) { return std::to_string(value); }
std::string medium(Medium value) { return std::string(medium_name(value)); }

template <std::size_t N>
std::string text(const char (&bytes)[N]) {
  return std::string(bytes, ::strnlen(bytes, N));
}

// Names are bytes that agents chose; what is not UTF-8 becomes a replacement character.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Json counters_of(const StatusCounters& c) {
  return {{"duty_cycles", c.duty_cycles}, {"commits", c.commits}, {"sends", c.sends},
          {"transfers_out_ok", c.transfers_out_ok}, {"transfers_out_failed", c.transfers_out_failed},
          {"transfers_in_ok", c.transfers_in_ok}, {"transfers_in_failed", c.transfers_in_failed}, {"transfers_cut", c.transfers_cut},
          {"local_deliveries", c.local_deliveries}, {"eager_transfers", c.eager_transfers},
          {"delta_transfers", c.delta_transfers}, {"payload_bytes_out", c.payload_bytes_out},
          {"payload_bytes_in", c.payload_bytes_in}, {"copied_bytes", c.copied_bytes},
          {"encoded_bytes", c.encoded_bytes}, {"decoded_bytes", c.decoded_bytes}, {"foreign_encodings", c.foreign_encodings}, {"laters", c.laters},
          {"rejects", c.rejects}, {"queries", c.queries}, {"resumes", c.resumes}, {"suspensions", c.suspensions},
          {"corrupt_units", c.corrupt_units}, {"lane_losses", c.lane_losses}, {"peer_deaths", c.peer_deaths},
          {"peer_restarts", c.peer_restarts}, {"duplicate_lanes", c.duplicate_lanes},
          {"malformed_frames", c.malformed_frames}, {"unknown_messages", c.unknown_messages},
          {"posts_refused", c.posts_refused}, {"events_deferred", c.events_deferred},
          {"offloads", c.offloads}, {"offloads_failed", c.offloads_failed}, {"restores", c.restores},
          {"restores_failed", c.restores_failed}, {"restored_bytes", c.restored_bytes}, {"prefetches", c.prefetches},
          {"lineages_kept", c.lineages_kept}, {"lineages_below", c.lineages_below}, {"refreshes", c.refreshes},
          {"refreshes_forced", c.refreshes_forced}, {"refreshes_failed", c.refreshes_failed}, {"refreshed_bytes", c.refreshed_bytes},
          {"turns_expected", c.turns_expected}, {"turns_told", c.turns_told}, {"workflows_refused", c.workflows_refused}};
}

Json nodes_of(const StatusData& data) {
  Json peers = Json::array();
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.peer_count, kStatusPeers); ++i) {
    const StatusPeer& peer = data.peers[i];
    peers.push_back({{"node", id(peer.node)}, {"incarnation", id(peer.incarnation)}, {"up", peer.up != 0},
                     {"last_heard_ago_ns", peer.last_heard_ago_ns}, {"receive_bytes_free", peer.receive_bytes_free},
                     {"receive_bytes_total", peer.receive_bytes_total}, {"nic_backlog_ns", peer.nic_backlog_ns},
                     {"nic_price_ppm", peer.nic_price_ppm}, {"compute_price_ppm", peer.compute_price_ppm}});
  }
  return peers;
}

Json peers_of(const StatusData& data) {
  Json rows = Json::array();
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.dial_count, kStatusDials); ++i) {
    const StatusDial& dial = data.dials[i];
    rows.push_back({{"address", text(dial.address)}, {"transport", text(dial.transport)}, {"connected", dial.up != 0},
                    {"for_ns", data.refreshed_ns - dial.since_ns}, {"last_error", text(dial.why)}});
  }
  return {{"configured", rows}, {"nodes", nodes_of(data)}};
}

Json status_of(const StatusData& data) {
  return {{"node", id(data.node)}, {"incarnation", id(data.incarnation)},
          {"up_ns", data.refreshed_ns - data.started_ns}, {"draining", data.draining != 0},
          {"policy", data.policy == 0 ? std::string("adaptive") : medium(static_cast<Medium>(data.policy))},
          {"receive_bytes_total", data.receive_bytes_total}, {"receive_bytes_free", data.receive_bytes_free},
          {"leased_bytes", data.leased_bytes}, {"blocks", data.blocks}, {"versions", data.versions},
          {"deliveries", data.deliveries}, {"stagings", data.stagings}, {"active_out", data.active_out},
          {"active_in", data.active_in}, {"counters", counters_of(data.counters)}, {"peers", nodes_of(data)}};
}

Json agents_of(const StatusData& data) {
  Json rows = Json::array();
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.agent_count, kStatusAgents); ++i) {
    const StatusAgent& agent = data.agents[i];
    rows.push_back({{"tenant", text(agent.tenant)}, {"name", text(agent.name)}, {"node", id(agent.node)},
                    {"role", agent.role}, {"live", agent.live != 0}, {"accepted", agent.accepted},
                    {"block_bytes", agent.block_bytes}, {"prefill_per_token_ns", agent.prefill_per_token_ns},
                    {"compute_backlog_ns", agent.compute_backlog_ns}, {"sends", agent.sends},
                    {"deliveries", agent.deliveries}});
  }
  return rows;
}

Json lanes_of(const StatusData& data) {
  Json rows = Json::array();
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.lane_count, kStatusLanes); ++i) {
    const StatusLane& lane = data.lanes[i];
    rows.push_back({{"transport", text(lane.transport)}, {"peer", id(lane.peer)}, {"up", lane.up != 0},
                    {"capacity_bytes_per_s", lane.capacity_bytes_per_s},
                    {"planning_bytes_per_s", lane.planning_bytes_per_s}, {"round_trip_ns", lane.round_trip_ns},
                    {"in_flight_bytes", lane.in_flight_bytes}, {"in_flight_limit_bytes", lane.in_flight_limit_bytes},
                    {"queued_bytes", lane.queued_bytes}, {"chunk_bytes", lane.chunk_bytes},
                    {"reserved_bytes_per_s", lane.reserved_bytes_per_s}, {"held_credits", lane.held_credits},
                    {"bytes_sent", lane.bytes_sent}, {"bytes_received", lane.bytes_received},
                    {"malformed", lane.malformed}, {"digest_failures", lane.digest_failures}});
  }
  return rows;
}

Json reservations_of(const StatusData& data) {
  Json rows = Json::array();
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.reservation_count, kStatusReservations); ++i) {
    const StatusReservation& it = data.reservations[i];
    rows.push_back({{"reservation", it.id}, {"tenant", text(it.tenant)}, {"agent", text(it.agent)}, {"to", text(it.to)},
                    {"peer", id(it.peer)}, {"up", it.up != 0}, {"bytes", it.bytes}, {"period_ns", it.period_ns},
                    {"offset_ns", it.offset_ns}, {"served_bytes", it.served_bytes}, {"exhausted", it.exhausted}});
  }
  return rows;
}

Json tasks_of(const StatusData& data) {
  Json rows = Json::array();
  for_each_task(data, [&](const StatusTask& task) {
    rows.push_back({{"task", id(task.task)}, {"workflow", text(task.workflow)}, {"agent", text(task.agent)},
                    {"begun_ns", task.begun_ns}, {"ended_ns", task.ended_ns}, {"deadline_ns", task.deadline_ns},
                    {"transfers", task.transfers}, {"bytes", task.bytes}});
  });
  return rows;
}

Json line_of(const StatusCostLine& line) {
  return {{"medium", medium(line.medium)}, {"allowed", line.allowed != 0}, {"chosen", line.chosen != 0},
          {"bytes", line.bytes}, {"wait_ns", line.wait_ns}, {"encode_ns", line.encode_ns},
          {"transmit_ns", line.transmit_ns}, {"decode_ns", line.decode_ns}, {"recompute_ns", line.recompute_ns},
          {"loss_ns", line.loss_ns}, {"price_ns", line.price_ns}, {"total_ns", line.total_ns},
          {"cost_ns", line.cost_ns}, {"why_not", text(line.why_not)}};
}

Json transfer_of(const StatusTransfer& row) {
  Json lines = Json::array();
  for (std::uint32_t i = 0; i < std::min<std::size_t>(row.line_count, kStatusCostLines); ++i) {
    lines.push_back(line_of(row.lines[i]));
  }
  return {{"serial", row.serial}, {"transfer", id(row.transfer)}, {"direction", direction_name(row.direction)},
          {"origin_node", id(row.origin_node)}, {"peer_node", id(row.peer_node)}, {"task", id(row.task)},
          {"tenant", text(row.tenant)}, {"from", text(row.from)}, {"to", text(row.to)},
          {"context", text(row.context)}, {"version", row.version}, {"medium", medium(row.medium)},
          {"wish", medium(row.wish)}, {"reason", row.line_count != 0 ? reason_name(row.reason) : ""},
          {"critical", row.critical != 0}, {"background", row.background != 0}, {"eager", row.eager != 0},
          {"resumed", row.resumed != 0}, {"total_tokens", row.total_tokens}, {"total_blocks", row.total_blocks},
          {"missing_blocks", row.missing_blocks}, {"bytes", row.bytes}, {"submitted_ns", row.submitted_ns},
          {"ended_ns", row.ended_ns}, {"predicted_ns", row.predicted_ns}, {"observed_ns", row.observed_ns},
          {"recompute_ns", row.recompute_ns}, {"level", row.level}, {"urgency_milli", row.urgency_milli},
          {"epsilon_ppm", row.epsilon_ppm}, {"source_epsilon_ppm", row.source_epsilon_ppm}, {"floor_ppm", row.floor_ppm}, {"reservation", row.reservation}, {"suspensions", row.suspensions}, {"status", name(row.status.code)}, {"detail", row.status.detail},
          {"lines", lines}};
}

Json contexts_of(const StatusData& data) {
  Json rows = Json::array();
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(data.context_count, kStatusContexts); ++i) {
    const StatusContext& row = data.contexts[i];
    rows.push_back({{"tenant", text(row.tenant)}, {"owner", text(row.owner)}, {"context", text(row.context)},
                    {"version", row.version}, {"tokens", row.tokens}, {"kv_bytes", row.kv_bytes}, {"pins", row.pins},
                    {"epsilon_ppm", row.epsilon_ppm}, {"where", place_name(row.place)}});
  }
  return {{"count", data.context_count}, {"contexts", rows}};
}

Json tiers_of(const StatusData& data) {
  const StatusTier& tier = data.tier;
  Json out = {{"receive_bytes_total", data.receive_bytes_total}, {"receive_bytes_free", data.receive_bytes_free},
              {"contexts", data.context_count}, {"stubs", data.stubs}, {"offloads", data.counters.offloads},
              {"offloads_failed", data.counters.offloads_failed}, {"restores", data.counters.restores},
              {"restores_failed", data.counters.restores_failed}, {"restored_bytes", data.counters.restored_bytes}, {"tier", nullptr}};
  if (tier.present == 0) return out;
  out["tier"] = {{"state", tier_state_name(tier.state)}, {"capacity_bytes", tier.capacity_bytes}, {"used_bytes", tier.used_bytes},
                 {"blocks", tier.blocks}, {"puts", tier.puts}, {"gets", tier.gets}, {"bytes_written", tier.bytes_written},
                 {"bytes_read", tier.bytes_read}, {"refused", tier.refused}, {"damaged", tier.damaged},
                 {"quarantined", tier.quarantined}, {"read_bytes_per_s", tier.read_bytes_per_s},
                 {"write_bytes_per_s", tier.write_bytes_per_s}};
  return out;
}

Json prefetch_of(const StatusData& data) {
  Json rows = Json::array();
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(data.expected_count, kStatusExpected); ++i) {
    const StatusExpected& row = data.expected[i];
    rows.push_back({{"agent", text(row.agent)}, {"owner", text(row.owner)}, {"context", text(row.context)}, {"in_ns", row.in_ns},
                    {"probability_ppm", row.probability_ppm}, {"state", step_name(row.step)}});
  }
  const StatusPrefetch& p = data.prefetch;
  return {{"used", p.used}, {"late", p.late}, {"wasted", p.wasted}, {"started_bytes", p.started_bytes},
          {"used_bytes", p.used_bytes}, {"wasted_bytes", p.wasted_bytes}, {"expected", rows}};
}

Json transfers_of(const StatusData& data) {
  Json rows = Json::array();
  for_each_transfer(data, [&](const StatusTransfer& row) { rows.push_back(transfer_of(row)); });
  return rows;
}

}  // namespace

std::string json_of(const StatusData& data, View view) {
  switch (view) {
    case View::status: return dump(status_of(data));
    case View::agents: return dump(agents_of(data));
    case View::lanes: return dump(lanes_of(data));
    case View::peers: return dump(peers_of(data));
    case View::tasks: return dump(tasks_of(data));
    case View::transfers: return dump(transfers_of(data));
    case View::reservations: return dump(reservations_of(data));
    case View::contexts: return dump(contexts_of(data));
    case View::tiers: return dump(tiers_of(data));
    case View::prefetch: return dump(prefetch_of(data));
  }
  return {};
}

std::string json_of(const StatusData&, const StatusTransfer& transfer) { return dump(transfer_of(transfer)); }

}  // namespace kvrail::engine::ctl
