// Memory of the engine: where pages come from, the arenas made of them, and the registrar seam
// through which transports learn of arenas (mempool never sees a NIC).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kvrail/base/result.h"

namespace kvrail::mempool {

enum class PageKind : std::uint8_t { small, transparent_huge, hugetlb };

struct ArenaOptions {
  std::uint64_t bytes = 0;        // rounded up to the page size in use
  bool try_hugetlb = false;       // falls back to transparent huge pages, reported by pages()
  bool lock = false;              // mlock; refused with Code::limit: limit, need, remedy
  int numa_node = -1;             // -1: where the first touch comes from
  bool seal = true;               // F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
  std::string name = "kvrail";    // shown in /proc/self/maps
};

// One range of memory behind a sealed memfd, mapped read-write by the engine. posix_fallocate'd, so
// a full /dev/shm or memory cgroup gives a clear error here and never a SIGBUS later.
class Arena {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Arena>> create(const ArenaOptions& options);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] PageKind pages() const noexcept { return pages_; }
  // A new fd of the same memory that can only be mapped read-only; the caller closes it.
  [[nodiscard]] Result<int> read_only_fd() const;

 private:
  Arena() = default;
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  int fd_ = -1;
  PageKind pages_ = PageKind::small;
};

// What mempool tells the world about arenas; the engine forwards it to each transport.
class MemoryRegistrar {
 public:
  MemoryRegistrar() = default;
  MemoryRegistrar(const MemoryRegistrar&) = delete;
  MemoryRegistrar& operator=(const MemoryRegistrar&) = delete;
  virtual ~MemoryRegistrar() = default;
  [[nodiscard]] virtual Result<void> register_range(std::byte* base, std::uint64_t bytes, int fd) = 0;
  virtual void unregister_range(std::byte* base, std::uint64_t bytes) noexcept = 0;
};

}  // namespace kvrail::mempool
