#include "codec/lossless.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/exponent_window.h"
#include "codec/hash.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::codec {
namespace {

enum class Form : std::uint8_t { raw = 0, window16 = 1, window32 = 2 };

constexpr std::size_t kFormAt = 8;
constexpr std::size_t kEntryBytes = 4;
constexpr std::size_t kAlignment = 64;
static_assert(kLosslessHeaderBytes == kFormAt + 1);

Form form_of(Dtype dtype) noexcept {
  if (dtype == Dtype::bf16) return Form::window16;
  return dtype == Dtype::fp32 ? Form::window32 : Form::raw;
}

std::uint64_t checksum(const RunShape& shape, std::span<const std::byte> plane) noexcept {
  // A plane that is whole but read as a run of another form must not pass either.
  const std::uint64_t seed = std::uint64_t{shape.tokens} | std::uint64_t{shape.head_dim} << 32 |
                             std::uint64_t{shape.kv_heads} << 44 |
                             static_cast<std::uint64_t>(shape.dtype) << 56;
  return digest(plane.subspan(kFormAt), seed);
}

// The chunks of a run: those of K, then those of V; the last of each may be short.
struct Chunks {
  explicit Chunks(const RunShape& shape) noexcept
      : values(shape.side_values()), width(dtype_bytes(shape.dtype)) {}
  [[nodiscard]] std::uint64_t per_side() const noexcept {
    return (values + kChunkValues - 1) / kChunkValues;
  }
  [[nodiscard]] std::size_t in(std::uint64_t chunk) const noexcept {
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(kChunkValues, values - chunk * kChunkValues));
  }
  std::uint64_t values;
  std::size_t width;
};

// The table in front of the chunks: base, kind, escapes of each.
void store_entry(std::byte* at, const ChunkEntry& entry) noexcept {
  at[0] = std::byte{entry.base};
  at[1] = std::byte{entry.raw};
  store_le16(at + 2, entry.escapes);
}
// False: no encoder writes such an entry.
bool load_entry(const std::byte* at, std::size_t values, ChunkEntry& entry) noexcept {
  entry = {std::to_integer<std::uint8_t>(at[0]), at[1] == std::byte{1}, load_le16(at + 2)};
  if (at[1] > std::byte{1}) return false;
  return entry.raw ? entry.base == 0 && entry.escapes == 0
                   : entry.base <= kMostBase && entry.escapes <= most_escapes(values);
}

