#include "perf/codec/model_trial.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "kvrail/base/prng.h"
#include "perf/codec/input_file.h"
#include "perf/codec/trial_session.h"
#include "perf/model/facts.h"

namespace kvrail::fidelity {
namespace {

constexpr std::uint32_t kQueriesOfContext = 64;  // a layer and head, about
constexpr std::uint32_t kMostTextTokens = 1024;
constexpr TokenId kTextBegin = 1;  // of llama2.c's tokenizers

std::vector<double> log_softmax(std::span<const float> logits) {
  const double greatest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - greatest);
  const double norm = greatest + std::log(sum);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - norm);
  return result;
}

double divergence(std::span<const float> exact, std::span<const float> coded) {
  const std::vector<double> p = log_softmax(exact), q = log_softmax(coded);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  return std::max(0.0, sum);  // rounding may leave a little less than 0
}

TokenId best(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// What is asked on top of a context: tokens that follow it, and where among them answers are.
struct Sitting {
  std::vector<TokenId> tokens;
  // Position of the logits of each answer's first word in `tokens`, and the right words.
  struct Answer {
    std::size_t at = 0;
    std::vector<TokenId> words;
  };
  std::vector<Answer> answers;
  bool lost_needs_right = true;  // an answer that was wrong with exact KV cannot be lost
};

AnswerSums compare(const Sitting& sitting, std::size_t vocabulary, std::span<const float> exact,
                   std::span<const float> coded) {
  AnswerSums sums;
  for (const Sitting::Answer& answer : sitting.answers) {
    bool right = true, exact_right = true, same = true;
    for (std::size_t word = 0; word < answer.words.size(); ++word) {
      const std::size_t at = (answer.at + word) * vocabulary;
      const auto p = exact.subspan(at, vocabulary), q = coded.subspan(at, vocabulary);
      const TokenId exact_top = best(p), coded_top = best(q);
      sums.divergence += divergence(p, q);
      sums.same_top += exact_top == coded_top ? 1 : 0;
      same = same && exact_top == coded_top;
      right = right && coded_top == answer.words[word];
      exact_right = exact_right && exact_top == answer.words[word];
    }
    const bool lost = sitting.lost_needs_right ? exact_right && !right : !same;
    sums.positions += answer.words.size();
    sums.answers += 1;
    sums.right += right ? 1 : 0;
    sums.again += lost ? 1 : 0;
    sums.again_tokens += lost ? answer.words.size() : 0;
  }
  return sums;
}

// What both kinds share: a session that reads, one that holds coded KV, and the reference.
class Trial : public ModelTrial {
 public:
  Trial(model::Model model, const TrialOptions& options, std::uint32_t capacity)
      : model_(std::move(model)),
        options_(options),
        reader_(model_, capacity),
        holder_(model_, capacity) {}

  Result<Context> next() override {
    auto context_tokens = read_context();
    if (!context_tokens.ok()) return std::move(context_tokens).error();
    Context context{reader_.kv(options_.dtype), {}};
    if (options_.importance) {
      auto importance = reader_.importance(read_);
      if (!importance.ok()) return std::move(importance).error();
      context.kv.importance = std::move(*importance);
    }
    if (auto held = holder_.hold(context.kv, {}); !held.ok()) return std::move(held).error();
    // Odd, because questions have an even number of tokens: every second kind of word would be missed.
    const auto longest = std::max<std::size_t>(1, sitting_.tokens.size() / kQueriesOfContext);
    const auto step = static_cast<std::uint32_t>((longest - 1) | 1U);
    auto logits = holder_.logits_of(sitting_.tokens, step, context.queries);
    if (!logits.ok()) return std::move(logits).error();
    exact_ = std::move(*logits);
    return context;
  }

  Result<AnswerSums> answer(const KvSet& decoded, std::span<const std::uint32_t> kept) override {
    if (auto held = holder_.hold(decoded, kept); !held.ok()) return std::move(held).error();
    auto logits = holder_.logits_of(sitting_.tokens);
    if (!logits.ok()) return std::move(logits).error();
    return compare(sitting_, model_.shape().vocabulary, exact_, *logits);
  }

  std::uint32_t contexts() const override {
    const std::uint32_t each = positions_each();
    return (options_.positions + each - 1) / each;
  }

 protected:
  // Leaves the next context in reader_, its tokens in read_, and fills sitting_.
  virtual Result<void> read_context() = 0;
  virtual std::uint32_t positions_each() const = 0;

  model::Model model_;
  TrialOptions options_;
  TrialSession reader_, holder_;
  std::vector<TokenId> read_;
  Sitting sitting_;
  std::vector<float> exact_;
};

class FactTrial final : public Trial {
 public:
  FactTrial(model::Model model, model::FactWorld world, const TrialOptions& options)
      : Trial(std::move(model), options, 2 * (1 + model::kFactTokens * options.facts)),
        world_(std::move(world)),
        source_(world_, options.seed) {}

  std::string description() const override {
    return "recall model; " + std::to_string(contexts()) + " documents of " +
           std::to_string(options_.facts) + " facts with near-identical two-word keys, " +
           std::to_string(contexts() * positions_each()) + " answer positions";
  }

 private:
  std::uint32_t positions_each() const override { return model::kAnswerTokens * options_.facts; }

  Result<void> read_context() override {
    const std::vector<model::Fact> facts = source_.draw_close(options_.facts);
    reader_.session().truncate(0);
    read_ = world_.document(facts);
    if (auto read = reader_.session().append(read_); !read.ok()) return read;
    // All questions in one sitting, as in training: "?" once, then key and value after key and
    // value. Fed with the right words: the decoding of a right answer is the same run.
    sitting_ = Sitting{{world_.question_mark}, {}, true};
    for (const std::size_t i : source_.order(facts.size())) {
      const auto more = world_.continuation(std::span(&facts[i], 1));
      sitting_.answers.push_back({sitting_.tokens.size() + 1, {facts[i].shade, facts[i].colour}});
      sitting_.tokens.insert(sitting_.tokens.end(), more.begin(), more.end());
    }
    return {};
  }

  model::FactWorld world_;
  model::FactSource source_;
};

class TextTrial final : public Trial {
 public:
  TextTrial(model::Model model, const TrialOptions& options, std::uint32_t tokens)
      : Trial(std::move(model), options, tokens), tokens_(tokens), random_(options.seed) {}

  std::string description() const override {
    return "llama2.c checkpoint; " + std::to_string(contexts()) + " texts of " +
           std::to_string(tokens_) + " tokens that it drew, the first half as context, " +
           std::to_string(contexts() * positions_each()) + " answer positions";
  }

 private:
  [[nodiscard]] std::uint32_t context_tokens() const { return tokens_ / 2; }
  std::uint32_t positions_each() const override { return tokens_ - context_tokens() - 1; }

  Result<void> read_context() override {
    model::Session& session = reader_.session();
    session.truncate(0);
    std::vector<TokenId> text{kTextBegin};
    while (true) {
      if (auto read = session.append(std::span(&text.back(), 1)); !read.ok()) return read;
      if (text.size() == tokens_) break;
      text.push_back(draw(session.logits()));
    }
    session.truncate(context_tokens());
    read_.assign(text.begin(), text.begin() + context_tokens());
    sitting_ = Sitting{{text.begin() + context_tokens(), text.end()}, {}, false};
    for (std::size_t at = 0; at + 1 < sitting_.tokens.size(); ++at)
      sitting_.answers.push_back({at, {sitting_.tokens[at + 1]}});
    return {};
  }

  // From the model's own distribution, at temperature 1.
  TokenId draw(std::span<const float> logits) {
    const std::vector<double> log_p = log_softmax(logits);
    double left = random_.uniform01();
    for (std::size_t token = 0; token < log_p.size(); ++token) {
      left -= std::exp(log_p[token]);
      if (left < 0) return static_cast<TokenId>(token);
    }
    return best(logits);
  }

  std::uint32_t tokens_;
  Prng random_;
};

Result<bool> is_recall_file(const std::string& path) {
  auto file = InputFile::open(path);
  if (!file.ok()) return std::move(file).error();
  auto start = file->text(0, std::min<std::uint64_t>(file->size(), 8));
  if (!start.ok()) return std::move(start).error();
  return *start == "KVRMODEL";
}

}  // namespace

