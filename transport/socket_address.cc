#include "transport/socket_address.h"

#include <arpa/inet.h>

#include <array>
#include <charconv>
#include <cstring>

namespace kvrail::transport {
namespace {

constexpr std::size_t kMaxHostBytes = INET6_ADDRSTRLEN;  // with its terminating zero
constexpr std::size_t kMaxQuotedBytes = 80;              // of foreign text in an error message

sockaddr_in* as_v4(SocketAddress& address) noexcept {
  return reinterpret_cast<sockaddr_in*>(&address.storage);
}
const sockaddr_in* as_v4(const SocketAddress& address) noexcept {
  return reinterpret_cast<const sockaddr_in*>(&address.storage);
}
sockaddr_in6* as_v6(SocketAddress& address) noexcept {
  return reinterpret_cast<sockaddr_in6*>(&address.storage);
}
const sockaddr_in6* as_v6(const SocketAddress& address) noexcept {
  return reinterpret_cast<const sockaddr_in6*>(&address.storage);
}

// Text from outside is quoted with everything unprintable replaced, so that it can't forge lines.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMaxQuotedBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back(byte < 0x20 || byte >= 0x7f ? '?' : c);
  }
  out += text.size() > kMaxQuotedBytes ? "...'" : "'";
  return out;
}

Error refuse(std::string_view text, std::string_view why) {
  std::string message = "address " + quoted(text) + ": ";
  message += why;
  message += "; write a numeric address and a port, like 127.0.0.1:7400 or [::1]:7400";
  return Error{{Code::invalid_argument}, std::move(message)};
}

struct Split {
  std::string_view host;
  std::string_view port;
  bool bracketed = false;
  const char* error = nullptr;
};

Split split(std::string_view text) noexcept {
  Split parts;
  if (!text.empty() && text.front() == '[') {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) {
      parts.error = "the bracket is not closed";
      return parts;
    }
    parts.bracketed = true;
    parts.host = text.substr(1, end - 1);
    const std::string_view rest = text.substr(end + 1);
    if (rest.empty() || rest.front() != ':') {
      parts.error = "the port is missing";
      return parts;
    }
    parts.port = rest.substr(1);
    return parts;
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    parts.error = "the port is missing";
    return parts;
  }
  if (text.find(':', colon + 1) != std::string_view::npos) {
    parts.error = "an IPv6 address needs brackets around it";
    return parts;
  }
  parts.host = text.substr(0, colon);
  parts.port = text.substr(colon + 1);
  return parts;
}

bool parse_port(std::string_view text, PortZero port_zero, std::uint16_t& port) noexcept {
  std::uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (text.empty() || failure != std::errc{} || stop != end || value > 65535) {
    return false;
  }
  if (value == 0 && port_zero == PortZero::refused) {
    return false;
  }
  port = static_cast<std::uint16_t>(value);
  return true;
}

bool parse_host(const Split& parts, std::uint16_t port, SocketAddress& address) noexcept {
  std::array<char, kMaxHostBytes> host{};
  if (parts.host.empty() || parts.host.size() >= host.size()) {
    return false;
  }
  std::memcpy(host.data(), parts.host.data(), parts.host.size());
  if (parts.bracketed) {
    sockaddr_in6* const v6 = as_v6(address);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof(sockaddr_in6);
    return ::inet_pton(AF_INET6, host.data(), &v6->sin6_addr) == 1;
  }
  sockaddr_in* const v4 = as_v4(address);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(port);
  address.length = sizeof(sockaddr_in);
  return ::inet_pton(AF_INET, host.data(), &v4->sin_addr) == 1;
}

}  // namespace

std::uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET) {
    return ntohs(as_v4(*this)->sin_port);
  }
  return family() == AF_INET6 ? ntohs(as_v6(*this)->sin6_port) : std::uint16_t{0};
}

bool SocketAddress::is_loopback() const noexcept {
  if (family() == AF_INET) {
    return (ntohl(as_v4(*this)->sin_addr.s_addr) >> 24) == 127;
  }
  if (family() != AF_INET6) {
    return false;
  }
  const in6_addr& v6 = as_v6(*this)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

bool SocketAddress::is_wildcard() const noexcept {
  if (family() == AF_INET) {
    return as_v4(*this)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&as_v6(*this)->sin6_addr);
}

Result<SocketAddress> parse_address(std::string_view text, PortZero port_zero) {
  const Split parts = split(text);
  if (parts.error != nullptr) {
    return refuse(text, parts.error);
  }
  std::uint16_t port = 0;
  if (!parse_port(parts.port, port_zero, port)) {
    return refuse(text, "the port must be a number from 1 to 65535");
  }
  SocketAddress address;
  if (!parse_host(parts, port, address)) {
    return refuse(text, parts.bracketed ? "the part in brackets is not an IPv6 address"
                                        : "the host is not an IPv4 address (names are not looked "
                                          "up here)");
  }
  return address;
}

std::string to_string(const SocketAddress& address) {
  std::array<char, kMaxHostBytes> host{};
  if (address.family() == AF_INET) {
    ::inet_ntop(AF_INET, &as_v4(address)->sin_addr, host.data(), host.size());
    return std::string(host.data()) + ":" + std::to_string(address.port());
  }
  if (address.family() == AF_INET6) {
    ::inet_ntop(AF_INET6, &as_v6(address)->sin6_addr, host.data(), host.size());
    std::string text = "[";
    text.append(host.data()).append("]:").append(std::to_string(address.port()));
    return text;
  }
  return "(no address)";
}

}  // namespace kvrail::transport
