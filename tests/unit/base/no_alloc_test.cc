// The check itself, seen from outside: a child process allocates inside a scope and must die of it.
#include "kvrail/base/no_alloc.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>

namespace kvrail {
namespace {

// Keeps the compiler from proving that an allocation has no use and removing it.
void keep(const void* pointer) noexcept {
  asm volatile("" : : "r"(pointer) : "memory");
}

/// Runs f in a child; true if the child was ended by abort(), false if f returned.
template <class F>
bool aborts(F&& f) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int quiet = ::open("/dev/null", O_WRONLY);
    ::dup2(quiet, STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);  // doctest would report the abort as its own failure.
    f();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST_CASE("no alloc / an allocation inside a scope aborts where it is checked, and only there") {
  CHECK(aborts([] {
          NoAllocScope scope;
          auto memory = std::make_unique<int>(1);
          keep(memory.get());
        }) == kNoAllocChecked);
  CHECK(aborts([] {
          NoAllocScope scope;
          void* memory = std::malloc(100);
          keep(memory);
          std::free(memory);
        }) == kNoAllocChecked);
#if !defined(__SANITIZE_THREAD__)  // TSan's hook does not tell of aligned allocations.
  CHECK(aborts([] {
          NoAllocScope scope;
          void* memory = std::aligned_alloc(64, 128);
          keep(memory);
          std::free(memory);
        }) == kNoAllocChecked);
#endif
}

TEST_CASE("no alloc / allocation before, after and in an allowed part is free") {
  CHECK(!aborts([] {
    auto before = std::make_unique<int>(1);
    {
      NoAllocScope scope;
      {
        AllowAllocScope allowed;
        auto memory = std::make_unique<int>(*before);
        keep(memory.get());
      }
    }
    auto after = std::make_unique<int>(*before);
    keep(after.get());
  }));
}

TEST_CASE("no alloc / leaving an allowed part or an inner scope restores the outer scope") {
  CHECK(aborts([] {
          NoAllocScope scope;
          { AllowAllocScope allowed; }
          { NoAllocScope inner; }
          auto memory = std::make_unique<int>(1);
          keep(memory.get());
        }) == kNoAllocChecked);
}

}  // namespace
}  // namespace kvrail
