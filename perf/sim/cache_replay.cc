#include "perf/sim/cache_replay.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvrail::simulation {
namespace {

constexpr std::uint64_t kMostUses = std::uint64_t{1} << 26;  // of blocks; some 5 GB of memory at most, with all policies' tables

Error bad(const std::string& what) { return Error{{Code::invalid_argument}, what}; }

struct NamedFactory {
  const char* name;
  std::unique_ptr<CachePolicy> (*make)(const CacheShape& shape);
};
std::unique_ptr<CachePolicy> make_unlimited_cache(const CacheShape& shape) {
  return make_lru_cache({shape.blocks, shape.blocks});
}
constexpr NamedFactory kFactories[] = {
    {"kvrail", make_kvrail_cache}, {"lru", make_lru_cache},           {"lfu", make_lfu_cache},
    {"sieve", make_sieve_cache},   {"s3fifo", make_s3fifo_cache},     {"wtinylfu", make_wtinylfu_cache},
    {"belady", make_belady_cache}, {"unlimited", make_unlimited_cache}};

std::string joined_names() {
  return fmt::format("{}", fmt::join(cache_policy_names(), ", "));
}

}  // namespace

const std::vector<std::string>& cache_policy_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const NamedFactory& factory : kFactories) all.emplace_back(factory.name);
    return all;
  }();
  return names;
}

std::unique_ptr<CachePolicy> make_cache_policy(std::string_view name, const CacheShape& shape) {
  for (const NamedFactory& factory : kFactories)
    if (name == factory.name) return factory.make(shape);
  return nullptr;
}

Result<CacheTrace> CacheTrace::create(const RequestTrace& trace, const std::string& path) {
  if (trace.hashes.empty()) return bad(path + ": has no \"hash_ids\", which is what a cache is asked for");
  if (trace.hashes.size() > kMostUses) return bad(path + ": uses more than 67,108,864 blocks; take a part of it");
  CacheTrace out;
  out.requests_ = trace.requests;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;
  for (Request& request : out.requests_) {
    const auto first = static_cast<std::uint32_t>(out.blocks_.size());
    for (std::uint32_t i = 0; i < request.hash_count; ++i) {
      const auto [known, added] = numbers.try_emplace(trace.hashes[request.first_hash + i], out.distinct_);
      if (added) ++out.distinct_;
      out.blocks_.push_back(known->second);
    }
    request.first_hash = first;
  }
  out.next_use_.resize(out.blocks_.size());
  std::vector<std::uint32_t> next(out.distinct_, CacheRequest::kNever);
  for (std::size_t r = out.requests_.size(); r-- > 0;) {
    const Request& request = out.requests_[r];
    for (std::size_t i = request.first_hash + request.hash_count; i-- > request.first_hash;)
      out.next_use_[i] = std::exchange(next[out.blocks_[i]], static_cast<std::uint32_t>(r));
  }
  return out;
}

CacheRequest CacheTrace::request(std::size_t number) const {
  const Request& request = requests_[number];
  return CacheRequest{request.at_ns, request.tokens,
                      std::span(blocks_).subspan(request.first_hash, request.hash_count),
                      std::span(next_use_).subspan(request.first_hash, request.hash_count)};
}

CacheScore replay(const CacheTrace& trace, const std::string& name, CachePolicy& policy, std::size_t score_from) {
  CacheScore score;
  score.policy = name;
  for (std::size_t r = 0; r < trace.requests(); ++r) {
    const CacheRequest request = trace.request(r);
    if (r >= score_from) {
      const auto missing = std::find_if(request.blocks.begin(), request.blocks.end(),
                                        [&policy](std::uint32_t block) { return !policy.holds(block); });
      score.hit_blocks += static_cast<std::uint64_t>(missing - request.blocks.begin());
      score.used_blocks += request.blocks.size();
    }
    policy.serve(request);
  }
  return score;
}

Result<CacheReport> simulate_caches(const CacheOptions& options) {
  CacheReport report;
  report.options = options;
  const auto& names = options.policies.empty() ? cache_policy_names() : options.policies;
  for (const std::string& name : names) {
    if (std::find(cache_policy_names().begin(), cache_policy_names().end(), name) == cache_policy_names().end())
      return bad("no cache policy \"" + name + "\"; there are " + joined_names());
  }
  const auto requests = load_requests(options.trace);
  if (!requests.ok()) return requests.error();
  const auto trace = CacheTrace::create(*requests, options.trace);
  if (!trace.ok()) return trace.error();
  const auto score_from = static_cast<std::size_t>(options.score_from * static_cast<double>(trace->requests()));
  report.blocks = trace->blocks();
  report.capacity_blocks = static_cast<std::uint32_t>(options.size_fraction * report.blocks);
  if (report.capacity_blocks == 0)
    return bad(fmt::format("--size-fraction {} of {} different blocks is not one block", options.size_fraction,
                           report.blocks));
  for (const std::string& name : names) {
    const auto policy = make_cache_policy(name, {report.blocks, report.capacity_blocks});
    report.scores.push_back(replay(*trace, name, *policy, score_from));
    if (report.scores.back().used_blocks == 0)
      return bad(options.trace + ": no request after --score-from uses a block");
  }
  return report;
}

std::string json_report(const CacheReport& report) {
  nlohmann::ordered_json policies = nlohmann::ordered_json::object();
  for (const CacheScore& score : report.scores)
    policies[score.policy] = {{"token_hit_rate", score.token_hit_rate()},
                              {"hit_blocks", score.hit_blocks},
                              {"used_blocks", score.used_blocks}};
  const nlohmann::ordered_json all = {{"trace", report.options.trace},
                                      {"size_fraction", report.options.size_fraction},
                                      {"score_from", report.options.score_from},
                                      {"blocks", report.blocks},
                                      {"capacity_blocks", report.capacity_blocks},
                                      {"policies", policies}};
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string table_report(const CacheReport& report) {
  std::string out = fmt::format("{}: room for {} of {} blocks, scored from {} of the requests on\n\n{:<10} {:>14}\n",
                                report.options.trace, report.capacity_blocks, report.blocks,
                                report.options.score_from, "policy", "token hit rate");
  for (const CacheScore& score : report.scores)
    out += fmt::format("{:<10} {:>14.4f}\n", score.policy, score.token_hit_rate());
  return out;
}

}  // namespace kvrail::simulation
