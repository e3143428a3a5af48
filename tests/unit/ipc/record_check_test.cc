#include "engine/ipc/record_check.h"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::ipc;

namespace {

constexpr std::uint32_t kScratch = 4096;

SubmitRecord record_of(Command command) {
  SubmitRecord record;
  record.command = command;
  record.ticket = 1;
  record.count = 1;
  if (command == Command::send || command == Command::fetch || command == Command::will_need) record.payload_bytes = sizeof(Name);
  if (command == Command::describe_workflow) record.payload_bytes = sizeof(WorkflowStepRecord);
  if (command == Command::commit) record.payload_bytes = sizeof(ExtentRecord) + sizeof(TokenId);
  if (command == Command::set_importance) record.payload_bytes = sizeof(float);
  return record;
}

Verdict verdict(const SubmitRecord& record) { return judge(record, kScratch).verdict; }

Name raw_name(std::string_view text) {
  Name name;
  std::memcpy(name.bytes.data(), text.data(), text.size());
  return name;
}

}  // namespace

TEST_CASE("record check / every command in its plain form is fine") {
  for (std::uint16_t i = 1; i < kCommandCount; ++i) {
    CAPTURE(i);
    CHECK(verdict(record_of(static_cast<Command>(i))) == Verdict::fine);
  }
}

TEST_CASE("record check / unknown commands, flags and reserved fields are breaches") {
  CHECK(verdict(record_of(static_cast<Command>(0))) == Verdict::breach);
  CHECK(verdict(record_of(static_cast<Command>(kCommandCount))) == Verdict::breach);
  CHECK(verdict(record_of(static_cast<Command>(0xffff))) == Verdict::breach);
  SubmitRecord record = record_of(Command::allocate);
  record.flags = 8;
  CHECK(verdict(record) == Verdict::breach);
  record = record_of(Command::allocate);
  record.reservation = 1;
  CHECK(verdict(record) == Verdict::breach);
}

TEST_CASE("record check / a reservation is named by sends only, and asked for with times that are none below 0") {
  SubmitRecord record = record_of(Command::send);
  record.reservation = 7;
  CHECK(verdict(record) == Verdict::fine);
  CHECK(send_options(record, 0).reservation == 7);
  record = record_of(Command::fetch);
  record.reservation = 7;
  CHECK(verdict(record) == Verdict::breach);
  record = record_of(Command::reserve);
  CHECK(verdict(record) == Verdict::fine);
  record.b = -1;
  CHECK(verdict(record) == Verdict::breach);
  record.b = 0;
  record.c = ~std::uint64_t{0};
  CHECK(verdict(record) == Verdict::breach);
  record = record_of(Command::unreserve);
  record.a = 0x10000;
  CHECK(verdict(record) == Verdict::breach);
  AgentEvent event;
  event.kind = AgentEventKind::reserved;
  event.reservation = 9;
  event.figures = {1, 2, 3};
  const CompletionRecord completion = completion_of(event);
  CHECK(completion.kind == CompletionKind::reserved);
  CHECK(completion.transfer == 9);
  CHECK((completion.bytes == 1 && completion.missing_blocks == 2 && completion.version_number == 3));
}

TEST_CASE("record check / what will be needed has an owner, a time to come, and a probability") {
  SubmitRecord record = record_of(Command::will_need);
  record.payload_bytes = sizeof(Name);
  record.d = 1'000'000;
  CHECK(verdict(record) == Verdict::fine);
  record.d = 1'000'001;
  CHECK(verdict(record) == Verdict::breach);
  record.d = 0;
  record.b = -1;
  CHECK(verdict(record) == Verdict::breach);
  record.b = 0;
  record.payload_bytes = sizeof(Name) - 1;
  CHECK(verdict(record) == Verdict::breach);
}

