// Memory of the engine: where pages come from, the arenas made of them, and the registrar seam
// through which transports learn of arenas (mempool never sees a NIC).
//
// Threads: creating and destroying blocks in system calls, so the Conductor does it; the accessors
// of a living arena are constant and may be read anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kvrail/base/result.h"

namespace kvrail::mempool {

enum class PageKind : std::uint8_t { small, transparent_huge, hugetlb };

[[nodiscard]] constexpr const char* name(PageKind kind) noexcept {
  switch (kind) {
    case PageKind::small:
      return "small pages";
    case PageKind::transparent_huge:
      return "transparent huge pages";
    case PageKind::hugetlb:
      return "hugetlb pages";
  }
  return "?";
}

struct ArenaOptions {
  std::uint64_t bytes = 0;   // rounded up to the page size in use
  bool try_hugetlb = false;  // falls back to transparent huge pages, reported by pages()
  bool lock = false;         // mlock; refused with Code::limit: limit, need, remedy
  int numa_node = -1;        // -1: where the first touch comes from
  bool seal = true;          // F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
  // Nobody but this mapping may ever write, not even by opening /proc/self/fd/N again
  // (F_SEAL_FUTURE_WRITE). For receive arenas; an agent's arena must stay mappable by its agent.
  bool sole_writer = false;
  std::string name = "kvrail";  // shown in /proc/self/maps
};

// One range of memory behind a sealed memfd, mapped read-write by the engine. Every page is taken
// at creation, so a full /dev/shm or memory cgroup gives a clear error here and never a SIGBUS
// later.
class Arena {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Arena>> create(const ArenaOptions& options);
  // Memory of somebody else, used in place; it must outlive the arena. fd() is -1.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> adopt(std::byte* base, std::uint64_t bytes);
  // The first `bytes` of somebody else's shared memory, mapped for reading. A memfd that is not
  // sealed against shrinking is sealed here, or refused with Code::unsupported: its other owner
  // could turn a read of the engine into a SIGBUS. `fd` is duplicated.
  [[nodiscard]] static Result<std::unique_ptr<Arena>> map_fd(int fd, std::uint64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] PageKind pages() const noexcept { return pages_; }
  // What was asked for and not given (huge pages, a NUMA node), one line for the log; empty if all
  // was given.
  [[nodiscard]] const std::string& note() const noexcept { return note_; }
  // A new fd of the same memory that can only be mapped read-only; the caller closes it.
  [[nodiscard]] Result<int> read_only_fd() const;

 private:
  Arena() = default;
  [[nodiscard]] Result<void> open_memory(const ArenaOptions& options);
  [[nodiscard]] bool try_hugetlb(const ArenaOptions& options);
  [[nodiscard]] Result<void> open_small(const ArenaOptions& options);
  [[nodiscard]] Result<void> finish(const ArenaOptions& options);
  void bind_to(int numa_node);
  void close_memory() noexcept;

  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  int fd_ = -1;
  bool mapped_ = false;  // base_ is our mapping, to be unmapped
  PageKind pages_ = PageKind::small;
  std::string note_;
};

// What mempool tells the world about arenas; the engine forwards it to each transport.
class MemoryRegistrar {
 public:
  MemoryRegistrar() = default;
  MemoryRegistrar(const MemoryRegistrar&) = delete;
  MemoryRegistrar& operator=(const MemoryRegistrar&) = delete;
  virtual ~MemoryRegistrar() = default;
  [[nodiscard]] virtual Result<void> register_range(std::byte* base, std::uint64_t bytes,
                                                    int fd) = 0;
  virtual void unregister_range(std::byte* base, std::uint64_t bytes) noexcept = 0;
};

}  // namespace kvrail::mempool
