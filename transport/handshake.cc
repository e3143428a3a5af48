#include "transport/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::transport {
namespace {

// First byte of a handshake payload.
constexpr std::byte kHello{1};
constexpr std::byte kProof{2};
constexpr std::byte kReady{3};
constexpr std::byte kFail{4};

constexpr std::uint8_t kHelloHasKey = 1;  // flag: I have a key and demand a proof

// Offsets in a HELLO, see docs/wire.md.
constexpr std::size_t kAtMin = 1;
constexpr std::size_t kAtMax = 2;
constexpr std::size_t kAtFlags = 3;
constexpr std::size_t kAtKind = 4;
constexpr std::size_t kAtReserved = 5;  // 3 bytes
constexpr std::size_t kAtNode = 8;
constexpr std::size_t kAtIncarnation = 16;
constexpr std::size_t kAtPairing = 24;
constexpr std::size_t kAtNonce = 32;
static_assert(kAtNonce + kNonceBytes == Handshake::kHelloBytes);

constexpr std::string_view kDialerLabel = "kvrail handshake 1 dialer";
constexpr std::string_view kListenerLabel = "kvrail handshake 1 listener";

std::uint8_t u8_at(std::span<const std::byte> from, std::size_t at) noexcept {
  return static_cast<std::uint8_t>(from[at]);
}

}  // namespace

Handshake::Handshake(const HandshakeConfig& config, bool dialer, const Nonce& nonce, LaneKind kind,
                     std::uint64_t pairing) noexcept
    : config_(config), dialer_(dialer), kind_(kind), pairing_(pairing), nonce_(nonce) {
  KVRAIL_ASSERT_MSG(config.node != 0 && config.incarnation != 0, "0 means no node");
  KVRAIL_ASSERT(config.min_version >= 1 && config.min_version <= config.max_version);
}

Handshake Handshake::dial(const HandshakeConfig& config, const Nonce& nonce, LaneKind kind,
                          std::uint64_t pairing) noexcept {
  Handshake self(config, true, nonce, kind, pairing);
  self.write_hello();
  self.outgoing_ = kSendHello;
  return self;
}

Handshake Handshake::listen(const HandshakeConfig& config, const Nonce& nonce) noexcept {
  return Handshake(config, false, nonce, LaneKind::control, 0);
}

bool Handshake::has_key() const noexcept {
  return config_.psk != nullptr && !config_.psk->empty();
}

void Handshake::write_hello() noexcept {
  std::byte* at = own_hello_.data();
  at[0] = kHello;
  at[kAtMin] = std::byte{config_.min_version};
  at[kAtMax] = std::byte{config_.max_version};
  at[kAtFlags] = std::byte{has_key() ? kHelloHasKey : std::uint8_t{0}};
  at[kAtKind] = static_cast<std::byte>(kind_);
  store_le64(at + kAtNode, config_.node);
  store_le64(at + kAtIncarnation, config_.incarnation);
  store_le64(at + kAtPairing, pairing_);
  std::memcpy(at + kAtNonce, nonce_.data(), nonce_.size());
}

Handshake::State Handshake::fail(Code code) noexcept {
  state_ = State::failed;
  expect_ = Expect::nothing;
  status_ = Status{code, Scope::lane, 0};
  outgoing_ = kSendFail;
  return state_;
}

void Handshake::refuse(Status status) noexcept {
  KVRAIL_ASSERT(!status.ok());
  if (state_ != State::failed) static_cast<void>(fail(status.code));
}

Handshake::State Handshake::on_payload(std::span<const std::byte> payload) noexcept {
  if (state_ == State::failed) return state_;
  if (payload.empty() || state_ == State::established) return fail(Code::protocol_error);
  const std::byte type = payload[0];
  if (type == kFail) return on_fail(payload);
  if (type == kHello && expect_ == Expect::hello) return on_hello(payload);
  if (type == kProof && expect_ == Expect::proof) return on_proof(payload);
  if (type == kReady && expect_ == Expect::ready && payload.size() == 1) {
    expect_ = Expect::nothing;
    state_ = State::established;
    return state_;
  }
  return fail(Code::protocol_error);
}

Status Handshake::check_peer(std::span<const std::byte> hello) noexcept {
  const std::uint8_t min = u8_at(hello, kAtMin);
  const std::uint8_t max = u8_at(hello, kAtMax);
  // Versions first: what a newer peer's other fields mean is not known here.
  if (min == 0 || min > max) return Code::protocol_error;
  if (max < config_.min_version || min > config_.max_version) return Code::version_mismatch;
  const std::uint8_t flags = u8_at(hello, kAtFlags);
  const std::uint8_t kind = u8_at(hello, kAtKind);
  const NodeId node = load_le64(hello.data() + kAtNode);
  const Incarnation incarnation = load_le64(hello.data() + kAtIncarnation);
  const auto reserved = hello.subspan(kAtReserved, 3);
  if ((flags & ~kHelloHasKey) != 0 || kind > static_cast<std::uint8_t>(LaneKind::bulk) ||
      node == 0 || incarnation == 0 ||
      std::any_of(reserved.begin(), reserved.end(),
                  [](std::byte b) { return b != std::byte{0}; })) {
    return Code::protocol_error;
  }
  if (((flags & kHelloHasKey) != 0) != has_key()) return Code::authentication_failed;
  if (node == config_.node) return Code::already_exists;
  if (dialer_ &&
      (static_cast<LaneKind>(kind) != kind_ || load_le64(hello.data() + kAtPairing) != pairing_)) {
    return Code::protocol_error;
  }
  return Status::ok_status();
}

