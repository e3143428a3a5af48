#include "codec/full.h"

#include <cstring>

namespace kvrail::codec {
namespace {

class Full final : public Codec {
 public:
  Medium medium() const noexcept override { return Medium::full; }
  std::size_t planes() const noexcept override { return 1; }
  bool takes(const RunShape&) const noexcept override { return true; }
  std::uint64_t bound(const RunShape& shape, std::size_t) const noexcept override {
    return shape.raw_bytes();
  }
  std::size_t scratch_bytes(const RunShape&) const noexcept override { return 0; }

 private:
  Status do_encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                   std::span<std::byte>, Meta& meta) const noexcept override {
    std::memcpy(out[0].data(), in.k.data(), in.k.size());
    std::memcpy(out[0].data() + in.k.size(), in.v.data(), in.v.size());
    meta.bytes[0] = shape.raw_bytes();
    return {};
  }
  Status do_decode(const RunShape& shape, const Meta&, const Planes& in, const MutableRun& out,
                   std::span<std::byte>) const noexcept override {
    if (in[0].size() != shape.raw_bytes()) return Status{Code::corrupt};
    std::memcpy(out.k.data(), in[0].data(), out.k.size());
    std::memcpy(out.v.data(), in[0].data() + out.k.size(), out.v.size());
    return {};
  }
};

}  // namespace

const Codec& full_codec() noexcept {
  static const Full codec;
  return codec;
}

}  // namespace kvrail::codec
