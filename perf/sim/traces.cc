#include "perf/sim/traces.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

#include "perf/sim/text_input.h"

namespace kvrail::simulation {
namespace {

constexpr std::uint64_t kMostTokens = 10'000'000;
constexpr double kMostSeconds = 1e8;  // three years
constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr std::string_view kLinksHeader = "trace,t_s,mbit_s";

bool read_tokens(const nlohmann::json& object, Request& out) {
  const auto it = object.find("input_length");
  if (it == object.end() || !it->is_number_unsigned()) return false;
  const auto tokens = it->get<std::uint64_t>();
  if (tokens == 0 || tokens > kMostTokens) return false;
  out.tokens = static_cast<std::uint32_t>(tokens);
  return true;
}

// What is wrong with the line; nullptr: nothing.
const char* read_mooncake(std::string_view line, RequestTrace& trace) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded() || !object.is_object()) return "is no JSON object";
  Request request;
  const auto at = object.find("timestamp");
  if (at == object.end() || !at->is_number()) return "needs a number \"timestamp\" in ms";
  const auto ms = at->get<double>();
  if (!(ms >= 0 && ms <= kMostSeconds * 1e3)) return "\"timestamp\" is out of range";
  request.at_ns = static_cast<TimeNs>(ms * 1e6);
  if (!read_tokens(object, request)) return "\"input_length\" must be a whole number from 1 to 10,000,000";
  request.first_hash = static_cast<std::uint32_t>(trace.hashes.size());
  if (const auto hashes = object.find("hash_ids"); hashes != object.end()) {
    if (!hashes->is_array()) return "\"hash_ids\" must be a list of whole numbers";
    for (const auto& hash : *hashes) {
      if (!hash.is_number_unsigned()) return "\"hash_ids\" must be a list of whole numbers";
      trace.hashes.push_back(hash.get<std::uint64_t>());
    }
    request.hash_count = static_cast<std::uint32_t>(hashes->size());
  }
  trace.requests.push_back(request);
  return nullptr;
}

// Days since the beginning of the civil calendar's year 0 (March based), proleptic Gregorian.
std::int64_t days_of(std::int64_t year, std::int64_t month, std::int64_t day) {
  if (month <= 2) --year;
  const std::int64_t shifted = month > 2 ? month - 3 : month + 9;
  return 365 * year + year / 4 - year / 100 + year / 400 + (153 * shifted + 2) / 5 + day - 1;
}

// "2023-11-16 18:17:03.9799600"; false: it is none.
bool read_timestamp(std::string_view text, TimeNs& out) {
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':') return false;
  std::array<std::uint64_t, 6> part{};
  constexpr std::array<std::size_t, 6> kAt{0, 5, 8, 11, 14, 17};
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (!parse_number(text.substr(kAt[i], i == 0 ? 4 : 2), part[i])) return false;
  }
  if (part[1] < 1 || part[1] > 12 || part[2] < 1 || part[2] > 31 || part[3] > 23 || part[4] > 59 || part[5] > 60)
    return false;
  double fraction = 0;
  if (text.size() > 19 && (text[19] != '.' || !parse_number(text.substr(19), fraction))) return false;
  const auto signed_part = [&part](std::size_t i) { return static_cast<std::int64_t>(part[i]); };
  const std::int64_t days = days_of(signed_part(0), signed_part(1), signed_part(2)) - days_of(1970, 1, 1);
  const std::int64_t seconds = ((days * 24 + signed_part(3)) * 60 + signed_part(4)) * 60 + signed_part(5);
  out = seconds * kSecondNs + static_cast<TimeNs>(std::llround(fraction * 1e9));
  return true;
}

const char* read_azure(std::string_view line, RequestTrace& trace) {
  const auto fields = fields_of(line, ',');
  std::uint64_t tokens = 0;
  Request request;
  if (fields.size() != 3) return "needs three fields";
  if (!read_timestamp(fields[0], request.at_ns)) return "the timestamp must look like 2023-11-16 18:17:03.97";
  if (!parse_number(fields[1], tokens) || tokens == 0 || tokens > kMostTokens)
    return "ContextTokens must be a whole number from 1 to 10,000,000";
  request.tokens = static_cast<std::uint32_t>(tokens);
  trace.requests.push_back(request);
  return nullptr;
}

struct Sample {
  double at_s = 0, mbit_s = 0;
};

