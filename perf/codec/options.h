// The command line of kvrail-codec.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codec/profile.h"
#include "kvrail/base/result.h"
#include "perf/codec/kv_set.h"
#include "perf/codec/model_trial.h"

namespace kvrail::fidelity {

struct CodecOptions {
  KvFiles files;       // both paths empty: a model
  std::string layout;   // a path, or empty
  std::string profile;  // likewise
  // Instead of the profile's; none: what the profile says.
  std::optional<codec::Protection> protection;
  TrialOptions trial;
  std::vector<std::string> media;  // in the order of the report
  bool json = false;

  [[nodiscard]] bool with_model() const { return files.k.empty(); }
};

/// An error with an empty message: there is nothing more to say (--help), end with `exit_code`.
[[nodiscard]] Result<CodecOptions> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace kvrail::fidelity
