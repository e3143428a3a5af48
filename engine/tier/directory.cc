#include "engine/tier/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace kvrail::engine::tier {
namespace {

constexpr const char* kLock = "kvrail.lock";
constexpr const char* kManifest = "kvrail.manifest";
constexpr const char* kNewManifest = "kvrail.manifest.new";
constexpr const char* kNewSegment = "new-segment";
constexpr const char* kQuarantine = "quarantine";
constexpr const char* kProbe = "kvrail.probe";
constexpr std::string_view kSegmentPrefix = "segment-";
constexpr std::size_t kIdDigits = 16;

struct alignas(kPageBytes) Page : std::array<std::byte, kPageBytes> {};

Error failed(const std::string& path, int number, const std::string& what) {
  Code code = Code::io_error;
  if (number == ENOENT) code = Code::not_found;
  if (number == EACCES || number == EPERM || number == EROFS) code = Code::permission_denied;
  if (number == ENOSPC || number == EDQUOT) code = Code::out_of_capacity;
  return {{code, Scope::device, number}, "offload.directory: " + path + what};
}

std::string segment_name(std::uint64_t id) {
  std::array<char, kSegmentPrefix.size() + kIdDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "segment-%016llx", static_cast<unsigned long long>(id));
  return text.data();
}

bool is_segment_name(std::string_view name, std::uint64_t& id) noexcept {
  if (!name.starts_with(kSegmentPrefix) || name.size() != kSegmentPrefix.size() + kIdDigits) return false;
  const char* end = name.data() + name.size();
  return std::from_chars(name.data() + kSegmentPrefix.size(), end, id, 16).ptr == end;
}

bool write_page(int fd, const Page& page) noexcept {
  return ::pwrite(fd, page.data(), page.size(), 0) == static_cast<ssize_t>(page.size());
}

// What this folder can't be, asked of the folder itself.
Result<ipc::UniqueFd> open_folder(const std::string& path) {
  if (!path.starts_with('/')) return failed(path, EINVAL, " must be an absolute path");
  ipc::UniqueFd dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir) {
    const int number = errno;
    return failed(path, number, number == ENOENT    ? " does not exist; create it, owned by the engine's user"
                                : number == ENOTDIR ? " is not a directory"
                                                    : std::string(": ") + std::strerror(number));
  }
  struct statfs info {};
  if (::fstatfs(dir.get(), &info) != 0) return failed(path, errno, std::string(": ") + std::strerror(errno));
  if (const char* name = remote_file_system(static_cast<long>(info.f_type))) {
    return failed(path, EXDEV, std::string(" is on ") + name + "; a tier needs a local file system");
  }
  return Result<ipc::UniqueFd>(std::move(dir));
}

// Makes a file, writes to it and removes it. `direct` in: whether to try; out: whether it went.
Result<void> probe(const std::string& path, int dir, DirectMode mode, bool& direct) {
  const auto attempt = [&](int flags) -> int {
    ::unlinkat(dir, kProbe, 0);
    const ipc::UniqueFd file(::openat(dir, kProbe, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | flags, 0600));
    if (!file) return errno;
    Page page{};
    errno = ENOSPC;  // of a short write
    const int number = write_page(file.get(), page) && ::pread(file.get(), page.data(), page.size(), 0) == kPageBytes ? 0 : errno;
    ::unlinkat(dir, kProbe, 0);
    return number;
  };
  int number = mode == DirectMode::off ? EINVAL : attempt(O_DIRECT);
  direct = number == 0;
  if (mode == DirectMode::on && number == EINVAL) {
    return failed(path, number, ": its file system takes no direct I/O; set offload.direct to \"auto\" or \"off\"");
  }
  if (number == EINVAL) number = attempt(0);
  if (number == 0) return {};
  return failed(path, number, number == EROFS                        ? " is on a read-only file system"
                              : number == EACCES || number == EPERM  ? " is not writable by this user"
                              : number == ENOSPC || number == EDQUOT ? " is full; free some room or give the tier another"
                                                                     : std::string(": ") + std::strerror(number));
}

}  // namespace

