#include "perf/sim/profiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvrail::simulation {
namespace {

std::uint64_t rounded(double value) {
  return static_cast<std::uint64_t>(std::llround(value));
}

double per_token_ns(const ModelClass& model, const GpuClass& gpu) {
  return 2.0 * model.parameters / gpu.flops * 1e9;
}
double quadratic_ns(const ModelClass& model, const GpuClass& gpu) {
  return 2.0 * model.layers * model.hidden / gpu.flops * 1e9;
}
double decode_ns(const ModelClass& model, const GpuClass& gpu) {
  return 2.0 * model.parameters / gpu.memory_bytes_per_s * 1e9;
}

template <class Class>
const Class* find_by_name(const std::vector<Class>& all, std::string_view name) {
  const auto it = std::find_if(all.begin(), all.end(), [name](const Class& one) { return one.name == name; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace

// Shapes of widely used open models of these sizes, all with grouped queries of 8 KV heads of 128.
const std::vector<ModelClass>& built_in_models() {
  static const std::vector<ModelClass> models{
      {"8b", 8e9, 32, 8, 128, 4096}, {"32b", 32e9, 64, 8, 128, 5120}, {"70b", 70e9, 80, 8, 128, 8192}};
  return models;
}

const std::vector<GpuClass>& built_in_gpus() {
  static const std::vector<GpuClass> gpus{{"datacenter", 400e12, 1.6e12}};
  return gpus;
}

const ModelClass* find(const std::vector<ModelClass>& models, std::string_view name) {
  return find_by_name(models, name);
}
const GpuClass* find(const std::vector<GpuClass>& gpus, std::string_view name) {
  return find_by_name(gpus, name);
}

Layout layout_of(const ModelClass& model, std::uint32_t block_tokens, std::uint64_t revision) {
  Layout layout;
  layout.model_id = {rounded(model.parameters), revision};
  layout.layers = model.layers;
  layout.kv_heads = model.kv_heads;
  layout.head_dim = model.head_dim;
  layout.block_tokens = block_tokens;
  return layout;
}

ComputeProfile compute_of(const ModelClass& model, const GpuClass& gpu) {
  ComputeProfile compute;
  compute.prefill_per_token_ns = rounded(per_token_ns(model, gpu));
  compute.prefill_quadratic_ns_q20 = rounded(quadratic_ns(model, gpu) * (1 << 20));
  compute.decode_per_token_ns = rounded(decode_ns(model, gpu));
  return compute;
}

std::string arithmetic_of(const ModelClass& model, const GpuClass& gpu) {
  return fmt::format(
      "{}: KV 2 x {} layers x {} heads x {} x 2 B = {} B/token; prefill of x tokens on {}: 2 x {:.3g} / {:.3g} = {:.4g} us "
      "x + 2 x {} x {} / {:.3g} = {:.4g} ns x^2; decode 2 x {:.3g} B / {:.3g} B/s = {:.3g} ms/token",
      model.name, model.layers, model.kv_heads, model.head_dim, layout_of(model, 64, 0).token_bytes(), gpu.name,
      model.parameters, gpu.flops, per_token_ns(model, gpu) / 1e3, model.layers, model.hidden, gpu.flops,
      quadratic_ns(model, gpu), model.parameters, gpu.memory_bytes_per_s, decode_ns(model, gpu) / 1e6);
}

// Ratios and losses of the simulation that the prices come from: int8 a byte a value and scales, int4 half of
// that, and 20 ms of decoding more on the 8B class. Codec threads at 10 GB/s of plain KV, which two cores reach.
MediaProfile MediaProfile::built_in() {
  MediaProfile profile;
  profile.loss = scheduler::LossProfile::built_in();
  const auto at = [](Medium medium) { return static_cast<std::size_t>(medium); };
  profile.media[at(Medium::lossless)] = {1.45, 10e9, 10e9};
  profile.media[at(Medium::int8)] = {1.95, 10e9, 10e9};
  profile.media[at(Medium::int4)] = {3.76, 10e9, 10e9};
  profile.loss.media[at(Medium::int4)].extra_tokens_milli = 2000;
  return profile;
}

}  // namespace kvrail::simulation
