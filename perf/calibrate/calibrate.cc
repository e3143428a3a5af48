#include "perf/calibrate/calibrate.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "kvrail/base/assert.h"
#include "perf/calibrate/basis_fit.h"
#include "perf/codec/errors.h"
#include "perf/codec/medium_under_test.h"
#include "perf/model/model.h"
#include "scheduler/medium_choice.h"

namespace kvrail::calibrate {
namespace {

// Facts of a document: contexts of 129, 257 and 513 tokens.
constexpr std::uint32_t kDepthFacts[] = {32, 64, 128};
constexpr std::uint32_t kWeightContexts = 4;
// Below this many layers nothing is protected by default.
constexpr std::uint32_t kProtectedFrom = 16;

struct Subject {
  std::unique_ptr<fidelity::MediumUnderTest> medium;
  Medium which = Medium::full;
  fidelity::ErrorSum k, v;
  std::uint64_t bits = 0, values = 0;
  fidelity::AnswerSums answers;
};

// As the engine sends the medium: topk of half of the tokens, int4 with its protected blocks.
std::string name_of(Medium medium, const codec::Protection& protection) {
  if (medium == Medium::topk) return "topk@50";
  if (medium == Medium::int4 && protection != codec::Protection{}) return "int4+protect";
  return std::string(medium_name(medium));
}

// What goes by which figures.
std::vector<Subject> subjects(const FittedBasis& basis, const codec::Protection& protection) {
  std::vector<Subject> out;
  for (const Medium medium : {Medium::full, Medium::lossless, Medium::int8, Medium::int4,
                              Medium::exact, Medium::topk, Medium::lowrank}) {
    Subject subject;
    subject.which = medium;
    if (medium == Medium::lowrank) {
      subject.medium = basis.medium();
    } else {
      fidelity::MediumContext context;
      context.protection = protection;
      auto made = fidelity::make_medium(name_of(medium, protection), context);
      KVRAIL_ASSERT_MSG(made.ok(), "these media are built in");
      subject.medium = std::move(*made);
    }
    out.push_back(std::move(subject));
  }
  return out;
}

// Codes a set and adds up what it costs.
Result<fidelity::KvSet> coded(Subject& subject, const fidelity::KvSet& set) {
  if (auto ready = subject.medium->prepare(set); !ready.ok()) return std::move(ready).error();
  fidelity::KvSet out = set.empty_like(subject.medium->decoded_dtype(set));
  if (const Status status = subject.medium->encode(set); !status.ok()) return status;
  if (const Status status = subject.medium->decode(out); !status.ok()) return status;
  subject.k.add(fidelity::squared_error(set.dtype, set.k, out.dtype, out.k));
  subject.v.add(fidelity::squared_error(set.dtype, set.v, out.dtype, out.v));
  subject.bits += subject.medium->encoded_bits();
  subject.values += 2 * set.side_values();
  return out;
}

double epsilon(const Subject& subject) {
  return 0.5 * (std::min(subject.k.ratio(), 1.0) + std::min(subject.v.ratio(), 1.0));
}

// λ is the share of positions whose most probable token stays. One more than was seen counts as
// changed, so that no lossy medium passes for exact because the sample was small.
codec::MediumFigures figures(const Subject& subject, std::uint32_t contexts) {
  codec::MediumFigures out;
  out.known = true;
  out.epsilon = epsilon(subject);
  if (out.epsilon == 0) return out;
  const auto positions = static_cast<double>(subject.answers.positions);
  const double changed = positions - static_cast<double>(subject.answers.same_top);
  const double lambda = 1.0 - (changed + 1.0) / (positions + 2.0);
  out.kappa = -std::log(lambda) / out.epsilon;
  out.extra_tokens = static_cast<double>(subject.answers.again_tokens) / contexts;
  return out;
}

codec::Protection protection_for(const Options& options, std::uint32_t layers) {
  if (options.protection) return *options.protection;
  if (layers < kProtectedFrom) return {};
  return {0, 0, 1, 2};  // sinks, and what was said last
}

Result<Hash128> model_id(const std::string& path) {
  auto model = model::Model::load(path);
  if (!model.ok()) model = model::Model::load_llama2c(path);
  if (!model.ok()) return std::move(model).error();
  return model->layout().model_id;
}

class ModelRun {
 public:
  explicit ModelRun(const Options& options) : options_(options) {}

