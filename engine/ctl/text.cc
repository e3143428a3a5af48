// The text of kvrailctl: aligned columns, units that a person reads.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "engine/core/tier_port.h"
#include "engine/ctl/views.h"

namespace kvrail::engine::ctl {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 256> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), pattern, args...);
  return std::string(buffer.data(), length > 0 ? std::min<std::size_t>(static_cast<std::size_t>(length), buffer.size() - 1) : 0);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? format("%" PRIu64 " B", bytes) : format("%.1f %s", value, kUnits[unit]);
}

std::string rate_text(std::uint64_t bytes_per_s) {
  return bytes_per_s == 0 ? "-" : format("%.1f MB/s", static_cast<double>(bytes_per_s) * 1e-6);
}

std::string time_text(std::int64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 0) return "-";
  if (ns < 1'000'000) return format("%.1f us", value * 1e-3);
  if (ns < 1'000'000'000) return format("%.2f ms", value * 1e-6);
  return format("%.2f s", value * 1e-9);
}

std::string number(std::uint64_t value) { return std::to_string(value); }
std::string text_of(const Name& name) { return std::string(name.view()); }
std::string medium_text(Medium medium) { return std::string(medium_name(medium)); }

using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string list_or(const std::vector<Row>& rows, const char* none) {
  return rows.size() > 1 ? table(rows) : std::string(none) + "\n";
}

// The nodes that there is, or was, a lane to.
std::string nodes_text(const StatusData& data) {
  std::vector<Row> peers{{"PEER", "STATE", "HEARD", "RECEIVE MEMORY FREE"}};
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.peer_count, kStatusPeers); ++i) {
    const StatusPeer& peer = data.peers[i];
    peers.push_back({node_text(peer.node), peer.up != 0 ? "up" : "down", time_text(peer.last_heard_ago_ns) + " ago", bytes_text(peer.receive_bytes_free)});
  }
  return list_or(peers, "no peers");
}

template <std::size_t N>
std::string text_of(const char (&bytes)[N]) {
  return std::string(bytes, ::strnlen(bytes, N));
}

std::string peers_text(const StatusData& data) {
  std::vector<Row> rows{{"CONFIGURED", "TRANSPORT", "STATE", "FOR", "LAST ERROR"}};
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.dial_count, kStatusDials); ++i) {
    const StatusDial& dial = data.dials[i];
    rows.push_back({text_of(dial.address), text_of(dial.transport), dial.up != 0 ? "connected" : "connecting",
                    time_text(data.refreshed_ns - dial.since_ns), dial.why[0] != '\0' ? text_of(dial.why) : "-"});
  }
  return list_or(rows, "no peers are configured") + "\n" + nodes_text(data);
}

std::string contexts_text(const StatusData& data) {
  std::vector<Row> rows{{"TENANT", "OWNER", "CONTEXT", "VERSION", "TOKENS", "KV", "EPSILON", "HELD BY", "WHERE"}};
  const auto shown = std::min<std::uint64_t>(data.context_count, kStatusContexts);
  for (std::uint64_t i = 0; i < shown; ++i) {
    const StatusContext& row = data.contexts[i];
    rows.push_back({text_of(row.tenant), text_of(row.owner), text_of(row.context), number(row.version), number(row.tokens),
                    bytes_text(row.kv_bytes), format("%.6f", row.epsilon_ppm * 1e-6), number(row.pins), place_name(row.place)});
  }
  std::string out = list_or(rows, "no contexts");
  if (shown < data.context_count) out += number(data.context_count - shown) + " more\n";
  return out;
}

std::string tiers_text(const StatusData& data) {
  const StatusCounters& c = data.counters;
  std::string out = format("memory  %s, %s free; %" PRIu64 " contexts, of %" PRIu64 " of them the token ids only\n",
                           bytes_text(data.receive_bytes_total).c_str(), bytes_text(data.receive_bytes_free).c_str(), data.context_count, data.stubs);
  const StatusTier& tier = data.tier;
  if (tier.present == 0) return out + "no tier ([offload] directory in the configuration)\n";
  const std::vector<Row> rows{
      {"tier", tier_state_name(tier.state), bytes_text(tier.used_bytes) + " of " + bytes_text(tier.capacity_bytes), number(tier.blocks) + " blocks"},
      {"written", number(tier.puts) + " blocks", bytes_text(tier.bytes_written), rate_text(tier.write_bytes_per_s)},
      {"read", number(tier.gets) + " blocks", bytes_text(tier.bytes_read), rate_text(tier.read_bytes_per_s)},
      {"trouble", number(tier.refused) + " refused", number(tier.damaged) + " damaged", number(tier.quarantined) + " files put aside"},
      {"contexts written", number(c.offloads) + " ok", number(c.offloads_failed) + " failed", ""},
      {"contexts back", number(c.restores) + " ok", number(c.restores_failed) + " failed", bytes_text(c.restored_bytes)}};
  return out + table(rows);
}

