// The rings under two threads: bytes arrive whole and in order, and a parked consumer is always
// woken. No deadline but a generous one against hanging: a lost wake-up shows as the eventfd
// staying silent.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "kvrail/base/prng.h"
#include "kvrail/base/shared_ring.h"

namespace kvrail {
namespace {

struct Item {
  std::uint64_t sequence;
  std::uint64_t words[3];
};

constexpr std::uint32_t kCapacity = 16;
constexpr int kHangMs = 60'000;

struct RingFixture {
  RingFixture()
      : memory(static_cast<std::byte*>(std::aligned_alloc(4096, 4096)), &std::free),
        span(memory.get(), 4096),
        event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    static_assert(RingConsumer<Item>::required_bytes(kCapacity) <= 4096);
    REQUIRE(event >= 0);
    RingMemory::create(span);
  }
  ~RingFixture() { ::close(event); }
  RingFixture(const RingFixture&) = delete;
  RingFixture& operator=(const RingFixture&) = delete;

  std::unique_ptr<std::byte, void (*)(void*)> memory;
  std::span<std::byte> span;
  int event;
};

void signal_event(int event) {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(event, &one, sizeof(one)));
}

/// False if nothing came for a minute.
bool sleep_on(int event) {
  pollfd waiting{event, POLLIN, 0};
  const int ready = ::poll(&waiting, 1, kHangMs);
  std::uint64_t drained = 0;
  static_cast<void>(!::read(event, &drained, sizeof(drained)));
  return ready == 1;
}

void produce(RingFixture& fixture, std::uint64_t count, std::uint64_t seed) {
  RingProducer<Item> producer(fixture.span, kCapacity);
  Prng prng(seed);
  for (std::uint64_t i = 0; i < count;) {
    const std::uint64_t burst = prng.between(1, 5);
    for (std::uint64_t k = 0; k < burst && i < count; ++k) {
      if (!producer.try_push(Item{i, {i * 3, i * 5, i * 7}})) {
        break;
      }
      ++i;
    }
    if (producer.publish()) {
      signal_event(fixture.event);
    }
    if (prng.chance(0.2)) {
      std::this_thread::yield();
    }
  }
}

struct Seen {
  std::uint64_t wrong = 0;
  std::uint64_t sleeps = 0;
  bool hung = false;
};

Seen consume(RingFixture& fixture, std::uint64_t count, bool park) {
  RingConsumer<Item> consumer(fixture.span, kCapacity);
  Seen seen;
  std::uint64_t next = 0;
  std::vector<Item> batch(7);
  while (next < count && consumer.state() == RingState::ok && !seen.hung) {
    const std::size_t got = consumer.pop_batch(batch);
    for (std::size_t i = 0; i < got; ++i, ++next) {
      const Item& item = batch[i];
      const bool right = item.sequence == next && item.words[0] == next * 3 &&
                         item.words[1] == next * 5 && item.words[2] == next * 7;
      seen.wrong += right ? 0 : 1;
    }
    if (got == 0 && park) {
      if (consumer.prepare_park()) {
        ++seen.sleeps;
        seen.hung = !sleep_on(fixture.event);
        consumer.cancel_park();
      }
    } else if (got == 0) {
      std::this_thread::yield();
    }
  }
  seen.wrong += consumer.state() == RingState::ok ? 0 : 1;
  return seen;
}

