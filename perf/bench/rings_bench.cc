// The ring between engine and agent (kvrail/base/shared_ring.h) against boost::lockfree::spsc_queue:
// two pinned threads, records of 8 and 32 bytes, throughput and round trip.
#include <array>
#include <atomic>
#include <boost/lockfree/spsc_queue.hpp>
#include <memory>
#include <string>
#include <thread>

#include "kvrail/base/shared_ring.h"
#include "perf/bench/benchmarks.h"

namespace kvrail::bench {
namespace {

constexpr std::uint32_t kCapacity = 1024;
constexpr std::uint64_t kOperations = 4'000'000;
constexpr std::uint64_t kRoundTrips = 300'000;

template <std::size_t Bytes>
struct Record {
  std::array<std::uint64_t, Bytes / 8> words;
};

// Both rings behind the same calls, which is all that the loops below need. Ours makes records
// visible in batches, as a duty cycle does; Boost's has no such step.
template <class T>
class Ours {
 public:
  void push(const T& value) {
    while (!producer_.try_push(value)) producer_.publish_no_wake();
  }
  void flush() { producer_.publish_no_wake(); }
  bool pop(T& value) { return consumer_.try_pop(value); }

 private:
  static constexpr std::size_t kBytes = RingMemory::required_bytes(kCapacity, sizeof(T));
  struct alignas(kRingLineBytes) Memory {
    std::array<std::byte, (kBytes + kRingLineBytes - 1) / kRingLineBytes * kRingLineBytes> bytes;
    Memory() { RingMemory::create(bytes); }
  };
  Memory memory_;
  RingProducer<T> producer_{memory_.bytes, kCapacity};
  RingConsumer<T> consumer_{memory_.bytes, kCapacity};
};

template <class T>
class Boosts {
 public:
  void push(const T& value) {
    while (!queue_.push(value)) {
    }
  }
  void flush() {}
  bool pop(T& value) { return queue_.pop(value); }

 private:
  boost::lockfree::spsc_queue<T, boost::lockfree::capacity<kCapacity>> queue_;
};

// Runs `other` on the second core while the caller works on the first.
template <class F, class G>
double timed_pair(F&& here, G&& other) {
  std::atomic<bool> go{false};
  std::thread thread([&] {
    pin_to_core(1);
    while (!go.load(std::memory_order_acquire)) {
    }
    other();
  });
  std::int64_t start = 0;
  std::thread caller([&] {
    pin_to_core(0);
    start = now_ns();
    go.store(true, std::memory_order_release);
    here();
  });
  caller.join();
  thread.join();
  return static_cast<double>(now_ns() - start);
}

template <template <class> class Ring, class T>
double million_ops_per_s() {
  auto ring = std::make_unique<Ring<T>>();
  const double took = timed_pair(
      [&] {
        T value{};
        for (std::uint64_t i = 0; i < kOperations; ++i) {
          value.words[0] = i;
          ring->push(value);
          if (i % 32 == 31) ring->flush();
        }
        ring->flush();
      },
      [&] {
        T value{};
        for (std::uint64_t i = 0; i < kOperations; ++i) {
          while (!ring->pop(value)) {
          }
        }
      });
  return static_cast<double>(kOperations) / took * 1e3;
}

template <template <class> class Ring, class T>
double round_trip_ns() {
  auto there = std::make_unique<Ring<T>>();
  auto back = std::make_unique<Ring<T>>();
  const double took = timed_pair(
      [&] {
        T value{};
        for (std::uint64_t i = 0; i < kRoundTrips; ++i) {
          there->push(value);
          there->flush();
          while (!back->pop(value)) {
          }
        }
      },
      [&] {
        T value{};
        for (std::uint64_t i = 0; i < kRoundTrips; ++i) {
          while (!there->pop(value)) {
          }
          back->push(value);
          back->flush();
        }
      });
  return took / static_cast<double>(kRoundTrips);
}

template <std::size_t Bytes>
void run_size(Report& report) {
  using T = Record<Bytes>;
  const std::string size = std::to_string(Bytes) + " B";
  const std::string boost = "boost::lockfree::spsc_queue";
  report.compare("ring throughput, " + size, "M op/s", Better::higher, boost, 1.0, million_ops_per_s<Ours, T>,
                 million_ops_per_s<Boosts, T>);
  report.compare("ring round trip, " + size, "ns", Better::lower, boost, 1.0, round_trip_ns<Ours, T>,
                 round_trip_ns<Boosts, T>);
}

}  // namespace

double boost_round_trip_ns() { return round_trip_ns<Boosts, Record<32>>(); }

void run_rings(Report& report) {
  if (core_count() < 2) {
    report.skip("rings", "two cores are needed, this process may use one");
    return;
  }
  run_size<8>(report);
  run_size<32>(report);
}

}  // namespace kvrail::bench