// Header and table, up to where the first chunk begins. Whole chunks take multiples of 64 bytes, so
// all of them lie aligned where the plane does: a quarter more speed.
std::uint64_t front_bytes(const Chunks& chunks) noexcept {
  const std::uint64_t bytes = kLosslessHeaderBytes + 2 * chunks.per_side() * kEntryBytes;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// While a run is encoded its chunks grow upwards and their escapes downwards from the end.
struct Cursor {
  std::byte* entry;
  std::byte* body;
  std::byte* escapes;
};

// False: the run would not get smaller.
bool encode_side(std::span<const std::byte> side, const Chunks& chunks, Cursor& at) noexcept {
  std::array<std::byte, kMostChunkBytes> spare;
  std::array<std::byte, kMostEscapes> escapes;
  Window window;
  for (std::uint64_t chunk = 0; chunk < chunks.per_side(); ++chunk) {
    const std::size_t values = chunks.in(chunk);
    const auto room = static_cast<std::size_t>(at.escapes - at.body);
    // Where the worst case has no room the chunk is coded aside first.
    const bool aside = room < values * chunks.width;
    std::byte* const body = aside ? spare.data() : at.body;
    const std::byte* const in = side.data() + chunk * kChunkValues * chunks.width;
    const ChunkEntry entry = encode_values(in, values, chunks.width, window, body, escapes.data());
    const std::size_t bytes = body_bytes(entry, values, chunks.width);
    if (bytes + entry.escapes > room) return false;
    if (aside) std::memcpy(at.body, body, bytes);
    at.body += bytes;
    at.escapes -= entry.escapes;
    std::memcpy(at.escapes, escapes.data(), entry.escapes);
    store_entry(at.entry, entry);
    at.entry += kEntryBytes;
  }
  return true;
}

// Bytes of the plane, 0 when the run would not get smaller.
std::uint64_t encode_windows(const RunShape& shape, const RunView& in,
                             std::span<std::byte> plane) noexcept {
  const Chunks chunks(shape);
  const std::uint64_t front = front_bytes(chunks);
  if (front >= plane.size()) return 0;
  std::byte* const end = plane.data() + plane.size();
  Cursor at{plane.data() + kLosslessHeaderBytes, plane.data() + front, end};
  if (!encode_side(in.k, chunks, at) || !encode_side(in.v, chunks, at)) return 0;
  std::memset(at.entry, 0, static_cast<std::size_t>(plane.data() + front - at.entry));
  const auto escapes = static_cast<std::size_t>(end - at.escapes);
  std::memmove(at.body, at.escapes, escapes);
  return static_cast<std::uint64_t>(at.body - plane.data()) + escapes;
}

// The table says the size of every chunk, so a plane of another size is refused before any is read.
bool sizes_match(const Chunks& chunks, std::span<const std::byte> plane) noexcept {
  const std::uint64_t front = front_bytes(chunks);
  if (plane.size() < front) return false;
  const std::uint64_t per_side = chunks.per_side();
  const std::byte* table = plane.data() + kLosslessHeaderBytes;
  std::uint64_t bytes = front;
  for (std::uint64_t chunk = 0; chunk < 2 * per_side; ++chunk, table += kEntryBytes) {
    const std::size_t values = chunks.in(chunk % per_side);
    ChunkEntry entry;
    if (!load_entry(table, values, entry)) return false;
    bytes += body_bytes(entry, values, chunks.width) + entry.escapes;
  }
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  return bytes == plane.size() && std::all_of(table, plane.data() + front, is_zero);
}

bool decode_windows(const RunShape& shape, std::span<const std::byte> plane,
                    const MutableRun& out) noexcept {
  const Chunks chunks(shape);
  if (!sizes_match(chunks, plane)) return false;
  const std::byte* table = plane.data() + kLosslessHeaderBytes;
  const std::byte* body = plane.data() + front_bytes(chunks);
  const std::byte* escapes = plane.data() + plane.size();
  for (const std::span<std::byte> side : {out.k, out.v}) {
    for (std::uint64_t chunk = 0; chunk < chunks.per_side(); ++chunk, table += kEntryBytes) {
      const std::size_t values = chunks.in(chunk);
      ChunkEntry entry;
      if (!load_entry(table, values, entry)) return false;
      escapes -= entry.escapes;
      std::byte* const to = side.data() + chunk * kChunkValues * chunks.width;
      if (!decode_values(body, escapes, entry, values, chunks.width, to)) return false;
      body += body_bytes(entry, values, chunks.width);
    }
  }
  return true;
}

class Lossless final : public Codec {
 public:
  Medium medium() const noexcept override { return Medium::lossless; }
  std::size_t planes() const noexcept override { return 1; }
  bool takes(const RunShape&) const noexcept override { return true; }
  std::uint64_t bound(const RunShape& shape, std::size_t) const noexcept override {
    return shape.tokens == 0 ? 0 : kLosslessHeaderBytes + shape.raw_bytes();
  }
  std::size_t scratch_bytes(const RunShape&) const noexcept override { return 0; }

 private:
  Status do_encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                   std::span<std::byte>, Meta& meta) const noexcept override {
    const std::span<std::byte> plane = out[0].first(bound(shape, 0));
    Form form = form_of(shape.dtype);
    meta.bytes[0] = form == Form::raw ? 0 : encode_windows(shape, in, plane);
    if (meta.bytes[0] == 0) {
      form = Form::raw;
      meta.bytes[0] = plane.size();
      std::byte* const rest = plane.data() + kLosslessHeaderBytes;
      std::memcpy(rest, in.k.data(), in.k.size());
      std::memcpy(rest + in.k.size(), in.v.data(), in.v.size());
    }
    plane[kFormAt] = static_cast<std::byte>(form);
    seal_lossless(shape, plane.first(meta.bytes[0]));
    return {};
  }

  Status do_decode(const RunShape& shape, const Meta&, const Planes& in, const MutableRun& out,
                   std::span<std::byte>) const noexcept override {
    const Status corrupt{Code::corrupt};
    if (in[0].size() < kLosslessHeaderBytes) return corrupt;
    if (load_le64(in[0].data()) != checksum(shape, in[0])) return corrupt;
    const std::span<const std::byte> rest = in[0].subspan(kLosslessHeaderBytes);
    const auto form = static_cast<Form>(in[0][kFormAt]);
    if (form != Form::raw)
      return form == form_of(shape.dtype) && decode_windows(shape, in[0], out) ? Status{} : corrupt;
    if (rest.size() != shape.raw_bytes()) return corrupt;
    std::memcpy(out.k.data(), rest.data(), out.k.size());
    std::memcpy(out.v.data(), rest.data() + out.k.size(), out.v.size());
    return {};
  }
};

}  // namespace

const Codec& lossless_codec() noexcept {
  static const Lossless codec;
  return codec;
}

void seal_lossless(const RunShape& shape, std::span<std::byte> plane) noexcept {
  store_le64(plane.data(), checksum(shape, plane));
}

}  // namespace kvrail::codec