std::string prefetch_text(const StatusData& data) {
  const StatusPrefetch& p = data.prefetch;
  std::vector<Row> rows{{"AGENT", "OWNER", "CONTEXT", "IN", "PROBABILITY", "STATE"}};
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(data.expected_count, kStatusExpected); ++i) {
    const StatusExpected& row = data.expected[i];
    rows.push_back({text_of(row.agent), text_of(row.owner), text_of(row.context), row.in_ns < 0 ? "overdue" : time_text(row.in_ns),
                    format("%.2f", row.probability_ppm * 1e-6), step_name(row.step)});
  }
  return format("%" PRIu64 " used (%" PRIu64 " of them late), %" PRIu64 " wasted; ", p.used, p.late, p.wasted) + bytes_text(p.used_bytes) +
         " used, " + bytes_text(p.wasted_bytes) + " wasted\n" + list_or(rows, "nothing is expected");
}

std::string status_text(const StatusData& data) {
  const StatusCounters& c = data.counters;
  std::vector<Row> rows{
      {"node", node_text(data.node), "incarnation " + node_text(data.incarnation)},
      {"up for", time_text(data.refreshed_ns - data.started_ns), data.draining != 0 ? "draining" : "serving"},
      {"policy", data.policy == 0 ? "adaptive" : medium_text(static_cast<Medium>(data.policy)), ""},
      {"receive memory", bytes_text(data.receive_bytes_total), bytes_text(data.receive_bytes_free) + " free, " + bytes_text(data.leased_bytes) + " leased"},
      {"store", number(data.versions) + " versions", number(data.blocks) + " blocks, " + number(data.deliveries) + " deliveries"},
      {"open transfers", number(data.active_out) + " out", number(data.active_in) + " in"},
      {"transfers out", number(c.transfers_out_ok) + " ok", number(c.transfers_out_failed) + " failed"},
      {"transfers in", number(c.transfers_in_ok) + " ok", number(c.transfers_in_failed) + " failed, " + number(c.transfers_cut) + " cut by their deadline"},
      {"local", number(c.local_deliveries) + " deliveries", number(c.commits) + " commits"},
      {"payload", bytes_text(c.payload_bytes_out) + " out", bytes_text(c.payload_bytes_in) + " in"},
      {"copied", bytes_text(c.copied_bytes), ""},
      {"codecs", bytes_text(c.encoded_bytes) + " encoded", bytes_text(c.decoded_bytes) + " decoded"},
      {"answers", number(c.laters) + " later", number(c.rejects) + " rejects"},
      {"lineages", number(c.lineages_kept) + " kept by their floor, " + number(c.lineages_below) + " below it",
       number(c.refreshes) + " refreshes of " + bytes_text(c.refreshed_bytes) + ", " + number(c.refreshes_failed) + " failed or gave way"},
      {"suspended", number(c.suspensions) + " times", number(c.resumes) + " resumed after a loss"},
      {"faults", number(c.corrupt_units) + " corrupt units", number(c.malformed_frames) + " malformed frames, " + number(c.lane_losses) + " lane losses, " + number(c.peer_deaths) + " peer deaths"},
  };
  return table(rows) + "\n" + nodes_text(data);
}

std::string agents_text(const StatusData& data) {
  std::vector<Row> rows{{"TENANT", "AGENT", "NODE", "ROLE", "STATE", "BLOCK", "PREFILL/TOKEN", "SENDS", "DELIVERIES"}};
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.agent_count, kStatusAgents); ++i) {
    const StatusAgent& agent = data.agents[i];
    rows.push_back({text_of(agent.tenant), text_of(agent.name), node_text(agent.node), number(agent.role), agent.live != 0 ? "live" : "gone",
                    bytes_text(agent.block_bytes), time_text(static_cast<std::int64_t>(agent.prefill_per_token_ns)), number(agent.sends), number(agent.deliveries)});
  }
  return list_or(rows, "no agents");
}

