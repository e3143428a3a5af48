#include "engine/ipc/attach_policy.h"

#include <doctest/doctest.h>
#include <unistd.h>

using namespace kvrail;
using namespace kvrail::engine::ipc;

namespace {
Credentials user(uid_t uid, gid_t gid = 500) { return {1, uid, gid}; }
std::string tenant(const AttachPolicy& policy, const Credentials& caller, std::string_view wish = {}) {
  const Result<Name> name = policy.tenant_for(caller, wish);
  return name.ok() ? std::string(name->view()) : std::string(kvrail::name(name.status().code));
}
constexpr uid_t kStranger = 54321;
}  // namespace

TEST_CASE("attach policy / without rules only root and the engine's own user get in") {
  const AttachPolicy policy;
  CHECK(policy.admits(user(::getuid())));
  CHECK(policy.admits(user(0)));
  CHECK_FALSE(policy.admits(user(kStranger)));
  CHECK(tenant(policy, user(::getuid())) == "uid-" + std::to_string(::getuid()));
  CHECK(tenant(policy, user(::getuid()), "team") == "team");
  CHECK(tenant(policy, user(kStranger)) == "permission_denied");
}

TEST_CASE("attach policy / a rule names the tenant, and no wish gets around it") {
  const auto policy = AttachPolicy::create({{kStranger, {}, "blue"}, {{}, gid_t{700}, "green"}});
  REQUIRE(policy.ok());
  CHECK(tenant(*policy, user(kStranger)) == "blue");
  CHECK(tenant(*policy, user(kStranger), "blue") == "blue");
  CHECK(tenant(*policy, user(kStranger), "green") == "permission_denied");
  CHECK(tenant(*policy, user(kStranger, 700), "green") == "green");
  CHECK(tenant(*policy, user(kStranger, 700)) == "blue");
  CHECK_FALSE(policy->admits(user(kStranger + 1)));
}

TEST_CASE("attach policy / any_uid lets everyone in, each as his own tenant") {
  const auto policy = AttachPolicy::create({}, true);
  REQUIRE(policy.ok());
  CHECK(tenant(*policy, user(kStranger)) == "uid-54321");
  CHECK(tenant(*policy, user(kStranger), "uid-54321") == "uid-54321");
  CHECK(tenant(*policy, user(kStranger), "uid-0") == "permission_denied");
}

TEST_CASE("attach policy / a tenant that is no name is refused when the rules are made") {
  CHECK(AttachPolicy::create({{kStranger, {}, "two words"}}).status().code == Code::invalid_argument);
  CHECK(AttachPolicy::create({{kStranger, {}, "*"}}).ok());
}
