// Every medium that is a coding of KV rows, encode and decode on one core, against memcpy of the
// raw bytes in the same run; on bf16 KV that the repository's model computed. Runs of 256 KiB stay
// in the second-level cache; those of 4 MiB do not.
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"
#include "perf/bench/processes.h"
#include "perf/model/facts.h"
#include "perf/model/model.h"
#include "perf/model/session.h"

namespace kvrail::bench {
namespace {

using codec::Codec;
using codec::RunShape;

constexpr std::int64_t kSampleNs = 5'000'000;
constexpr std::uint32_t kLayer = 1;  // the middle one of three
constexpr std::uint32_t kDocumentFacts = 127;

// What a medium must reach in cache: whichever of the two speeds is less, and how many bits it may
// take.
struct Goal {
  Medium medium;
  double gb_per_s, of_memcpy;
  double most_bits;
};
constexpr std::array kGoals{Goal{Medium::full, 1e9, 0.75, 16.0},
                            Goal{Medium::lossless, 20, 0.75, 16 / 1.30},
                            Goal{Medium::int8, 1e9, 0.5, 8.25}, Goal{Medium::int4, 10, 0.35, 4.25},
                            Goal{Medium::exact, 0, 0, 13.0}};

// Memory at an alignment that suits scratch and pages alike.
struct Memory {
  explicit Memory(std::size_t size)
      : bytes(static_cast<std::byte*>(::operator new (size, std::align_val_t{4096})), size) {
    std::memset(bytes.data(), 1, size);
  }
  ~Memory() { ::operator delete (bytes.data(), std::align_val_t{4096}); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::span<std::byte> bytes;
};

// K and V of one layer, of as many documents as it takes.
class RealRun {
 public:
  RealRun(const model::Model& model, std::uint64_t bytes)
      : layout_(model.layout()), memory_(bytes) {
    shape_ = codec::run_shape(layout_, 0);
    shape_.tokens = static_cast<std::uint32_t>(bytes / 2 / shape_.row_bytes());
    const auto world = must(model::FactWorld::of(model), "no facts");
    model::Session session(model, 4 * kDocumentFacts + 1);
    for (std::uint32_t filled = 0, seed = 1; filled < shape_.tokens; ++seed) {
      model::FactSource facts(world, seed);
      session.truncate(0);
      must(session.append(world.document(facts.draw(kDocumentFacts))), "cannot read a document");
      filled += take(session, filled);
    }
  }
  [[nodiscard]] const RunShape& shape() const { return shape_; }
  [[nodiscard]] codec::RunView view() const {
    return {memory_.bytes.first(shape_.side_bytes()),
            memory_.bytes.subspan(shape_.side_bytes(), shape_.side_bytes())};
  }

