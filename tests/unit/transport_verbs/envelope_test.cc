#include "transport/verbs/envelope.h"

#include <doctest/doctest.h>

#include <vector>

#include "kvrail/base/prng.h"

namespace kvrail::transport::verbs {
namespace {

std::vector<std::byte> message(MessageKind kind, std::size_t body) {
  std::vector<std::byte> out(kEnvelopeBytes + body);
  encode(Envelope{kind, 7, 0xFFFFFFFF, static_cast<std::uint32_t>(body)},
         std::span(out).first<kEnvelopeBytes>());
  return out;
}

std::vector<std::byte> lease_body(std::uint32_t segments) {
  std::vector<std::byte> body(kLeaseHeadBytes + segments * kSegmentBytes);
  for (std::uint32_t i = 0; i < segments; ++i) {
    encode(Segment{0x1000 + i, 100 + i, {5 + i, 50 + i}},
           std::span<std::byte, kSegmentBytes>(body.data() + kLeaseHeadBytes + i * kSegmentBytes,
                                               kSegmentBytes));
  }
  encode(LeaseHead{{3, 9}, 1'000'000, 12, segments, true, false}, body);
  return body;
}

}  // namespace

TEST_CASE("an envelope has these bytes") {
  std::array<std::byte, kEnvelopeBytes> out;
  encode(Envelope{MessageKind::frames, 0x01020304, 0x05060708, 64}, out);
  const std::array<std::uint8_t, kEnvelopeBytes> expected{0x4B, 1, 0, 0, 4,  3, 2, 1,
                                                          8,    7, 6, 5, 64, 0, 0, 0};
  for (std::size_t i = 0; i < out.size(); ++i)
    CHECK(std::to_integer<std::uint8_t>(out[i]) == expected[i]);
}

TEST_CASE("envelopes come back, and what contradicts itself is refused") {
  for (const auto& [kind, body] : {std::pair(MessageKind::credit, std::size_t{0}),
                                   std::pair(MessageKind::frames, std::size_t{64}),
                                   std::pair(MessageKind::query, kLeaseHeadBytes)}) {
    const auto bytes = message(kind, body);
    Envelope back;
    REQUIRE(decode(bytes, back));
    CHECK(back.kind == kind);
    CHECK(back.control_posted == 7);
    CHECK(back.bulk_posted == 0xFFFFFFFF);
    CHECK(back.body_bytes == body);
    CHECK_FALSE(decode(std::span(bytes).first(bytes.size() - 1), back));  // shorter than it says
    for (const std::size_t at : {std::size_t{0}, std::size_t{2}, std::size_t{3}, std::size_t{12}}) {
      auto broken = bytes;
      broken[at] ^= std::byte{0x40};
      CHECK_FALSE(decode(broken, back));
    }
    auto unknown = bytes;
    unknown[1] = std::byte{7};
    CHECK_FALSE(decode(unknown, back));
  }
  Envelope back;
  CHECK_FALSE(decode(message(MessageKind::credit, 1), back));
  CHECK_FALSE(decode(message(MessageKind::frames, 63), back));
  CHECK_FALSE(decode(message(MessageKind::lease, kLeaseHeadBytes - 1), back));
  CHECK_FALSE(decode({}, back));
}

TEST_CASE("a lease's segments come back, and one flipped bit anywhere is found") {
  const auto body = lease_body(3);
  LeaseHead head;
  REQUIRE(decode(body, head));
  CHECK(head.lease == LeaseId{3, 9});
  CHECK(head.total_bytes == 1'000'000);
  CHECK(head.pieces == 12);
  CHECK(head.first);
  CHECK_FALSE(head.last);
  REQUIRE(head.count == 3);
  CHECK(segment(body, 2).address == 0x1002);
  CHECK(segment(body, 2).keys == std::array<std::uint32_t, 2>{7, 52});
  CHECK(segment(body, 2).bytes == 102);
  for (std::size_t bit = 0; bit < body.size() * 8; ++bit) {
    auto broken = body;
    broken[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    CAPTURE(bit);
    CHECK_FALSE(decode(broken, head));
  }
}

TEST_CASE("random bytes are no lease and no greeting") {
  Prng prng(8);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes(prng.uniform(120));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next_u64());
    LeaseHead head;
    Greeting greeting;
    Envelope envelope;
    CHECK_FALSE(decode(bytes, head));
    CHECK_FALSE(decode(bytes, greeting));
    CHECK_FALSE(decode(bytes, envelope));
  }
}

TEST_CASE("greetings come back within their bounds") {
  std::array<std::byte, kGreetingBytes> out;
  encode(Greeting{64, 256, 0xABCDEF, 0xFFFFFF, 4096}, out);
  Greeting back;
  REQUIRE(decode(out, back));
  CHECK(back.receive_slots == 64);
  CHECK(back.bulk_receives == 256);
  CHECK(back.bulk_queue == 0xABCDEF);
  CHECK(back.bulk_packet == 0xFFFFFF);
  for (const Greeting& bad :
       {Greeting{7, 0, 0, 0, 0}, Greeting{64, 257, 0, 0, 0}, Greeting{64, 0, 1u << 24, 0, 0},
        Greeting{64, 0, 0, 1u << 24, 0}, Greeting{1025, 0, 0, 0, 0}}) {
    encode(bad, out);
    CHECK_FALSE(decode(out, back));
  }
}

}  // namespace kvrail::transport::verbs
