// Assertions that stay on in every build: a programmer error stops the process at the place where
// it shows, before it can move wrong bytes. Operating errors are no business of these; they are
// Status values.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvrail::detail {

[[noreturn, gnu::cold, gnu::noinline]] inline void assert_failed(const char* file, int line,
                                                                 const char* condition,
                                                                 const char* message) noexcept {
  std::fprintf(stderr, "%s:%d: assertion failed: %s%s%s\n", file, line, condition,
               message[0] == '\0' ? "" : ": ", message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvrail::detail

/// Aborts with file, line and the condition's text unless `condition` holds.
#define KVRAIL_ASSERT(condition) KVRAIL_ASSERT_MSG(condition, "")

/// The same with one more sentence, a string literal, that tells which rule was broken.
#define KVRAIL_ASSERT_MSG(condition, message)                                   \
  do {                                                                          \
    if (!(condition)) [[unlikely]] {                                            \
      ::kvrail::detail::assert_failed(__FILE__, __LINE__, #condition, message); \
    }                                                                           \
  } while (false)

/// A place that no correct program reaches, such as after a switch that handles every enumerator.
#define KVRAIL_UNREACHABLE() ::kvrail::detail::assert_failed(__FILE__, __LINE__, "unreachable", "")
