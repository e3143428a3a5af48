#include <arpa/inet.h>
#include <netdb.h>

#include <array>
#include <memory>

#include "engine/runtime/host.h"

namespace kvrail::engine {

Result<std::string> resolve_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return Error{{Code::invalid_argument, Scope::engine},
                 "\"" + address + "\" needs the form host:port or [v6]:port"};
  }
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.front() == '[') return address;  // an IPv6 address is numeric already
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return Error{{Code::unreachable, Scope::engine, error},
                 "cannot look up \"" + host + "\": " + ::gai_strerror(error)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (const int error = ::getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(), nullptr, 0,
                                      NI_NUMERICHOST);
      error != 0) {
    return Error{{Code::unreachable, Scope::engine, error},
                 "cannot look up \"" + host + "\": " + ::gai_strerror(error)};
  }
  host = text.data();
  return found->ai_family == AF_INET6 ? "[" + host + "]:" + port : host + ":" + port;
}

}  // namespace kvrail::engine
