#include "transport/wire/frame.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "kvrail/base/byte_order.h"
#include "kvrail/base/prng.h"
#include "tests/unit/transport/hex.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::transport::wire;
using Progress = FrameParser::Progress;

namespace {

constexpr std::uint32_t kSession = 0x0A0B0C0D;

FrameRules lane_rules() {
  FrameRules rules;
  rules.version = 1;
  rules.session = kSession;
  rules.handshaking = false;
  return rules;
}

FrameHeader chunk_header() {
  FrameHeader header;
  header.type = FrameType::chunk;
  header.flags = kFlagDigests | kFlagCritical;
  header.digest_count = 1;
  header.payload_bytes = 4096;
  header.session = kSession;
  header.lease = {7, 3};
  header.transfer = 0x1122334455667788;
  header.offset = 65536;
  return header;
}

std::array<std::byte, kFrameHeaderBytes> raw_of(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> raw{};
  encode_header(header, raw);
  return raw;
}

// Sets bytes of a raw header and makes its checksum right again: what a hostile sender does.
void poke(std::array<std::byte, kFrameHeaderBytes>& raw, std::size_t at, std::uint64_t value,
          std::size_t bytes) {
  std::memcpy(raw.data() + at, &value, bytes);
  store_le64(raw.data() + 56, payload_digest(std::span(raw).first(56)));
}

FrameError refusal(const std::array<std::byte, kFrameHeaderBytes>& raw,
                   const FrameRules& rules = lane_rules()) {
  FrameHeader out;
  return decode_header(raw, rules, out);
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

std::vector<std::byte> message(std::uint32_t sequence, std::span<const std::byte> payload) {
  std::vector<std::byte> out(kFrameHeaderBytes + payload.size());
  REQUIRE(encode_frame(FrameType::message, 1, kSession, sequence, payload, out) == out.size());
  return out;
}

struct Parser {
  std::vector<std::byte> payload = std::vector<std::byte>(kMaxMessageBytes);
  std::vector<std::uint64_t> digests = std::vector<std::uint64_t>(kMaxChunkDigests);
  FrameParser parser{lane_rules(), payload, digests};
};

}  // namespace

TEST_CASE("headers of every type survive encoding and decoding") {
  FrameHeader out;
  const FrameHeader chunk = chunk_header();
  CHECK(decode_header(raw_of(chunk), lane_rules(), out) == FrameError::none);
  CHECK(out == chunk);

  FrameHeader ack;
  ack.type = FrameType::ack;
  ack.session = kSession;
  ack.sequence = 9;
  ack.ack_first = 1ull << 40;
  ack.ack_count = 1;
  ack.ack_code = Code::corrupt;
  CHECK(decode_header(raw_of(ack), lane_rules(), out) == FrameError::none);
  CHECK(out == ack);

  FrameHeader hello;
  hello.type = FrameType::handshake;
  hello.payload_bytes = 64;
  hello.payload_digest = 5;
  CHECK(decode_header(raw_of(hello), FrameRules{}, out) == FrameError::none);
  CHECK(out == hello);
}

TEST_CASE("golden headers: the bytes that docs/wire.md shows") {
  FrameHeader ack;
  ack.type = FrameType::ack;
  ack.session = kSession;
  ack.sequence = 2;
  ack.ack_first = 5;
  ack.ack_count = 3;
  ack.ack_code = Code::rejected;
  check_golden("frame.chunk", raw_of(chunk_header()));
  check_golden("frame.ack", raw_of(ack));
  const auto payload = bytes_of("golden");
  check_golden("frame.message", message(1, payload));
}

TEST_CASE("bad input 1: a length far above what follows or what is allowed") {
  auto raw = raw_of(chunk_header());
  poke(raw, 12, 0xFFFFFFFF, 4);
  CHECK(refusal(raw) == FrameError::too_large);
  FrameHeader plain;
  plain.session = kSession;
  plain.payload_bytes = 20;
  raw = raw_of(plain);
  poke(raw, 12, 0xFFFFFFFF, 4);
  CHECK(refusal(raw) == FrameError::too_large);
  poke(raw, 12, kMaxMessageBytes + 1, 4);
  CHECK(refusal(raw) == FrameError::too_large);
  poke(raw, 12, kMaxMessageBytes, 4);
  CHECK(refusal(raw) == FrameError::none);
  poke(raw, 12, 0, 4);
  CHECK(refusal(raw) == FrameError::bad_lengths);
}

TEST_CASE("bad input 2: lengths that contradict or overflow each other") {
  auto raw = raw_of(chunk_header());
  poke(raw, 8, 0xFFFF, 2);
  CHECK(refusal(raw) == FrameError::bad_lengths);
  raw = raw_of(chunk_header());
  poke(raw, 10, 0xFFFF, 2);  // 64 + 8 * 65535 wraps 16 bits to 56
  CHECK(refusal(raw) == FrameError::bad_lengths);
  poke(raw, 8, 56, 2);
  CHECK(refusal(raw) == FrameError::bad_lengths);
  raw = raw_of(chunk_header());
  poke(raw, 10, kMaxChunkDigests + 1, 2);
  poke(raw, 8, kFrameHeaderBytes + 8 * (kMaxChunkDigests + 1), 2);
  CHECK(refusal(raw) == FrameError::too_large);
  raw = raw_of(chunk_header());
  poke(raw, 6, kFlagCritical, 2);  // digests without the flag
  CHECK(refusal(raw) == FrameError::bad_flags);
}

TEST_CASE("bad input 3: cut after every byte, and delivered byte by byte") {
  const auto payload = bytes_of("a whole message");
  const auto frame = message(0, payload);
  for (std::size_t cut = 0; cut < frame.size(); ++cut) {
    Parser p;
    std::span<const std::byte> input(frame.data(), cut);
    CHECK(p.parser.feed(input) == Progress::need_more);
    CHECK(p.parser.idle() == (cut == 0));
  }
  Parser p;
  for (std::size_t i = 0; i < frame.size(); ++i) {
    std::span<const std::byte> one(frame.data() + i, 1);
    CHECK(p.parser.feed(one) ==
          (i + 1 == frame.size() ? Progress::frame_ready : Progress::need_more));
  }
  CHECK(std::memcmp(p.parser.payload().data(), payload.data(), payload.size()) == 0);
  p.parser.next();
  CHECK(p.parser.idle());
}

TEST_CASE("bad input 4: foreign versions and a downgrade") {
  for (const unsigned version : {0u, 2u, 255u}) {
    auto raw = raw_of(chunk_header());
    poke(raw, 4, version, 1);
    CHECK(refusal(raw) == FrameError::bad_version);
  }
  FrameRules newer = lane_rules();
  newer.version = 2;
  CHECK(refusal(raw_of(chunk_header()), newer) == FrameError::bad_version);
}

TEST_CASE("bad input 6: offset and length wrap, lease slots that do not exist") {
  auto raw = raw_of(chunk_header());
  poke(raw, 40, UINT64_MAX - 4094, 8);
  CHECK(refusal(raw) == FrameError::bad_range);
  poke(raw, 40, UINT64_MAX - 4096, 8);
  CHECK(refusal(raw) == FrameError::none);
  poke(raw, 24, kMaxLeaseSlots, 4);
  CHECK(refusal(raw) == FrameError::bad_lease);
}

TEST_CASE("bad input 7: frames of another session, replayed or lost") {
  auto raw = raw_of(chunk_header());
  poke(raw, 16, kSession + 1, 4);
  CHECK(refusal(raw) == FrameError::wrong_session);
  FrameHeader hello;
  hello.type = FrameType::handshake;
  hello.session = kSession;
  hello.payload_bytes = 64;
  CHECK(refusal(raw_of(hello)) == FrameError::unexpected);

  const auto payload = bytes_of("x");
  const auto first = message(0, payload);
  for (const std::uint32_t second : {0u, 2u}) {
    Parser p;
    std::span<const std::byte> input(first);
    REQUIRE(p.parser.feed(input) == Progress::frame_ready);
    p.parser.next();
    const auto again = message(second, payload);
    input = again;
    CHECK(p.parser.feed(input) == Progress::refused);
    CHECK(p.parser.error() == FrameError::bad_sequence);
    CHECK(p.parser.want().empty());
    input = first;
    CHECK(p.parser.feed(input) == Progress::refused);
  }
}

TEST_CASE("bad input 8: swapped magic, unknown types and mandatory flags") {
  auto raw = raw_of(chunk_header());
  std::swap(raw[0], raw[3]);
  std::swap(raw[1], raw[2]);
  CHECK(refusal(raw) == FrameError::swapped_magic);
  raw[0] = std::byte{'G'};
  CHECK(refusal(raw) == FrameError::bad_magic);
  for (const unsigned type : {0u, 5u, 255u}) {
    raw = raw_of(chunk_header());
    poke(raw, 5, type, 1);
    CHECK(refusal(raw) == FrameError::bad_type);
  }
  for (int bit = 2; bit < 16; ++bit) {
    raw = raw_of(chunk_header());
    poke(raw, 6, kFlagDigests | (1u << bit), 2);
    CHECK(refusal(raw) == FrameError::bad_flags);
  }
}

TEST_CASE("bad input 9: acknowledgements that no correct peer sends") {
  FrameHeader ack;
  ack.type = FrameType::ack;
  ack.session = kSession;
  ack.ack_count = 1;
  const auto good = raw_of(ack);
  CHECK(refusal(good) == FrameError::none);
  auto raw = good;
  poke(raw, 24, 0, 4);
  CHECK(refusal(raw) == FrameError::bad_ack);
  raw = good;
  poke(raw, 24, kMaxAckCount + 1, 4);
  CHECK(refusal(raw) == FrameError::bad_ack);
  raw = good;
  poke(raw, 40, UINT64_MAX, 8);
  CHECK(refusal(raw) == FrameError::bad_ack);
  raw = good;
  poke(raw, 48, static_cast<std::uint64_t>(Code::internal), 8);
  CHECK(refusal(raw) == FrameError::bad_ack);
  poke(raw, 48, 1ull << 32, 8);
  CHECK(refusal(raw) == FrameError::bad_ack);
  raw = good;
  poke(raw, 32, 1, 8);
  CHECK(refusal(raw) == FrameError::bad_reserved);
}

TEST_CASE("every flipped bit of a frame is noticed") {
  const auto payload = bytes_of("each bit of this counts");
  const auto frame = message(0, payload);
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    auto bad = frame;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    Parser p;
    std::span<const std::byte> input(bad);
    CHECK(p.parser.feed(input) == Progress::refused);
    CHECK(p.parser.error() != FrameError::none);
  }
}

