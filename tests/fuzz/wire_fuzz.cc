// Frames, messages and handshakes from a hostile peer. Plain noise dies at the first checksum, so
// most inputs are patches to something well-formed, with the checksums made right again.
//
// Byte 0 chooses what the rest means; see the functions below.
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "tests/fuzz/seeds.h"
#include "tests/unit/transport/message_samples.h"
#include "transport/handshake.h"
#include "transport/wire/codec.h"
#include "transport/wire/frame.h"

namespace {

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::transport::wire;

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kSession = 77;

FrameRules lane_rules() {
  FrameRules rules;
  rules.version = 1;
  rules.session = kSession;
  rules.handshaking = false;
  return rules;
}

std::uint8_t take(Bytes& input) {
  if (input.empty()) return 0;
  const auto first = std::to_integer<std::uint8_t>(input[0]);
  input = input.subspan(1);
  return first;
}

// Overwrites bytes of `target` as the input says: pairs of place and value.
void patch(std::vector<std::byte>& target, Bytes input) {
  while (input.size() >= 3 && !target.empty()) {
    const std::size_t at = load_le16(input.data()) % target.size();
    target[at] = input[2];
    input = input.subspan(3);
  }
}

// Whatever decodes must encode to the same bytes again: there is one form of each message.
template <class M>
void decode_one(Bytes payload) {
  static std::vector<std::byte> again(kMaxMessageBytes);
  M message{};
  const Status status = decode(payload, message);
  if (!status.ok()) {
    KVRAIL_ASSERT(status.code == Code::protocol_error && status.detail != 0);
    return;
  }
  KVRAIL_ASSERT(peek_type(payload).has_value());
  const std::size_t size = encode(message, again);
  KVRAIL_ASSERT(size == payload.size());
  KVRAIL_ASSERT(std::memcmp(again.data(), payload.data(), size) == 0);
}

void decode_all(Bytes payload) {
  decode_one<Keepalive>(payload);
  decode_one<AgentUp>(payload);
  decode_one<AgentDown>(payload);
  decode_one<Offer>(payload);
  decode_one<Tokens>(payload);
  decode_one<Accept>(payload);
  decode_one<Later>(payload);
  decode_one<Reject>(payload);
  decode_one<Done>(payload);
  decode_one<Cancel>(payload);
  decode_one<Query>(payload);
  decode_one<Outcome>(payload);
  decode_one<Fetch>(payload);
  decode_one<State>(payload);
  decode_one<Summary>(payload);
  decode_one<Encodings>(payload);
  decode_one<Eager>(payload);
  decode_one<Workflow>(payload);
  decode_one<TaskNotice>(payload);
  decode_one<TurnNotice>(payload);
}

// A sample message, patched and cut.
void patched_message(Bytes input) {
  const std::size_t wanted = take(input) % 20;
  const std::size_t cut = take(input);
  std::size_t index = 0;
  test::for_each_sample([&](const char*, const auto& message) {
    if (index++ != wanted) return;
    std::vector<std::byte> bytes(kMaxMessageBytes);
    bytes.resize(encode(message, bytes));
    patch(bytes, input);
    if (cut >= 128) bytes.resize(bytes.size() * (cut - 128) / 128);
    bytes.shrink_to_fit();
    decode_all(bytes);
  });
}

// A stream, delivered in pieces whose sizes are the stream's own bytes.
void parse_stream(Bytes stream, const FrameRules& rules) {
  static std::vector<std::byte> payload(kMaxMessageBytes);
  static std::vector<std::uint64_t> digests(kMaxChunkDigests);
  FrameParser parser(rules, payload, digests);
  std::uint64_t skip = 0;  // of a chunk's payload, which is not the parser's
  for (Bytes left = stream; !left.empty();) {
    const std::size_t size =
        std::min<std::size_t>(1 + std::to_integer<std::size_t>(left[0]), left.size());
    Bytes piece = left.first(size);
    left = left.subspan(size);
    while (!piece.empty()) {
      if (skip != 0) {
        const std::size_t here = std::min<std::size_t>(skip, piece.size());
        skip -= here;
        piece = piece.subspan(here);
        continue;
      }
      const FrameParser::Progress progress = parser.feed(piece);
      if (progress == FrameParser::Progress::need_more) break;
      if (progress == FrameParser::Progress::refused) {
        KVRAIL_ASSERT(parser.error() != FrameError::none);
        return;
      }
      if (progress == FrameParser::Progress::chunk_ready) {
        skip = parser.header().payload_bytes;
        KVRAIL_ASSERT(skip != 0 && skip <= rules.max_chunk_bytes);
      } else if (parser.header().type == FrameType::message) {
        decode_all(parser.payload());
      }
      parser.next();
    }
  }
}

// Frames that differ from right ones in what the input patches, checksums right.
void patched_frames(Bytes input) {
  std::vector<std::byte> stream;
  for (std::uint32_t sequence = 0; sequence < 4 && !input.empty(); ++sequence) {
    FrameHeader header;
    header.type = static_cast<FrameType>(1 + take(input) % 3);
    header.session = kSession;
    header.sequence = sequence;
    header.payload_bytes = header.type == FrameType::ack ? 0 : 1 + take(input);
    header.ack_count = 1;
    std::vector<std::byte> body(header.payload_bytes, std::byte{take(input)});
    header.payload_digest = payload_digest(body);
    std::vector<std::byte> raw(kFrameHeaderBytes);
    encode_header(header, std::span(raw).first<kFrameHeaderBytes>());
    const std::size_t asked = 3 * (take(input) % 4u);
    const std::size_t patches = std::min(asked, input.size());
    raw.resize(56);
    patch(raw, input.first(patches));
    input = input.subspan(patches);
    raw.resize(kFrameHeaderBytes);
    store_le64(raw.data() + 56, payload_digest(Bytes(raw).first(56)));
    stream.insert(stream.end(), raw.begin(), raw.end());
    stream.insert(stream.end(), body.begin(), body.end());
  }
  parse_stream(stream, lane_rules());
}

// Two ends shake hands; the input patches some of what they say.
void patched_handshake(Bytes input) {
  static const Psk key(std::vector<std::byte>(32, std::byte{7}));
  const std::uint8_t keys = take(input);
  HandshakeConfig a;
  a.node = 1;
  a.incarnation = 1;
  a.psk = (keys & 1) != 0 ? &key : nullptr;
  HandshakeConfig b = a;
  b.node = 2;
  b.psk = (keys & 2) != 0 ? &key : nullptr;
  Nonce nonce{};
  std::array<Handshake, 2> ends{Handshake::dial(a, nonce, LaneKind::bulk, 5),
                                Handshake::listen(b, nonce)};
  bool touched = false;
  std::array<std::byte, Handshake::kMaxFrameBytes> frame;
  for (std::size_t turn = 0; turn < 12; ++turn) {
    const std::size_t size = ends[turn % 2].next_frame(frame);
    if (size == 0) continue;
    std::vector<std::byte> payload(frame.begin() + kFrameHeaderBytes,
                                   frame.begin() + static_cast<std::ptrdiff_t>(size));
    const std::vector<std::byte> before = payload;
    const std::size_t asked = 3 * (take(input) % 3u);
    const std::size_t patches = std::min(asked, input.size());
    patch(payload, input.first(patches));
    input = input.subspan(patches);
    if ((take(input) & 7) == 7) payload.resize(take(input) % (payload.size() + 9));
    touched = touched || payload != before;
    ends[1 - turn % 2].on_payload(payload);
    if (ends[turn % 2].has_frame()) --turn;
  }
  const bool both = ends[0].state() == Handshake::State::established &&
                    ends[1].state() == Handshake::State::established;
  // With a key on both sides, nothing that was touched may end in a lane.
  if (both && (keys & 3) == 3) KVRAIL_ASSERT(!touched);
  if (both) KVRAIL_ASSERT(ends[0].peer() != 0 && ends[1].peer() != 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes input(reinterpret_cast<const std::byte*>(data), size);
  switch (take(input) % 6) {
    case 0:
      parse_stream(input, FrameRules{});
      break;
    case 1:
      parse_stream(input, lane_rules());
      break;
    case 2:
      decode_all(input);
      break;
    case 3:
      patched_message(input);
      break;
    case 4:
      patched_frames(input);
      break;
    default:
      patched_handshake(input);
      break;
  }
  return 0;
}

namespace {

kvrail::test::FuzzInput input_of(std::uint8_t kind, Bytes bytes) {
  kvrail::test::FuzzInput input{kind};
  for (const std::byte byte : bytes) input.push_back(std::to_integer<std::uint8_t>(byte));
  return input;
}

// A message, a chunk of two units with their digests, its acknowledgement.
std::vector<std::byte> lane_stream(Bytes message) {
  std::vector<std::byte> stream(kMaxMessageBytes);
  stream.resize(encode_frame(FrameType::message, 1, kSession, 0, message, stream));
  const std::vector<std::byte> body(300, std::byte{5});
  FrameHeader chunk;
  chunk.type = FrameType::chunk;
  chunk.flags = kFlagDigests;
  chunk.digest_count = 2;
  chunk.payload_bytes = static_cast<std::uint32_t>(body.size());
  chunk.session = kSession;
  chunk.sequence = 1;
  chunk.transfer = 9;
  FrameHeader ack;
  ack.type = FrameType::ack;
  ack.session = kSession;
  ack.sequence = 2;
  ack.ack_count = 1;
  std::array<std::byte, kFrameHeaderBytes> raw{};
  encode_header(chunk, raw);
  stream.insert(stream.end(), raw.begin(), raw.end());
  stream.resize(stream.size() + 2 * sizeof(std::uint64_t));
  stream.insert(stream.end(), body.begin(), body.end());
  encode_header(ack, raw);
  stream.insert(stream.end(), raw.begin(), raw.end());
  return stream;
}

}  // namespace

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  std::vector<FuzzInput> seeds;
  static const Psk key(std::vector<std::byte>(32, std::byte{7}));
  HandshakeConfig config;
  config.node = 1;
  config.incarnation = 1;
  config.psk = &key;
  Handshake dialler = Handshake::dial(config, Nonce{}, LaneKind::control, 5);
  std::array<std::byte, Handshake::kMaxFrameBytes> hello{};
  const std::size_t size = dialler.next_frame(hello);
  seeds.push_back(input_of(0, Bytes(hello).first(size)));
  std::uint8_t index = 0;
  for_each_sample([&](const char*, const auto& message) {
    std::vector<std::byte> bytes(kMaxMessageBytes);
    bytes.resize(encode(message, bytes));
    seeds.push_back(input_of(2, bytes));
    if (index % 4 == 0) seeds.push_back(input_of(1, lane_stream(bytes)));
    // Which sample, whole, and one patch that leaves it as it is.
    seeds.push_back({3, index++, 0, 0, 0, std::to_integer<std::uint8_t>(bytes[0])});
  });
  for (std::uint8_t type = 0; type < 3; ++type) seeds.push_back({4, type, 40, 1, 0, type, 20, 2, 1, 8, 0, 1});
  for (std::uint8_t keys = 0; keys < 4; ++keys) seeds.push_back({5, keys, 0, 0, 0, 0, 0, 0, 0, 0});
  return seeds;
}
