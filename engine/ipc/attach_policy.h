// Who may attach, and as which tenant: decided from what the kernel says of the caller, never from
// what the caller says.
// Thread: any; immutable after construction.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::engine::ipc {

struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// A rule without uid and gid matches everyone who can open the socket. Tenant "*": any name.
struct AttachRule {
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  std::string tenant;
};

// A caller that a rule matches gets a tenant of the rules. Without one, root and the engine's own
// user (who could read the engine's memory anyway) get the tenant they wish, others are refused
// unless `any_uid` is set; who wishes nothing, or is let in by any_uid, gets "uid-N".
class AttachPolicy {
 public:
  AttachPolicy() = default;
  [[nodiscard]] static Result<AttachPolicy> create(std::vector<AttachRule> rules, bool any_uid = false);

  // Whether the caller may ask anything at all, such as for the status page.
  [[nodiscard]] bool admits(const Credentials& caller) const noexcept;
  [[nodiscard]] Result<Name> tenant_for(const Credentials& caller, std::string_view wish) const;

 private:
  std::vector<AttachRule> rules_;
  bool any_uid_ = false;
};

}  // namespace kvrail::engine::ipc
