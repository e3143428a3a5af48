// The engine's end of the attach socket. Not in libkvrail.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/ipc/socket_io.h"
#include "transport/socket_file.h"

namespace kvrail::engine::ipc {
namespace {

Error path_error(Code code, int error, const std::string& what) {
  return Error{{code, Scope::engine, error}, what};
}

}  // namespace

Result<UniqueFd> listen_at(const std::string& path, unsigned mode, int backlog) {
  const Result<sockaddr_un> address = socket_address(path);
  if (!address.ok()) return address.error();
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return path_error(Code::io_error, errno, "cannot make a Unix socket");
  const transport::FolderLock lock(path);
  transport::remove_stale_socket(path);
  // Before bind() there is no file, after it nobody can connect until listen(): so the mode is right
  // at the first moment that it matters.
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return path_error(Code::address_in_use, error,
                        "socket " + path + " is in use: stop the engine that listens there, or set another path");
    }
    return path_error(error == EACCES ? Code::permission_denied : Code::io_error, error,
                      "cannot bind the socket " + path + ": " + std::strerror(error) +
                          (error == ENOENT ? "; make its folder, or set another path" : ""));
  }
  if (::chmod(path.c_str(), mode) != 0 || ::listen(socket.get(), backlog) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return path_error(Code::io_error, error, "cannot listen at " + path + ": " + std::strerror(error));
  }
  return socket;
}

}  // namespace kvrail::engine::ipc
