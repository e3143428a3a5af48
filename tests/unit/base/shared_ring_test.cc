#include "kvrail/base/shared_ring.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "kvrail/base/prng.h"

namespace kvrail {
namespace {

struct Record {
  std::uint64_t sequence;
  std::uint64_t check;
  std::uint32_t filler[3];
};

Record make_record(std::uint64_t sequence) {
  return Record{sequence, ~sequence, {1, 2, static_cast<std::uint32_t>(sequence)}};
}

/// A ring in memory of its own with guard bytes behind it, both ends, and the raw header that a
/// hostile peer would write to.
class Ring {
 public:
  explicit Ring(std::uint32_t capacity, std::uint64_t first_index = 0)
      : bytes_(RingProducer<Record>::required_bytes(capacity)),
        memory_(static_cast<std::byte*>(
            std::aligned_alloc(4096, (bytes_ + kGuardBytes + 4095) / 4096 * 4096))) {
    std::memset(memory_.get() + bytes_, 0x5A, kGuardBytes);
    const std::span<std::byte> span(memory_.get(), bytes_);
    RingMemory::create(span, first_index);
    producer = std::make_unique<RingProducer<Record>>(span, capacity, first_index);
    consumer = std::make_unique<RingConsumer<Record>>(span, capacity, first_index);
  }