TEST_CASE("record check / a workflow has steps, then hand-overs, and not too many") {
  SubmitRecord record = record_of(Command::describe_workflow);
  record.count = 2;
  record.payload_bytes = 2 * sizeof(WorkflowStepRecord) + 3 * sizeof(WorkflowEdgeRecord);
  CHECK(verdict(record) == Verdict::fine);
  record.payload_bytes += 1;
  CHECK(verdict(record) == Verdict::breach);
  record.payload_bytes = 2 * sizeof(WorkflowStepRecord) - 1;
  CHECK(verdict(record) == Verdict::breach);
  record.count = 0;
  record.payload_bytes = 0;
  CHECK(verdict(record) == Verdict::refused);
  constexpr std::uint32_t kRoom = 64 * 1024;
  record.count = kMaxWorkflowSteps + 1;
  record.payload_bytes = record.count * sizeof(WorkflowStepRecord);
  CHECK(judge(record, kRoom).verdict == Verdict::refused);
  record.count = 1;
  record.payload_bytes = sizeof(WorkflowStepRecord) + (kMaxWorkflowEdges + 1) * sizeof(WorkflowEdgeRecord);
  CHECK(judge(record, kRoom).status.code == Code::too_large);
}

TEST_CASE("record check / a command that will be answered needs a ticket") {
  for (const Command command : {Command::allocate, Command::commit, Command::send, Command::fetch, Command::cancel,
                                Command::begin_task, Command::reserve}) {
    SubmitRecord record = record_of(command);
    record.ticket = 0;
    CHECK(verdict(record) == Verdict::breach);
  }
  SubmitRecord record = record_of(Command::end_task);
  record.ticket = 0;
  CHECK(verdict(record) == Verdict::fine);
  record.flags = kFlagAnswer;
  CHECK(verdict(record) == Verdict::breach);
}

TEST_CASE("record check / a payload must lie inside the scratch, without sums that wrap") {
  SubmitRecord record = record_of(Command::summary);
  const std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
  struct Range {
    std::uint32_t offset, bytes;
    bool fits;
  };
  for (const Range range : {Range{0, kScratch, true}, Range{kScratch, 0, true}, Range{1, kScratch - 1, true},
                            Range{0, kScratch + 1, false}, Range{1, kScratch, false}, Range{most, 1, false},
                            Range{most, most, false}, Range{1, most, false}}) {
    record.payload_offset = range.offset;
    record.payload_bytes = range.bytes;
    CHECK((verdict(record) == Verdict::fine) == range.fits);
  }
  record = record_of(Command::allocate);
  record.payload_bytes = 4;
  CHECK(verdict(record) == Verdict::breach);
}

TEST_CASE("record check / counts and payload sizes must agree") {
  SubmitRecord record = record_of(Command::send);
  record.count = 2;
  CHECK(verdict(record) == Verdict::breach);
  record.count = 0;
  record.payload_bytes = 0;
  CHECK(verdict(record) == Verdict::refused);
  record.count = kMaxReceivers + 1;
  CHECK(judge(record, kScratch).status.code == Code::too_large);
  record = record_of(Command::fetch);
  record.count = 2;
  record.payload_bytes = 2 * sizeof(Name);
  CHECK(verdict(record) == Verdict::refused);

  record = record_of(Command::commit);
  record.payload_bytes += 1;
  CHECK(verdict(record) == Verdict::breach);
  record.payload_bytes = sizeof(ExtentRecord);  // no token
  CHECK(verdict(record) == Verdict::refused);
  record.count = std::numeric_limits<std::uint32_t>::max();  // × 16 does not fit 32 bits
  CHECK(verdict(record) == Verdict::refused);
  record.count = 0;  // a context of tokens only
  CHECK(verdict(record) == Verdict::fine);
}

TEST_CASE("record check / importance has as many floats as it says") {
  SubmitRecord record = record_of(Command::set_importance);
  for (const std::uint32_t bytes : {0U, 3U, 5U, 8U}) {
    record.payload_bytes = bytes;
    CHECK(verdict(record) == Verdict::breach);
  }
  record.count = 0;
  record.payload_bytes = 0;
  CHECK(verdict(record) == Verdict::refused);
  record.count = 0x40000001;  // × 4 does not fit 32 bits
  record.payload_bytes = 4;
  CHECK(verdict(record) == Verdict::breach);
}