TEST_CASE("a mixed stream cut at random places comes out whole and in order") {
  std::vector<std::byte> stream;
  std::vector<std::size_t> sizes;
  Prng prng(3);
  std::vector<std::byte> body(5000);
  for (auto& b : body) b = static_cast<std::byte>(prng.next_u64());
  for (std::uint32_t i = 0; i < 60; ++i) {
    const std::size_t size = 1 + prng.uniform(body.size() - 1);
    sizes.push_back(size);
    if (i % 3 == 0) {
      FrameHeader header = chunk_header();
      header.sequence = i;
      header.payload_bytes = static_cast<std::uint32_t>(size);
      header.digest_count = static_cast<std::uint16_t>(i);
      const auto raw = raw_of(header);
      stream.insert(stream.end(), raw.begin(), raw.end());
      for (std::uint64_t d = 0; d < i; ++d) {
        const auto one = std::as_bytes(std::span(&d, 1));
        stream.insert(stream.end(), one.begin(), one.end());
      }
      stream.insert(stream.end(), body.begin(), body.begin() + static_cast<long>(size));
    } else {
      const auto frame = message(i, std::span(body).first(size));
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
  }
  Parser p;
  std::size_t at = 0;
  std::uint32_t seen = 0;
  while (at < stream.size()) {
    const std::size_t cut = std::min<std::size_t>(1 + prng.uniform(3000), stream.size() - at);
    std::span<const std::byte> input(stream.data() + at, cut);
    const Progress progress = p.parser.feed(input);
    at += cut - input.size();
    REQUIRE(progress != Progress::refused);
    if (progress == Progress::need_more) continue;
    const FrameHeader& header = p.parser.header();
    REQUIRE(header.sequence == seen);
    REQUIRE(header.payload_bytes == sizes[seen]);
    if (progress == Progress::chunk_ready) {
      REQUIRE(p.parser.digests().size() == seen);
      for (std::uint64_t d = 0; d < seen; ++d) REQUIRE(p.parser.digests()[d] == d);
      REQUIRE(std::memcmp(stream.data() + at, body.data(), header.payload_bytes) == 0);
      at += header.payload_bytes;  // the caller's own reading
    } else {
      REQUIRE(std::memcmp(p.parser.payload().data(), body.data(), header.payload_bytes) == 0);
    }
    p.parser.next();
    ++seen;
  }
  CHECK(seen == 60);
}

TEST_CASE("a stream that may not carry chunks refuses them") {
  std::vector<std::byte> payload(kMaxMessageBytes);
  FrameParser parser(lane_rules(), payload, {});
  const auto raw = raw_of(chunk_header());
  std::span<const std::byte> input(raw);
  CHECK(parser.feed(input) == Progress::refused);
  CHECK(parser.error() == FrameError::unexpected);
}

TEST_CASE("refusals are counted by reason and every reason has a name") {
  FrameCounters counters;
  counters.count(FrameError::bad_magic);
  counters.count(FrameError::bad_magic);
  counters.count(FrameError::truncated);
  CHECK(counters.total() == 3);
  CHECK(counters.refused[static_cast<std::size_t>(FrameError::bad_magic)] == 2);
  for (std::size_t i = 0; i < kFrameErrorCount; ++i) {
    CHECK(std::strlen(name(static_cast<FrameError>(i))) > 3);
  }
}