  Result<Calibration> run() {
    auto id = model_id(options_.model);
    if (!id.ok()) return std::move(id).error();
    out_.profile.model_id = *id;
    if (auto fitted = fit_basis(); !fitted.ok()) return std::move(fitted).error();
    out_.profile.protection = protection_for(options_, basis_.basis->shape().layers);
    for (const std::uint32_t facts : kDepthFacts) {
      auto deeper = add_depth(facts);
      if (!deeper.ok()) return std::move(deeper).error();
      if (!*deeper) break;
    }
    out_.basis = basis_.file;
    out_.profile.basis_id = basis_.basis->id();
    out_.profile.theta = basis_.theta;
    return std::move(out_);
  }

 private:
  Result<std::unique_ptr<fidelity::ModelTrial>> open(std::uint32_t facts, std::uint64_t part) {
    fidelity::TrialOptions trial;
    trial.path = options_.model;
    trial.facts = facts;
    trial.positions = options_.positions;
    trial.seed = 3 * options_.seed + part;
    return fidelity::ModelTrial::open(trial);
  }

  Result<void> fit_basis() {
    auto trial = open(kDepthFacts[std::size(kDepthFacts) - 1], 0);
    if (!trial.ok()) return std::move(trial).error();
    std::optional<KltFit> fit;
    for (std::uint32_t i = 0; i < (*trial)->contexts(); ++i) {
      auto context = (*trial)->next();
      if (!context.ok()) return std::move(context).error();
      if (!fit) fit.emplace(klt_options(options_, context->kv, out_.profile.model_id));
      add_rows(*fit, context->kv, 0, context->kv.tokens);
    }
    auto coarse = finish_basis(fit->fit({}), options_);
    if (!coarse.ok()) return std::move(coarse).error();
    auto other = open(kDepthFacts[std::size(kDepthFacts) - 1], 1);
    if (!other.ok()) return std::move(other).error();
    auto weights = measured_weights(*coarse, **other, kWeightContexts);
    if (!weights.ok()) return std::move(weights).error();
    for (std::size_t i = 0; i < weights->size(); i += 2) {
      out_.lines.push_back(fmt::format("layer {}: weight of K {:.3g}, of V {:.3g}", i / 2,
                                       (*weights)[i], (*weights)[i + 1]));
    }
    auto basis = finish_basis(fit->fit(*weights), options_);
    if (!basis.ok()) return std::move(basis).error();
    basis_ = std::move(*basis);
    return {};
  }

  // False where the model knows one depth only.
  Result<bool> add_depth(std::uint32_t facts) {
    auto trial = open(facts, 2);
    if (!trial.ok()) return std::move(trial).error();
    std::vector<Subject> all = subjects(basis_, out_.profile.protection);
    const std::uint32_t contexts = (*trial)->contexts();
    std::uint32_t tokens = 0;
    for (std::uint32_t i = 0; i < contexts; ++i) {
      auto context = (*trial)->next();
      if (!context.ok()) return std::move(context).error();
      tokens = context->kv.tokens;
      if (!out_.profile.depths.empty() && out_.profile.depths.back().up_to_tokens >= tokens)
        return false;
      for (Subject& subject : all) {
        auto decoded = coded(subject, context->kv);
        if (!decoded.ok()) return std::move(decoded).error();
        auto sums = (*trial)->answer(*decoded, subject.medium->kept_tokens());
        if (!sums.ok()) return std::move(sums).error();
        subject.answers.add(*sums);
      }
    }
    codec::ProfileDepth depth;
    depth.up_to_tokens = tokens;
    for (const Subject& subject : all) {
      depth.media[static_cast<std::size_t>(subject.which)] = figures(subject, contexts);
      out_.lines.push_back(
          fmt::format("{} tokens, {}: {:.2f} bits a value, NMSE of K {:.3g}, of V {:.3g}, KL "
                      "{:.3g}, top-1 {:.4f}, "
                      "accuracy {:.4f}",
                      tokens, medium_name(subject.which),
                      static_cast<double>(subject.bits) / static_cast<double>(subject.values),
                      subject.k.ratio(), subject.v.ratio(), subject.answers.logit_kl(),
                      subject.answers.top1(), subject.answers.accuracy()));
    }
    out_.profile.depths.push_back(depth);
    return true;
  }