  RingMemory& raw() { return *reinterpret_cast<RingMemory*>(memory_.get()); }
  bool guard_intact() const {
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      if (memory_.get()[bytes_ + i] != std::byte{0x5A}) {
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<RingProducer<Record>> producer;
  std::unique_ptr<RingConsumer<Record>> consumer;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static constexpr std::size_t kGuardBytes = 256;
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

TEST_CASE("shared ring / records are invisible until published, then come in order") {
  Ring ring(8);
  Record record{};
  CHECK(!ring.consumer->try_pop(record));
  CHECK(ring.producer->try_push(make_record(1)));
  CHECK(ring.producer->try_push(make_record(2)));
  CHECK(ring.producer->staged() == 2);
  CHECK(!ring.consumer->try_pop(record));
  CHECK(!ring.producer->publish());
  CHECK(ring.producer->staged() == 0);
  CHECK(ring.consumer->available() == 2);
  REQUIRE(ring.consumer->try_pop(record));
  CHECK(record.sequence == 1);
  REQUIRE(ring.consumer->try_pop(record));
  CHECK(record.sequence == 2);
  CHECK(record.check == ~std::uint64_t{2});
  CHECK(!ring.consumer->try_pop(record));
}

TEST_CASE("shared ring / a full ring refuses and takes again what was freed") {
  Ring ring(4);
  for (std::uint64_t i = 0; i < 4; ++i) {
    CHECK(ring.producer->try_push(make_record(i)));
  }
  CHECK(!ring.producer->try_push(make_record(4)));
  ring.producer->publish_no_wake();
  CHECK(ring.producer->free_slots() == 0);
  Record record{};
  CHECK(ring.consumer->try_pop(record));
  CHECK(ring.producer->free_slots() == 1);
  CHECK(ring.producer->try_push(make_record(4)));
  CHECK(!ring.producer->try_push(make_record(5)));
  CHECK(ring.producer->state() == RingState::ok);
}

TEST_CASE("shared ring / room and records are known without a look at the other side, and found with one") {
  Ring ring(2);
  Record record{};
  CHECK(!ring.consumer->has_next());
  CHECK(ring.producer->has_room());
  CHECK(ring.producer->try_push(make_record(1)));
  CHECK(!ring.consumer->has_next());  // not published
  CHECK(ring.producer->try_push(make_record(2)));
  CHECK(!ring.producer->has_room());
  ring.producer->publish_no_wake();
  CHECK(ring.consumer->has_next());
  REQUIRE(ring.consumer->try_pop(record));
  CHECK(ring.consumer->has_next());
  CHECK(ring.producer->has_room());
  REQUIRE(ring.consumer->try_pop(record));
  CHECK(!ring.consumer->has_next());
  ring.raw().tail.store(7);  // hostile: beyond the capacity
  CHECK(!ring.consumer->has_next());
  CHECK(ring.consumer->state() == RingState::corrupt);
}

TEST_CASE("shared ring / agrees with a queue over random operations, across the 64-bit wrap") {
  for (const std::uint64_t first : {std::uint64_t{0}, ~std::uint64_t{0} - 500}) {
    Ring ring(16, first);
    Prng prng(first ^ 99);
    std::deque<std::uint64_t> published;
    std::deque<std::uint64_t> staged;
    std::uint64_t next = 0;
    for (int step = 0; step < 20'000; ++step) {
      const std::uint64_t choice = prng.uniform(4);
      if (choice == 0) {
        const bool pushed = ring.producer->try_push(make_record(next));
        REQUIRE(pushed == (published.size() + staged.size() < 16));
        if (pushed) {
          staged.push_back(next++);
        }
      } else if (choice == 1) {
        CHECK(!ring.producer->publish());
        published.insert(published.end(), staged.begin(), staged.end());
        staged.clear();
      } else if (choice == 2) {
        Record record{};
        REQUIRE(ring.consumer->try_pop(record) == !published.empty());
        if (!published.empty()) {
          REQUIRE(record.sequence == published.front());
          published.pop_front();
        }
      } else {
        std::vector<Record> batch(prng.uniform(6));
        const std::size_t count = ring.consumer->pop_batch(batch);
        REQUIRE(count == std::min(batch.size(), published.size()));
        for (std::size_t i = 0; i < count; ++i) {
          REQUIRE(batch[i].sequence == published.front());
          REQUIRE(batch[i].check == ~batch[i].sequence);
          published.pop_front();
        }
      }
    }
    CHECK(next > 4000);
    CHECK(ring.guard_intact());
  }
}

TEST_CASE(
    "shared ring / hostile producer: a tail beyond the capacity is corrupt, nothing is read") {
  for (const std::uint64_t tail : {std::uint64_t{9}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    Ring ring(8);
    ring.raw().tail.store(tail);
    Record record = make_record(77);
    CHECK(!ring.consumer->try_pop(record));
    CHECK(record.sequence == 77);
    CHECK(ring.consumer->state() == RingState::corrupt);
    ring.raw().tail.store(1);  // Repenting does not help.
    CHECK(!ring.consumer->try_pop(record));
    std::vector<Record> batch(4);
    CHECK(ring.consumer->pop_batch(batch) == 0);
    CHECK(ring.consumer->available() == 0);
    CHECK(!ring.consumer->prepare_park());
  }
}

TEST_CASE("shared ring / hostile producer: a tail that runs backwards is corrupt") {
  Ring ring(8);
  for (std::uint64_t i = 0; i < 5; ++i) {
    CHECK(ring.producer->try_push(make_record(i)));
  }
  ring.producer->publish_no_wake();
  Record record{};
  CHECK(ring.consumer->try_pop(record));
  ring.raw().tail.store(2);
  CHECK(ring.consumer->available() == 0);
  CHECK(ring.consumer->state() == RingState::corrupt);
  CHECK(!ring.consumer->try_pop(record));
}

TEST_CASE("shared ring / hostile consumer: a head that takes what was never published is corrupt") {
  for (const std::uint64_t head : {std::uint64_t{5}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    Ring ring(4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      CHECK(ring.producer->try_push(make_record(i)));
    }
    ring.producer->publish_no_wake();
    ring.raw().head.store(head);
    CHECK(!ring.producer->try_push(make_record(4)));
    CHECK(ring.producer->state() == RingState::corrupt);
    ring.raw().head.store(4);
    CHECK(!ring.producer->try_push(make_record(4)));
    CHECK(ring.producer->free_slots() == 0);
  }
}

TEST_CASE(
    "shared ring / hostile consumer: taking records that are staged but unpublished is corrupt") {
  Ring ring(4);
  for (std::uint64_t i = 0; i < 4; ++i) {
    CHECK(ring.producer->try_push(make_record(i)));
  }
  ring.raw().head.store(4);
  CHECK(!ring.producer->try_push(make_record(4)));
  CHECK(ring.producer->state() == RingState::corrupt);
}

TEST_CASE("shared ring / hostile consumer: a head that runs backwards is corrupt") {
  Ring ring(4);
  Record record{};
  for (std::uint64_t i = 0; i < 8; ++i) {
    CHECK(ring.producer->try_push(make_record(i)));
    ring.producer->publish_no_wake();
    CHECK(ring.consumer->try_pop(record));
  }
  CHECK(ring.producer->free_slots() == 4);
  ring.raw().head.store(7);
  CHECK(ring.producer->free_slots() == 0);
  CHECK(ring.producer->state() == RingState::corrupt);
}

TEST_CASE("shared ring / random bytes in the whole header never lead outside the slots") {
  Prng prng(2024);
  for (int round = 0; round < 2000; ++round) {
    Ring ring(8);
    Record record{};
    for (int step = 0; step < 20; ++step) {
      const std::uint64_t small = prng.uniform(20);
      const std::uint64_t value = prng.chance(0.5) ? small : prng.next_u64();
      switch (prng.uniform(6)) {
        case 0:
          ring.raw().tail.store(value);
          break;
        case 1:
          ring.raw().head.store(value);
          break;
        case 2:
          ring.raw().parked.store(static_cast<std::uint32_t>(value));
          break;
        case 3:
          static_cast<void>(ring.producer->try_push(make_record(1)));
          break;
        case 4:
          static_cast<void>(ring.producer->publish());
          break;
        default:
          static_cast<void>(ring.consumer->try_pop(record));
          break;
      }
    }
    REQUIRE(ring.guard_intact());
  }
}

TEST_CASE("shared ring / park: publish asks for exactly one signal per sleep") {
  Ring ring(8);
  Record record{};
  REQUIRE(ring.consumer->prepare_park());
  CHECK(ring.producer->try_push(make_record(1)));
  CHECK(ring.producer->publish());
  CHECK(ring.producer->try_push(make_record(2)));
  CHECK(!ring.producer->publish());  // The sleeper has been signalled already.
  ring.consumer->cancel_park();
  CHECK(ring.consumer->try_pop(record));
  CHECK(!ring.consumer->prepare_park());  // One record is left: no sleep.
  CHECK(ring.producer->try_push(make_record(3)));
  CHECK(!ring.producer->publish());  // And the failed attempt announced nothing.
  CHECK(!ring.producer->publish());  // Nothing staged, nothing to signal.
}

TEST_CASE("shared ring / park: a sleeper is left alone by records of kinds that it does not wait for") {
  Ring ring(8);
  REQUIRE(ring.consumer->prepare_park(0b01));
  CHECK(ring.producer->try_push(make_record(1)));
  CHECK(!ring.producer->publish(0b10));
  CHECK(ring.producer->try_push(make_record(2)));
  CHECK(ring.producer->publish(0b11));
  CHECK(ring.consumer->available() == 2);
}

}  // namespace
}  // namespace kvrail
