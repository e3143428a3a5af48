#include "codec/basis.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "codec/float_convert.h"
#include "codec/hash.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::codec {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'R', 'B', 'A', 'S', 'I', 'S'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kIdAt = 8;
constexpr std::size_t kHashedFrom = 24;
constexpr std::size_t kHeaderBytes = 128;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 32;
// So large that no KV needs more, so small that no sum of squares overflows.
constexpr float kMostMagnitude = 0x1p50F;

Error refused(Code code, const std::string& what) {
  return Error{{code}, std::string("basis of lowrank: ").append(what)};
}

std::uint64_t padded(std::uint64_t count, std::uint64_t unit) noexcept {
  return div_ceil(count, unit) * unit;
}

std::uint64_t segment_bytes(const BasisShape& shape) noexcept {
  const std::uint64_t values = shape.segment_values();
  const std::uint64_t tables = std::uint64_t{shape.components} * kMaxComponentBits;
  return 4 * values + 2 * (2 * tables + shape.components * values);
}

std::uint64_t groups_at(const BasisShape& shape) noexcept {
  return kHeaderBytes + 8 * std::uint64_t{shape.rope.rotary_dims / 2};
}

std::uint64_t segments_at(const BasisShape& shape) noexcept {
  return groups_at(shape) + padded(2 * std::uint64_t{shape.layers}, 8);
}

std::uint64_t file_bytes(const BasisShape& shape) noexcept {
  return segments_at(shape) +
         std::uint64_t{shape.groups} * 2 * shape.segments() * segment_bytes(shape);
}

Result<void> validate(const BasisShape& s) {
  const auto within = [](std::uint32_t value, std::uint32_t most) {
    return value >= 1 && value <= most;
  };
  if (!within(s.layers, 1024) || !within(s.kv_heads, 1024) || !within(s.head_dim, 576))
    return refused(Code::invalid_argument,
                   "layers and kv_heads must be 1 to 1024, head_dim 1 to 576");
  if (!within(s.heads_per_segment, s.kv_heads) || s.kv_heads % s.heads_per_segment != 0)
    return refused(Code::invalid_argument, "heads_per_segment must divide kv_heads");
  if (s.segment_values() > 4096)
    return refused(Code::too_large, "a segment has at most 4096 values; take fewer heads");
  if (!within(s.components, s.segment_values()) || !within(s.groups, s.layers))
    return refused(Code::invalid_argument,
                   "components must be 1 to a segment's values, groups 1 to layers");
  if (auto rope = validate(s.rope, s.head_dim); !rope.ok())
    return refused(rope.error().status.code, rope.error().message);
  if (file_bytes(s) > kMaxFileBytes)
    return refused(Code::too_large, "larger than 4 GiB; take fewer groups or components");
  return {};
}

Hash128 load_hash(const std::byte* at) noexcept {
  return {load_le64(at), load_le64(at + 8)};
}
void store_hash(std::byte* at, const Hash128& hash) noexcept {
  store_le64(at, hash.low);
  store_le64(at + 8, hash.high);
}

BasisShape read_shape(const std::byte* at) noexcept {
  BasisShape s;
  s.layers = load_le32(at + 28);
  s.kv_heads = load_le32(at + 32);
  s.head_dim = load_le32(at + 36);
  s.heads_per_segment = load_le32(at + 40);
  s.components = load_le32(at + 44);
  s.groups = load_le32(at + 48);
  s.rope.base = std::bit_cast<float>(load_le32(at + 52));
  s.rope.scale = std::bit_cast<float>(load_le32(at + 56));
  s.rope.rotary_dims = load_le32(at + 60);
  s.rope.pairing = static_cast<RopePairing>(load_le32(at + 64) & 0xff);
  s.model_id = load_hash(at + 80);
  return s;
}

void write_shape(const BasisShape& s, std::byte* at) noexcept {
  std::memcpy(at, kMagic, 8);
  store_le32(at + 24, kVersion);
  const std::uint32_t sizes[] = {s.layers,     s.kv_heads, s.head_dim, s.heads_per_segment,
                                 s.components, s.groups};
  for (std::size_t i = 0; i < std::size(sizes); ++i) store_le32(at + 28 + 4 * i, sizes[i]);
  store_le32(at + 52, std::bit_cast<std::uint32_t>(s.rope.base));
  store_le32(at + 56, std::bit_cast<std::uint32_t>(s.rope.scale));
  store_le32(at + 60, s.rope.rotary_dims);
  store_le32(at + 64, static_cast<std::uint32_t>(s.rope.pairing));
  store_hash(at + 80, s.model_id);
}