void AnswerSums::add(const AnswerSums& other) {
  positions += other.positions;
  answers += other.answers;
  divergence += other.divergence;
  same_top += other.same_top;
  right += other.right;
  again += other.again;
  again_tokens += other.again_tokens;
}

Result<std::unique_ptr<ModelTrial>> ModelTrial::open(const TrialOptions& options) {
  auto recall = is_recall_file(options.path);
  if (!recall.ok()) return std::move(recall).error();
  auto model =
      *recall ? model::Model::load(options.path) : model::Model::load_llama2c(options.path);
  if (!model.ok()) return std::move(model).error();
  if (*recall) {
    auto world = model::FactWorld::of(*model);
    if (!world.ok()) return Error{world.status(), options.path + ": " + world.error().message};
    return std::unique_ptr<ModelTrial>(
        std::make_unique<FactTrial>(std::move(*model), std::move(*world), options));
  }
  const std::uint32_t tokens = std::min(model->shape().max_tokens, kMostTextTokens);
  if (tokens < 4) {
    return Error{{Code::invalid_argument},
                 options.path + ": reads " + std::to_string(tokens) +
                     " tokens; 4 at least are needed: choose another model"};
  }
  return std::unique_ptr<ModelTrial>(
      std::make_unique<TextTrial>(std::move(*model), options, tokens));
}

}  // namespace kvrail::fidelity
