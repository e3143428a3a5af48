// What a node needs to run the codecs: working memory, how fast they were, and how much room the runs
// of the plane whose size varies turned out to need.
//
// Thread: the worker. Memory is taken when an agent brings a Layout, never while a transfer runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "codec/codec.h"
#include "engine/store/store.h"
#include "kvrail/base/time.h"
#include "transport/wire/messages.h"

namespace kvrail::engine {

class CodecWork {
 public:
  struct Speeds {
    std::uint64_t encode_ns_per_mib = 0, decode_ns_per_mib = 0;  // until measured
  };
  // `lowrank`: what that medium is coded in, null where it is not to be had. It outlives this. A run that loses more
  // in it than `lowrank_limit_ppm` is none that the basis was calibrated for, and is refused.
  CodecWork(const Speeds& first, const LowRankBasis* lowrank, std::uint32_t lowrank_limit_ppm) noexcept;

  // Allocates: working memory for all coded media of the Layout.
  void make_room(const Layout& layout);
  [[nodiscard]] bool can(const Layout& layout, Medium medium) const noexcept;
  // How rows of the Layout are coded as lowrank here, to be held against what the other side says.
  [[nodiscard]] transport::wire::LowRankCode lowrank_code(const Layout& layout) const noexcept;

  // With the room that runs of plane 2 have needed so far. False: such rows can't be coded here, or
  // would not get smaller.
  [[nodiscard]] bool plan(const Layout& layout, Medium medium, std::uint32_t tail_rows, Coding& out) const noexcept;

  // Puts the sizes that were offered, of blocks of the whole coding, into `coding`, of which medium and values are
  // known. False: it can't have these, or can't be made here.
  [[nodiscard]] bool take_offered(const Layout& layout, std::uint64_t block_bytes, std::uint64_t tail_bytes,
                                  std::uint32_t tail_rows, Coding& coding) const noexcept;

  enum class Encoded : std::uint8_t { ok, refused, too_large };
  // One layer of the context's block number `number` into its planes. too_large: it did not fit; plan() says more
  // from now on.
  [[nodiscard]] Encoded encode(const Layout& layout, const Coding& coding, const BlockView& block,
                               std::uint32_t number, std::uint32_t layer) noexcept;
  // The inverse, into the block's rows. False: the planes are no such code.
  [[nodiscard]] bool decode(const Layout& layout, const Coding& coding, const BlockView& block, std::uint32_t number,
                            std::uint32_t layer) noexcept;

  void learn_encode(Medium medium, TimeNs elapsed_ns, std::uint64_t bytes) noexcept;
  void learn_decode(Medium medium, TimeNs elapsed_ns, std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t encode_ns(Medium medium, std::uint64_t bytes) const noexcept;
  [[nodiscard]] std::uint64_t decode_ns(Medium medium, std::uint64_t bytes) const noexcept;

 private:
  struct AlignedFree {
    void operator()(std::byte* memory) const noexcept;
  };
  using Aligned = std::unique_ptr<std::byte[], AlignedFree>;
  [[nodiscard]] Coding coding_of(Medium medium) const noexcept;
  [[nodiscard]] Encoded encode_with(const codec::Codec& codec, const Layout& layout, const Coding& coding,
                                    const BlockView& block, std::uint32_t layer) noexcept;
  [[nodiscard]] bool decode_with(const codec::Codec& codec, const Layout& layout, const Coding& coding,
                                 const BlockView& block, std::uint32_t layer) noexcept;
  void learn_room(const Layout& layout, Medium medium, std::uint32_t rows, std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t room_for(const Layout& layout, Medium medium, std::uint32_t rows) const noexcept;

  const LowRankBasis* lowrank_;
  std::uint32_t lowrank_limit_ppm_;
  std::array<Speeds, kMediumCount> speeds_{};
  // Bits of plane 2 for 1,000 values, by medium and dtype. Grows as runs turn out larger.
  std::array<std::array<std::uint64_t, 6>, kMediumCount> bits_per_1000_{};
  Aligned scratch_, run_;  // of the codec; a run of plane 2 before its size is known
  std::size_t scratch_bytes_ = 0, run_bytes_ = 0;
};

}  // namespace kvrail::engine
