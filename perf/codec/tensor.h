// Where a tensor lies in a file, by the two formats that tools exchange tensors in. Only the header
// is read here; nothing it says is believed before it agrees with the size of the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"
#include "perf/codec/input_file.h"

namespace kvrail::fidelity {

struct TensorPlace {
  std::optional<Dtype> dtype;  // empty: of two bytes, and the file does not say which type
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
};

/// The header of a .npy file, versions 1.0 and 2.0: a Python literal of descr, fortran_order and
/// shape. Takes '<f2', '<f4', and '<u2', '<V2' and '|V2' (so numpy writes bfloat16) as of unknown
/// type. The data must fill the rest of the file exactly.
/// Source: numpy.lib.format.
[[nodiscard]] Result<TensorPlace> npy_place(const InputFile& file);

/// A tensor of a .safetensors file.
struct NamedTensor {
  std::string name;
  std::string dtype;  // as the file writes it
  TensorPlace place;  // its dtype is empty for types other than BF16, F16, F32
};
/// All tensors of a .safetensors file, in the order of their bytes. Refuses what the format
/// refuses: a header that is longer than 100,000,000 bytes or the file, that is no JSON object in
/// UTF-8, that has a key twice or an unknown type; offsets that overlap, leave holes or do not end
/// with the file; sizes that overflow or that differ from the shape.
/// Source: github.com/huggingface/safetensors, README "Format".
[[nodiscard]] Result<std::vector<NamedTensor>> safetensors_places(const InputFile& file);

/// The tensor called `name`; without a name the only one, or else the one called as in `usual`.
[[nodiscard]] Result<TensorPlace> safetensors_place(const InputFile& file, const std::string& name,
                                                    const std::vector<std::string>& usual,
                                                    const std::string& option);

/// product of `shape` x `bytes_each`, or empty where it does not fit 64 bits.
[[nodiscard]] std::optional<std::uint64_t> bytes_of(const std::vector<std::uint64_t>& shape,
                                                    std::uint64_t bytes_each);

}  // namespace kvrail::fidelity
