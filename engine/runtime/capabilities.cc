// What an engine has is what its parts say, never what the build machine had installed.
#include "engine/runtime/host.h"
#include "kvrail_features.h"

namespace kvrail::engine {
namespace {

std::string absent(const char* name, bool library_found) {
  return std::string(name) + ": not built in" + (library_found ? " (the library was found, the transport is to come)"
                                                               : " (the library was not found)");
}

}  // namespace

std::string Host::verbs_line() const {
  if (verbs_) {
    return "verbs: " + std::string(verbs_->devices()) +
           (verbs_address().empty() ? ", dials only" : ", listens on " + std::string(verbs_address()));
  }
  const std::string why = transport::verbs::why_unavailable();
  return "verbs: " + (why.empty() ? "off (no verbs.listen and no peer with transport = \"verbs\")" : "off, " + why);
}

std::vector<std::string> Host::capabilities() const {
  std::vector<std::string> lines;
  lines.push_back("tcp: " + std::string(tcp_->io_name()) +
                  (tcp_address().empty() ? ", dials only" : ", listens on " + std::string(tcp_address())));
  lines.push_back(!shm_ ? std::string("shm: off (no shm.listen and no peer with transport = \"shm\")")
                        : config_.shm_listen.empty() ? std::string("shm: dials only")
                                                     : "shm: listens on " + config_.shm_listen);
  lines.push_back(verbs_line());
  lines.push_back(tier_ ? "tier: " + config_.offload_directory : std::string("tier: off (no offload.directory)"));
  lines.push_back(absent("ucx", KVRAIL_FOUND_UCX != 0));
  lines.push_back(absent("dpdk", KVRAIL_FOUND_DPDK != 0));
  lines.push_back(absent("cuda", KVRAIL_FOUND_CUDA != 0));
  return lines;
}

}  // namespace kvrail::engine
