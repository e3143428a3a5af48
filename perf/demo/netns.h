// Two network namespaces joined by a veth pair that is shaped at both ends: a network between two
// nodes, on one machine, with a rate that we choose.
#pragma once

#include <cstdint>
#include <string>

#include "kvrail/base/result.h"

namespace kvrail::demo {

/// Thread: its owner. The namespaces vanish with the object. Those of a run that was killed are
/// removed by the next make().
class LinkedNamespaces {
 public:
  /// Code::permission_denied (or what the kernel said) where this user or machine has no
  /// namespaces.
  [[nodiscard]] static Result<LinkedNamespaces> make();
  LinkedNamespaces(LinkedNamespaces&& other) noexcept;
  LinkedNamespaces& operator=(LinkedNamespaces&&) = delete;
  ~LinkedNamespaces();

  /// Shapes both directions with tc tbf; replaces the shape before.
  [[nodiscard]] Result<void> shape(std::uint64_t rate_bytes_per_s);

  /// End 0 or 1: the namespace's name (under /run/netns) and its address on the link.
  [[nodiscard]] const std::string& name(int end) const { return end == 0 ? name_a_ : name_b_; }
  [[nodiscard]] static const char* address(int end) {
    return end == 0 ? "10.201.77.1" : "10.201.77.2";
  }

 private:
  LinkedNamespaces(std::string a, std::string b) : name_a_(std::move(a)), name_b_(std::move(b)) {}
  [[nodiscard]] Result<void> link();
  std::string name_a_, name_b_;  // empty: moved from
};

/// For users without root: moves this process into a user namespace of its own, in which it may
/// make network namespaces, if the machine allows that. Returns whether it did; nothing has changed
/// if not. Call before threads or children exist.
[[nodiscard]] bool enter_user_namespace() noexcept;

/// Arguments of tc's tbf for a rate: bytes that may go at once, and bytes that may wait.
struct TbfShape {
  std::uint64_t burst_bytes = 0;
  std::uint64_t limit_bytes = 0;
};
[[nodiscard]] TbfShape tbf_shape(std::uint64_t rate_bytes_per_s) noexcept;

/// The process id in the name of one of our namespaces, 0 for a name that is not ours.
[[nodiscard]] int owner_of_namespace(const std::string& name) noexcept;

}  // namespace kvrail::demo
