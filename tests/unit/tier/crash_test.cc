// A process that puts blocks is killed at random: what it had been told is kept must be there, and nothing wrong.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/mode.h"
#include "tests/unit/tier/file_fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

constexpr std::uint64_t kNumbers = 1 << 16;

// What the victim has been told, in memory that outlives it.
struct Told {
  std::atomic<std::uint64_t> acknowledged{0};
  std::atomic<bool> ready{false};
  std::array<std::atomic<std::uint8_t>, kNumbers> kept{};
};

class Shared {
 public:
  Shared() : told_(static_cast<Told*>(::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(told_ != MAP_FAILED);
  }
  ~Shared() { ::munmap(told_, sizeof(Told)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  Told* operator->() const { return told_; }

 private:
  Told* told_;  // zeros, as atomics begin
};

// Puts blocks, of sizes that their numbers give, until it is killed. Never returns.
[[noreturn]] void put_for_ever(const tier::TierOptions& options, const Shared& told, std::uint64_t first) {
  auto made = tier::FileTier::create(options);
  if (!made.ok()) ::_exit(3);
  tier::FileTier& port = **made;
  const Layout layout = small_layout();
  std::map<std::uint64_t, std::vector<std::byte>> rows;
  std::vector<std::byte> slot(layout.block_bytes());
  std::array<TierCompletion, 16> out;
  for (std::uint64_t number = first;;) {
    if (rows.size() < 32 && number < kNumbers) {
      const std::uint32_t tokens = 1 + static_cast<std::uint32_t>(number % 16);
      auto& block = rows[number];
      block = rows_of(number, layout, tokens);
      if (port.put({number, hash_of(number), layout, tokens, 0, block.data()})) ++number;
      else rows.erase(number);
    }
    // Some are read, so that there is something to be carried on.
    static_cast<void>(port.get({kNumbers + number, hash_of(number / 2), layout, 1 + static_cast<std::uint32_t>(number / 2 % 16), slot.data()}));
    const std::size_t count = port.poll(out);
    for (const TierCompletion& done : std::span(out).first(count)) {
      if (done.event != TierEvent::put) continue;
      rows.erase(done.cookie);
      if (!done.status.ok()) continue;
      told->kept[done.cookie].store(1, std::memory_order_release);
      told->acknowledged.fetch_add(1, std::memory_order_release);
    }
    told->ready.store(true);
    if (count == 0) {
      pollfd wake{port.wake_fd(), POLLIN, 0};
      ::poll(&wake, 1, 1);
    }
  }
}

void wait_for(const Shared& told, std::uint64_t acknowledged) {
  const SteadyClock clock;
  const TimeNs limit = clock.now_ns() + kHangNs;
  while (told->acknowledged.load() < acknowledged || !told->ready.load()) {
    REQUIRE(clock.now_ns() < limit);
    ::poll(nullptr, 0, 1);
  }
}

// Kills one after it has been told of so many more, and a random while after that.
void one_life(const tier::TierOptions& options, const Shared& told, std::uint64_t first, Prng& random) {
  told->ready.store(false);
  const std::uint64_t before = told->acknowledged.load();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) put_for_ever(options, told, first);
  wait_for(told, before + random.uniform(150));
  const SteadyClock clock;
  const TimeNs until = clock.now_ns() + static_cast<TimeNs>(random.uniform(3 * kMillisecondNs));
  while (clock.now_ns() < until) continue;
  ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
}

struct Found {
  std::uint64_t acknowledged = 0, there = 0;
};

// Everything that the tier finds must be right; how much of what was acknowledged is there.
Found look(const tier::TierOptions& options, const Shared& told, std::uint64_t from) {
  Found found;
  Tier tier(options);
  for (std::uint64_t number = from; number < kNumbers; ++number) {
    const bool acknowledged = told->kept[number].load() == 1;
    if (acknowledged) ++found.acknowledged;
    if (!tier.has(number)) continue;
    const bool good = tier.good(number, 1 + static_cast<std::uint32_t>(number % 16));
    if (good && acknowledged) ++found.there;
    if (!good) CHECK(tier.gets[number].status.code == Code::corrupt);
  }
  return found;
}

}  // namespace

TEST_CASE("tier crash: a process killed at any time leaves no wrong block, and what it was told is kept is there") {
  Prng random(20);
  Found all;
  const int lives = test::by_mode(5, 20, 1'000);
  for (int life = 0; life < lives; ++life) {
    const Folder folder;
    tier::TierOptions options = small_tier(folder);
    options.capacity_bytes = 64U << 20;
    options.max_blocks = kNumbers;
    options.uring = life % 4 != 3;
    const Shared told;
    one_life(options, told, 0, random);
    const Found found = look(options, told, 0);
    all.acknowledged += found.acknowledged;
    all.there += found.there;
  }
  MESSAGE(lives << " lives, " << all.there << " of " << all.acknowledged << " acknowledged blocks found");
  REQUIRE(all.acknowledged > 0);
  CHECK(all.there * 100 >= all.acknowledged * 99);
}

TEST_CASE("tier crash: one folder through many lives, full and emptying segments, never gives a wrong block") {
  Prng random(21);
  const Folder folder;
  tier::TierOptions options = small_tier(folder);
  options.capacity_bytes = 1U << 20;
  const Shared told;
  const int lives = test::by_mode(3, 10, 500);
  std::uint64_t first = 0;
  for (int life = 0; life < lives; ++life) {
    one_life(options, told, first, random);
    // Every number means the same rows in each life, so they may be put again.
    first = (first + random.uniform(200)) % (kNumbers / 2);
    const Found found = look(options, told, 0);
    CHECK(found.there > 0);
  }
}
