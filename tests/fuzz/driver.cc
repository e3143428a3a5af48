// main() of the fuzz targets where libFuzzer's is not linked: first the corpus, then random and mutated
// inputs for a time, every one replayable.
//   fuzz_X [--corpus DIR] [--seconds N] [--seed S]   default: 20 seconds (2 in quick mode, 600 in long), seed 1
//   fuzz_X FILE...                                   runs these inputs once
//   fuzz_X --write-corpus DIR                        writes the inputs that the target begins with
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/prng.h"
#include "kvrail/base/time.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/mode.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using kvrail::Prng;
using Input = kvrail::test::FuzzInput;

constexpr std::size_t kMostBytes = 4096;
constexpr std::size_t kCorpus = 256;

// The input in hand, for the handler of a crash to write down.
const Input* present = nullptr;
constexpr const char* kCrashFile = "fuzz-crash.bin";

void on_crash(int signal) {
  const int fd = ::open(kCrashFile, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd >= 0 && present != nullptr && ::write(fd, present->data(), present->size()) >= 0) {
    constexpr std::string_view kText = "the input is in fuzz-crash.bin\n";
    static_cast<void>(::write(STDERR_FILENO, kText.data(), kText.size()) >= 0);
  }
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

void run(const Input& input) {
  present = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

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

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  return {bytes.begin(), bytes.end()};
}

int replay(int count, char** files) {
  for (int i = 0; i < count; ++i) {
    run(read(files[i]));
    std::printf("%s: no fault\n", files[i]);
  }
  return 0;
}

// In the order of names, so that a run is the same everywhere.
std::vector<Input> replay_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::fprintf(stderr, "%s\n", path.c_str());  // the last line of a crash names its input
    inputs.push_back(read(path));
    run(inputs.back());
  }
  std::printf("%zu inputs of the corpus, no fault\n", inputs.size());
  return inputs;
}

int write_corpus(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::size_t count = 0;
  for (const Input& input : kvrail::test::fuzz_seeds()) {
    char name[32];
    std::snprintf(name, sizeof(name), "seed-%03zu.bin", count++);
    std::ofstream(folder / name, std::ios::binary).write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
  }
  std::printf("%zu inputs\n", count);
  return count == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto seconds = kvrail::test::by_mode<std::int64_t>(2, 20, 600);
  std::vector<Input> corpus;
  std::uint64_t seed = 1;
  int first_file = argc;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::atoll(argv[++i]);
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (std::strcmp(argv[i], "--corpus") == 0 && i + 1 < argc) {
      corpus = replay_corpus(argv[++i]);
      if (corpus.empty()) return 1;
    } else if (std::strcmp(argv[i], "--write-corpus") == 0 && i + 1 < argc) {
      return write_corpus(argv[i + 1]);
    } else {
      first_file = i;
      break;
    }
  }
  if (first_file < argc) return replay(argc - first_file, argv + first_file);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, on_crash);
  Prng prng(seed);
  const kvrail::SteadyClock clock;
  const kvrail::TimeNs until_ns = clock.now_ns() + seconds * kvrail::kSecondNs;
  std::uint64_t runs = 0;
  while (clock.now_ns() < until_ns) {
    const bool anew = corpus.empty() || prng.uniform(4) == 0;
    Input input = anew ? fresh(prng) : mutated(prng, corpus[prng.uniform(corpus.size())]);
    run(input);
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