  const Options& options_;
  FittedBasis basis_;
  Calibration out_;
};

// Second half of the tokens.
fidelity::KvSet tail_of(const fidelity::KvSet& set, std::uint32_t first) {
  fidelity::KvSet out = set;
  out.tokens = set.tokens - first;
  out.k.clear();
  out.v.clear();
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    const codec::RunView run = set.run(layer, first, out.tokens);
    out.k.insert(out.k.end(), run.k.begin(), run.k.end());
    out.v.insert(out.v.end(), run.v.begin(), run.v.end());
  }
  if (out.rope) out.rope->first_position += first;
  return out;
}

Result<Calibration> from_files(const Options& options) {
  auto set = fidelity::load_kv(options.files);
  if (!set.ok()) return std::move(set).error();
  if (!options.layout.empty()) {
    auto rope = fidelity::load_layout(options.layout, set->head_dim);
    if (!rope.ok()) return std::move(rope).error();
    set->rope = *rope;
  }
  if (set->tokens < 4) {
    return Error{
        {Code::invalid_argument},
        fmt::format("{} tokens are too few to calibrate with; give some hundreds", set->tokens)};
  }
  const std::uint32_t half = set->tokens / 2;
  KltFit first(klt_options(options, *set, {})), whole(klt_options(options, *set, {}));
  add_rows(first, *set, 0, half);
  add_rows(whole, *set, 0, set->tokens);
  auto scored = finish_basis(first.fit({}), options);
  if (!scored.ok()) return std::move(scored).error();
  auto basis = finish_basis(whole.fit({}), options);
  if (!basis.ok()) return std::move(basis).error();
  Calibration out;
  codec::ProfileDepth depth;
  depth.up_to_tokens = set->tokens;
  const scheduler::LossProfile built_in = scheduler::LossProfile::built_in();
  const fidelity::KvSet tail = tail_of(*set, half);
  out.profile.protection = protection_for(options, set->layers);
  for (Subject& subject : subjects(*scored, out.profile.protection)) {
    auto decoded = coded(subject, tail);
    if (decoded.status().code == Code::unsupported) continue;  // of this form: it stays unknown
    if (!decoded.ok()) return std::move(decoded).error();
    const auto index = static_cast<std::size_t>(subject.which);
    const scheduler::MediumLoss& known = built_in.media[index];
    depth.media[index] = {true, epsilon(subject), 1e-3 * known.kappa_milli,
                          1e-3 * known.extra_tokens_milli};
    out.lines.push_back(fmt::format("{}: NMSE of K {:.3g}, of V {:.3g}", medium_name(subject.which),
                                    subject.k.ratio(), subject.v.ratio()));
  }
  out.lines.emplace_back("no model answered: kappa and extra_tokens are the built-in ones");
  out.profile.depths.push_back(depth);
  out.basis = basis->file;
  out.profile.basis_id = basis->basis->id();
  out.profile.theta = basis->theta;
  return out;
}

}  // namespace

Result<Calibration> calibrate(const Options& options) {
  auto done = options.with_model() ? ModelRun(options).run() : from_files(options);
  if (done.ok())
    done->profile.basis_file = std::filesystem::path(options.out).filename().string() + ".basis";
  return done;
}

}  // namespace kvrail::calibrate
