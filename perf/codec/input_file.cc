#include "perf/codec/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvrail::fidelity {

InputFile::InputFile(std::string path, int fd, std::uint64_t size)
    : path_(std::move(path)), fd_(fd), size_(size) {}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<InputFile> InputFile::open(const std::string& path) {
  // Without waiting: a FIFO that nobody writes to would hold the program for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Error{{errno == ENOENT ? Code::not_found : Code::io_error},
                 path + ": cannot be opened: " + std::strerror(errno) + "; check the path"};
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return Error{{Code::invalid_argument},
                 path + ": is no regular file; write the tensor to a file first"};
  }
  return InputFile(path, fd, static_cast<std::uint64_t>(status.st_size));
}

Result<void> InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{{Code::io_error}, path_ + ": " + std::strerror(errno)};
    if (got == 0) {
      return Error{{Code::io_error},
                   path_ + ": ends at byte " + std::to_string(offset + done) +
                       ", though it was longer when it was opened; leave it alone meanwhile"};
    }
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<std::string> InputFile::text(std::uint64_t offset, std::uint64_t bytes) const {
  std::string text(bytes, '\0');
  if (auto done = read(offset, std::as_writable_bytes(std::span(text))); !done.ok())
    return std::move(done).error();
  return text;
}

Error InputFile::fault(const std::string& what) const {
  return Error{{Code::invalid_argument}, path_ + ": " + what};
}

}  // namespace kvrail::fidelity