LinkTrace scaled(const std::vector<Sample>& samples, double mean_mbit_s) {
  // A sample holds until the next; the last one for as long as the one before.
  LinkTrace trace;
  const std::size_t count = samples.size();
  const double last_s = count > 1 ? samples[count - 1].at_s - samples[count - 2].at_s : 1.0;
  const double end_s = samples[count - 1].at_s + last_s;
  double area = 0;
  for (std::size_t i = 0; i < count; ++i)
    area += samples[i].mbit_s * ((i + 1 < count ? samples[i + 1].at_s : end_s) - samples[i].at_s);
  const double mean = area / (end_s - samples[0].at_s);
  for (const Sample& sample : samples) {
    trace.starts_ns.push_back(static_cast<TimeNs>((sample.at_s - samples[0].at_s) * 1e9));
    trace.rates.push_back(sample.mbit_s / mean * mean_mbit_s * 1e6 / 8);
  }
  trace.length_ns = static_cast<TimeNs>((end_s - samples[0].at_s) * 1e9);
  return trace;
}

// What is wrong with the line; nullptr: nothing. `begins`: it is the first one of another trace.
const char* read_link(std::string_view line, std::string_view& name, std::vector<Sample>& samples, bool& begins) {
  const auto fields = fields_of(line, ',');
  Sample sample;
  if (fields.size() != 3) return "needs three fields";
  if (!parse_number(fields[1], sample.at_s) || sample.at_s < 0 || sample.at_s > kMostSeconds)
    return "t_s must be a number of seconds";
  if (!parse_number(fields[2], sample.mbit_s) || sample.mbit_s < 0 || sample.mbit_s > 1e9)
    return "mbit_s must be a number of Mbit/s, not negative";
  begins = !samples.empty() && fields[0] != name;
  if (!begins && !samples.empty() && sample.at_s <= samples.back().at_s) return "t_s must rise within a trace";
  name = fields[0];
  samples.push_back(sample);
  return nullptr;
}

// Appends what `samples` holds but for the last `kept` ones; false: the link never carries anything.
bool close_trace(std::vector<Sample>& samples, std::size_t kept, double mean_mbit_s, LinkTraces& traces) {
  const std::vector<Sample> own(samples.begin(), samples.end() - static_cast<std::ptrdiff_t>(kept));
  samples.erase(samples.begin(), samples.end() - static_cast<std::ptrdiff_t>(kept));
  const auto carries = [](const Sample& sample) { return sample.mbit_s > 0; };
  if (std::none_of(own.begin(), own.end(), carries)) return false;
  traces.push_back(scaled(own, mean_mbit_s));
  return true;
}

}  // namespace

Result<RequestTrace> parse_requests(std::string_view text, const std::string& path) {
  RequestTrace trace;
  const auto lines = lines_of(text);
  if (lines.empty()) return Error{{Code::invalid_argument}, path + ": holds no request"};
  const bool json = lines[0].starts_with('{');
  if (!json && lines[0] != kAzureHeader) {
    return input_error(path, 1, "is neither a JSON object nor the header " + std::string(kAzureHeader));
  }
  for (std::size_t i = json ? 0 : 1; i < lines.size(); ++i) {
    if (const char* const fault = json ? read_mooncake(lines[i], trace) : read_azure(lines[i], trace))
      return input_error(path, i + 1, fault);
  }
  if (trace.requests.empty()) return Error{{Code::invalid_argument}, path + ": holds no request"};
  const auto earlier = [](const Request& a, const Request& b) { return a.at_ns < b.at_ns; };
  std::stable_sort(trace.requests.begin(), trace.requests.end(), earlier);
  const TimeNs first = trace.requests.front().at_ns;
  for (Request& request : trace.requests) request.at_ns -= first;
  return trace;
}

Result<RequestTrace> load_requests(const std::string& path) {
  auto text = read_text(path);
  if (!text.ok()) return std::move(text).error();
  return parse_requests(*text, path);
}

Result<LinkTraces> parse_links(std::string_view text, const std::string& path, double mean_mbit_s) {
  LinkTraces traces;
  std::vector<Sample> samples;
  std::string_view name;
  const auto lines = lines_of(text);
  if (lines.empty() || lines[0] != kLinksHeader)
    return input_error(path, 1, "must be the header " + std::string(kLinksHeader));
  for (std::size_t i = 1; i <= lines.size(); ++i) {
    bool begins = i == lines.size() && !samples.empty();
    const std::size_t kept = i == lines.size() ? 0 : 1;
    if (i < lines.size()) {
      if (const char* const fault = read_link(lines[i], name, samples, begins)) return input_error(path, i + 1, fault);
    }
    if (begins && !close_trace(samples, kept, mean_mbit_s, traces))
      return input_error(path, i, "the trace that ends here never carries anything");
  }
  if (traces.empty()) return Error{{Code::invalid_argument}, path + ": holds no trace"};
  return traces;
}

Result<LinkTraces> load_links(const std::string& path, double mean_mbit_s) {
  auto text = read_text(path);
  if (!text.ok()) return std::move(text).error();
  return parse_links(*text, path, mean_mbit_s);
}

}  // namespace kvrail::simulation
