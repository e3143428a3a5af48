#include "perf/calibrate/options.h"

#include <CLI/CLI.hpp>

namespace kvrail::calibrate {
namespace {

struct Words {  // as they come, before they are judged
  std::string dtype;
  std::vector<std::uint32_t> protect;
};

void add_options(CLI::App& app, Options& options, Words& words) {
  app.add_option("--k", options.files.k,
                 "K, .npy or .safetensors, [layer][token][kv_head][dim], after RoPE");
  app.add_option("--v", options.files.v, "V, likewise");
  app.add_option("--k-name", options.files.k_name, "tensor in the .safetensors file of --k");
  app.add_option("--v-name", options.files.v_name, "tensor in the .safetensors file of --v");
  app.add_option("--dtype", words.dtype, "bf16, fp16 or fp32: of .npy files that cannot say it");
  app.add_option("--layout", options.layout, "TOML file with RoPE data of --k");
  app.add_option(
      "--model", options.model,
      "without --k and --v: a recall model or a llama2.c checkpoint (" + options.model + ")");
  app.add_option("--out", options.out, "writes OUT.profile.toml and OUT.basis")->required();
  app.add_option("--bits", options.bits, "a value, of lowrank (2.0: 8x of bf16)")
      ->check(CLI::Range(0.25, 8.0));
  app.add_option("--most-bits", options.most_bits,
                 "up to which rate the basis keeps components (4.0)")
      ->check(CLI::Range(0.25, 10.0));
  app.add_option("--positions", options.positions, "answer positions at each depth (4096)")
      ->check(CLI::Range(256U, 1U << 20));
  app.add_option("--segment", options.most_segment_values,
                 "most values of a segment, whole heads (256)")
      ->check(CLI::Range(1U, 4096U));
  app.add_option("--layers-per-group", options.layers_per_group, "layers that share a basis (1)")
      ->check(CLI::Range(1U, 1024U));
  app.add_option("--protect", words.protect,
                 "first blocks, last blocks (of 64 tokens) that int4 sends as int8 (0,0; from 16 layers on 1,2)")
      ->delimiter(',')
      ->expected(2)
      ->check(CLI::Range(0U, codec::kMaxProtectedBlocks));
  app.add_option("--seed", options.seed, "of documents and texts (1)");
}

}  // namespace

Result<Options> parse_options(int argc, const char* const* argv, int& exit_code) {
  Options options;
  options.model = KVRAIL_MODEL_WEIGHTS;
  Words words;
  CLI::App app(
      "kvrail-calibrate: what each medium loses on your model, and the basis of lowrank for it.");
  add_options(app, options, words);
  exit_code = 2;
  const auto usage = [](const std::string& what) {
    return Error{{Code::invalid_argument}, what + "; kvrail-calibrate --help lists the options"};
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
    return Error{{Code::cancelled}, ""};
  } catch (const CLI::ParseError& error) {
    return usage(error.what());
  }
  if ((app.count("--k") > 0) != (app.count("--v") > 0))
    return usage("--k and --v go together: give K and V of one context");
  if (app.count("--k") > 0 && app.count("--model") > 0)
    return usage("--model has no meaning with --k and --v");
  if (app.count("--k") == 0 && app.count("--layout") > 0)
    return usage("--layout needs --k and --v");
  if (!words.dtype.empty()) {
    auto parsed = fidelity::parse_dtype(words.dtype);
    if (!parsed.ok()) return std::move(parsed).error();
    options.files.dtype = *parsed;
  }
  if (!words.protect.empty()) options.protection = codec::Protection{0, 0, words.protect[0], words.protect[1]};
  return options;
}

}  // namespace kvrail::calibrate
