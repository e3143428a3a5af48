#include "perf/codec/measure.h"

#include <memory>
#include <new>

#include "perf/codec/medium_under_test.h"

namespace kvrail::fidelity {
namespace {

struct Candidate {
  std::unique_ptr<MediumUnderTest> medium;
  MediumFigures figures;
};

struct Subject {
  const KvSet& kv;
  const Queries& queries;
  ModelTrial* trial;  // null without a model
};

// Encodes and decodes once, and adds the errors up.
Result<void> add_figures(Candidate& candidate, const Subject& subject) {
  MediumUnderTest& medium = *candidate.medium;
  MediumFigures& figures = candidate.figures;
  const KvSet& kv = subject.kv;
  if (auto ready = medium.prepare(kv); !ready.ok()) return ready;
  if (const Status status = medium.encode(kv); !status.ok()) {
    return Error{status,
                 "this KV cannot be encoded (it may hold NaN or Inf); use full or lossless"};
  }
  KvSet decoded = kv.empty_like(medium.decoded_dtype(kv));
  if (const Status status = medium.decode(decoded); !status.ok())
    return Error{{Code::internal}, "what was encoded does not decode; report it"};
  figures.bits += medium.encoded_bits();
  figures.values += 2 * kv.side_values();
  figures.k.add(squared_error(kv.dtype, kv.k, decoded.dtype, decoded.k));
  figures.v.add(squared_error(kv.dtype, kv.v, decoded.dtype, decoded.v));
  figures.attention.add(attention_errors(kv, decoded, medium.kept_tokens(), subject.queries));
  const bool exact = kv.dtype == decoded.dtype && kv.k == decoded.k && kv.v == decoded.v;
  figures.bit_exact = figures.bit_exact && exact;
  if (subject.trial == nullptr) return {};
  auto sums = subject.trial->answer(decoded, medium.kept_tokens());
  if (!sums.ok()) return std::move(sums).error();
  if (!figures.answers) figures.answers.emplace();
  figures.answers->add(*sums);
  return {};
}

class Run {
 public:
  explicit Run(const CodecOptions& options) : options_(options) {}

  Result<Measured> files() {
    auto kv = load_kv(options_.files);
    if (!kv.ok()) return std::move(kv).error();
    if (!options_.layout.empty()) {
      auto rope = load_layout(options_.layout, kv->head_dim);
      if (!rope.ok()) return std::move(rope).error();
      kv->rope = *rope;
    }
    measured_.description = form(*kv) + "; attention of drawn queries";
    const Queries queries = proxy_queries(*kv);
    if (auto made = make_candidates(); !made.ok()) return std::move(made).error();
    if (auto added = add({*kv, queries, nullptr}); !added.ok()) return std::move(added).error();
    return finish(*kv);
  }

  Result<Measured> model() {
    auto trial = ModelTrial::open(options_.trial);
    if (!trial.ok()) return std::move(trial).error();
    if (auto made = make_candidates(); !made.ok()) return std::move(made).error();
    KvSet first;
    for (std::uint32_t i = 0; i < (*trial)->contexts(); ++i) {
      auto context = (*trial)->next();
      if (!context.ok()) return std::move(context).error();
      if (auto added = add({context->kv, context->queries, trial->get()}); !added.ok())
        return std::move(added).error();
      if (i == 0) first = std::move(context->kv);
    }
    measured_.description = form(first) + "; " + (*trial)->description();
    return finish(first);
  }

 private:
  static std::string form(const KvSet& kv) {
    return std::to_string(kv.layers) + " layers × " + std::to_string(kv.tokens) + " tokens × " +
           std::to_string(kv.kv_heads) + " KV heads × " + std::to_string(kv.head_dim) + ", " +
           std::string(dtype_name(kv.dtype));
  }

  Result<void> make_candidates() {
    for (const std::string& name : options_.media) {
      auto medium = make_medium(name, MediumContext{});
      if (!medium.ok()) return std::move(medium).error();
      candidates_.push_back({std::move(*medium), {}});
      candidates_.back().figures.name = name;
    }
    return {};
  }

  // Media that cannot code this KV are left out from here on.
  Result<void> add(const Subject& subject) {
    for (auto candidate = candidates_.begin(); candidate != candidates_.end();) {
      auto added = add_figures(*candidate, subject);
      if (!added.ok() && added.status().code != Code::unsupported) {
        return Error{added.status(), candidate->figures.name + ": " + added.error().message};
      }
      if (!added.ok())
        measured_.left_out.push_back(candidate->figures.name + ": " + added.error().message);
      candidate = added.ok() ? candidate + 1 : candidates_.erase(candidate);
    }
    if (candidates_.empty()) return Error{{Code::unsupported}, measured_.left_out.back()};
    return {};
  }

  Result<Measured> finish(const KvSet& kv) {
    const KvSet set = working_set(kv);
    for (Candidate& candidate : candidates_) {
      auto speeds = measure_speeds(*candidate.medium, set);
      if (!speeds.ok()) return std::move(speeds).error();
      candidate.figures.speeds = *speeds;
      measured_.media.push_back(std::move(candidate.figures));
    }
    return std::move(measured_);
  }

  const CodecOptions& options_;
  std::vector<Candidate> candidates_;
  Measured measured_;
};

}  // namespace

Result<Measured> measure(const CodecOptions& options) {
  try {
    Run run(options);
    return options.with_model() ? run.model() : run.files();
  } catch (const std::bad_alloc&) {
    return Error{{Code::out_of_memory},
                 "no memory for the KV, its coded form and what comes back; give fewer tokens"};
  }
}

}  // namespace kvrail::fidelity
