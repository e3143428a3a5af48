// The verbs transport of a build without libibverbs.
#include "transport/verbs/verbs_transport.h"

namespace kvrail::transport::verbs {

Result<std::unique_ptr<VerbsTransport>> VerbsTransport::create(const VerbsOptions&) {
  return Error{{Code::not_built_in, Scope::engine}, why_unavailable()};
}

std::string why_unavailable() {
  return "this kvrail was built without verbs; install libibverbs-dev and librdmacm-dev and build "
         "it again";
}

std::string own_address(const std::vector<std::string>&) {
  return {};
}

}  // namespace kvrail::transport::verbs
