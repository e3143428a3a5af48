// The file of a listening Unix socket, so that only who bound it removes it: another engine may have
// taken the name since.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace kvrail::transport {

struct SocketFile {
  dev_t device = 0;
  ino_t inode = 0;   // 0: none
  [[nodiscard]] bool operator==(const SocketFile&) const = default;
};

[[nodiscard]] inline SocketFile socket_file_at(const std::string& path) noexcept {
  struct stat info {};
  if (path.starts_with('@')) return {};  // a name without a file
  if (::lstat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

inline void unlink_own(const std::string& path, const SocketFile& own) noexcept {
  if (own.inode != 0 && socket_file_at(path) == own) ::unlink(path.c_str());
}

}  // namespace kvrail::transport
