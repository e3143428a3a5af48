#include "engine/ipc/attach_policy.h"

#include <unistd.h>

#include <utility>

namespace kvrail::engine::ipc {
namespace {

constexpr std::string_view kAnyTenant = "*";

bool matches(const AttachRule& rule, const Credentials& caller) noexcept {
  return (!rule.uid || *rule.uid == caller.uid) && (!rule.gid || *rule.gid == caller.gid);
}

bool owns_the_engine(const Credentials& caller) noexcept {
  return caller.uid == 0 || caller.uid == ::getuid();
}

Error forbidden(const Credentials& caller, std::string_view wish) {
  std::string text = "user " + std::to_string(caller.uid) + " may not attach";
  if (!wish.empty()) text += " as tenant '" + std::string(wish) + "'";
  return Error{{Code::permission_denied, Scope::engine, static_cast<std::int32_t>(caller.uid)},
               text + ": give uid " + std::to_string(caller.uid) +
                   " a rule [[attach.tenant]] in the engine's configuration, or set attach.any_uid"};
}

}  // namespace

Result<AttachPolicy> AttachPolicy::create(std::vector<AttachRule> rules, bool any_uid) {
  for (const AttachRule& rule : rules) {
    if (rule.tenant == kAnyTenant) continue;
    const Result<Name> name = make_name(rule.tenant);
    if (!name.ok()) {
      return Error{name.status(), "tenant '" + rule.tenant + "' of [[attach.tenant]]: " + name.error().message};
    }
  }
  AttachPolicy policy;
  policy.rules_ = std::move(rules);
  policy.any_uid_ = any_uid;
  return policy;
}

bool AttachPolicy::admits(const Credentials& caller) const noexcept {
  for (const AttachRule& rule : rules_) {
    if (matches(rule, caller)) return true;
  }
  return any_uid_ || owns_the_engine(caller);
}

Result<Name> AttachPolicy::tenant_for(const Credentials& caller, std::string_view wish) const {
  const std::string own = "uid-" + std::to_string(caller.uid);
  bool matched = false;
  for (const AttachRule& rule : rules_) {
    if (!matches(rule, caller)) continue;
    matched = true;
    if (rule.tenant == kAnyTenant) return make_name(wish.empty() ? own : wish);
    if (wish.empty() || wish == rule.tenant) return make_name(rule.tenant);
  }
  if (matched) return forbidden(caller, wish);
  if (owns_the_engine(caller)) return make_name(wish.empty() ? own : wish);
  if (any_uid_ && (wish.empty() || wish == own)) return make_name(own);
  return forbidden(caller, wish);
}

}  // namespace kvrail::engine::ipc
