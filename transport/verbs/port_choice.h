// Which device, port and GID: a pure ranking over what the devices say, so that canned tables of
// real machines are tests. The commonest way for RDMA not to work at all is GID 0 of a RoCE port,
// which is a link-local address that no route leads to.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvrail::transport::verbs {

enum class LinkKind : std::uint8_t { infiniband, ethernet, iwarp };
enum class GidKind : std::uint8_t { infiniband, roce_v1, roce_v2 };

using Gid = std::array<std::uint8_t, 16>;

struct GidEntry {
  Gid gid{};
  std::uint32_t index = 0;
  GidKind kind = GidKind::roce_v2;
};

struct PortView {
  std::string device;
  std::uint8_t port = 1;
  bool active = true;
  LinkKind link = LinkKind::ethernet;
  std::uint32_t mtu_bytes = 1024;
  std::uint64_t rate_bits_per_s = 0;
  int numa_node = -1;  // -1: unknown
  std::vector<GidEntry> gids;
};

/// How an address reaches others, best first.
enum class GidRank : std::uint8_t {
  routable_v4,  // RoCE v2, an IPv4 address mapped into the GID
  routable_v6,  // RoCE v2, an IPv6 address that is routed
  fabric,       // InfiniBand and iWARP: the port's own
  link_local,   // RoCE v2, fe80::/10: this segment only
  legacy,       // RoCE v1: no IP, this segment only
  unusable,     // all zero
};
[[nodiscard]] GidRank rank_of(const GidEntry& entry) noexcept;
/// The GID is an IPv4 address in the form ::ffff:a.b.c.d.
[[nodiscard]] bool is_v4(const Gid& gid) noexcept;

struct PortWish {
  std::vector<std::string> devices;  // empty: any
  int numa_node = -1;                // where the memory is; -1: don't care
  bool v4_peer = true;               // an IPv6 peer needs an IPv6 GID, and the other way round
};
struct PortChoice {
  std::size_t port = 0;  // index into the views
  std::size_t gid = 0;   // index into its GIDs
  GidRank rank = GidRank::unusable;
};
/// The usable (port, GID) pairs, best first: GID rank, then NUMA node, then rate, then table order.
/// Ports that are down, and devices that were not wished for, are left out.
[[nodiscard]] std::vector<PortChoice> rank_ports(std::span<const PortView> ports,
                                                 const PortWish& wish);

}  // namespace kvrail::transport::verbs