Handshake::State Handshake::on_hello(std::span<const std::byte> payload) noexcept {
  if (payload.size() != kHelloBytes) return fail(Code::protocol_error);
  if (const Status status = check_peer(payload); !status.ok()) return fail(status.code);
  std::copy(payload.begin(), payload.end(), peer_hello_.begin());
  peer_ = load_le64(payload.data() + kAtNode);
  peer_incarnation_ = load_le64(payload.data() + kAtIncarnation);
  version_ = std::min(config_.max_version, u8_at(payload, kAtMax));
  expect_ = Expect::proof;
  if (!dialer_) {
    kind_ = static_cast<LaneKind>(u8_at(payload, kAtKind));
    pairing_ = load_le64(payload.data() + kAtPairing);
    write_hello();
    outgoing_ = kSendHello | kSendProof;
  }
  // Both sides form the same number; it only tells this connection's frames from another's.
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  XXH3_64bits_update(&hash, (dialer_ ? own_hello_ : peer_hello_).data(), kHelloBytes);
  XXH3_64bits_update(&hash, (dialer_ ? peer_hello_ : own_hello_).data(), kHelloBytes);
  session_ = static_cast<std::uint32_t>(XXH3_64bits_digest(&hash)) | 1U;  // 0 is the handshake's
  return state_;
}

void Handshake::proof_of(bool dialer, std::span<std::byte, kProofBytes> out) const noexcept {
  // Once for each connection; OpenSSL allocates its context.
  const AllowAllocScope allow;
  std::array<std::byte, 32 + 2 * kHelloBytes> text{};
  const std::string_view label = dialer ? kDialerLabel : kListenerLabel;
  static_assert(kDialerLabel.size() <= 32 && kListenerLabel.size() <= 32);
  std::memcpy(text.data(), label.data(), label.size());
  std::memcpy(text.data() + 32, (dialer_ ? own_hello_ : peer_hello_).data(), kHelloBytes);
  std::memcpy(text.data() + 32 + kHelloBytes, (dialer_ ? peer_hello_ : own_hello_).data(),
              kHelloBytes);
  unsigned int length = 0;
  const auto key = config_.psk->bytes();
  const unsigned char* done =
      ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(),
             reinterpret_cast<unsigned char*>(out.data()), &length);
  KVRAIL_ASSERT_MSG(done != nullptr && length == kProofBytes, "libcrypto gives no HMAC-SHA-256");
}

Handshake::State Handshake::on_proof(std::span<const std::byte> payload) noexcept {
  if (payload.size() != 1 + (has_key() ? kProofBytes : 0)) return fail(Code::authentication_failed);
  if (has_key()) {
    std::array<std::byte, kProofBytes> expected{};
    proof_of(!dialer_, expected);
    if (CRYPTO_memcmp(expected.data(), payload.data() + 1, kProofBytes) != 0) {
      return fail(Code::authentication_failed);
    }
  }
  if (dialer_) {
    expect_ = Expect::ready;
    outgoing_ |= kSendProof;
    return state_;
  }
  expect_ = Expect::nothing;
  outgoing_ |= kSendReady;
  state_ = State::established;
  return state_;
}

Handshake::State Handshake::on_fail(std::span<const std::byte> payload) noexcept {
  const bool good = payload.size() == 3 && load_le16(payload.data() + 1) != 0 &&
                    load_le16(payload.data() + 1) < kCodeCount;
  state_ = State::failed;
  expect_ = Expect::nothing;
  outgoing_ = 0;
  status_ = good ? Status{static_cast<Code>(load_le16(payload.data() + 1)), Scope::lane, 1}
                 : Status{Code::protocol_error, Scope::lane, 0};
  return state_;
}

std::size_t Handshake::next_frame(std::span<std::byte> out) noexcept {
  if (outgoing_ == 0) return 0;
  std::array<std::byte, kHelloBytes> payload{};
  std::size_t size = 1;
  std::uint8_t sent = 0;
  if ((outgoing_ & kSendHello) != 0) {
    sent = kSendHello;
    payload = own_hello_;
    size = kHelloBytes;
  } else if ((outgoing_ & kSendProof) != 0) {
    sent = kSendProof;
    payload[0] = kProof;
    if (has_key()) {
      proof_of(dialer_, std::span(payload).subspan<1, kProofBytes>());
      size += kProofBytes;
    }
  } else if ((outgoing_ & kSendReady) != 0) {
    sent = kSendReady;
    payload[0] = kReady;
  } else {
    sent = kSendFail;
    payload[0] = kFail;
    store_le16(payload.data() + 1, static_cast<std::uint16_t>(status_.code));
    size = 3;
  }
  const std::size_t written =
      wire::encode_frame(wire::FrameType::handshake, wire::kHandshakeVersion, 0, frames_sent_,
                         std::span(payload).first(size), out);
  if (written == 0) return 0;
  outgoing_ = static_cast<std::uint8_t>(outgoing_ & ~sent);
  ++frames_sent_;
  return written;
}

wire::FrameRules Handshake::rules() const noexcept {
  KVRAIL_ASSERT(state_ == State::established);
  wire::FrameRules rules;
  rules.version = version_;
  rules.session = session_;
  rules.handshaking = false;
  return rules;
}

}  // namespace kvrail::transport
