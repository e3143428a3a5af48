// Numeric socket addresses as text: "127.0.0.1:7400", "[::1]:7400". Host names are refused here:
// resolving one may block, so the control thread does it before it asks for a lane.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "kvrail/base/result.h"

namespace kvrail::transport {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Only this machine can be at the other end.
  [[nodiscard]] bool is_loopback() const noexcept;
  /// 0.0.0.0 or [::]: every interface. Fit to listen on, never to dial.
  [[nodiscard]] bool is_wildcard() const noexcept;
};

enum class PortZero : std::uint8_t {
  refused,   // dialling, and every address that a person wrote down
  allowed,   // listening where the kernel may choose the port
};

/// The address, or invalid_argument with one sentence that names the text and the accepted form.
[[nodiscard]] Result<SocketAddress> parse_address(std::string_view text,
                                                  PortZero port_zero = PortZero::refused);

/// The form that parse_address reads.
[[nodiscard]] std::string to_string(const SocketAddress& address);

}  // namespace kvrail::transport
