// Which port and GID, from tables as real machines have them.
#include "transport/verbs/port_choice.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>

namespace kvrail::transport::verbs {
namespace {

Gid gid(const char* text) {
  Gid out{};
  REQUIRE(::inet_pton(AF_INET6, text, out.data()) == 1);
  return out;
}

GidEntry entry(std::uint32_t index, const char* text, GidKind kind = GidKind::roce_v2) {
  return {gid(text), index, kind};
}

PortView roce(const char* device, std::vector<GidEntry> gids) {
  PortView port;
  port.device = device;
  port.rate_bits_per_s = 100'000'000'000;
  port.gids = std::move(gids);
  return port;
}

std::uint32_t best_index(const std::vector<PortView>& ports, const PortWish& wish = {}) {
  const auto ranked = rank_ports(ports, wish);
  REQUIRE_FALSE(ranked.empty());
  return ports[ranked[0].port].gids[ranked[0].gid].index;
}

}  // namespace

TEST_CASE("soft-RoCE: index 0 is link-local, the IPv4 one is meant") {
  const std::vector<PortView> ports{
      roce("rxe0", {entry(0, "fe80::5054:ff:fe77:10"), entry(1, "::ffff:10.77.0.10"),
                    entry(2, "fec0::5054:ff:fe77:10")})};
  CHECK(best_index(ports) == 1);
  CHECK(rank_ports(ports, {}).size() == 1);  // an IPv4 peer is not reached from the IPv6 ones
  CHECK(best_index(ports, {.devices = {}, .numa_node = -1, .v4_peer = false}) == 2);
}

TEST_CASE("ConnectX: v1 and v2 of each address, IPv4 behind IPv6") {
  const std::vector<PortView> ports{
      roce("mlx5_0", {entry(0, "fe80::1", GidKind::roce_v1), entry(1, "fe80::1"),
                      entry(2, "::ffff:10.0.0.5", GidKind::roce_v1), entry(3, "::ffff:10.0.0.5"),
                      entry(4, "2001:db8::5", GidKind::roce_v1), entry(5, "2001:db8::5")})};
  CHECK(best_index(ports) == 3);
  const PortWish six{.devices = {}, .numa_node = -1, .v4_peer = false};
  CHECK(best_index(ports, six) == 5);
  const auto ranked = rank_ports(ports, six);
  CHECK(ports[0].gids[ranked[1].gid].index == 1);  // link-local before what has no IP at all
  CHECK(ranked.back().rank == GidRank::legacy);
}

TEST_CASE("only IPv6, and only link-local") {
  const std::vector<PortView> six{roce("a", {entry(0, "fe80::1"), entry(1, "fd00::7")})};
  CHECK(best_index(six, {.devices = {}, .numa_node = -1, .v4_peer = false}) == 1);
  CHECK(rank_ports(six, {}).empty());
  const std::vector<PortView> local{roce("a", {entry(0, "fe80::1")})};
  CHECK(rank_ports(local, {.devices = {}, .numa_node = -1, .v4_peer = false})[0].rank ==
        GidRank::link_local);
}

TEST_CASE("ports that are down, empty GIDs and other devices are left out") {
  std::vector<PortView> ports{
      roce("down", {entry(0, "::ffff:10.0.0.1")}), roce("empty", {entry(0, "::")}),
      roce("other", {entry(7, "::ffff:10.0.0.2")}), roce("mine", {entry(9, "::ffff:10.0.0.3")})};
  ports[0].active = false;
  CHECK(best_index(ports) == 7);
  CHECK(best_index(ports, {.devices = {"mine", "down"}, .numa_node = -1, .v4_peer = true}) == 9);
  CHECK(rank_ports(ports, {.devices = {"absent"}, .numa_node = -1, .v4_peer = true}).empty());
}

TEST_CASE(
    "of equal GIDs the near one, of equally near ones the fast one, of equal ones the first") {
  std::vector<PortView> ports{
      roce("far", {entry(0, "::ffff:10.0.0.1")}), roce("slow", {entry(1, "::ffff:10.0.0.2")}),
      roce("fast", {entry(2, "::ffff:10.0.0.3")}), roce("twin", {entry(3, "::ffff:10.0.0.4")})};
  ports[0].numa_node = 0;
  for (const std::size_t i : {1u, 2u, 3u}) ports[i].numa_node = 1;
  ports[1].rate_bits_per_s /= 4;
  CHECK(best_index(ports, {.devices = {}, .numa_node = 1, .v4_peer = true}) == 2);
  CHECK(best_index(ports, {.devices = {}, .numa_node = 0, .v4_peer = true}) == 0);
  CHECK(best_index(ports) == 0);  // no memory to be near to
}

TEST_CASE("InfiniBand and iWARP have their own GIDs, whatever the peer's address") {
  PortView ib = roce("ib0", {entry(0, "fe80::2:c903:0:1", GidKind::infiniband)});
  ib.link = LinkKind::infiniband;
  for (const bool v4 : {true, false}) {
    const std::vector<PortView> ports{ib};
    const auto ranked = rank_ports(ports, {.devices = {}, .numa_node = -1, .v4_peer = v4});
    REQUIRE(ranked.size() == 1);
    CHECK(ranked[0].rank == GidRank::fabric);
  }
}

}  // namespace kvrail::transport::verbs