TEST_CASE("record check / media, floors and negative times") {
  SubmitRecord record = record_of(Command::send);
  record.medium = kMediumCount;
  CHECK(verdict(record) == Verdict::breach);
  record = record_of(Command::send);
  record.d = 1'000'001;
  CHECK(verdict(record) == Verdict::breach);
  for (const Command command : {Command::send, Command::fetch, Command::release, Command::begin_task}) {
    record = record_of(command);
    record.b = -1;
    CHECK(verdict(record) == Verdict::breach);
  }
}

TEST_CASE("record check / names are made canonical or refused") {
  Name out;
  Name raw = raw_name("planner");
  raw.bytes[20] = 'x';  // behind the end: must not make it another name
  CHECK(clean_name(raw, out));
  CHECK(out == *make_name("planner"));
  CHECK_FALSE(clean_name(raw_name(""), out));
  CHECK_FALSE(clean_name(raw_name("two words"), out));
  CHECK_FALSE(clean_name(raw_name("new\nline"), out));
  Name full;
  full.bytes.fill('a');  // no zero at all
  CHECK_FALSE(clean_name(full, out));
  full.bytes[kMaxNameBytes] = '\0';
  CHECK(clean_name(full, out));
  CHECK(out.length() == kMaxNameBytes);
}

TEST_CASE("record check / deadlines run from submission and cannot be stretched") {
  SubmitRecord record = record_of(Command::send);
  std::int64_t left = -1;
  CHECK(remaining(record, 1000, left));
  CHECK(left == 0);
  record.b = 100;
  record.submitted_ns = 950;
  CHECK(remaining(record, 1000, left));
  CHECK(left == 50);
  CHECK_FALSE(remaining(record, 1050, left));
  record.submitted_ns = 5000;  // in the future: counted as now
  CHECK(remaining(record, 1000, left));
  CHECK(left == 100);
  record.submitted_ns = std::numeric_limits<std::int64_t>::min();
  CHECK(remaining(record, 1000, left));
  CHECK(left == 100);
}

TEST_CASE("record check / events keep all their fields in a completion") {
  AgentEvent event;
  event.kind = AgentEventKind::delivery;
  event.medium = Medium::int8;
  event.critical = true;
  event.receiver = 3;
  event.status = {Code::corrupt, Scope::lane, -7};
  event.ticket = 11;
  event.task = 12;
  event.transfer = 13;
  event.version = {1, 2};
  event.version_number = 14;
  event.delivery = {3, 4};
  event.manifest = {5, 6, 7};
  event.bytes = 15;
  event.missing_blocks = 16;
  event.predicted_ns = 17;
  event.observed_ns = 18;
  const CompletionRecord record = completion_of(event);
  CHECK(record.kind == CompletionKind::delivery);
  CHECK(record.medium == static_cast<std::uint8_t>(Medium::int8));
  CHECK(record.flags == kCompletionCritical);
  CHECK(record.receiver == 3);
  CHECK(record.status == event.status);
  CHECK(record.ticket == 11);
  CHECK(record.task == 12);
  CHECK(record.transfer == 13);
  CHECK(record.version == VersionHandle{1, 2}.packed());
  CHECK(record.version_number == 14);
  CHECK(record.delivery == DeliveryHandle{3, 4}.packed());
  CHECK(record.arena == 5);
  CHECK(record.offset == 6);
  CHECK(record.manifest_bytes == 7);
  CHECK(record.bytes == 15);
  CHECK(record.missing_blocks == 16);
  CHECK(record.predicted_ns == 17);
  CHECK(record.observed_ns == 18);
  event.kind = AgentEventKind::allocated;
  event.extent = {8, 9, 10};
  const CompletionRecord allocated = completion_of(event);
  CHECK(allocated.arena == 8);
  CHECK(allocated.count == 9);
  CHECK(allocated.offset == 10);
}