TEST_CASE("shared ring / two threads: a polling consumer sees every record whole and in order") {
  RingFixture fixture;
  std::thread thread([&] { produce(fixture, 200'000, 1); });
  const Seen seen = consume(fixture, 200'000, false);
  thread.join();
  CHECK(seen.wrong == 0);
}

TEST_CASE("shared ring / two threads: a parking consumer never misses a wake-up") {
  RingFixture fixture;
  std::thread thread([&] { produce(fixture, 100'000, 2); });
  const Seen seen = consume(fixture, 100'000, true);
  if (seen.hung) {
    thread.detach();
  } else {
    thread.join();
  }
  CHECK(!seen.hung);
  CHECK(seen.wrong == 0);
  CHECK(seen.sleeps > 0);
}

TEST_CASE("shared ring / two threads: ping-pong where both sides park at every step") {
  RingFixture there;
  RingFixture back;
  constexpr std::uint64_t kRounds = 20'000;
  bool echo_hung = false;
  std::thread echo([&] {
    RingConsumer<Item> in(there.span, kCapacity);
    RingProducer<Item> out(back.span, kCapacity);
    Item item{};
    for (std::uint64_t i = 0; i < kRounds && !echo_hung;) {
      if (in.try_pop(item)) {
        ++i;
        KVRAIL_ASSERT(out.try_push(item));
        if (out.publish()) {
          signal_event(back.event);
        }
      } else if (in.prepare_park()) {
        echo_hung = !sleep_on(there.event);
        in.cancel_park();
      }
    }
  });
  RingProducer<Item> out(there.span, kCapacity);
  RingConsumer<Item> in(back.span, kCapacity);
  bool hung = false;
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kRounds && !hung; ++i) {
    KVRAIL_ASSERT(out.try_push(Item{i, {}}));
    if (out.publish()) {
      signal_event(there.event);
    }
    Item item{};
    while (!hung && !in.try_pop(item)) {
      if (in.prepare_park()) {
        hung = !sleep_on(back.event);
        in.cancel_park();
      }
    }
    wrong += item.sequence == i ? 0 : 1;
  }
  echo.join();
  CHECK(!hung);
  CHECK(!echo_hung);
  CHECK(wrong == 0);
}

void spin(std::uint64_t turns) {
  for (; turns > 0; --turns) {
    asm volatile("" ::: "memory");
  }
}

// The race of P3/C3 alone, many times over: both sides start a round together, one publishes while
// the other prepares to park. Without the store-load order both can miss each other, which no sleep
// has to show.
TEST_CASE("shared ring / two threads: publish and prepare_park at once never miss each other") {
  RingFixture fixture;
  constexpr std::uint32_t kRounds = 300'000;
  std::atomic<std::uint32_t> round{0};  // 2k + 1 starts round k.
  std::atomic<std::uint32_t> done{0};
  bool signalled = false;  // Written by the publisher in a round, read by the main thread after it.
  std::thread publisher([&] {
    RingProducer<Item> producer(fixture.span, kCapacity);
    Prng prng(5);
    for (std::uint32_t k = 0; k < kRounds; ++k) {
      const std::uint64_t delay = prng.uniform(32);
      KVRAIL_ASSERT(producer.try_push(Item{k, {}}));
      for (int spins = 0; round.load(std::memory_order_acquire) != 2 * k + 1; ++spins) {
        if (spins > 1000) {
          std::this_thread::yield();
        }
      }
      spin(delay);
      signalled = producer.publish();
      done.store(k + 1, std::memory_order_release);
    }
  });
  RingConsumer<Item> consumer(fixture.span, kCapacity);
  Prng prng(6);
  std::uint64_t missed = 0;
  std::uint64_t parked_rounds = 0;
  for (std::uint32_t k = 0; k < kRounds; ++k) {
    const std::uint64_t delay = prng.uniform(32);
    round.store(2 * k + 1, std::memory_order_release);
    spin(delay);
    const bool parked = consumer.prepare_park();
    for (int spins = 0; done.load(std::memory_order_acquire) != k + 1; ++spins) {
      if (spins > 1000) {
        std::this_thread::yield();
      }
    }
    parked_rounds += parked ? 1 : 0;
    missed += parked && !signalled ? 1 : 0;
    consumer.cancel_park();
    Item item{};
    KVRAIL_ASSERT(consumer.try_pop(item));
  }
  publisher.join();
  CHECK(missed == 0);
  CHECK(parked_rounds > 0);
}

}  // namespace
}  // namespace kvrail