// Reads numbers one after the other; remembers whether each was allowed.
class Numbers {
 public:
  explicit Numbers(const std::byte* at) noexcept : at_(at) {}
  float fp32(float least, float most) noexcept {
    const float value = std::bit_cast<float>(load_le32(at_));
    at_ += 4;
    return checked(value, least, most);
  }
  float bf16(float least, float most) noexcept {
    const float value = bf16_to_float(load_le16(at_));
    at_ += 2;
    return checked(value, least, most);
  }
  [[nodiscard]] bool good() const noexcept { return good_; }

 private:
  float checked(float value, float least, float most) noexcept {
    good_ = good_ && value >= least && value <= most;  // false for NaN
    return value;
  }
  const std::byte* at_;
  bool good_ = true;
};

void append_fp32(std::byte*& at, std::span<const float> values) noexcept {
  for (const float value : values) {
    store_le32(at, std::bit_cast<std::uint32_t>(value));
    at += 4;
  }
}

void append_bf16(std::byte*& at, std::span<const float> values) noexcept {
  for (const float value : values) {
    store_le16(at, float_to_bf16(value));
    at += 2;
  }
}

// bf16 leaves a direction a little too long or short, which would make ε wrong by as much.
bool unit_length(float* direction, std::size_t count) noexcept {
  double square = 0;
  for (std::size_t i = 0; i < count; ++i) square += double{direction[i]} * double{direction[i]};
  if (square < 0.9 || square > 1.1) return false;
  const double length = std::sqrt(square);
  for (std::size_t i = 0; i < count; ++i) direction[i] = static_cast<float>(direction[i] / length);
  return true;
}

bool never_rising(const float* gains, std::uint32_t components) noexcept {
  for (std::uint32_t c = 0; c < components; ++c) {
    const float* const of = gains + std::size_t{c} * kMaxComponentBits;
    for (std::uint32_t bit = 1; bit < kMaxComponentBits; ++bit)
      if (of[bit] > of[bit - 1]) return false;
  }
  return true;
}

}  // namespace

std::vector<std::byte> basis_file(const BasisContent& content) {
  const BasisShape& s = content.shape;
  const auto valid = validate(s);
  KVRAIL_ASSERT_MSG(valid.ok(), "the content of a basis fits its shape");
  KVRAIL_ASSERT(content.frequencies.size() == s.rope.rotary_dims / 2 &&
                content.group_of_layer.size() == s.layers &&
                content.segments.size() == std::size_t{s.groups} * 2 * s.segments());
  std::vector<std::byte> file(file_bytes(s));
  write_shape(s, file.data());
  store_le64(file.data() + 72, file.size());
  std::byte* at = file.data() + kHeaderBytes;
  for (const double frequency : content.frequencies) {
    store_le64(at, std::bit_cast<std::uint64_t>(frequency));
    at += 8;
  }
  for (std::size_t layer = 0; layer < s.layers; ++layer)
    store_le16(at + 2 * layer, content.group_of_layer[layer]);
  at = file.data() + segments_at(s);
  const std::size_t tables = std::size_t{s.components} * kMaxComponentBits;
  for (const BasisSegmentContent& segment : content.segments) {
    KVRAIL_ASSERT(segment.mean.size() == s.segment_values() && segment.steps.size() == tables &&
                  segment.gains.size() == tables &&
                  segment.matrix.size() == std::size_t{s.components} * s.segment_values());
    append_fp32(at, segment.mean);
    append_bf16(at, segment.steps);
    append_bf16(at, segment.gains);
    append_bf16(at, segment.matrix);
  }
  store_hash(file.data() + kIdAt, encoding_id(std::span(file).subspan(kHashedFrom)));
  return file;
}

void Basis::Free::operator()(float* memory) const noexcept {
  ::operator delete[](memory, std::align_val_t{64});
}

std::size_t Basis::segment_floats() const noexcept {
  const std::size_t tables = std::size_t{shape_.components} * kMaxComponentBits;
  return padded(value_stride_ + std::size_t{shape_.segment_values()} * component_stride_ +
                    std::size_t{shape_.components} * value_stride_ + 2 * tables,
                kBasisLanes);
}

Basis::Segment Basis::segment(std::uint32_t layer, Side side, std::uint32_t index) const noexcept {
  KVRAIL_ASSERT(layer < shape_.layers && index < shape_.segments());
  const std::size_t which =
      (std::size_t{group_of_layer_[layer]} * 2 + static_cast<std::size_t>(side)) *
          shape_.segments() +
      index;
  const float* at = memory_.get() + which * segment_floats();
  Segment out{};
  out.mean = at;
  out.forward = at += value_stride_;
  out.backward = at += std::size_t{shape_.segment_values()} * component_stride_;
  out.steps = at += std::size_t{shape_.components} * value_stride_;
  out.gains = at + std::size_t{shape_.components} * kMaxComponentBits;
  return out;
}

