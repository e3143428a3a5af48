#include "transport/verbs/memory_map.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace kvrail::transport::verbs {
namespace {

Error failure(std::uint64_t bytes, int error) {
  rlimit limit{};
  static_cast<void>(::getrlimit(RLIMIT_MEMLOCK, &limit));
  const bool locked = error == ENOMEM || error == EAGAIN || error == EPERM;
  std::string text = "cannot register " + std::to_string(bytes) +
                     " bytes with the RDMA device: " + std::strerror(error);
  if (locked && limit.rlim_cur != RLIM_INFINITY) {
    text += "; this process may lock " + std::to_string(limit.rlim_cur / 1024) +
            " KiB of memory: raise LimitMEMLOCK of the service, or ulimit -l";
  }
  return Error{{locked ? Code::limit : Code::io_error, Scope::engine, error}, std::move(text)};
}

// The kernel names these so, and no other call tells one from a file.
bool is_dmabuf(int fd) noexcept {
  constexpr std::string_view kName = "/dmabuf:";
  std::array<char, 64> target{};
  if (fd < 0) return false;
  std::array<char, 32> link{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t size = ::readlink(link.data(), target.data(), target.size());
  return size > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(size)).starts_with(kName);
}

}  // namespace

MemoryMap::~MemoryMap() {
  for (Region& region : regions_) release(region);
}

ibv_mr* MemoryMap::register_with(const Device& device, Region& region) noexcept {
  const auto bytes = static_cast<std::size_t>(region.end - region.begin);
  const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                          (device.windows != nullptr ? unsigned{IBV_ACCESS_MW_BIND} : 0u);
  if (region.dmabuf < 0) return ::ibv_reg_mr(device.domain, region.begin, bytes, access);
  ibv_mr* key = ::ibv_reg_dmabuf_mr(
      device.domain, static_cast<std::uint64_t>(region.begin - region.base), bytes,
      reinterpret_cast<std::uint64_t>(region.begin), region.dmabuf, static_cast<int>(access));
  if (key != nullptr) {
    ++by_dmabuf_;
    return key;
  }
  key = ::ibv_reg_mr(device.domain, region.begin, bytes, access);
  by_peer_memory_ += key != nullptr ? 1 : 0;
  return key;
}

int MemoryMap::register_region(Region& region) noexcept {
  const auto bytes = static_cast<std::size_t>(region.end - region.begin);
  region.writable = true;
  for (const Device& device : devices_.all()) {
    ibv_mr*& key = region.keys[device.index];
    key = register_with(device, region);
    if (key == nullptr && errno == EFAULT && region.dmabuf < 0) {
      // Mapped for reading only: good enough to send from.
      key = ::ibv_reg_mr(device.domain, region.begin, bytes, 0);
      region.writable = false;
    }
    if (key == nullptr) {
      const int error = errno;
      release(region);
      return error;
    }
  }
  return 0;
}

void MemoryMap::release(Region& region) noexcept {
  for (ibv_mr*& key : region.keys) {
    if (key != nullptr && !region.foreign) ::ibv_dereg_mr(key);
    key = nullptr;
  }
}

Result<void> MemoryMap::add(std::byte* base, std::uint64_t bytes, int fd) {
  KVRAIL_ASSERT(base != nullptr && bytes > 0);
  std::byte* const end = base + bytes;
  std::byte* same_end = nullptr;
  for (const Region& region : regions_) {
    if (region.base == base) same_end = region.end;
  }
  if (same_end == end) {
    for (Region& region : regions_) region.uses += region.base == base ? 1 : 0;
    return {};
  }
  // What is left of a range that was unmapped without a word.
  std::erase_if(regions_, [&](Region& old) {
    const bool overlaps = old.begin < end && base < old.end;
    if (overlaps) release(old);
    return overlaps;
  });
  std::uint64_t most = kMaxRegionBytes;
  for (const Device& device : devices_.all()) most = std::min(most, device.max_region_bytes);
  const int dmabuf = is_dmabuf(fd) ? fd : -1;
  std::vector<Region> fresh;
  for (std::byte* at = base; at < end;) {
    Region& region = fresh.emplace_back();
    region.base = base;
    region.dmabuf = dmabuf;
    region.begin = at;
    region.end = at + std::min<std::uint64_t>(most, static_cast<std::uint64_t>(end - at));
    if (const int error = register_region(region); error != 0) {
      for (Region& made : fresh) release(made);
      return failure(bytes, error);
    }
    region.dmabuf = -1;  // the devices have it now; the descriptor is the caller's
    at = region.end;
  }
  const auto where =
      std::upper_bound(regions_.begin(), regions_.end(), base,
                       [](const std::byte* a, const Region& r) { return a < r.begin; });
  regions_.insert(where, fresh.begin(), fresh.end());
  return {};
}

void MemoryMap::add_foreign(std::byte* base, std::uint64_t bytes, ibv_mr* key) {
  Region region;
  region.begin = region.base = base;
  region.end = base + bytes;
  region.foreign = region.writable = true;
  region.keys[0] = key;
  const auto where =
      std::upper_bound(regions_.begin(), regions_.end(), base,
                       [](const std::byte* a, const Region& r) { return a < r.begin; });
  regions_.insert(where, region);
}

void MemoryMap::remove(std::byte* base) noexcept {
  std::erase_if(regions_, [&](Region& region) {
    if (region.base != base || --region.uses > 0) return false;
    release(region);
    return true;
  });
}

const Region* MemoryMap::search(const std::byte* address) noexcept {
  const auto after =
      std::upper_bound(regions_.begin(), regions_.end(), address,
                       [](const std::byte* a, const Region& r) { return a < r.begin; });
  if (after == regions_.begin() || !contains(*(after - 1), address)) return nullptr;
  last_ = static_cast<std::size_t>(after - 1 - regions_.begin());
  return &regions_[last_];
}

}  // namespace kvrail::transport::verbs
