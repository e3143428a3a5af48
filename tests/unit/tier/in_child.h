// A part of a test that takes rights or room away from its process, and so runs in one of its own.
#pragma once

#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "kvrail/base/assert.h"
#include "tests/daemon/confine.h"

namespace kvrail::engine::testing {

constexpr int kChildSkips = 77;

// What `body` returns: 0 good, kChildSkips not possible here, else the line where it went wrong.
template <class Body>
int in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  KVRAIL_ASSERT(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  KVRAIL_ASSERT(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1'000 + WTERMSIG(status);
}

// A small file system over `path`, in a mount namespace of this process's own. False: not allowed.
inline bool mount_small(const char* path, const char* options, unsigned long flags = 0) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", path, "tmpfs", flags, options) == 0;
}

}  // namespace kvrail::engine::testing

// In a child: which check failed. Its number is the exit code, so lines go by 250.
#define CHILD_CHECK(holds)                                                    \
  if (!(holds)) {                                                             \
    std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);          \
    return 1 + __LINE__ % 70;                                                 \
  }
