// The memory windows of one device: keys that each open one range of a region to one queue pair, and
// can be taken back. Type 2: bound and invalidated by work requests.
//
// Thread: owner.
// Invariant: a window is free, or bound (or about to be) by the one lane that took it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "kvrail/base/assert.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::transport::verbs {

inline constexpr std::uint32_t kNoWindow = UINT32_MAX;

class WindowPool {
 public:
  static constexpr std::uint32_t kMost = 2048;
  struct Window {
    ibv_mw* handle = nullptr;
    std::uint32_t key = 0;            // that the present binding gave it
    std::uint32_t next = kNoWindow;   // in a list of who has it, or of the free ones
  };

  explicit WindowPool(ibv_pd* domain) : domain_(domain) {}
  ~WindowPool() {
    for (const Window& one : windows_) {
      if (one.handle != nullptr) ::ibv_dealloc_mw(one.handle);
    }
  }
  WindowPool(const WindowPool&) = delete;
  WindowPool& operator=(const WindowPool&) = delete;

  /// Whether `count` can be taken now; makes more where there are few. False: none are left, the
  /// device gives no more, or it refused a binding before.
  [[nodiscard]] bool has(std::uint32_t count) noexcept {
    while (!refused_ && free_count_ < count) {
      if (!make()) refused_ = windows_.size() < kMost;
      if (free_count_ < count && windows_.size() == kMost) return false;
    }
    return !refused_;
  }
  /// One of those that has() has told of.
  [[nodiscard]] std::uint32_t take() noexcept {
    KVRAIL_ASSERT(free_ != kNoWindow);
    const std::uint32_t index = free_;
    Window& window = windows_[index];
    free_ = window.next;
    --free_count_;
    window.key = ::ibv_inc_rkey(window.handle->rkey);
    window.next = kNoWindow;
    return index;
  }
  /// Its invalidation is complete.
  void give(std::uint32_t index) noexcept {
    windows_[index].handle->rkey = windows_[index].key;
    put(index);
  }
  /// Destroyed, and so revoked, whatever its binding is; another takes its place.
  void drop(std::uint32_t index) noexcept {
    const AllowAllocScope allow;
    Window& window = windows_[index];
    ::ibv_dealloc_mw(window.handle);
    window.handle = ::ibv_alloc_mw(domain_, IBV_MW_TYPE_2);
    if (window.handle != nullptr) put(index);
  }
  [[nodiscard]] Window& at(std::uint32_t index) noexcept { return windows_[index]; }
  /// The device has refused a binding: no more of them.
  void refuse() noexcept { refused_ = true; }

 private:
  [[nodiscard]] bool make() noexcept {
    if (windows_.size() == kMost) return false;
    const AllowAllocScope allow;  // until there are as many as are used at once
    windows_.reserve(kMost);
    ibv_mw* const made = ::ibv_alloc_mw(domain_, IBV_MW_TYPE_2);
    if (made == nullptr) return false;
    windows_.push_back(Window{made, 0, kNoWindow});
    put(static_cast<std::uint32_t>(windows_.size() - 1));
    return true;
  }
  void put(std::uint32_t index) noexcept {
    windows_[index].next = free_;
    free_ = index;
    ++free_count_;
  }

  ibv_pd* domain_;
  std::vector<Window> windows_;
  std::uint32_t free_ = kNoWindow;
  std::uint32_t free_count_ = 0;
  bool refused_ = false;
};

}  // namespace kvrail::transport::verbs
