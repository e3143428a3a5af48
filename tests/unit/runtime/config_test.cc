#include "engine/config/config.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace kvrail::engine {
namespace {

std::string refusal(std::string_view text) {
  const auto config = parse_config(text, "k.toml");
  return config.ok() ? "accepted" : config.error().message;
}

bool says(std::string_view text, std::string_view part) {
  const std::string message = refusal(text);
  INFO(message);
  return message.find(part) != std::string::npos && message.find('\n') == std::string::npos;
}

TEST_CASE("config / an empty file is the defaults, a full one is read") {
  CHECK(parse_config("", "k.toml").ok());
  const auto config = parse_config(R"(
[node]
id = 7
[runtime]
mode = "dedicated"
idle = "spin"
core = 0
lane_core = 1
slice = "5 ms"
suspend_below_percent = 30
[attach]
socket = "/tmp/a.sock"
[[attach.tenant]]
uid = 1000
name = "red"
[memory]
receive_arena = "1 GiB"
[tcp]
listen = "127.0.0.1:7400"
pacing = "1 Gbit/s"
[transfer]
medium = "int8"
integrity = false
[codec]
profile = "/etc/kvrail/model.profile.toml"
[[peer]]
address = "127.0.0.1:7401"
[[peer]]
address = "/tmp/b.sock"
transport = "shm"
)",
                                   "k.toml");
  REQUIRE_MESSAGE(config.ok(), (config.ok() ? "" : config.error().message));
  const Config& c = config.value();
  CHECK(c.node_id == 7);
  CHECK(c.mode == WorkerMode::dedicated);
  CHECK(c.slice_ns == 5 * kMillisecondNs);
  CHECK(c.suspend_below_percent == 30);
  CHECK(c.receive_arena_bytes == 1ULL << 30);
  CHECK(c.pacing_bytes_per_s == 125'000'000);
  CHECK(c.policy == Medium::int8);
  CHECK_FALSE(c.integrity);
  CHECK(c.profile == "/etc/kvrail/model.profile.toml");
  REQUIRE(c.peers.size() == 2);
  CHECK(c.peers[1].transport == "shm");
  REQUIRE(c.tenants.size() == 1);
  CHECK(c.tenants[0].tenant == "red");
}

TEST_CASE("config / what is wrong is named with file, line, key and remedy, on one line") {
  CHECK(says("[runtime]\nslise = \"10 ms\"\n", "k.toml:2: runtime.slise: unknown key; known here are"));
  CHECK(says("[runtme]\n", "unknown key or section; known are attach"));
  CHECK(says("[runtime]\nslice = 10\n", "runtime.slice: must be a string with a unit"));
  CHECK(says("[runtime]\nslice = \"10\"\n", "needs one of the units ns, us, ms, s, min"));
  CHECK(says("[runtime]\nslice = \"50 ms\"\n", "out of range, allowed is 5 ms to 20 ms"));
  CHECK(says("[memory]\nreceive_arena = \"64G\"\n", "needs one of the units B, KiB, MiB, GiB, TiB"));
  CHECK(says("[memory]\nreceive_arena = \"0 MiB\"\n", "must be greater than zero"));
  CHECK(says("[memory]\nreceive_arena = \"-1 MiB\"\n", "is not a number with a unit"));
  CHECK(says("[memory]\nreceive_arena = \"99999999999999999999 B\"\n", "is too large"));
  CHECK(says("[memory]\nreceive_arena = \"18446744073709551615 TiB\"\n", "is too large"));
  CHECK(says("[memory]\nreceive_arena = \"1e30 B\"\n", "needs one of the units"));
  CHECK(says("[node]\nid = 0\n", "must be a whole number from 1"));
  CHECK(says("[node]\nid = 1\nid = 2\n", "k.toml:3:"));
  CHECK(says("[Node]\nid = 1\n", "unknown key or section"));
  CHECK(says("[node\n", "k.toml:1:"));
  CHECK(says("peer = 3\n", "must be an array of tables"));
  CHECK(says("[[peer]]\naddres = \"x\"\n", "peer.addres: unknown key; known here are address, transport"));
  CHECK(says("[[peer]]\naddress = \"a:1\"\ntransport = \"udp\"\n", "not one of tcp, shm, verbs"));
  CHECK(says("[[peer]]\naddress = \"a:1\"\n[[peer]]\naddress = \"a:1\"\n", "stands twice"));
  CHECK(says("[[attach.tenant]]\nname = \"ghost\"\n", "attach.tenant.uid: missing"));
  CHECK(says("[[attach.tenant]]\nuid = 1\nname = \"a b\"\n", "must not hold spaces"));
  CHECK(says(std::string("a\0b", 3), "holds a zero byte"));
  CHECK(says("\xEF\xBB\xBF[node]\n", "byte order mark"));
  CHECK(says(std::string(2 << 20, ' '), "larger than 1 MiB"));
  CHECK(says("[attach]\nsocket = \"" + std::string(200, 'x') + "\"\n", "longer than 107 bytes"));
  CHECK(says("[transfer]\nkeepalive = \"2 s\"\ndead_after = \"3 s\"\n", "at least twice"));
  CHECK(says("[runtime]\nlane_core = 1\n", "only with runtime.mode"));
}

