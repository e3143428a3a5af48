// What an operation ended with: one 8-byte value that says what happened and how much is now dead.
//
// "Full" is not here on purpose: back-pressure is the false of a try_*() function, to be tried
// again.
#pragma once

#include <cstdint>
#include <type_traits>

namespace kvrail {

/// What happened. Each line: meaning; what the caller does. The numbers are part of the wire and
/// IPC formats and of the C API: append only, never renumber.
enum class Code : std::uint16_t {
  /// Done as asked.
  ok = 0,
  /// An argument is outside its documented range; correct the call, repeating it is useless.
  invalid_argument = 1,
  /// No such context, agent, peer, task or file, or none that this tenant may see; check the name.
  not_found = 2,
  /// The name or id is taken by something else; choose another, or use the one that is there.
  already_exists = 3,
  /// The operating system or the engine's policy forbids it; give the right, or ask for less.
  permission_denied = 4,
  /// This build was made without the part that the call needs; rebuild with the feature.
  not_built_in = 5,
  /// Built, but this kernel, device or peer cannot do it; choose another way.
  unsupported = 6,
  /// The machine has no memory left to give; free some or lower the budgets, then retry.
  out_of_memory = 7,
  /// A fixed table or pool of the engine is full for now; retry later or raise its size in the
  /// config.
  out_of_capacity = 8,
  /// The tenant or agent has used up its budget; release something or raise the budget.
  quota_exceeded = 9,
  /// The request can never fit, whatever is freed; split it or raise the limit it names.
  too_large = 10,
  /// The deadline passed first; nothing partial is visible. Retry with more time if it is still
  /// wanted.
  timed_out = 11,
  /// The caller or the other side cancelled it; nothing to do.
  cancelled = 12,
  /// The peer does not answer; its lanes are closed. Retry after it is reachable again.
  peer_down = 13,
  /// The peer came back as a new incarnation and knows nothing of the old one; submit again.
  peer_restarted = 14,
  /// One lane broke; the engine goes on over another. Seen only when none is left.
  lane_lost = 15,
  /// The receiver declined every candidate; `detail` says which rule. Offer something else.
  rejected = 16,
  /// Bytes do not match their digest; they were dropped and are fetched again, or the source is
  /// damaged.
  corrupt = 17,
  /// Sender's and receiver's Layout differ, so KV has no meaning there; send tokens or a summary.
  layout_mismatch = 18,
  /// The handle, version or base block is older than what is there now; look it up again.
  generation_mismatch = 19,
  /// The other side broke the frame or command format; its lane or connection is closed.
  protocol_error = 20,
  /// Both sides are kvrail, but share no protocol version; update one of them.
  version_mismatch = 21,
  /// The handshake failed: another key, or none; give both nodes the same key file.
  authentication_failed = 22,
  /// Another process listens there; stop it or choose another port or path.
  address_in_use = 23,
  /// No route, refused, or no such host; check the address and that the peer runs.
  unreachable = 24,
  /// The system call in hand failed otherwise; `detail` is its errno.
  io_error = 25,
  /// A limit of the system is in the way (locked memory, open files, huge pages, /dev/shm); raise
  /// it.
  limit = 26,
  /// This engine is draining and takes nothing new; go to another or wait for its restart.
  shutting_down = 27,
  /// The outcome is not known: the last answer was lost and QUERY found nothing. Check, then
  /// resubmit.
  unknown = 28,
  /// Something else of the same kind is under way; retry when it has ended.
  busy = 29,
  /// A fault of kvrail itself that was contained; report it with the log.
  internal = 30,
};

/// One past the last Code, for tables and for checking a value that came from outside.
inline constexpr std::uint16_t kCodeCount = 31;

/// How much is dead. A handler switches on this first: the wider scopes include the narrower.
enum class Scope : std::uint8_t { transfer = 0, lane = 1, peer = 2, device = 3, engine = 4 };

inline constexpr std::uint8_t kScopeCount = 5;

struct [[nodiscard]] Status {
  Code code = Code::ok;
  Scope scope = Scope::transfer;
  /// Always 0. Named so that the value has no undefined bytes when it is written to shared memory.
  std::uint8_t reserved = 0;
  /// The raw value from below (an errno, a completion status, a rule number), 0 when there is none.
  std::int32_t detail = 0;

  constexpr Status() noexcept = default;
  constexpr Status(Code what, Scope how_much = Scope::transfer, std::int32_t raw = 0) noexcept
      : code(what), scope(how_much), detail(raw) {}

  [[nodiscard]] constexpr bool ok() const noexcept { return code == Code::ok; }
  [[nodiscard]] static constexpr Status ok_status() noexcept { return Status{}; }

  friend constexpr bool operator==(const Status&, const Status&) noexcept = default;
};

static_assert(sizeof(Status) == 8, "a Status travels in descriptors and frames");
static_assert(std::is_trivially_copyable_v<Status>);

/// The enumerator's own name, for logs and command output; "invalid code" for a number outside the
/// enum.
[[nodiscard]] constexpr const char* name(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::not_found:
      return "not_found";
    case Code::already_exists:
      return "already_exists";
    case Code::permission_denied:
      return "permission_denied";
    case Code::not_built_in:
      return "not_built_in";
    case Code::unsupported:
      return "unsupported";
    case Code::out_of_memory:
      return "out_of_memory";
    case Code::out_of_capacity:
      return "out_of_capacity";
    case Code::quota_exceeded:
      return "quota_exceeded";
    case Code::too_large:
      return "too_large";
    case Code::timed_out:
      return "timed_out";
    case Code::cancelled:
      return "cancelled";
    case Code::peer_down:
      return "peer_down";
    case Code::peer_restarted:
      return "peer_restarted";
    case Code::lane_lost:
      return "lane_lost";
    case Code::rejected:
      return "rejected";
    case Code::corrupt:
      return "corrupt";
    case Code::layout_mismatch:
      return "layout_mismatch";
    case Code::generation_mismatch:
      return "generation_mismatch";
    case Code::protocol_error:
      return "protocol_error";
    case Code::version_mismatch:
      return "version_mismatch";
    case Code::authentication_failed:
      return "authentication_failed";
    case Code::address_in_use:
      return "address_in_use";
    case Code::unreachable:
      return "unreachable";
    case Code::io_error:
      return "io_error";
    case Code::limit:
      return "limit";
    case Code::shutting_down:
      return "shutting_down";
    case Code::unknown:
      return "unknown";
    case Code::busy:
      return "busy";
    case Code::internal:
      return "internal";
  }
  return "invalid code";
}

[[nodiscard]] constexpr const char* name(Scope scope) noexcept {
  switch (scope) {
    case Scope::transfer:
      return "transfer";
    case Scope::lane:
      return "lane";
    case Scope::peer:
      return "peer";
    case Scope::device:
      return "device";
    case Scope::engine:
      return "engine";
  }
  return "invalid scope";
}

}  // namespace kvrail
