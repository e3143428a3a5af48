#include "perf/codec/speed.h"

#include <algorithm>
#include <cstring>

#include "kvrail/base/time.h"

namespace kvrail::fidelity {
namespace {

constexpr TimeNs kPassNs = 200'000;  // so that reading the clock does not matter
constexpr std::uint32_t kMostRepeats = 100'000;

// Keeps the compiler from leaving out or moving what was written.
void written(const void* at) {
  asm volatile("" : : "r"(at) : "memory");
}

void copy(const KvSet& from, KvSet& to) {
  for (std::uint32_t layer = 0; layer < from.layers; ++layer) {
    for (std::uint32_t first = 0; first < from.tokens; first += kRunTokens) {
      const std::uint32_t count = std::min(kRunTokens, from.tokens - first);
      const codec::RunView in = from.run(layer, first, count);
      const codec::MutableRun out = to.run(layer, first, count);
      std::memcpy(out.k.data(), in.k.data(), in.k.size());
      std::memcpy(out.v.data(), in.v.data(), in.v.size());
      written(out.k.data());
    }
  }
}

template <class Call>
TimeNs timed(std::uint32_t repeats, Call&& call) {
  const SteadyClock clock;
  const TimeNs before = clock.now_ns();
  for (std::uint32_t i = 0; i < repeats; ++i) call();
  return std::max<TimeNs>(1, clock.now_ns() - before);
}

// Bytes a nanosecond are 10⁹ bytes a second.
class Lap {
 public:
  template <class Call>
  void calibrate(Call&& call) {
    call();
    const TimeNs once = timed(1, call);
    repeats_ = static_cast<std::uint32_t>(std::clamp<TimeNs>(kPassNs / once, 1, kMostRepeats));
  }
  template <class Call>
  void run(Call&& call, std::uint64_t bytes) {
    const auto ns = static_cast<double>(timed(repeats_, call));
    rates_.push_back(static_cast<double>(bytes) * repeats_ / ns);
  }
  [[nodiscard]] double median() {
    const auto middle = rates_.begin() + static_cast<std::ptrdiff_t>(rates_.size() / 2);
    std::nth_element(rates_.begin(), middle, rates_.end());
    return *middle;
  }

 private:
  std::uint32_t repeats_ = 1;
  std::vector<double> rates_;
};

}  // namespace

KvSet working_set(const KvSet& set) {
  const std::uint64_t token_bytes = 2 * set.row_bytes();
  const std::uint64_t runs = kWorkingSetBytes / (kRunTokens * token_bytes);
  const std::uint64_t most_tokens = std::max<std::uint64_t>(runs, 1) * kRunTokens;
  const auto tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(set.tokens, most_tokens));
  const std::uint64_t layers = kWorkingSetBytes / (tokens * token_bytes);
  return set.head(static_cast<std::uint32_t>(std::clamp<std::uint64_t>(layers, 1, set.layers)),
                  tokens);
}

Result<Speeds> measure_speeds(MediumUnderTest& medium, const KvSet& set, std::uint32_t rounds) {
  if (auto ready = medium.prepare(set); !ready.ok()) return std::move(ready).error();
  KvSet out = set.empty_like(medium.decoded_dtype(set));
  KvSet copied = set.empty_like(set.dtype);
  Status status;
  const auto encode = [&] {
    if (const Status done = medium.encode(set); !done.ok()) status = done;
  };
  const auto decode = [&] {
    if (const Status done = medium.decode(out); !done.ok()) status = done;
  };
  const auto copy_all = [&] { copy(set, copied); };
  Lap encoding, decoding, copying;
  encoding.calibrate(encode);
  decoding.calibrate(decode);
  copying.calibrate(copy_all);
  const std::uint64_t bytes = 2 * set.side_bytes();
  for (std::uint32_t round = 0; round < rounds && status.ok(); ++round) {
    encoding.run(encode, bytes);
    copying.run(copy_all, bytes);
    decoding.run(decode, bytes);
  }
  if (!status.ok()) return Error{status, std::string(medium.name()) + ": fails on this KV"};
  return Speeds{encoding.median(), decoding.median(), copying.median()};
}

}  // namespace kvrail::fidelity
