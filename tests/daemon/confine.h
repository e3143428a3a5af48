// What takes rights and room away from a child between fork and exec. Each says whether it could.
#pragma once

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

// From <linux/capability.h>, which clashes with other headers.
#ifndef CAP_IPC_LOCK
#define CAP_IPC_LOCK 14
#endif

namespace kvrail::test {

// Root would not feel the limit, so the right to ignore it goes as well.
inline bool limit_locked_memory(rlim_t bytes) {
  static_cast<void>(::prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0));
  const rlimit limit{bytes, bytes};
  return ::setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

// io_uring_setup answers EPERM, as under the seccomp profiles of containers.
inline bool deny_io_uring() {
  std::array<sock_filter, 4> code{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

// A /dev/shm of its own with no byte left.
inline bool fill_dev_shm() {
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") != 0) {
    return false;
  }
  const int fd = ::open("/dev/shm/full", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  std::array<char, 4096> page{};
  while (::write(fd, page.data(), page.size()) > 0) continue;
  return errno == ENOSPC;
}

}  // namespace kvrail::test
