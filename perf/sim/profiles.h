// Classes of models and GPUs: what a token of KV weighs, and what its prefill takes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/types.h"
#include "scheduler/medium_choice.h"

namespace kvrail::simulation {

struct ModelClass {
  std::string name;
  double parameters = 0;
  std::uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  std::uint32_t hidden = 0;  // width of the residual stream
};
struct GpuClass {
  std::string name;
  double flops = 0;               // that a prefill really reaches, per second
  double memory_bytes_per_s = 0;  // that a decode really reaches
};

[[nodiscard]] const std::vector<ModelClass>& built_in_models();  // 8b, 32b, 70b
[[nodiscard]] const std::vector<GpuClass>& built_in_gpus();      // datacenter
[[nodiscard]] const ModelClass* find(const std::vector<ModelClass>& models, std::string_view name);
[[nodiscard]] const GpuClass* find(const std::vector<GpuClass>& gpus, std::string_view name);

// bf16 KV. `revision` tells models of one class apart that can't read each other's KV.
[[nodiscard]] Layout layout_of(const ModelClass& model, std::uint32_t block_tokens, std::uint64_t revision);
// Prefill of x tokens takes (2 P x + 2 L d x²) / F: a multiplication and an addition for each parameter
// and token, and causal attention. A token decoded reads all parameters, two bytes each.
[[nodiscard]] ComputeProfile compute_of(const ModelClass& model, const GpuClass& gpu);
// The same as a line for people.
[[nodiscard]] std::string arithmetic_of(const ModelClass& model, const GpuClass& gpu);

// What a coded medium makes of KV. Speeds are bytes of plain KV per second of one node's codec threads together;
// 0: it takes no time.
struct MediumClass {
  double ratio = 1;  // plain bytes / its bytes
  double encode_bytes_per_s = 0, decode_bytes_per_s = 0;
};
struct MediaProfile {
  std::array<MediumClass, kMediumCount> media{};
  scheduler::LossProfile loss;
  [[nodiscard]] static MediaProfile built_in();
};

}  // namespace kvrail::simulation
