// Guards the rule that a duty cycle takes no memory from the heap.
//
// A worker opens a NoAllocScope around each pass of its loop. In builds with KVRAIL_DEBUG, and in
// sanitizer builds, any malloc or operator new on that thread inside the scope prints one line and
// aborts; in release builds both classes are empty. AllowAllocScope marks the few places inside a
// duty cycle that may allocate because they run at most once per failure, never per transfer.
//
// Threads: the depth is thread-local; a scope is opened and closed on one thread.
#pragma once

namespace kvrail {

#if defined(KVRAIL_DEBUG)

namespace detail {
// Defined in no_alloc.cc. Returns the depth before the change, so that scopes can restore it.
int no_alloc_enter() noexcept;
int no_alloc_suspend() noexcept;
void no_alloc_restore(int depth) noexcept;
}  // namespace detail

/// True where an allocation inside a NoAllocScope aborts.
inline constexpr bool kNoAllocChecked = true;

class [[nodiscard]] NoAllocScope {
 public:
  NoAllocScope() noexcept : before_(detail::no_alloc_enter()) {}
  ~NoAllocScope() { detail::no_alloc_restore(before_); }
  NoAllocScope(const NoAllocScope&) = delete;
  NoAllocScope& operator=(const NoAllocScope&) = delete;

 private:
  int before_;
};

class [[nodiscard]] AllowAllocScope {
 public:
  AllowAllocScope() noexcept : before_(detail::no_alloc_suspend()) {}
  ~AllowAllocScope() { detail::no_alloc_restore(before_); }
  AllowAllocScope(const AllowAllocScope&) = delete;
  AllowAllocScope& operator=(const AllowAllocScope&) = delete;

 private:
  int before_;
};

#else

inline constexpr bool kNoAllocChecked = false;

class [[nodiscard]] NoAllocScope {
 public:
  NoAllocScope() noexcept {}
  ~NoAllocScope() {}
  NoAllocScope(const NoAllocScope&) = delete;
  NoAllocScope& operator=(const NoAllocScope&) = delete;
};

class [[nodiscard]] AllowAllocScope {
 public:
  AllowAllocScope() noexcept {}
  ~AllowAllocScope() {}
  AllowAllocScope(const AllowAllocScope&) = delete;
  AllowAllocScope& operator=(const AllowAllocScope&) = delete;
};

#endif

}  // namespace kvrail
