// The plot of the demo: per rate a panel, per policy a bar for the median and a paler one for the
// 95th percentile of the task latency. Each panel has a scale of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "perf/demo/report.h"

namespace kvrail::demo {

/// `notes`: lines under the plot, such as what was simulated.
[[nodiscard]] std::string result_svg(const std::vector<RateResult>& rates,
                                     const std::vector<std::string>& notes);

/// A round number not below `value`: where the axis of a panel ends.
[[nodiscard]] double axis_end(double value) noexcept;

/// The text with the characters replaced that mean something in XML.
[[nodiscard]] std::string escaped(std::string_view text);

}  // namespace kvrail::demo
