#include "perf/codec/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "perf/codec/medium_under_test.h"

namespace kvrail::fidelity {
namespace {

constexpr std::uint32_t kFullPositions = 4096;
constexpr std::uint32_t kFewestFacts = 96, kMostFacts = 128;

struct Words {
  std::string dtype, media;
  std::vector<std::uint32_t> protect;
  bool full = false, compare = false;
};

Error usage(const std::string& what) {
  return Error{{Code::invalid_argument}, what + "; kvrail-codec --help lists the options"};
}

void add_options(CLI::App& app, CodecOptions& options, Words& words) {
  app.add_option("--k", options.files.k,
                 "K, .npy or .safetensors, [layer][token][kv_head][dim], after RoPE");
  app.add_option("--v", options.files.v, "V, likewise");
  app.add_option("--k-name", options.files.k_name, "tensor in the .safetensors file of --k");
  app.add_option("--v-name", options.files.v_name, "tensor in the .safetensors file of --v");
  app.add_option(
      "--dtype", words.dtype,
      "bf16, fp16 or fp32: of .npy files that cannot say it, or of the model's KV (bf16)");
  app.add_option(
      "--model", options.trial.path,
      "without --k and --v: a recall model or a llama2.c checkpoint (" + options.trial.path + ")");
  app.add_option("--media", words.media, "comma-separated; all that there are");
  app.add_flag("--compare", words.compare, "q8_0 and q4_0 of ggml too (always with a model)");
  app.add_option("--layout", options.layout, "TOML file with RoPE data of --k");
  app.add_option("--profile", options.profile,
                 "profile of kvrail-calibrate, for lowrank's basis; without it one is learned");
  app.add_option("--protect", words.protect,
                 "first layers, last layers, first blocks, last blocks that int4+protect and "
                 "int8+protect give one plane more; without it those of --profile")
      ->delimiter(',')
      ->expected(4);
  app.add_flag("--full", words.full, "4,096 answer positions and more instead of 1,024");
  app.add_option("--facts", options.trial.facts, "facts of a document (128)")
      ->check(CLI::Range(kFewestFacts, kMostFacts));
  app.add_option("--seed", options.trial.seed, "of documents and texts (1)");
  app.add_flag("--json", options.json, "JSON instead of a table");
}

// Which of the options belong together.
std::string contradiction(const CLI::App& app) {
  const bool k = app.count("--k") > 0, v = app.count("--v") > 0;
  if (k != v) return "--k and --v go together: give K and V of one context";
  if (k) {
    for (const char* option : {"--model", "--full", "--facts", "--seed"}) {
      if (app.count(option) > 0) return std::string(option) + " has no meaning with --k and --v";
    }
    return {};
  }
  for (const char* option : {"--layout", "--k-name", "--v-name"}) {
    if (app.count(option) > 0) return std::string(option) + " needs --k and --v";
  }
  return {};
}

Result<std::vector<std::string>> media_list(const Words& words, bool compare) {
  std::vector<std::string> media;
  std::istringstream stream(words.media);
  for (std::string name; std::getline(stream, name, ',');) {
    if (auto made = make_medium(name, MediumContext{}); !made.ok()) return std::move(made).error();
    if (std::find(media.begin(), media.end(), name) == media.end()) media.push_back(name);
  }
  if (media.empty()) media = medium_names();
  for (const std::string& name : comparison_names()) {
    if (compare && std::find(media.begin(), media.end(), name) == media.end())
      media.push_back(name);
  }
  return media;
}

}  // namespace

Result<CodecOptions> parse_options(int argc, const char* const* argv, int& exit_code) {
  CodecOptions options;
  options.trial.path = KVRAIL_MODEL_WEIGHTS;
  Words words;
  CLI::App app(
      "kvrail-codec: what each medium makes of KV: bits, errors, speed, and a model's answers.");
  add_options(app, options, words);
  exit_code = 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
    return Error{{Code::cancelled}, ""};
  } catch (const CLI::ParseError& error) {
    return usage(error.what());
  }
  if (const std::string fault = contradiction(app); !fault.empty()) return usage(fault);
  if (!words.dtype.empty()) {
    auto dtype = parse_dtype(words.dtype);
    if (!dtype.ok()) return std::move(dtype).error();
    options.files.dtype = *dtype;
    options.trial.dtype = *dtype;
  }
  if (words.full) options.trial.positions = kFullPositions;
  if (app.count("--media") > 0 && words.media.empty()) return usage("--media needs a name");
  auto media = media_list(words, words.compare || (options.with_model() && words.media.empty()));
  if (!media.ok()) return std::move(media).error();
  options.media = std::move(*media);
  if (!words.protect.empty()) {
    const auto& rule = words.protect;
    options.protection = codec::Protection{rule[0], rule[1], rule[2], rule[3]};
  }
  return options;
}

}  // namespace kvrail::fidelity
