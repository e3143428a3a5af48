// main() of the fuzz targets where libFuzzer's is not linked: random and mutated inputs for a time,
// every one replayable.
//   X_fuzz [--seconds N] [--seed S]      default: 20 seconds (2 in quick mode), seed 1
//   X_fuzz FILE...                       runs these inputs once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvrail/base/prng.h"
#include "kvrail/base/time.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using kvrail::Prng;
using Input = std::vector<std::uint8_t>;

constexpr std::size_t kMostBytes = 4096;
constexpr std::size_t kCorpus = 256;

Input fresh(Prng& prng) {
  Input input(prng.uniform(kMostBytes));
  // Small numbers reach further than random words: counts, enumerations and offsets are small.
  const std::uint64_t style = prng.uniform(3);
  for (std::uint8_t& byte : input) {
    byte = static_cast<std::uint8_t>(style == 0 ? prng.uniform(256) : style == 1 ? prng.uniform(16) : prng.uniform(4) == 0 ? prng.uniform(256) : 0);
  }
  return input;
}

Input mutated(Prng& prng, Input input) {
  if (input.empty()) return fresh(prng);
  for (std::uint64_t n = 1 + prng.uniform(8); n > 0; --n) {
    const std::size_t at = prng.uniform(input.size());
    switch (prng.uniform(5)) {
      case 0: input[at] ^= static_cast<std::uint8_t>(1U << prng.uniform(8)); break;
      case 1: input[at] = static_cast<std::uint8_t>(prng.uniform(2) == 0 ? 0xff : 0); break;
      case 2: input.resize(at + 1); break;
      case 3: {
        const std::size_t length = std::min<std::size_t>(1 + prng.uniform(128), input.size() - at);
        Input piece(input.begin() + static_cast<std::ptrdiff_t>(at), input.begin() + static_cast<std::ptrdiff_t>(at + length));
        if (input.size() + length <= kMostBytes) input.insert(input.begin() + static_cast<std::ptrdiff_t>(prng.uniform(input.size())), piece.begin(), piece.end());
        break;
      }
      default: input[at] = static_cast<std::uint8_t>(prng.uniform(256));
    }
  }
  return input;
}

int replay(int count, char** files) {
  for (int i = 0; i < count; ++i) {
    std::ifstream file(files[i], std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    std::printf("%s: no fault\n", files[i]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = std::getenv("KVRAIL_TEST_MODE");
  std::int64_t seconds = mode != nullptr && std::strcmp(mode, "quick") == 0 ? 2 : 20;
  std::uint64_t seed = 1;
  int first_file = argc;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::atoll(argv[++i]);
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      first_file = i;
      break;
    }
  }
  if (first_file < argc) return replay(argc - first_file, argv + first_file);
  Prng prng(seed);
  std::vector<Input> corpus;
  const kvrail::SteadyClock clock;
  const kvrail::TimeNs until_ns = clock.now_ns() + seconds * kvrail::kSecondNs;
  std::uint64_t runs = 0;
  while (clock.now_ns() < until_ns) {
    const bool anew = corpus.empty() || prng.uniform(4) == 0;
    Input input = anew ? fresh(prng) : mutated(prng, corpus[prng.uniform(corpus.size())]);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ++runs;
    if (corpus.size() < kCorpus) {
      corpus.push_back(std::move(input));
    } else {
      corpus[prng.uniform(kCorpus)] = std::move(input);
    }
  }
  std::printf("%llu inputs from seed %llu, no fault\n", static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed));
  return 0;
}
