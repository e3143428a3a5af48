// The folder of a tier: what it can't be, who has it, and what happens where there is no room in it or no io_uring.
#include <fcntl.h>
#include <sys/stat.h>

#include "engine/tier/create.h"
#include "tests/unit/tier/file_fixture.h"
#include "tests/unit/tier/in_child.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;
using tier::DirectMode;
using tier::Directory;

namespace {

bool refuses(const std::string& path, Code code, const char* part) {
  const auto checked = Directory::check(path, DirectMode::automatic);
  const auto opened = Directory::open(path, DirectMode::automatic);
  if (checked.ok() || opened.ok()) return false;
  INFO(checked.error().message);
  CHECK(checked.error().message == opened.error().message);
  CHECK(checked.error().message.find(path) != std::string::npos);
  return checked.status().code == code && checked.error().message.find(part) != std::string::npos;
}

// Ends a child's part where it can't be tried.
#define SKIP_IF(code)                                        \
  if ((code) == kChildSkips) {                               \
    MESSAGE("SKIP: mounting is not allowed here");           \
    return;                                                  \
  }

}  // namespace

TEST_CASE("tier folder: what it cannot be is refused by name, with what to do") {
  const Folder folder;
  CHECK(refuses("relative/path", Code::io_error, "absolute"));
  CHECK(refuses(folder.path + "/absent", Code::not_found, "create it"));
  std::ofstream(folder.path + "/file") << "x";
  CHECK(refuses(folder.path + "/file", Code::io_error, "is not a directory"));
}

TEST_CASE("tier folder: one that holds something else is left alone") {
  const Folder folder;
  std::ofstream(folder.path + "/thesis.txt") << "years of work";
  CHECK(Directory::check(folder.path, DirectMode::automatic).ok());
  const auto opened = Directory::open(folder.path, DirectMode::automatic);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().message.find("thesis.txt") != std::string::npos);
  CHECK(opened.error().message.find("a directory of its own") != std::string::npos);
  CHECK(std::filesystem::exists(folder.path + "/thesis.txt"));
}

TEST_CASE("tier folder: a check leaves nothing behind") {
  const Folder folder;
  CHECK(Directory::check(folder.path, DirectMode::automatic).ok());
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("tier folder: network file systems are known by name") {
  CHECK(std::string(tier::remote_file_system(0x6969)) == "NFS");
  CHECK(std::string(tier::remote_file_system(static_cast<long>(0xFF534D42UL))) == "SMB");
  CHECK(tier::remote_file_system(0xEF53) == nullptr);      // ext4
  CHECK(tier::remote_file_system(0x01021994) == nullptr);  // tmpfs
}

TEST_CASE("tier folder: one process has it; a second is told which") {
  const Folder folder;
  const Tier first(small_tier(folder));
  const auto second = tier::FileTier::create(small_tier(folder));
  REQUIRE_FALSE(second.ok());
  CHECK(second.status().code == Code::busy);
  CHECK(second.error().message.find("in use by process " + std::to_string(::getpid())) != std::string::npos);
}

TEST_CASE("tier folder: read-only, full, and of a user without rights") {
  const Folder folder;
  const int read_only = in_child([&] {
    if (!mount_small(folder.path.c_str(), "size=1m", MS_RDONLY)) return kChildSkips;
    CHILD_CHECK(refuses(folder.path, Code::permission_denied, "is on a read-only file system"));
    return 0;
  });
  SKIP_IF(read_only);
  CHECK(read_only == 0);
  CHECK(in_child([&] {
          CHILD_CHECK(mount_small(folder.path.c_str(), "size=16k"));
          const int fd = ::open((folder.path + "/filler").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
          std::array<char, 4096> page{};
          while (::write(fd, page.data(), page.size()) > 0) continue;
          CHILD_CHECK(refuses(folder.path, Code::out_of_capacity, "is full; free some room"));
          return 0;
        }) == 0);
  REQUIRE(::chmod(folder.path.c_str(), 0755) == 0);
  CHECK(in_child([&] {
          CHILD_CHECK(::setgid(65534) == 0 && ::setuid(65534) == 0);
          CHILD_CHECK(refuses(folder.path, Code::permission_denied, "is not writable by this user"));
          return 0;
        }) == 0);
}

TEST_CASE("tier folder: no room in the middle costs the block that found none, and the tier takes more once there is some") {
  const Folder folder;
  const int code = in_child([&]() -> int {
    if (!mount_small(folder.path.c_str(), "size=1200k")) return kChildSkips;
    tier::TierOptions options = small_tier(folder);
    options.capacity_bytes = 8U << 20;
    const std::string filler = folder.path + "-filler";
    Tier tier(options);
    std::uint64_t number = 0;
    Status status;
    while (number < 1'000 && (status = tier.put(number).status).ok()) ++number;
    CHILD_CHECK(status.code == Code::out_of_capacity && status.detail == ENOSPC);
    CHILD_CHECK(number > 40 && number < 200);
    CHILD_CHECK(!tier.has(number));
    for (std::uint64_t each = 0; each < number; ++each) CHILD_CHECK(tier.good(each));
    CHILD_CHECK(tier.put(number).status.code == Code::out_of_capacity);
    CHILD_CHECK(::mount(nullptr, folder.path.c_str(), nullptr, MS_REMOUNT, "size=2m") == 0);
    CHILD_CHECK(tier.put(number).status.ok());
    for (std::uint64_t each = 0; each <= number; ++each) CHILD_CHECK(tier.good(each));
    return 0;
  });
  SKIP_IF(code);
  CHECK(code == 0);
}

TEST_CASE("tier folder: where io_uring is forbidden it goes on without, and says so once") {
  const Folder folder;
  CHECK(in_child([&] {
          CHILD_CHECK(test::deny_io_uring());
          Tier tier(small_tier(folder));
          CHILD_CHECK(std::string(tier.port->thread().disk_name()) == "system calls");
          std::size_t said = 0;
          for (const std::string& line : tier.port->warnings()) said += line.find("io_uring is not available") != std::string::npos ? 1 : 0;
          CHILD_CHECK(said == 1);
          for (std::uint64_t number = 0; number < 40; ++number) CHILD_CHECK(tier.put(number).status.ok());
          for (std::uint64_t number = 0; number < 40; ++number) CHILD_CHECK(tier.good(number));
          return 0;
        }) == 0);
}

TEST_CASE("tier folder: without the right to lock memory its buffers are registered for each operation") {
  const Folder folder;
  CHECK(in_child([&] {
          CHILD_CHECK(test::limit_locked_memory(64U << 10));
          Tier tier(small_tier(folder));
          for (std::uint64_t number = 0; number < 40; ++number) CHILD_CHECK(tier.put(number).status.ok());
          for (std::uint64_t number = 0; number < 40; ++number) CHILD_CHECK(tier.good(number));
          return 0;
        }) == 0);
}

TEST_CASE("tier folder: a configuration makes the tier that it says, or none") {
  Config config;
  auto none = create_tier(config);
  REQUIRE(none.ok());
  CHECK(*none == nullptr);
  const Folder folder;
  config.offload_directory = folder.path;
  config.offload_capacity_bytes = 4U << 20;
  config.offload_segment_bytes = 1U << 20;
  config.offload_io_uring = false;
  config.offload_direct = DirectIo::off;
  std::vector<std::string> warnings;
  auto made = create_tier(config, &warnings);
  REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
  CHECK((*made)->figures().capacity_bytes == 4U << 20);
  CHECK(warnings.empty());
  made->reset();
  config.offload_directory = folder.path + "/absent";
  CHECK(create_tier(config).status().code == Code::not_found);
}