std::string lanes_text(const StatusData& data) {
  std::vector<Row> rows{{"PEER", "TRANSPORT", "STATE", "CAPACITY", "PLANNED", "ROUND TRIP", "IN FLIGHT", "QUEUED", "CHUNK", "RESERVED", "SENT", "RECEIVED", "FAULTS"}};
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.lane_count, kStatusLanes); ++i) {
    const StatusLane& lane = data.lanes[i];
    rows.push_back({node_text(lane.peer), text_of(lane.transport), lane.up != 0 ? "up" : "down",
                    rate_text(lane.capacity_bytes_per_s), rate_text(lane.planning_bytes_per_s), time_text(lane.round_trip_ns),
                    bytes_text(lane.in_flight_bytes) + " of " + bytes_text(lane.in_flight_limit_bytes), bytes_text(lane.queued_bytes), bytes_text(lane.chunk_bytes), rate_text(lane.reserved_bytes_per_s),
                    bytes_text(lane.bytes_sent), bytes_text(lane.bytes_received), number(lane.malformed + lane.digest_failures)});
  }
  return list_or(rows, "no lanes");
}

std::string reservations_text(const StatusData& data) {
  std::vector<Row> rows{{"RESERVATION", "TENANT", "AGENT", "TO", "PEER", "STATE", "BYTES", "PERIOD", "OFFSET", "SERVED", "USED UP"}};
  for (std::uint32_t i = 0; i < std::min<std::size_t>(data.reservation_count, kStatusReservations); ++i) {
    const StatusReservation& it = data.reservations[i];
    rows.push_back({number(it.id), text_of(it.tenant), text_of(it.agent), text_of(it.to), node_text(it.peer), it.up != 0 ? "up" : "no lane",
                    bytes_text(it.bytes), time_text(it.period_ns), time_text(it.offset_ns), bytes_text(it.served_bytes), number(it.exhausted)});
  }
  return list_or(rows, "no reservations");
}

std::string tasks_text(const StatusData& data) {
  std::vector<Row> rows{{"TASK", "WORKFLOW", "AGENT", "STATE", "TIME", "DEADLINE", "TRANSFERS", "BYTES"}};
  for_each_task(data, [&](const StatusTask& task) {
    const std::int64_t end_ns = task.ended_ns != 0 ? task.ended_ns : data.refreshed_ns;
    rows.push_back({format("%" PRIu64, task.task), text_of(task.workflow), text_of(task.agent), task.ended_ns != 0 ? "ended" : "open",
                    time_text(end_ns - task.begun_ns), task.deadline_ns == 0 ? "-" : time_text(task.deadline_ns - task.begun_ns), number(task.transfers), bytes_text(task.bytes)});
  });
  return list_or(rows, "no tasks");
}

std::string transfers_text(const StatusData& data) {
  std::vector<Row> rows{{"TRANSFER", "WAY", "FROM", "TO", "CONTEXT", "VERSION", "MEDIUM", "WHY", "MISSING", "BYTES", "PREDICTED", "OBSERVED", "STATUS"}};
  for_each_transfer(data, [&](const StatusTransfer& row) {
    rows.push_back({format("%" PRIu64, row.transfer), direction_name(row.direction), text_of(row.from), text_of(row.to), text_of(row.context), number(row.version),
                    medium_text(row.medium), row.line_count != 0 ? reason_name(row.reason) : "-", number(row.missing_blocks) + "/" + number(row.total_blocks),
                    bytes_text(row.bytes), time_text(row.predicted_ns), time_text(row.observed_ns), name(row.status.code)});
  });
  return list_or(rows, "no transfers");
}

// Why a row has no table of costs.
std::string no_costs_text(const StatusData& data, const StatusTransfer& row) {
  switch (row.direction) {
    case StatusDirection::local: return "within the node: the receiver got a reference, no cost was weighed";
    case StatusDirection::in: return "it ended before its medium was chosen, so no cost was weighed";
    case StatusDirection::out: break;
  }
  return "the choice was made by the receiver, ask its engine: kvrailctl explain " + number(row.transfer) +
         " --way in --peer " + node_text(data.node);
}

constexpr const char* kCostLegend =
    "\n"
    "  total = (wait + encode, transmit and decode, which overlap, + recompute) x how predictions came true so far\n"
    "  cost  = weight of the transfer x (total + loss) + price; the least is chosen (docs/scheduling.md)\n";

}  // namespace

std::string node_text(std::uint64_t node) { return node == 0 ? "local" : format("0x%016" PRIx64, node); }

const char* place_name(StatusPlace place) noexcept {
  switch (place) {
    case StatusPlace::memory: return "memory";
    case StatusPlace::both: return "memory and tier";
    case StatusPlace::left: return "left";
    case StatusPlace::ids: return "ids";
  }
  return "?";
}

const char* step_name(StatusExpected::Step step) noexcept {
  switch (step) {
    case StatusExpected::Step::waiting: return "waiting";
    case StatusExpected::Step::coming: return "coming";
    case StatusExpected::Step::here: return "here";
  }
  return "?";
}

