// One run of kvrail-codec: every medium over every context.
#pragma once

#include <string>
#include <vector>

#include "perf/codec/options.h"
#include "perf/codec/report.h"

namespace kvrail::fidelity {

struct Measured {
  std::string description;  // of what was coded, one line
  std::vector<MediumFigures> media;
  std::vector<std::string> left_out;  // media that cannot code this KV: why, a line each
};
/// invalid_argument and not_found for bad input, unsupported where no medium can code it.
[[nodiscard]] Result<Measured> measure(const CodecOptions& options);

}  // namespace kvrail::fidelity
