#include "perf/demo/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvrail::demo {
namespace {

constexpr double kColumnWidth = 80;  // of a policy; its figures stand below it
constexpr double kPanelWidth = kColumnWidth * kPolicies.size(), kPanelHeight = 220, kPanelGap = 30;
constexpr double kLeft = 50, kTop = 84, kFoot = 60, kNoteLine = 18;
constexpr int kAxisSteps = 4;
// Told apart by people who see no red or green; the first is the policy that the others are
// measured by.
constexpr std::array<const char*, kPolicies.size()> kColours{"#0072b2", "#e69f00", "#009e73",
                                                             "#cc79a7", "#56b4e9", "#d55e00",
                                                             "#666666", "#b8a900", "#7a4fb5"};

std::string text_at(double x, double y, std::string_view text, const char* anchor = "middle",
                    int size = 12, const char* more = "") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\"{}>{}</text>\n", x, y,
      anchor, size, more, escaped(text));
}

std::string bar(double x, double width, double value, double end, double bottom, const char* colour,
                double opacity) {
  const double height = kPanelHeight * value / end;
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
      "opacity=\"{}\"/>\n",
      x, bottom - height, width, height, colour, opacity);
}

std::string axis(double left, double bottom, double end) {
  std::string out;
  for (int i = 0; i <= kAxisSteps; ++i) {
    const double y = bottom - kPanelHeight * i / kAxisSteps;
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ccc\"/>\n", left,
        y, left + kPanelWidth, y);
    out += text_at(left - 6, y + 4, fmt::format("{:g}", end * i / kAxisSteps), "end", 11);
  }
  return out;
}

std::string panel(const RateResult& rate, double left) {
  const double bottom = kTop + kPanelHeight;
  double most = 0;
  for (const PolicyResult& policy : rate.policies) most = std::max(most, policy.p95_ms);
  const double end = axis_end(most);
  std::string out = axis(left, bottom, end) + text_at(left + kPanelWidth / 2, kTop - 14, rate.name,
                                                      "middle", 14, " font-weight=\"bold\"");
  const double step = kPanelWidth / static_cast<double>(kPolicies.size());
  for (std::size_t i = 0; i < kPolicies.size(); ++i) {
    const PolicyResult& policy = rate.policies[i];
    const double x = left + step * static_cast<double>(i);
    const double width = step * 0.36;
    out += bar(x + step * 0.12, width, policy.p50_ms, end, bottom, kColours[i], 1);
    out += bar(x + step * 0.12 + width, width, policy.p95_ms, end, bottom, kColours[i], 0.45);
    const double middle = x + step / 2;
    out += text_at(middle, bottom + 16, kPolicies[i].name);
    out += text_at(middle, bottom + 31,
                   fmt::format("{:.0f} / {:.0f} ms", policy.p50_ms, policy.p95_ms), "middle", 10);
    out += text_at(middle, bottom + 44, text_of_bytes(policy.n == 0 ? 0 : policy.bytes / policy.n),
                   "middle", 10);
    out += text_at(middle, bottom + 57, fmt::format("{:.1f} % right", 100 * policy.accuracy()),
                   "middle", 10);
  }
  return out;
}

}  // namespace

double axis_end(double value) noexcept {
  if (!(value > 0)) return 1;
  const double unit = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 4.0, 5.0, 6.0, 8.0}) {
    if (value <= factor * unit) return factor * unit;
  }
  return 10 * unit;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

std::string result_svg(const std::vector<RateResult>& rates,
                       const std::vector<std::string>& notes) {
  const double panels = static_cast<double>(std::max<std::size_t>(rates.size(), 1));
  const double width = kLeft + panels * (kPanelWidth + kPanelGap + kLeft) - kLeft;
  const double foot = kTop + kPanelHeight + kFoot + 24;
  const double height = foot + kNoteLine * static_cast<double>(notes.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 "
      "0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  out += text_at(width / 2, 28,
                 "Task latency in ms by policy: median (solid) and 95th percentile (pale)",
                 "middle", 16);
  out += text_at(width / 2, 44,
                 "below each: median / 95th percentile, bytes between the nodes per task, answers "
                 "that were right",
                 "middle", 11);
  double left = kLeft;
  for (const RateResult& rate : rates) {
    out += panel(rate, left);
    left += kPanelWidth + kPanelGap + kLeft;
  }
  for (std::size_t i = 0; i < notes.size(); ++i) {
    out += text_at(kLeft, foot + kNoteLine * static_cast<double>(i), notes[i], "start", 11);
  }
  return out + "</svg>\n";
}

}  // namespace kvrail::demo