Result<Basis> Basis::parse(std::span<const std::byte> file) {
  if (file.size() < kHeaderBytes || std::memcmp(file.data(), kMagic, 8) != 0)
    return refused(Code::invalid_argument, "this is no basis file");
  if (load_le32(file.data() + 24) != kVersion)
    return refused(Code::version_mismatch, std::string("its version is ")
                                               .append(std::to_string(load_le32(file.data() + 24)))
                                               .append(", known is 1; calibrate again or update"));
  Basis basis;
  basis.shape_ = read_shape(file.data());
  const BasisShape& s = basis.shape_;
  if (auto valid = validate(s); !valid.ok()) return valid.error();
  if (file.size() != file_bytes(s) || load_le64(file.data() + 72) != file.size())
    return refused(Code::corrupt, std::string("has ")
                                      .append(std::to_string(file.size()))
                                      .append(" bytes, its sizes ask for ")
                                      .append(std::to_string(file_bytes(s))));
  basis.id_ = encoding_id(file.subspan(kHashedFrom));
  if (load_hash(file.data() + kIdAt) != basis.id_)
    return refused(Code::corrupt, "its content does not have its id; get it again");
  basis.value_stride_ = static_cast<std::uint32_t>(padded(s.segment_values(), kBasisLanes));
  basis.component_stride_ = static_cast<std::uint32_t>(padded(s.components, kBasisLanes));
  if (!basis.read_tables(file.data()) || !basis.read_segments(file.data() + segments_at(s)))
    return refused(Code::corrupt, "a number in it is NaN or out of its range; calibrate again");
  return basis;
}

// Frequencies, and which group each layer is of.
bool Basis::read_tables(const std::byte* file) {
  for (std::size_t i = 0; i < shape_.rope.rotary_dims / 2; ++i) {
    frequencies_.push_back(std::bit_cast<double>(load_le64(file + kHeaderBytes + 8 * i)));
    if (!(frequencies_.back() > 0 && frequencies_.back() <= 2.0)) return false;
  }
  for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
    group_of_layer_.push_back(load_le16(file + groups_at(shape_) + 2 * layer));
    if (group_of_layer_.back() >= shape_.groups) return false;
  }
  return true;
}

bool Basis::read_segments(const std::byte* at) {
  const std::size_t count = std::size_t{shape_.groups} * 2 * shape_.segments();
  const std::size_t tables = std::size_t{shape_.components} * kMaxComponentBits;
  memory_.reset(new (std::align_val_t{64}) float[count * segment_floats()]());
  Numbers numbers(at);
  for (std::size_t i = 0; i < count; ++i) {
    float* const mean = memory_.get() + i * segment_floats();
    float* const forward = mean + value_stride_;
    float* const backward = forward + std::size_t{shape_.segment_values()} * component_stride_;
    float* const steps = backward + std::size_t{shape_.components} * value_stride_;
    float* const gains = steps + tables;
    for (std::size_t v = 0; v < shape_.segment_values(); ++v)
      mean[v] = numbers.fp32(-kMostMagnitude, kMostMagnitude);
    for (std::size_t t = 0; t < tables; ++t) steps[t] = numbers.bf16(0x1p-50F, kMostMagnitude);
    for (std::size_t t = 0; t < tables; ++t) gains[t] = numbers.bf16(0, 0x1p126F);
    for (std::size_t c = 0; c < shape_.components; ++c) {
      float* const direction = backward + c * value_stride_;
      for (std::size_t v = 0; v < shape_.segment_values(); ++v)
        direction[v] = numbers.bf16(-1.01F, 1.01F);
      if (!numbers.good() || !unit_length(direction, shape_.segment_values())) return false;
      for (std::size_t v = 0; v < shape_.segment_values(); ++v)
        forward[v * component_stride_ + c] = direction[v];
    }
    if (!never_rising(gains, shape_.components)) return false;
  }
  return numbers.good();
}

Result<void> Basis::check(const Layout& layout) const {
  const char* const what = difference(layout);
  if (what == nullptr) return {};
  return Error{{Code::layout_mismatch},
               std::string("the basis of lowrank is of another ")
                   .append(what)
                   .append(" than this Layout; calibrate one for it, or use int4 or int8")};
}

const char* Basis::difference(const Layout& layout) const noexcept {
  if (shape_.model_id != Hash128{} && shape_.model_id != layout.model_id) return "model";
  if (shape_.layers != layout.layers) return "number of layers";
  if (shape_.kv_heads != layout.kv_heads || shape_.head_dim != layout.head_dim) return "row";
  if (shape_.rope.rotary_dims > 0 &&
      (shape_.rope.base != layout.rope_base || shape_.rope.scale != layout.rope_scale))
    return "RoPE";
  return nullptr;
}

}  // namespace kvrail::codec
