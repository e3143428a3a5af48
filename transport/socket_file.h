// The file of a listening Unix socket: who may replace it, and who may remove it. Another engine
// may start at the same time, or have taken the name since. Thread: any; processes meet at the
// folder's lock.
#pragma once

#include <sys/types.h>

#include <string>

namespace kvrail::transport {

struct SocketFile {
  dev_t device = 0;
  ino_t inode = 0;  // 0: none
  [[nodiscard]] bool operator==(const SocketFile&) const = default;
};

// Paths that begin with "@" are names without a file everywhere here.
[[nodiscard]] SocketFile socket_file_at(const std::string& path) noexcept;
// Removes what is at the path only if it is the file that we bound.
void unlink_own(const std::string& path, const SocketFile& own) noexcept;

// Held from the look at what is there until listen(): of two engines that start at once, the second
// must not take the first one's new socket, bound and not yet listening, for one that a killed
// engine left. It takes microseconds; whoever holds the folder for a second has other reasons, and
// is not waited for.
class FolderLock {
 public:
  explicit FolderLock(const std::string& socket_path) noexcept;
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

// Removes a SOCK_SEQPACKET socket that nobody listens on, which is what a killed engine leaves.
// Whatever else has that name is somebody's, and stays. Under the FolderLock.
void remove_stale_socket(const std::string& path) noexcept;

}  // namespace kvrail::transport
