#include "transport/socket_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvrail::transport {
namespace {

constexpr int kLockTries = 100;
constexpr int kLockPauseMs = 10;

bool has_no_file(const std::string& path) noexcept {
  return path.empty() || path.front() == '@';
}

bool refuses_connections(const std::string& path) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int probe = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool refused =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      errno == ECONNREFUSED;
  ::close(probe);
  return refused;
}

}  // namespace

SocketFile socket_file_at(const std::string& path) noexcept {
  struct stat info {};
  if (has_no_file(path) || ::lstat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

void unlink_own(const std::string& path, const SocketFile& own) noexcept {
  if (own.inode != 0 && socket_file_at(path) == own) ::unlink(path.c_str());
}

FolderLock::FolderLock(const std::string& socket_path) noexcept {
  if (has_no_file(socket_path)) return;
  const std::size_t slash = socket_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : socket_path.substr(0, slash + 1);
  fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int tries = 0; fd_ >= 0 && tries < kLockTries && ::flock(fd_, LOCK_EX | LOCK_NB) != 0;
       ++tries) {
    static_cast<void>(::poll(nullptr, 0, kLockPauseMs));
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

void remove_stale_socket(const std::string& path) noexcept {
  struct stat info {};
  if (has_no_file(path) || ::lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  if (refuses_connections(path)) ::unlink(path.c_str());
}

}  // namespace kvrail::transport