TEST_CASE("config / what contradicts another setting is named with the lines of both") {
  CHECK(says("[transfer]\nkeepalive = \"2 s\"\ndead_after = \"3 s\"\n", "k.toml:3: transfer.dead_after: must be at least twice"));
  CHECK(says("[transfer]\nkeepalive = \"2 s\"\ndead_after = \"3 s\"\n", "(see line 2 too)"));
  CHECK(says("[transfer]\nkeepalive = \"2 s\"\n", "k.toml:2: transfer.dead_after"));
  CHECK(says("[runtime]\nmode = \"shared\"\nlane_core = 1\n", "k.toml:3: runtime.lane_core: only with runtime.mode"));
  CHECK(says("[runtime]\nmode = \"shared\"\nlane_core = 1\n", "(see line 2 too)"));
  CHECK(says("[runtime]\nmode = \"dedicated\"\ncore = 1\nlane_core = 1\n", "k.toml:4: runtime.lane_core: equals"));
  CHECK(says("[tcp]\ninsecure = true\npsk_file = \"/k\"\n", "k.toml:2: tcp.insecure: contradicts tcp.psk_file"));
  CHECK(says("[tcp]\ninsecure = true\npsk_file = \"/k\"\n", "(see line 3 too)"));
  CHECK(says("[tcp]\nlisten = \"0.0.0.0:1\"\n", "k.toml:2: tcp.listen: "));
  CHECK(says("[transfer]\nmedium = \"window\"\n", "k.toml:2: transfer.medium: window needs transfer.window_tokens"));
  CHECK(says("[transfer]\nmedium = \"topk\"\ntopk_percent = 0\n", "(see line 3 too)"));
  CHECK(says("[transfer]\nsummary_separators = [1]\n", "k.toml:2: transfer.summary_separators: without"));
  CHECK(says("[[peer]]\naddress = \"a:1\"\n[[peer]]\naddress = \"b:1\"\n[[peer]]\n\naddress = \"a:1\"\n",
             "k.toml:7: peer.address: \"a:1\" stands twice (see line 2 too)"));
  CHECK(says("[[attach.tenant]]\nuid = 5\nname = \"a\"\n[[attach.tenant]]\nname = \"b\"\nuid = 5\n",
             "k.toml:6: attach.tenant: uid 5 stands twice; a user has one tenant (see line 2 too)"));
  CHECK(says("[attach]\nsocket = \"/s\"\n[shm]\nlisten = \"/s\"\n", "k.toml:4: shm.listen: is attach.socket too"));
  CHECK(says("[[workflow]]\nname = \"w\"\nfile = \"a\"\n[[workflow]]\nfile = \"b\"\nname = \"w\"\n",
             "k.toml:6: workflow.name: \"w\" stands twice (see line 2 too)"));
  CHECK(says("[runtime]\nrecord_bytes = \"2 MiB\"\n", "k.toml:2: runtime.record_bytes: without runtime.record"));
  CHECK(says("[transfer]\npolicy = \"static\"\n", "k.toml:2: transfer.policy: static needs a medium"));
  CHECK(says("[transfer]\npolicy = \"greedy\"\nmedium = \"int8\"\n", "k.toml:2: transfer.policy: greedy chooses"));
  CHECK(refusal("[transfer]\npolicy = \"static\"\nmedium = \"int8\"\n") == "accepted");
  CHECK(says("[runtime]\nrecord = \"here\"\n", "must be an absolute path"));
  CHECK(says("[[workflow]]\nname = \"w\"\n", "k.toml:2: workflow.file: missing"));
  CHECK(says("[[workflow]]\nfile = \"w\"\n", "k.toml:2: workflow.name: missing"));
  CHECK(says("[[workflow]]\nname = \"two words\"\nfile = \"w\"\n", "k.toml:2: workflow.name: \"two words\": a name must"));
  std::string many;
  for (int i = 0; i < 17; ++i) many.append("[[workflow]]\nname = \"w").append(std::to_string(i)).append("\"\nfile = \"f\"\n");
  CHECK(says(many, "at most 16"));
  Config by_hand;
  by_hand.keepalive_ns = by_hand.dead_after_ns;
  CHECK(validate(by_hand).error().message.starts_with("transfer.dead_after: "));
}