const char* remote_file_system(long type) noexcept {
  switch (static_cast<unsigned long>(type) & 0xFFFFFFFFUL) {
    case 0x6969UL: return "NFS";
    case 0x517BUL:
    case 0xFF534D42UL:
    case 0xFE534D42UL: return "SMB";
    case 0x01021997UL: return "9p";
    case 0x00C36400UL: return "Ceph";
    case 0x5346414FUL: return "AFS";
    case 0x0BD00BD0UL: return "Lustre";
    default: return nullptr;
  }
}

Result<void> Directory::check(const std::string& path, DirectMode mode) {
  auto dir = open_folder(path);
  if (!dir.ok()) return std::move(dir).error();
  bool direct = false;
  return probe(path, dir->get(), mode, direct);
}

Result<std::unique_ptr<Directory>> Directory::open(const std::string& path, DirectMode mode) {
  auto dir = open_folder(path);
  if (!dir.ok()) return std::move(dir).error();
  std::unique_ptr<Directory> made(new Directory);
  made->path_ = path;
  made->dir_ = std::move(dir).value();
  // The lock comes after the first writing probe, whose message is the better one, but before all that matters.
  if (auto able = probe(path, made->dir_.get(), mode, made->direct_); !able.ok()) return std::move(able).error();
  if (auto locked = made->lock(); !locked.ok()) return std::move(locked).error();
  if (mode == DirectMode::automatic && !made->direct_) {
    made->warnings_.push_back("offload.directory: " + path + ": no direct I/O here; what is kept goes through the page cache");
  }
  if (auto settled = made->settle_manifest(); !settled.ok()) return std::move(settled).error();
  return Result<std::unique_ptr<Directory>>(std::move(made));
}

