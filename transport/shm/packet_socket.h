// The Unix socket beside a lane's shared memory: handshake, passing descriptors, wake-ups, and the
// sign that the peer is gone. Every call returns at once, whatever the peer does to its end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvrail/base/result.h"
#include "transport/shm/shared_mapping.h"

namespace kvrail::transport::shm {

// What travels once the handshake is over; at most one descriptor comes with it.
enum class PacketType : std::uint32_t {
  setup = 1,       // dialer: fd is the lane's memory, `bytes` long
  arena = 2,       // fd (read-only) of memory that chunks may name by `id`
  arena_gone = 3,  // no chunk will name `id` again
  wake = 4,        // there is something in a ring whose reader said that it sleeps
};
struct Packet {
  std::uint32_t magic = kMagic;
  PacketType type = PacketType::wake;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;                            // in the file
  static constexpr std::uint32_t kMagic = 0x4D48534B;  // the bytes "KSHM"
};
static_assert(sizeof(Packet) == 32);

inline constexpr std::size_t kMaxPacketBytes = 1024;

enum class SocketResult : std::uint8_t { ok, again, closed, bad };

struct Received {
  std::size_t bytes = 0;
  UniqueFd fd;  // what came with it, if anything
};

// "@name" in the abstract namespace, else a path. Creates, binds and listens; a path that a dead
// process left behind is replaced, a live one is address_in_use.
[[nodiscard]] Result<UniqueFd> listen_on(const std::string& path);
// Connects at once or not at all.
[[nodiscard]] Status connect_to(std::string_view path, UniqueFd& out) noexcept;
[[nodiscard]] bool is_valid_path(std::string_view path) noexcept;
// True for a peer process of this user or root.
[[nodiscard]] bool is_same_user(int socket) noexcept;

[[nodiscard]] SocketResult send_packet(int socket, std::span<const std::byte> bytes,
                                       int fd = -1) noexcept;
[[nodiscard]] SocketResult receive_packet(int socket, std::span<std::byte> into,
                                          Received& out) noexcept;

}  // namespace kvrail::transport::shm
