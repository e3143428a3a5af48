// The bytes of the protocol, as docs/ipc.md has them: a change here is a new protocol version.
#include "engine/ipc/protocol.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>

#include "engine/ipc/control_layout.h"

using namespace kvrail;
using namespace kvrail::engine::ipc;

namespace {
template <class T>
std::string hex(const T& value) {
  std::array<unsigned char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  std::string out;
  for (const unsigned char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}
}  // namespace

TEST_CASE("ipc protocol / golden header") {
  MessageHeader header;
  header.type = MessageType::get_arena;
  header.bytes = 24;
  header.sequence = 0x01020304;
  CHECK(hex(header) == "4b5649500100040018000000" "04030201");
}

TEST_CASE("ipc protocol / golden submit record") {
  SubmitRecord record;
  record.command = Command::send;
  record.flags = kFlagAnswer | kFlagCritical;
  record.count = 2;
  record.ticket = 0x1122334455667788;
  record.payload_offset = 0x100;
  record.payload_bytes = 0x80;
  record.submitted_ns = 9;
  record.a = 7;
  record.b = 5;
  record.c = 3;
  record.medium = static_cast<std::uint8_t>(Medium::int8);
  record.d = 950000;
  record.name = *make_name("abc");
  CHECK(hex(record) ==
        "0400030002000000" "8877665544332211" "0001000080000000" "0900000000000000"
        "0700000000000000" "0500000000000000" "0300000000000000" "04000000f07e0e00"
        "6162630000000000" "0000000000000000" "0000000000000000" "0000000000000000"
        "0000000000000000" "0000000000000000" "0000000000000000" "0000000000000000");
}

TEST_CASE("ipc protocol / golden completion record") {
  CompletionRecord record;
  record.kind = CompletionKind::delivery;
  record.medium = 2;
  record.flags = 1;
  record.receiver = 1;
  record.status = {Code::corrupt, Scope::lane, 5};
  record.ticket = 1;
  record.task = 2;
  record.transfer = 3;
  record.arena = 4;
  record.count = 5;
  record.offset = 6;
  record.manifest_bytes = 7;
  record.version = 8;
  record.version_number = 9;
  record.delivery = 10;
  record.bytes = 11;
  record.missing_blocks = 12;
  record.predicted_ns = 13;
  record.observed_ns = 14;
  CHECK(hex(record) ==
        "0402010001000000" "1100010005000000" "0100000000000000" "0200000000000000"
        "0300000000000000" "0400000005000000" "0600000000000000" "0700000000000000"
        "0800000000000000" "0900000000000000" "0a00000000000000" "0b00000000000000"
        "0c00000000000000" "0d00000000000000" "0e00000000000000" "0000000000000000");
}

TEST_CASE("ipc protocol / message sizes") {
  CHECK(sizeof(AttachMessage) == 280);
  CHECK(sizeof(AttachedMessage) == 168);
  CHECK(sizeof(RefusedMessage) == 256);
  CHECK(sizeof(SharedWords) == 192);
  CHECK(sizeof(ProbeRecord) == 128);
}

TEST_CASE("control layout / parts lie apart, and a bent one is noticed") {
  const ControlLayout layout = control_layout(kSubmitCapacity, kCompletionCapacity, kDefaultScratchBytes);
  CHECK(sound(layout));
  CHECK(layout.completion_offset >= layout.submit_offset + kSubmitCapacity * sizeof(SubmitRecord));
  CHECK(layout.scratch_offset + layout.scratch_bytes <= layout.bytes);
  for (auto bend : {+[](ControlLayout& l) { l.submit_capacity = 3; }, +[](ControlLayout& l) { l.submit_offset += 8; },
                    +[](ControlLayout& l) { l.completion_offset = l.bytes; },
                    +[](ControlLayout& l) { l.scratch_bytes = 0xffffffff; },
                    +[](ControlLayout& l) { l.completion_capacity = 1U << 31; },
                    +[](ControlLayout& l) { l.bytes = 64; }}) {
    ControlLayout bent = layout;
    bend(bent);
    CHECK_FALSE(sound(bent));
  }
}
