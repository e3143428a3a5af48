// The command line of kvrail-calibrate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codec/profile.h"
#include "kvrail/base/result.h"
#include "perf/codec/kv_set.h"

namespace kvrail::calibrate {

struct Options {
  fidelity::KvFiles files;         // both paths empty: a model
  std::string layout;              // RoPE data of the files
  std::string model;               // a recall model or a checkpoint of llama2.c
  std::string out;                 // writes OUT.profile.toml and OUT.basis
  double bits = 2.0;               // a value, of lowrank: the rate that its figures are for
  double most_bits = 4.0;          // up to which rate the basis keeps components
  std::uint32_t positions = 4096;  // answer positions a depth
  std::uint64_t seed = 1;
  // Of a segment and of a group, see klt.h.
  std::uint32_t most_segment_values = 256;
  std::uint32_t layers_per_group = 1;
  // Blocks at the ends of a context that int4 sends as int8; none: what the model's depth suggests.
  std::optional<codec::Protection> protection;

  [[nodiscard]] bool with_model() const { return files.k.empty(); }
};

/// An error with an empty message: there is nothing more to say (--help), end with `exit_code`.
[[nodiscard]] Result<Options> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace kvrail::calibrate
