#include "transport/verbs/port_choice.h"

#include <algorithm>
#include <tuple>

namespace kvrail::transport::verbs {
namespace {

bool is_zero(const Gid& gid) noexcept {
  return std::all_of(gid.begin(), gid.end(), [](std::uint8_t byte) { return byte == 0; });
}

bool is_link_local(const Gid& gid) noexcept {
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

bool is_wished(const PortView& port, const PortWish& wish) noexcept {
  return wish.devices.empty() ||
         std::find(wish.devices.begin(), wish.devices.end(), port.device) != wish.devices.end();
}

bool reaches(const PortView& port, const GidEntry& entry, const PortWish& wish) noexcept {
  // Only RoCE's GIDs are IP addresses; elsewhere the connection manager maps the peer's.
  return port.link != LinkKind::ethernet || is_v4(entry.gid) == wish.v4_peer ||
         entry.kind == GidKind::roce_v1;
}

}  // namespace

bool is_v4(const Gid& gid) noexcept {
  return std::all_of(gid.begin(), gid.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

GidRank rank_of(const GidEntry& entry) noexcept {
  if (is_zero(entry.gid)) return GidRank::unusable;
  if (entry.kind == GidKind::infiniband) return GidRank::fabric;
  if (entry.kind == GidKind::roce_v1) return GidRank::legacy;
  if (is_v4(entry.gid)) return GidRank::routable_v4;
  return is_link_local(entry.gid) ? GidRank::link_local : GidRank::routable_v6;
}

std::vector<PortChoice> rank_ports(std::span<const PortView> ports, const PortWish& wish) {
  std::vector<PortChoice> choices;
  for (std::size_t p = 0; p < ports.size(); ++p) {
    if (!ports[p].active || !is_wished(ports[p], wish)) continue;
    for (std::size_t g = 0; g < ports[p].gids.size(); ++g) {
      const GidRank rank = rank_of(ports[p].gids[g]);
      if (rank == GidRank::unusable || !reaches(ports[p], ports[p].gids[g], wish)) continue;
      choices.push_back({p, g, rank});
    }
  }
  std::stable_sort(choices.begin(), choices.end(), [&](const PortChoice& a, const PortChoice& b) {
    const auto key = [&](const PortChoice& choice) {
      const PortView& port = ports[choice.port];
      const bool far = wish.numa_node >= 0 && port.numa_node != wish.numa_node;
      return std::tuple(choice.rank, far, ~port.rate_bits_per_s);
    };
    return key(a) < key(b);
  });
  return choices;
}

}  // namespace kvrail::transport::verbs
