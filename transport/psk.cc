#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kvrail/base/assert.h"
#include "transport/handshake.h"

namespace kvrail::transport {
namespace {

struct FdCloser {
  int fd;
  explicit FdCloser(int owned) noexcept : fd(owned) {}
  FdCloser(const FdCloser&) = delete;
  FdCloser& operator=(const FdCloser&) = delete;
  ~FdCloser() {
    if (fd >= 0) ::close(fd);
  }
};

Error psk_error(Code code, const std::string& path, const std::string& what, int detail = 0) {
  return Error{Status{code, Scope::engine, detail}, "psk_file " + path + ": " + what};
}

}  // namespace

Psk& Psk::operator=(const Psk& other) {
  if (this != &other) {
    wipe();
    key_ = other.key_;
  }
  return *this;
}
Psk& Psk::operator=(Psk&& other) noexcept {
  if (this != &other) {
    wipe();
    key_ = std::move(other.key_);
  }
  return *this;
}
Psk::~Psk() {
  wipe();
}
void Psk::wipe() noexcept {
  OPENSSL_cleanse(key_.data(), key_.size());
}

Result<LoadedPsk> load_psk(const std::string& path) {
  // O_NONBLOCK: a FIFO in the file's place must not hang the start.
  const FdCloser file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) {
    const int error = errno;
    const Code code = error == ENOENT                     ? Code::not_found
                      : error == EACCES || error == EPERM ? Code::permission_denied
                                                          : Code::io_error;
    return psk_error(code, path, std::string("cannot be opened: ") + std::strerror(error), error);
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return psk_error(Code::invalid_argument, path, "is not a regular file");
  }
  std::vector<std::byte> key(kMaxPskBytes + 1);
  std::size_t size = 0;
  while (size < key.size()) {
    const ssize_t got = ::read(file.fd, key.data() + size, key.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      return psk_error(Code::io_error, path, std::strerror(error), error);
    }
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  while (size > 0 && (key[size - 1] == std::byte{'\n'} || key[size - 1] == std::byte{'\r'})) --size;
  if (size < kMinPskBytes || size > kMaxPskBytes) {
    OPENSSL_cleanse(key.data(), key.size());
    return psk_error(Code::invalid_argument, path,
                     size > kMaxPskBytes
                         ? "holds more than 4096 bytes; a key has 16 to 4096"
                         : "holds " + std::to_string(size) +
                               " bytes; a key has 16 to 4096 (openssl rand -hex 32)");
  }
  LoadedPsk loaded{Psk(std::vector<std::byte>(key.begin(), key.begin() + static_cast<long>(size))),
                   {}};
  OPENSSL_cleanse(key.data(), key.size());
  if ((info.st_mode & 077) != 0) {
    loaded.warning = "psk_file " + path + ": other users can open it; run chmod 600 on it";
  }
  return loaded;
}

Nonce random_nonce() noexcept {
  Nonce nonce;
  std::size_t filled = 0;
  while (filled < nonce.size()) {
    const ssize_t got = ::getrandom(nonce.data() + filled, nonce.size() - filled, 0);
    KVRAIL_ASSERT_MSG(got > 0 || errno == EINTR, "the system gives no random bytes");
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return nonce;
}

std::uint64_t random_u64() noexcept {
  const Nonce nonce = random_nonce();
  std::uint64_t value = 0;
  std::memcpy(&value, nonce.data(), sizeof(value));
  return value;
}

}  // namespace kvrail::transport