TEST_CASE("config / an empty text is no way to say none, a shm path has no folder to start from") {
  CHECK(says("[tcp]\npsk_file = \"\"\n", "k.toml:2: tcp.psk_file: must not be empty; leave the key out for no key"));
  CHECK(says("[tcp]\nlisten = \"\"\n", "leave the key out not to listen"));
  CHECK(says("[tcp]\ncongestion = \"\"\n", "leave the key out for the default"));
  CHECK(says("[shm]\nlisten = \"\"\n", "leave the key out not to listen"));
  CHECK(says("[attach]\nsocket = \"\"\n", "leave the key out for the default"));
  CHECK(says("[[peer]]\naddress = \"\"\n", "k.toml:2: peer.address: must not be empty"));
  CHECK(says("[[attach.tenant]]\nuid = 1\nname = \"\"\n", "k.toml:3: attach.tenant.name: must not be empty"));
  CHECK(says("[shm]\nlisten = \"here\"\n", "k.toml:2: shm.listen: \"here\" must be @name or an absolute path"));
  CHECK(says("[[peer]]\ntransport = \"shm\"\naddress = \"here\"\n", "k.toml:3: peer.address: \"here\" must be @name"));
  CHECK(refusal("[shm]\nlisten = \"@here\"\n") == "accepted");
  CHECK(says("[verbs]\nlisten = \"10.0.0.1:7471\"\n", "k.toml:2: verbs.listen: can be reached from other machines"));
  CHECK(says("[verbs]\nlisten = \"10.0.0.1\"\n", "k.toml:2: verbs.listen: \"10.0.0.1\" needs the form host:port"));
  CHECK(refusal("[tcp]\ninsecure = true\n[verbs]\nlisten = \"10.0.0.1:7471\"\ndevice = \"a,b\"\n") == "accepted");
  CHECK(refusal("[[peer]]\ntransport = \"verbs\"\naddress = \"10.0.0.1:7471\"\n") == "accepted");
  CHECK(says("[[peer]]\ntransport = \"verbs\"\naddress = \"@here\"\n", "k.toml:3: peer.address: \"@here\" needs"));
}

