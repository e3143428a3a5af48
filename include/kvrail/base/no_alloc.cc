// The allocator hook behind NoAllocScope. Two ways to see an allocation:
//   - under a sanitizer, its own malloc hook, since the sanitizer owns malloc;
//   - else malloc and its relatives are defined here and forward to glibc's. A definition in the
//   executable
//     wins over libc's, so operator new and C libraries are seen as well.
#include "kvrail/base/no_alloc.h"

#if defined(KVRAIL_DEBUG)

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVRAIL_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVRAIL_SANITIZED 1
#endif

namespace {

// Greater than zero while allocation is forbidden on this thread. initial-exec: where the hook ends
// up in a shared library, the default model could allocate at a thread's first access, from within
// malloc.
[[gnu::tls_model("initial-exec")]] constinit thread_local int t_depth = 0;

// Out of line: the hook itself must stay small, it runs at every allocation of the process.
[[noreturn, gnu::noinline]] void fail() noexcept {
  t_depth = 0;  // abort() may allocate in handlers; the report comes first.
  static constexpr char kMessage[] =
      "kvrail: memory was allocated inside a duty cycle (NoAllocScope)\n";
  const auto written = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  static_cast<void>(written);
  std::abort();
}

inline void check() noexcept {
  if (t_depth > 0) [[unlikely]] {
    fail();
  }
}

}  // namespace

namespace kvrail::detail {

int no_alloc_enter() noexcept {
  const int before = t_depth;
  t_depth = before + 1;
  return before;
}

int no_alloc_suspend() noexcept {
  const int before = t_depth;
  t_depth = 0;
  return before;
}

void no_alloc_restore(int depth) noexcept {
  t_depth = depth;
}

}  // namespace kvrail::detail

#if defined(KVRAIL_SANITIZED)

extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t) {
  check();
}
extern "C" void __sanitizer_free_hook(const volatile void*) {}

#else

extern "C" {

void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* old, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  check();
  return __libc_malloc(size);
}

void* calloc(std::size_t count, std::size_t size) {
  check();
  return __libc_calloc(count, size);
}

void* realloc(void* old, std::size_t size) {
  check();
  return __libc_realloc(old, size);
}

void* memalign(std::size_t alignment, std::size_t size) {
  check();
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(std::size_t alignment, std::size_t size) {
  check();
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  check();
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) {
    return EINVAL;
  }
  void* memory = __libc_memalign(alignment, size);
  if (memory == nullptr && size != 0) {
    return ENOMEM;
  }
  *out = memory;
  return 0;
}

}  // extern "C"

#endif  // KVRAIL_SANITIZED

#endif  // KVRAIL_DEBUG