 private:
  std::uint32_t take(const model::Session& session, std::uint32_t filled) {
    const std::uint32_t tokens = std::min(session.length(), shape_.tokens - filled);
    std::vector<std::byte> slot(layout_.block_bytes());
    for (std::uint32_t first = 0; first < tokens; first += layout_.block_tokens) {
      const std::uint32_t count = std::min(layout_.block_tokens, tokens - first);
      must(session.export_kv(layout_, first, count, slot), "cannot export KV");
      const std::uint64_t side = layout_.block_tokens * shape_.row_bytes();
      std::byte* const to = memory_.bytes.data() + (filled + first) * shape_.row_bytes();
      std::memcpy(to, slot.data() + 2 * kLayer * side, count * shape_.row_bytes());
      std::memcpy(to + shape_.side_bytes(), slot.data() + (2 * kLayer + 1) * side,
                  count * shape_.row_bytes());
    }
    return tokens;
  }
  Layout layout_;
  RunShape shape_;
  Memory memory_;
};

// The calling thread on one core, while this lives.
class Pinned {
 public:
  Pinned() {
    ::sched_getaffinity(0, sizeof(before_), &before_);
    pin_to_core(0);
  }
  ~Pinned() { ::sched_setaffinity(0, sizeof(before_), &before_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_{};
};

// GB/s of raw bytes: of the median call among as many as fill a sample's time, so that calls during
// which another process had the core count for nothing.
template <class Call>
double rate(std::uint64_t raw_bytes, Call call) {
  Samples calls;
  const std::int64_t begin = now_ns();
  for (std::int64_t before = begin; before - begin < kSampleNs;) {
    call();
    const std::int64_t now = now_ns();
    calls.values.push_back(static_cast<double>(now - before));
    before = now;
  }
  return static_cast<double>(raw_bytes) / calls.median();
}

class CodecRig {
 public:
  CodecRig(const Codec& codec, const RealRun& run)
      : codec_(codec),
        run_(run),
        scratch_(codec.scratch_bytes(run.shape())),
        out_(run.shape().raw_bytes()) {
    for (std::size_t plane = 0; plane < codec.planes(); ++plane) {
      planes_.push_back(std::make_unique<Memory>(codec.bound(run.shape(), plane)));
      room_[plane] = planes_.back()->bytes;
    }
    static_cast<void>(encode());
    static_cast<void>(decode());
  }
  double encode() {
    return rate(raw(), [this] {
      check(codec_.encode(run_.shape(), run_.view(), room_, scratch_.bytes, meta_));
    });
  }
  double decode() {
    codec::Planes in;
    for (std::size_t plane = 0; plane < meta_.planes; ++plane)
      in[plane] = room_[plane].first(meta_.bytes[plane]);
    const auto k = out_.bytes.first(run_.shape().side_bytes());
    const auto v = out_.bytes.subspan(k.size());
    return rate(raw(), [&] {
      check(codec_.decode(run_.shape(), meta_, in, {k, v}, scratch_.bytes));
    });
  }
  double copy() {
    return rate(raw(), [this] {
      const codec::RunView from = run_.view();
      std::memcpy(out_.bytes.data(), from.k.data(), from.k.size());
      std::memcpy(out_.bytes.data() + from.k.size(), from.v.data(), from.v.size());
      asm volatile("" : : "r"(out_.bytes.data()) : "memory");
    });
  }
  [[nodiscard]] double bits_per_value() const {
    std::uint64_t bytes = 0;
    for (std::size_t plane = 0; plane < meta_.planes; ++plane) bytes += meta_.bytes[plane];
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(2 * run_.shape().side_values());
  }

 private:
  [[nodiscard]] std::uint64_t raw() const { return run_.shape().raw_bytes(); }
  static void check(const codec::Report& report) {
    if (!report.status.ok())
      throw Failure("a codec refused: " + std::to_string(static_cast<int>(report.status.code)));
  }
  const Codec& codec_;
  const RealRun& run_;
  Memory scratch_;
  Memory out_;
  std::vector<std::unique_ptr<Memory>> planes_;
  codec::MutablePlanes room_;
  codec::Meta meta_;
};

void compare_one(Report& report, const Goal& goal, const RealRun& run, const std::string& size,
                 bool in_cache) {
  const Codec* const codec = codec::codec_for(goal.medium);
  const std::string name = "codec " + std::string(medium_name(goal.medium)) + ", " + size;
  if (codec == nullptr) {
    report.skip(name, "this medium has no codec yet");
    return;
  }
  CodecRig rig(*codec, run);
  for (const bool encode : {true, false}) {
    report.compare(
        name + (encode ? ", encode" : ", decode"), "GB/s", Better::higher, "memcpy", std::nullopt,
        [&] { return encode ? rig.encode() : rig.decode(); }, [&] { return rig.copy(); });
    const double limit =
        std::min(goal.gb_per_s, goal.of_memcpy * report.cases().back().baseline_value);
    if (in_cache && limit > 0) report.at_least(limit);
  }
  report.measure(
      name + ", size", "bits/value", goal.most_bits, [&] { return rig.bits_per_value(); }, 1);
}

}  // namespace

void run_codec(Report& report) {
  const Pinned pinned;
  const auto model = must(model::Model::load(KVRAIL_MODEL_WEIGHTS), "cannot load the model");
  const RealRun small(model, 256 << 10);
  const RealRun large(model, 4 << 20);
  for (const Goal& goal : kGoals) {
    compare_one(report, goal, small, "256 KiB", true);
    compare_one(report, goal, large, "4 MiB", false);
  }
}

}  // namespace kvrail::bench