TEST_CASE("config / a tier needs a folder, room for four segments, and not more of them than files can be open") {
  CHECK(refusal("[offload]\ndirectory = \"/d\"\n") == "accepted");
  CHECK(refusal("[offload]\n") == "accepted");
  CHECK(says("[offload]\ncapacity = \"1 GiB\"\n", "k.toml:2: offload.capacity: without offload.directory there is no tier"));
  CHECK(says("[offload]\ndirectory = \"here\"\n", "k.toml:2: offload.directory: \"here\" must be an absolute path"));
  CHECK(says("[offload]\ndirectory = \"\"\n", "leave the key out for no tier"));
  const std::string at = "[offload]\ndirectory = \"/d\"\n";
  CHECK(says(at + "capacity = \"200 MiB\"\n", "k.toml:3: offload.capacity: must be at least four times offload.segment"));
  CHECK(says(at + "segment = \"1 MiB\"\ncapacity = \"1 TiB\"\n", "k.toml:4: offload.capacity: is more than 16384 times"));
  CHECK(says(at + "segment = \"1048577 B\"\n", "k.toml:3: offload.segment: must be a multiple of 4 KiB"));
  CHECK(says(at + "coding = \"topk\"\n", "k.toml:3: offload.coding: must be one of full, lossless, int8, int4"));
  CHECK(says(at + "direct = true\n", "k.toml:3: offload.direct: must be one of auto, on, off"));
  CHECK(says(at + "slow_after = \"0 s\"\n", "k.toml:3: offload.slow_after"));
}

TEST_CASE("config / listening beyond loopback needs a key or a word that says so") {
  CHECK(refusal("[tcp]\nlisten = \"127.0.0.1:1\"\n") == "accepted");
  CHECK(refusal("[tcp]\nlisten = \"[::1]:1\"\n") == "accepted");
  CHECK(says("[tcp]\nlisten = \"0.0.0.0:1\"\n", "set tcp.psk_file"));
  CHECK(says("[tcp]\nlisten = \"10.0.0.1:1\"\n", "set tcp.psk_file"));
  CHECK(refusal("[tcp]\nlisten = \"10.0.0.1:1\"\ninsecure = true\n") == "accepted");
  CHECK(refusal("[tcp]\nlisten = \"10.0.0.1:1\"\npsk_file = \"/k\"\n") == "accepted");
  CHECK(says("[tcp]\ninsecure = true\npsk_file = \"/k\"\n", "contradicts"));
}

TEST_CASE("config / addresses have one form, host:port or [v6]:port, and lead somewhere") {
  const auto peer = [](const std::string& address) { return "[[peer]]\naddress = \"" + address + "\"\n"; };
  for (const char* good : {"127.0.0.1:7400", "[::1]:7400", "[2605:340::1]:65535", "node-2.example:1", "localhost:7400"}) {
    CAPTURE(std::string(good));
    CHECK(refusal(peer(good)) == "accepted");
  }
  CHECK(says(peer("2605:340::1"), "needs brackets around it"));
  CHECK(says(peer("2605:340"), "needs the form host:port"));
  CHECK(says(peer("[::1]"), "needs the form host:port"));
  CHECK(says(peer("[::1:7400"), "needs brackets around it"));
  CHECK(says(peer("host:"), "needs the form host:port"));
  CHECK(says(peer("host"), "needs the form host:port"));
  CHECK(says(peer(":7400"), "needs the form host:port"));
  CHECK(says(peer("host:0"), "a port from 1 to 65535"));
  CHECK(says(peer("host:65536"), "a port from 1 to 65535"));
  CHECK(says(peer("host:-1"), "a port from 1 to 65535"));
  CHECK(says(peer("host:7400x"), "a port from 1 to 65535"));
  CHECK(says(peer("0.0.0.0:7400"), "where nobody can be reached"));
  CHECK(says(peer("[::]:7400"), "where nobody can be reached"));
  CHECK(says("[tcp]\nlisten = \"127.0.0.1\"\n", "needs the form host:port"));
  CHECK(refusal("[tcp]\nlisten = \"127.0.0.1:0\"\n") == "accepted");   // the kernel chooses one
}

TEST_CASE("config / a file that is none is refused") {
  CHECK(load_config("/nonexistent.toml").error().message.find("No such file") != std::string::npos);
  CHECK(load_config("/tmp").error().message.find("not a regular file") != std::string::npos);
}

}  // namespace
}  // namespace kvrail::engine
