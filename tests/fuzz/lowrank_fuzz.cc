// A basis from a stranger, and planes from a stranger under a good basis: refused, or read within
// bounds and decoded to the same bytes each time. Input: what, dtype, tokens, theta (u16), then
// patches (place u16, byte).
//   even  the file of a basis is patched, and cut at the end; with bit 1 its id is made right again
//   odd   the plane of a run that was encoded here is patched, and cut; with bit 1 its digest is
//   made right
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/basis.h"
#include "codec/hash.h"
#include "codec/lowrank.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/memory.h"
#include "tests/fuzz/seeds.h"
#include "tests/unit/codec/bases.h"

using namespace kvrail;
using kvrail::codec::Basis;
using kvrail::codec::LowRank;
using kvrail::codec::RunShape;
using kvrail::test::Bytes;
using kvrail::test::Memory;

namespace {

constexpr std::uint32_t kLayer = 1;
constexpr std::uint32_t kFirstPosition = 17;

const codec::BasisContent& content() {
  static const codec::BasisContent basis = [] {
    codec::BasisShape shape;
    shape.layers = 3;
    shape.kv_heads = 2;
    shape.head_dim = 8;
    shape.heads_per_segment = 2;
    shape.components = 6;
    shape.groups = 2;
    shape.rope = {10'000.0F, 1.0F, 8, codec::RopePairing::interleaved};
    return codec_test::random_basis(shape, 1);
  }();
  return basis;
}

void patch(std::vector<std::byte>& target, Bytes& input) {
  const bool cut = input.one_in(4);
  while (!input.empty()) {
    std::size_t at = input.u8();
    at = at << 8 | input.u8();
    // Fields come first, and are where lies matter.
    const std::size_t most =
        at % 2 == 0 ? target.size() : std::min<std::size_t>(target.size(), 128);
    if (most != 0) target[at % most] = static_cast<std::byte>(input.u8());
  }
  if (cut) target.resize(target.size() * 7 / 8);
}

struct Plane {
  codec::Meta meta;
  std::vector<std::byte> bytes;
};

// Empty: this basis cannot code such a run.
Plane encode(const LowRank& codec, const codec_test::Run& run) {
  Plane plane;
  if (!codec.can_encode(run.shape).ok()) return plane;
  const Memory room(codec.bound(run.shape, 0));
  const Memory scratch(codec.scratch_bytes(run.shape));
  const std::span<const std::byte> all(run.bytes);
  const codec::RunView in{all.first(run.shape.side_bytes()), all.subspan(run.shape.side_bytes())};
  const codec::Report report = codec.encode(run.shape, in, {room.bytes}, scratch.bytes, plane.meta);
  KVRAIL_ASSERT(report.status.ok() || report.status.code == Code::unsupported);
  if (!report.status.ok()) return Plane{};
  plane.bytes.assign(room.bytes.begin(),
                     room.bytes.begin() + static_cast<std::ptrdiff_t>(plane.meta.bytes[0]));
  return plane;
}

// Twice over different memory: what is written may depend on the plane alone, and must be all.
Status decode(const LowRank& codec, const RunShape& shape, const Plane& plane) {
  std::vector<std::byte> first;
  Status status;
  for (const std::byte poison : {std::byte{0x5a}, std::byte{0xa5}}) {
    const Memory k(shape.side_bytes(), poison);
    const Memory v(shape.side_bytes(), poison);
    const Memory scratch(codec.scratch_bytes(shape), poison);
    status =
        codec.decode(shape, plane.meta, {plane.bytes}, {k.bytes, v.bytes}, scratch.bytes).status;
    std::vector<std::byte> now(k.bytes.begin(), k.bytes.end());
    now.insert(now.end(), v.bytes.begin(), v.bytes.end());
    KVRAIL_ASSERT(first.empty() || now == first);
    first = std::move(now);
  }
  KVRAIL_ASSERT(status.ok() || status.code == Code::corrupt ||
                status.code == Code::layout_mismatch);
  return status;
}

void foreign_basis(const codec_test::Run& run, std::uint16_t theta, bool sealed, Bytes& input) {
  std::vector<std::byte> file = codec::basis_file(content());
  patch(file, input);
  if (sealed && file.size() >= 32) codec_test::seal(file);
  const Result<Basis> basis = Basis::parse(file);
  if (!basis.ok()) {
    KVRAIL_ASSERT(!basis.error().message.empty());
    return;
  }
  if (basis->shape().layers <= kLayer) return;
  const LowRank codec(*basis, kLayer, kFirstPosition, theta);
  const Plane plane = encode(codec, run);
  if (!plane.bytes.empty()) KVRAIL_ASSERT(decode(codec, run.shape, plane).ok());
}

void foreign_plane(const codec_test::Run& run, std::uint16_t theta, bool sealed, Bytes& input) {
  static const Result<Basis> basis = Basis::parse(codec::basis_file(content()));
  KVRAIL_ASSERT(basis.ok());
  const LowRank codec(*basis, kLayer, kFirstPosition, theta);
  Plane plane = encode(codec, run);
  if (plane.bytes.empty()) return;
  KVRAIL_ASSERT(decode(codec, run.shape, plane).ok());
  patch(plane.bytes, input);
  if (sealed && plane.bytes.size() >= codec::kLowRankHeaderBytes) {
    const std::span<const std::byte> body =
        std::span(plane.bytes).subspan(codec::kLowRankHeaderBytes);
    store_le64(plane.bytes.data() + 24, codec::digest(body));
  }
  plane.meta.bytes[0] = plane.bytes.size();
  static_cast<void>(codec::lowrank_header(plane.bytes));
  static_cast<void>(decode(codec, run.shape, plane));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes input(data, size);
  const std::uint8_t what = input.u8();
  RunShape shape;
  shape.dtype = static_cast<Dtype>(1 + input.u8() % 3);
  shape.kv_heads = 2;
  shape.head_dim = 8;
  shape.tokens = 1 + input.u8() % 24U;
  std::uint32_t theta = input.u8();
  theta = (theta << 8 | input.u8()) % (codec::kMaxTheta + 1U);
  const codec_test::Run run = codec_test::run_along(content(), shape, kLayer, kFirstPosition, what);
  if (what % 2 == 0) {
    foreign_basis(run, static_cast<std::uint16_t>(theta), (what & 2) != 0, input);
  } else {
    foreign_plane(run, static_cast<std::uint16_t>(theta), (what & 2) != 0, input);
  }
  return 0;
}

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  std::vector<FuzzInput> seeds;
  for (std::uint8_t what = 0; what < 4; ++what) {
    for (std::uint8_t dtype = 0; dtype < 3; ++dtype) {
      for (const std::uint8_t theta : {std::uint8_t{0}, std::uint8_t{3}, std::uint8_t{6}}) {
        seeds.push_back({what, dtype, 15, theta, 100});
        seeds.push_back({what, dtype, 15, theta, 100, 1, 0, 25, 3, 1, 40, 9});
      }
    }
  }
  return seeds;
}
