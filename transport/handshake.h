// How two engines agree to talk: versions, identities and, with a key file, proof of the key.
//
//   dialer                              listener
//   HELLO {versions, node, incarnation, nonce, lane kind, pairing}  ->
//                                    <- HELLO {the same of its own}, PROOF
//   PROOF                               ->
//                                    <- READY          (or FAIL {code} from either side)
//
// PROOF is HMAC-SHA-256(key, role label, both HELLOs), empty where no key is set. It binds node
// ids, incarnations, nonces, versions and lane kinds, so nothing of it can be replayed, reflected
// or downgraded. A node with a key refuses peers without one, and the other way round.
//
// Pure state machine: no clock, no socket, no randomness of its own. The transport moves the
// frames and gives up after a deadline. Thread: the one that owns the connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/base/status.h"
#include "kvrail/types.h"
#include "transport/wire/frame.h"

namespace kvrail::transport {

// The shared secret of a cluster; its bytes are wiped when it goes.
class Psk {
 public:
  Psk() = default;
  explicit Psk(std::vector<std::byte> key) noexcept : key_(std::move(key)) {}
  Psk(const Psk& other) = default;
  Psk& operator=(const Psk& other);
  Psk(Psk&& other) noexcept = default;
  Psk& operator=(Psk&& other) noexcept;
  ~Psk();
  [[nodiscard]] bool empty() const noexcept { return key_.empty(); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return key_; }

 private:
  void wipe() noexcept;
  std::vector<std::byte> key_;
};

struct LoadedPsk {
  Psk psk;
  std::string warning;  // one line for the log, empty when the file's permissions are right
};
inline constexpr std::size_t kMinPskBytes = 16;
inline constexpr std::size_t kMaxPskBytes = 4096;
// Reads a key file: 16 to 4,096 bytes, line ends at its end not counted. Control path.
[[nodiscard]] Result<LoadedPsk> load_psk(const std::string& path);

inline constexpr std::size_t kNonceBytes = 32;
using Nonce = std::array<std::byte, kNonceBytes>;
// From the operating system's generator; aborts if there is none.
[[nodiscard]] Nonce random_nonce() noexcept;
[[nodiscard]] std::uint64_t random_u64() noexcept;

// What a connection carries. tcp keeps two for each lane, joined by (node, incarnation, pairing).
enum class LaneKind : std::uint8_t { control = 0, bulk = 1 };

struct HandshakeConfig {
  NodeId node = 0;
  Incarnation incarnation = 0;
  std::uint8_t min_version = wire::kProtocolMin;
  std::uint8_t max_version = wire::kProtocolMax;
  const Psk* psk = nullptr;  // outlives the handshake; null or empty: no authentication
};

class Handshake {
 public:
  enum class State : std::uint8_t { negotiating, established, failed };

  [[nodiscard]] static Handshake dial(const HandshakeConfig& config, const Nonce& nonce,
                                      LaneKind kind, std::uint64_t pairing) noexcept;
  [[nodiscard]] static Handshake listen(const HandshakeConfig& config, const Nonce& nonce) noexcept;

  // The payload of the next handshake frame that arrived. Ends in established or failed.
  State on_payload(std::span<const std::byte> payload) noexcept;
  // The next whole frame to send, in order; 0 when there is none now. Also after a failure: the
  // peer is told why before the connection closes.
  [[nodiscard]] std::size_t next_frame(std::span<std::byte> out) noexcept;
  [[nodiscard]] bool has_frame() const noexcept { return outgoing_ != 0; }
  // The transport refuses for a reason of its own (full, draining, duplicate).
  void refuse(Status status) noexcept;

  [[nodiscard]] State state() const noexcept { return state_; }
  // Why it failed: authentication_failed, version_mismatch, protocol_error, already_exists (the
  // peer has this node's own id), or what the peer's FAIL said. detail: 0 found here, 1 told.
  [[nodiscard]] Status status() const noexcept { return status_; }

  // Of the peer, valid once its HELLO was accepted (peer() != 0), final when established.
  [[nodiscard]] NodeId peer() const noexcept { return peer_; }
  [[nodiscard]] Incarnation peer_incarnation() const noexcept { return peer_incarnation_; }
  [[nodiscard]] LaneKind kind() const noexcept { return kind_; }
  [[nodiscard]] std::uint64_t pairing() const noexcept { return pairing_; }
  [[nodiscard]] std::uint8_t version() const noexcept { return version_; }
  [[nodiscard]] std::uint32_t session() const noexcept { return session_; }
  // What the frame parser and the sender go on with after established.
  [[nodiscard]] wire::FrameRules rules() const noexcept;
  [[nodiscard]] std::uint32_t frames_sent() const noexcept { return frames_sent_; }

  static constexpr std::size_t kHelloBytes = 64;
  static constexpr std::size_t kProofBytes = 32;
  static constexpr std::size_t kMaxFrameBytes = wire::kFrameHeaderBytes + kHelloBytes;

 private:
  enum class Expect : std::uint8_t { hello, proof, ready, nothing };
  // Bits of outgoing_; sent in this order.
  static constexpr std::uint8_t kSendHello = 1;
  static constexpr std::uint8_t kSendProof = 2;
  static constexpr std::uint8_t kSendReady = 4;
  static constexpr std::uint8_t kSendFail = 8;
  using HelloBytes = std::array<std::byte, kHelloBytes>;

  Handshake(const HandshakeConfig& config, bool dialer, const Nonce& nonce, LaneKind kind,
            std::uint64_t pairing) noexcept;
  [[nodiscard]] bool has_key() const noexcept;
  void write_hello() noexcept;
  State on_hello(std::span<const std::byte> payload) noexcept;
  State on_proof(std::span<const std::byte> payload) noexcept;
  State on_fail(std::span<const std::byte> payload) noexcept;
  [[nodiscard]] Status check_peer(std::span<const std::byte> hello) noexcept;
  void proof_of(bool dialer, std::span<std::byte, kProofBytes> out) const noexcept;
  State fail(Code code) noexcept;

  HandshakeConfig config_;
  bool dialer_;
  LaneKind kind_;
  std::uint64_t pairing_;
  Nonce nonce_;
  HelloBytes own_hello_{};
  HelloBytes peer_hello_{};
  State state_ = State::negotiating;
  Expect expect_ = Expect::hello;
  std::uint8_t outgoing_ = 0;
  Status status_;
  NodeId peer_ = 0;
  Incarnation peer_incarnation_ = 0;
  std::uint8_t version_ = 0;
  std::uint32_t session_ = 0;
  std::uint32_t frames_sent_ = 0;
};

}  // namespace kvrail::transport
