#include "perf/codec/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvrail::fidelity {

std::string json_report(const std::vector<MediumFigures>& media) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MediumFigures& figures : media) {
    nlohmann::ordered_json entry{{"name", figures.name},
                                 {"bits_per_value", figures.bits_per_value()},
                                 {"nmse_k", figures.k.ratio()},
                                 {"nmse_v", figures.v.ratio()},
                                 {"attention_error", figures.attention_error()},
                                 {"encode_gb_s", figures.speeds.encode},
                                 {"decode_gb_s", figures.speeds.decode},
                                 {"memcpy_gb_s", figures.speeds.memcpy},
                                 {"bit_exact", figures.bit_exact}};
    if (figures.answers) {
      entry["logit_kl"] = figures.answers->logit_kl();
      entry["top1"] = figures.answers->top1();
      entry["accuracy"] = figures.answers->accuracy();
      entry["extra_tokens"] = figures.answers->extra_tokens();
    }
    list.push_back(std::move(entry));
  }
  nlohmann::ordered_json report;
  report["media"] = std::move(list);
  return report.dump(2) + "\n";
}

std::string table_report(const std::vector<MediumFigures>& media) {
  const bool model = !media.empty() && media.front().answers.has_value();
  std::string table = fmt::format("{:<17}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8}{:>8}{:>7}",
                                  "medium", "bits/val", "NMSE K", "NMSE V", "attention", "of K",
                                  "of V", "enc", "dec", "memcpy", "exact");
  if (model)
    table += fmt::format("{:>10}{:>8}{:>9}{:>8}", "logit KL", "top-1", "accuracy", "extra");
  table += "\n";
  for (const MediumFigures& f : media) {
    table += fmt::format("{:<17}{:>9.3f}{:>10.2e}{:>10.2e}{:>10.2e}{:>10.2e}{:>10.2e}", f.name,
                         f.bits_per_value(), f.k.ratio(), f.v.ratio(), f.attention_error(),
                         f.bit_exact ? 0 : f.attention.k_only.ratio(),
                         f.bit_exact ? 0 : f.attention.v_only.ratio());
    table += fmt::format("{:>8.2f}{:>8.2f}{:>8.2f}{:>7}", f.speeds.encode, f.speeds.decode,
                         f.speeds.memcpy, f.bit_exact ? "yes" : "no");
    if (f.answers) {
      table += fmt::format("{:>10.2e}{:>8.4f}{:>9.4f}{:>8.4f}", f.answers->logit_kl(),
                           f.answers->top1(), f.answers->accuracy(), f.answers->extra_tokens());
    }
    table += "\n";
  }
  return table;
}

}  // namespace kvrail::fidelity