Result<void> Directory::lock() {
  lock_ = ipc::UniqueFd(::openat(dir_.get(), kLock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return failed(path_, errno, std::string(": ") + kLock + ": " + std::strerror(errno));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    std::array<char, 32> who{};
    const ssize_t got = ::pread(lock_.get(), who.data(), who.size() - 1, 0);
    return Error{{Code::busy, Scope::device, EWOULDBLOCK},
                 "offload.directory: " + path_ + " is in use by process " + (got > 0 ? who.data() : "?") +
                     "; give each engine a directory of its own"};
  }
  const std::string self = std::to_string(::getpid());
  if (::ftruncate(lock_.get(), 0) != 0 || ::pwrite(lock_.get(), self.data(), self.size(), 0) < 0) {
    return failed(path_, errno, std::string(": ") + kLock + ": " + std::strerror(errno));
  }
  return {};
}

std::vector<std::string> Directory::names() const {
  std::vector<std::string> found;
  const int copy = ::openat(dir_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = copy < 0 ? nullptr : ::fdopendir(copy);
  if (stream == nullptr) {
    if (copy >= 0) ::close(copy);
    return found;
  }
  while (const dirent* entry = ::readdir(stream)) {
    const std::string_view name = entry->d_name;
    const bool known = name == "." || name == ".." || name == "lost+found" || name == kLock || name == kManifest ||
                       name == kQuarantine;
    if (!known) found.emplace_back(name);
  }
  ::closedir(stream);
  std::sort(found.begin(), found.end());
  return found;
}

Result<void> Directory::settle_manifest() {
  for (const char* unfinished : {kNewSegment, kNewManifest}) ::unlinkat(dir_.get(), unfinished, 0);
  const ipc::UniqueFd file(::openat(dir_.get(), kManifest, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) {
    for (const std::string& name : names()) {
      std::uint64_t id = 0;
      if (is_segment_name(name, id)) continue;
      return Error{{Code::already_exists, Scope::device},
                   "offload.directory: " + path_ + " holds files that are not the tier's (" + name +
                       "); give the tier a directory of its own"};
    }
    return write_manifest();
  }
  Page page{};
  const bool whole = file && ::pread(file.get(), page.data(), page.size(), 0) == kPageBytes;
  if (whole && decode_manifest(page) == Found::ok) return {};
  warnings_.push_back("offload.directory: " + path_ + ": its manifest is damaged or of another version; moved to " + kQuarantine);
  move_aside(kManifest);
  return write_manifest();
}

Result<void> Directory::write_manifest() {
  Page page{};
  encode_manifest(page);
  const ipc::UniqueFd file(::openat(dir_.get(), kNewManifest, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  errno = file ? ENOSPC : errno;
  if (!file || !write_page(file.get(), page) || ::fdatasync(file.get()) != 0 ||
      ::renameat(dir_.get(), kNewManifest, dir_.get(), kManifest) != 0 || ::fsync(dir_.get()) != 0) {
    return failed(path_, errno, std::string(": ") + kManifest + ": " + std::strerror(errno));
  }
  return {};
}

int Directory::open_flags() const noexcept { return O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (direct_ ? O_DIRECT : 0); }

bool Directory::open_segment(const std::string& name, SegmentFile& out, bool& unfinished) noexcept {
  unfinished = false;
  std::uint64_t id = 0;
  if (!is_segment_name(name, id)) return false;
  out.fd = ipc::UniqueFd(::openat(dir_.get(), name.c_str(), open_flags()));
  struct stat info {};
  if (!out.fd || ::fstat(out.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  Page page{};
  if (::pread(out.fd.get(), page.data(), page.size(), 0) != kPageBytes) return false;
  out.bytes = static_cast<std::uint64_t>(info.st_size);
  const Found found = decode_segment(page, out.header);
  // Made just before the power went: its header is synced with its first record, and there was none.
  unfinished = found == Found::blank && ::pread(out.fd.get(), page.data(), page.size(), kPageBytes) == kPageBytes &&
               decode_segment(page, out.header) == Found::blank;
  return found == Found::ok && out.header.id == id;
}

std::vector<SegmentFile> Directory::segments() {
  std::vector<SegmentFile> found;
  const std::uint64_t before = quarantined_;
  for (const std::string& name : names()) {
    SegmentFile file;
    bool unfinished = false;
    if (open_segment(name, file, unfinished)) {
      found.push_back(std::move(file));
    } else if (unfinished) {
      ::unlinkat(dir_.get(), name.c_str(), 0);
    } else {
      move_aside(name);
    }
  }
  if (quarantined_ > before) {
    warnings_.push_back("offload.directory: " + path_ + ": " + std::to_string(quarantined_ - before) +
                        " files that are no segments of this version were moved to " + kQuarantine);
  }
  return found;  // names are in the order of ids
}

Result<SegmentFile> Directory::create(std::uint64_t id, std::uint64_t bytes) {
  SegmentFile file;
  file.bytes = bytes;
  file.header = {.id = id, .bytes = bytes};
  while (::getrandom(&file.header.key, sizeof(file.header.key), 0) != sizeof(file.header.key)) {}
  const auto refuse = [&](int number) {
    ::unlinkat(dir_.get(), kNewSegment, 0);
    return failed(path_, number, std::string(": a new segment: ") + std::strerror(number));
  };
  file.fd = ipc::UniqueFd(::openat(dir_.get(), kNewSegment, open_flags() | O_CREAT | O_EXCL, 0600));
  if (!file.fd) return refuse(errno);
  // Room is taken now, so that a full disk is found here and not in the middle of a block.
  if (const int number = ::posix_fallocate(file.fd.get(), 0, static_cast<off_t>(bytes)); number != 0) return refuse(number);
  Page page{};
  encode_segment(file.header, page);
  errno = ENOSPC;
  if (!write_page(file.fd.get(), page)) return refuse(errno);
  const std::string name = segment_name(id);
  if (::renameat(dir_.get(), kNewSegment, dir_.get(), name.c_str()) != 0 || ::fsync(dir_.get()) != 0) return refuse(errno);
  return Result<SegmentFile>(std::move(file));
}

void Directory::remove(std::uint64_t id) noexcept { ::unlinkat(dir_.get(), segment_name(id).c_str(), 0); }

void Directory::quarantine(std::uint64_t id) noexcept { move_aside(segment_name(id)); }

void Directory::move_aside(const std::string& name) noexcept {
  ++quarantined_;
  ::mkdirat(dir_.get(), kQuarantine, 0700);
  std::string target = std::string(kQuarantine) + "/" + name;
  for (int attempt = 1; ::renameat2(dir_.get(), name.c_str(), dir_.get(), target.c_str(), RENAME_NOREPLACE) != 0; ++attempt) {
    if (errno != EEXIST || attempt > 1'000) return;  // it stays where it is, and is left alone
    target = std::string(kQuarantine) + "/" + name + "." + std::to_string(attempt);
  }
}

}  // namespace kvrail::engine::tier