const char* tier_state_name(std::uint8_t state) noexcept {
  switch (static_cast<TierState>(state)) {
    case TierState::recovering: return "recovering";
    case TierState::ready: return "ready";
    case TierState::slow: return "slow";
    case TierState::failed: return "failed";
  }
  return "?";
}

const char* direction_name(StatusDirection direction) noexcept {
  switch (direction) {
    case StatusDirection::out: return "out";
    case StatusDirection::in: return "in";
    case StatusDirection::local: return "local";
  }
  return "?";
}

const char* reason_name(std::uint8_t reason) noexcept {
  // In the order of scheduler::PickReason; this program does not link the scheduler.
  constexpr std::array<const char*, 5> kNames{"least cost", "kept by hysteresis", "only one", "wished", "none allowed"};
  return reason < kNames.size() ? kNames[reason] : "?";
}

std::string text_of(const StatusData& data, View view) {
  switch (view) {
    case View::status: return status_text(data);
    case View::agents: return agents_text(data);
    case View::lanes: return lanes_text(data);
    case View::peers: return peers_text(data);
    case View::tasks: return tasks_text(data);
    case View::transfers: return transfers_text(data);
    case View::reservations: return reservations_text(data);
    case View::contexts: return contexts_text(data);
    case View::tiers: return tiers_text(data);
    case View::prefetch: return prefetch_text(data);
  }
  return {};
}

std::string text_of(const StatusData& data, const StatusTransfer& row) {
  std::string out = format("transfer %" PRIu64 " (%s): ", row.transfer, direction_name(row.direction));
  out += std::string("'") + text_of(row.context) + "' version " + number(row.version) + " from " + text_of(row.from) + " to " + text_of(row.to) + "\n";
  out += "  task " + (row.task == 0 ? "-" : number(row.task)) + ", peer " + node_text(row.peer_node) +
         (row.critical != 0 ? ", critical" : row.background != 0 ? ", background" : "") + (row.eager != 0 ? ", eager" : "") +
         (row.resumed != 0 ? ", resumed" : "") + (row.reservation != 0 ? ", by reservation " + number(row.reservation) : "") + "\n";
  out += "  urgency " + format("%.3f", static_cast<double>(row.urgency_milli) * 1e-3) + ", level " + number(row.level) +
         (row.suspensions != 0 ? ", made way for others " + number(row.suspensions) + " times" : "") + "\n";
  out += "  " + number(row.total_tokens) + " tokens in " + number(row.total_blocks) + " blocks, " + number(row.missing_blocks) + " missing at the receiver\n";
  out += "  sent as " + medium_text(row.medium) + " (wish: " + medium_text(row.wish) + "), " + bytes_text(row.bytes) +
         format(", epsilon %.6f (fidelity %.4f)", row.epsilon_ppm * 1e-6, std::exp(-row.epsilon_ppm * 1e-6)) + "\n";
  if (row.floor_ppm != 0) {
    out += format("  lineage: epsilon %.6f at the sender, floor %.4f: what is held or offered below it counts as missing", row.source_epsilon_ppm * 1e-6, row.floor_ppm * 1e-6) +
           (std::exp(-row.source_epsilon_ppm * 1e-6) < row.floor_ppm * 1e-6 ? "; restored here\n" : "\n");
  }
  out += "  predicted " + time_text(row.predicted_ns) + ", observed " + time_text(row.observed_ns) + ", recomputed in " + time_text(row.recompute_ns) +
         ", ended " + name(row.status.code) + "\n";
  if (row.line_count == 0) return out + "  " + no_costs_text(data, row) + "\n";
  out += std::string("  chosen for: ") + reason_name(row.reason) + "\n\n";
  std::vector<Row> rows{{"MEDIUM", "BYTES", "WAIT", "ENCODE", "TRANSMIT", "DECODE", "RECOMPUTE", "LOSS", "PRICE", "TOTAL", "COST", ""}};
  for (std::uint32_t i = 0; i < std::min<std::size_t>(row.line_count, kStatusCostLines); ++i) {
    const StatusCostLine& line = row.lines[i];
    const std::string why = line.chosen != 0 ? "chosen"
                            : line.allowed == 0 ? std::string(line.why_not, ::strnlen(line.why_not, sizeof(line.why_not)))
                                                : "";
    rows.push_back({medium_text(line.medium), bytes_text(line.bytes), time_text(line.wait_ns), time_text(line.encode_ns), time_text(line.transmit_ns),
                    time_text(line.decode_ns), time_text(line.recompute_ns), time_text(line.loss_ns), time_text(line.price_ns), time_text(line.total_ns),
                    time_text(line.cost_ns), why});
  }
  return out + table(rows) + kCostLegend;
}

}  // namespace kvrail::engine::ctl
