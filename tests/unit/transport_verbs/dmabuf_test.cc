// Memory of a device, as a GPU's: registered by its DMA-BUF, or by its addresses where that is refused, or
// not at all. No kernel here makes a DMA-BUF, so a memory file passes for one, by the shim.
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/verbs_shim.h"
#include "tests/unit/transport_verbs/two_sides.h"

namespace kvrail::test {
namespace {

using namespace kvrail::transport;

constexpr std::size_t kBytes = 1 << 20;

// A memory file, mapped, that passes for a DMA-BUF.
struct DeviceMemory {
  DeviceMemory() {
    VerbsShim::get().reset();
    fd = ::memfd_create("kvrail-test", MFD_CLOEXEC);
    REQUIRE(::ftruncate(fd, kBytes) == 0);
    void* const at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    base = static_cast<std::byte*>(at);
    shim.dmabuf_fd = fd;
  }
  ~DeviceMemory() {
    ::munmap(base, kBytes);
    ::close(fd);
    shim.reset();
  }
  VerbsShim& shim = VerbsShim::get();
  int fd = -1;
  std::byte* base = nullptr;
};

// From that memory of side 0 into ordinary memory of side 1.
void check_sends(TwoSides& sides, const DeviceMemory& memory) {
  std::memset(memory.base, 0x5A, kBytes);
  std::vector<std::byte> to(kBytes);
  REQUIRE(sides.at(1).register_memory(to.data(), to.size(), -1).ok());
  PayloadBuilder from_pieces;
  PayloadBuilder to_pieces;
  from_pieces.add(memory.base, kBytes);
  to_pieces.add(to.data(), kBytes);
  const Payload source = from_pieces.payload();
  const Payload sink = to_pieces.payload();
  const auto lanes = sides.connect();
  sides.at(1).expose({3, 9}, 11, sink);
  ChunkPost post;
  post.lease = {3, 9};
  post.source = &source;
  post.bytes = kBytes;
  REQUIRE(sides.at(0).try_post_chunk(lanes[0], post));
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::chunk_done) == 1; }));
  CHECK(sides.last(0, EventKind::chunk_done).status.ok());
  CHECK(sides.at(0).counters().bounced_chunks == 0);
  CHECK(std::memcmp(to.data(), memory.base, kBytes) == 0);
  sides.at(1).withdraw({3, 9});
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }));
}

}  // namespace

TEST_CASE("a DMA-BUF is registered by its descriptor, in regions, and sent from without a copy") {
  TwoSides sides;
  DeviceMemory memory;
  memory.shim.dmabuf = -1;
  REQUIRE(sides.at(0).register_memory(memory.base, kBytes, memory.fd).ok());
  CHECK(memory.shim.dmabufs_asked == std::vector<int>{memory.fd});
  CHECK(sides.at(0).counters().regions_by_dmabuf == 1);
  CHECK(sides.at(0).counters().regions_by_peer_memory == 0);
  check_sends(sides, memory);
}

TEST_CASE("a DMA-BUF that device or kernel refuse is registered by its addresses, and counted") {
  for (const int refusal : {EOPNOTSUPP, 524, EFAULT, EINVAL}) {  // 524: the kernel's own ENOTSUPP
    CAPTURE(refusal);
    TwoSides sides;
    DeviceMemory memory;
    memory.shim.dmabuf = refusal;
    REQUIRE(sides.at(0).register_memory(memory.base, kBytes, memory.fd).ok());
    CHECK(sides.at(0).counters().regions_by_dmabuf == 0);
    CHECK(sides.at(0).counters().regions_by_peer_memory == 1);
    check_sends(sides, memory);
  }
}

TEST_CASE("device memory that can't be registered in any way: a typed error, nothing is left of it") {
  TwoSides sides;
  DeviceMemory memory;
  memory.shim.dmabuf = EOPNOTSUPP;
  const auto before = memory.shim.live;
  memory.shim.fail_registration_at = 1;  // by address, too: there is no peer memory driver
  memory.shim.registration_error = EFAULT;
  const auto refused = sides.at(0).register_memory(memory.base, kBytes, memory.fd);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().code == Code::io_error);
  CHECK(memory.shim.live == before);
}

TEST_CASE("a memory file is no DMA-BUF") {
  TwoSides sides;
  DeviceMemory memory;
  memory.shim.dmabuf_fd = -1;
  REQUIRE(sides.at(0).register_memory(memory.base, kBytes, memory.fd).ok());
  CHECK(memory.shim.dmabufs_asked.empty());
}

TEST_CASE("a real DMA-BUF, of memory that the kernel exports") {
  TwoSides sides;
  DeviceMemory memory;
  memory.shim.dmabuf_fd = -1;
  const int exporter = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  if (exporter < 0) {
    MESSAGE("SKIP: this kernel has no /dev/udmabuf, and no GPU is here to export one");
    return;
  }
  const int file = ::memfd_create("kvrail-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(file, kBytes) == 0);
  REQUIRE(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  udmabuf_create wanted{static_cast<__u32>(file), UDMABUF_FLAGS_CLOEXEC, 0, kBytes};
  const int dmabuf = ::ioctl(exporter, UDMABUF_CREATE, &wanted);
  REQUIRE(dmabuf >= 0);
  ::munmap(memory.base, kBytes);
  void* const at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf, 0);
  REQUIRE(at != MAP_FAILED);
  memory.base = static_cast<std::byte*>(at);
  if (sides.at(0).register_memory(memory.base, kBytes, dmabuf).ok()) {
    CHECK(memory.shim.dmabufs_asked == std::vector<int>{dmabuf});
    check_sends(sides, memory);
  } else {
    MESSAGE("SKIP: this device registers no DMA-BUF");
  }
  for (const int fd : {exporter, file, dmabuf}) ::close(fd);
}

}  // namespace kvrail::test
