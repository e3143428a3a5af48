#include "perf/codec/measure.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>

#include "engine/config/calibration.h"
#include "perf/codec/learned_basis.h"
#include "perf/codec/medium_under_test.h"
#include "perf/codec/sparse_medium.h"

namespace kvrail::fidelity {
namespace {

constexpr std::uint64_t kLearningSeed = 1'000'003;

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
    KvSet second_half;
    if (auto loaded = load_profile(); !loaded.ok()) return std::move(loaded).error();
    if (learns()) {
      const KvSet first_half = kv->part(0, kv->tokens / 2);
      second_half = kv->part(kv->tokens / 2, kv->tokens);
      learn(std::span(&first_half, 1));
    }
    if (auto made = make_candidates(); !made.ok()) return std::move(made).error();
    const auto subject_of = [&](const Candidate& candidate) {
      return Subject{learns() && draws_on_basis(candidate.figures.name) ? second_half : *kv, queries, nullptr};
    };
    if (auto added = add(subject_of); !added.ok()) return std::move(added).error();
    return finish(*kv, learns() ? second_half : *kv);
  }

  Result<Measured> model() {
    TrialOptions trial_options = options_.trial;
    trial_options.importance = wants(is_sparse);
    auto trial = ModelTrial::open(trial_options);
    if (!trial.ok()) return std::move(trial).error();
    if (auto loaded = load_profile(); !loaded.ok()) return std::move(loaded).error();
    if (learns()) {
      if (auto learned = learn_from_model(); !learned.ok()) return std::move(learned).error();
    }
    if (auto made = make_candidates(); !made.ok()) return std::move(made).error();
    KvSet first;
    for (std::uint32_t i = 0; i < (*trial)->contexts(); ++i) {
      auto context = (*trial)->next();
      if (!context.ok()) return std::move(context).error();
      const auto subject_of = [&](const Candidate&) {
        return Subject{context->kv, context->queries, trial->get()};
      };
      if (auto added = add(subject_of); !added.ok()) return std::move(added).error();
      if (i == 0) first = std::move(context->kv);
    }
    measured_.description = form(first) + "; " + (*trial)->description();
    return finish(first, first);
  }

 private:
  static std::string form(const KvSet& kv) {
    return std::to_string(kv.layers) + " layers × " + std::to_string(kv.tokens) + " tokens × " +
           std::to_string(kv.kv_heads) + " KV heads × " + std::to_string(kv.head_dim) + ", " +
           std::string(dtype_name(kv.dtype));
  }

  [[nodiscard]] bool wants(bool (*kind)(std::string_view) noexcept) const {
    return std::any_of(options_.media.begin(), options_.media.end(),
                       [&](const std::string& name) { return kind(name); });
  }

  // What no profile brings is learned from tokens that are not measured.
  [[nodiscard]] bool learns() const { return wants(draws_on_basis) && options_.profile.empty(); }

  Result<void> load_profile() {
    if (!options_.profile.empty()) {
      auto loaded = engine::load_calibration(options_.profile);
      if (!loaded.ok()) return std::move(loaded).error();
      if (!loaded->basis) {
        return Error{{Code::invalid_argument},
                     options_.profile + ": names no basis of lowrank; run kvrail-calibrate"};
      }
      basis_.emplace(std::move(*loaded->basis));
      context_.basis = &*basis_;
      context_.theta = loaded->profile.theta;
      context_.protection = loaded->profile.protection;
    }
    if (options_.protection) context_.protection = *options_.protection;
    if (wants(draws_on_protection) && context_.protection == codec::Protection{}) {
      return Error{{Code::invalid_argument},
                   "+protect: nothing is protected; give --protect, or a --profile that protects "
                   "something"};
    }
    return {};
  }

  void learn(std::span<const KvSet> sets) {
    auto basis = learn_basis(sets);
    if (basis.ok()) {
      basis_.emplace(std::move(*basis));
      context_.basis = &*basis_;
    } else {
      context_.why_no_basis = basis.error().message;
    }
  }

  // From contexts that are not measured: those of another seed.
  Result<void> learn_from_model() {
    TrialOptions options = options_.trial;
    options.seed += kLearningSeed;
    auto trial = ModelTrial::open(options);
    if (!trial.ok()) return std::move(trial).error();
    std::vector<KvSet> sets;
    for (std::uint32_t tokens = 0; tokens < kMostLearnedTokens; tokens += sets.back().tokens) {
      auto context = (*trial)->next();
      if (!context.ok()) return std::move(context).error();
      sets.push_back(std::move(context->kv));
    }
    learn(sets);
    return {};
  }

  Result<void> make_candidates() {
    for (const std::string& name : options_.media) {
      auto medium = make_medium(name, context_);
      if (!medium.ok()) return std::move(medium).error();
      candidates_.push_back({std::move(*medium), {}});
      candidates_.back().figures.name = name;
    }
    return {};
  }

  // Media that cannot code this KV are left out from here on.
  template <class SubjectOf>
  Result<void> add(const SubjectOf& subject_of) {
    for (auto candidate = candidates_.begin(); candidate != candidates_.end();) {
      auto added = add_figures(*candidate, subject_of(*candidate));
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

  // `learned`: what media that draw on a basis are measured on.
  Result<Measured> finish(const KvSet& kv, const KvSet& learned) {
    for (Candidate& candidate : candidates_) {
      const KvSet set = working_set(draws_on_basis(candidate.figures.name) ? learned : kv);
      auto speeds = measure_speeds(*candidate.medium, set);
      if (!speeds.ok()) return std::move(speeds).error();
      candidate.figures.speeds = *speeds;
      measured_.media.push_back(std::move(candidate.figures));
    }
    return std::move(measured_);
  }

  const CodecOptions& options_;
  std::optional<codec::Basis> basis_;
  MediumContext context_;
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
