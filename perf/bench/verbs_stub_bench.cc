// What our software costs for each descriptor that it posts: a lane over a device that completes
// everything at once and does nothing, against a plain loop of ibv_post_send on the same device.
#include <infiniband/verbs.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "kvrail/base/byte_order.h"
#include "perf/bench/benchmarks.h"
#include "perf/bench/processes.h"
#include "transport/verbs/lane.h"

namespace kvrail::bench {
namespace {

using namespace kvrail::transport;
using namespace kvrail::transport::verbs;

constexpr std::uint32_t kBlock = 4096;
constexpr std::uint32_t kBlocksOfChunk = 64;
constexpr std::uint64_t kChunks = 4000;
constexpr double kMostAddedNs = 60;
constexpr LeaseId kLease{0, 1};

// The device: it counts, and remembers the last number of each queue pair.
struct StubPair {
  ibv_qp pair{};
  std::uint64_t requests = 0;
  std::uint64_t last_id = 0;
};

int post_send(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr**) {
  auto* const stub = reinterpret_cast<StubPair*>(pair);
  for (; request != nullptr; request = request->next) {
    ++stub->requests;
    if ((request->send_flags & IBV_SEND_SIGNALED) != 0) stub->last_id = request->wr_id;
  }
  return 0;
}
int post_receive(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) {
  return 0;
}

struct Stub {
  Stub() {
    context.ops.post_send = post_send;
    context.ops.post_recv = post_receive;
    for (StubPair& one : pairs) one.pair.context = &context;
  }
  ibv_context context{};
  std::array<StubPair, 2> pairs;
  ibv_mr key{};
};

// A lane over the stub, its payload of many blocks, and the peer's part: leases and
// acknowledgements.
class StubLane {
 public:
  explicit StubLane(bool contiguous_sink)
      : memory_(devices_),
        leases_(16),
        segments_(64),
        bounce_(memory_, 4096),
        context_{options_, counters_, devices_, memory_, leases_, segments_, bounce_},
        lane_(context_, 0),
        source_(std::size_t{2} * kBlock * kBlocksOfChunk) {
    Device& device = devices_.all().emplace_back();
    device.context = &stub_.context;
    device.max_sge = 16;
    memory_.add_foreign(source_.data(), source_.size(), &stub_.key);
    slots_ =
        lane_.adopt({0, 1}, 2, device, {&stub_.pairs[0].pair, &stub_.pairs[1].pair}, &stub_.key);
    for (std::uint32_t i = 0; i < kBlocksOfChunk; ++i) {
      pieces_.push_back({source_.data() + std::size_t{2} * i * kBlock, kBlock});
      starts_.push_back(std::uint64_t{i} * kBlock);
      units_.push_back(i);
    }
    payload_.pieces = pieces_;
    payload_.starts = starts_;
    payload_.first_unit = units_;
    payload_.total_bytes = std::uint64_t{kBlocksOfChunk} * kBlock;
    payload_.total_units = kBlocksOfChunk;
    tell(contiguous_sink);
  }
  ~StubLane() { lane_.disown(); }
  StubLane(const StubLane&) = delete;
  StubLane& operator=(const StubLane&) = delete;

  // Nanoseconds for each block, from its post to its chunk's completion event.
  double run() {
    const std::int64_t from = now_ns();
    std::uint64_t done = 0;
    for (std::uint64_t posted = 0; done < kChunks;) {
      ChunkPost post;
      post.lease = kLease;
      post.source = &payload_;
      post.bytes = kBlocksOfChunk * kBlock;
      while (posted < kChunks && posted - done < 16 && lane_.try_post_chunk(post)) ++posted;
      done += turn();
    }
    return static_cast<double>(now_ns() - from) / static_cast<double>(kChunks * kBlocksOfChunk);
  }
  [[nodiscard]] double blocks_per_request() const {
    return static_cast<double>(kBlocksOfChunk) /
           (static_cast<double>(stub_.pairs[1].requests) / static_cast<double>(acked_));
  }

 private:
  // One duty cycle: what was posted completes, and the chunks that are written are acknowledged.
  std::uint64_t turn() {
    std::array<Event, 64> events;
    EventSink sink(events);
    lane_.repost();
    static_cast<void>(lane_.service(sink));
    for (StubPair& one : stub_.pairs) {
      if (one.last_id != 0)
        lane_.on_completion(WorkId::unpack(std::exchange(one.last_id, 0)), ibv_wc{});
    }
    const std::uint64_t written = lane_.stats().chunks_sent;
    if (written > acked_) acknowledge(static_cast<std::uint32_t>(written - acked_));
    std::uint64_t done = 0;
    for (const Event& event : std::span(events).first(sink.count()))
      done += event.kind == EventKind::chunk_done ? 1 : 0;
    return done;
  }
  void receive(MessageKind kind, std::uint32_t body) {
    const std::uint32_t slot = next_slot_++ % options_.receive_slots;
    std::byte* const at = slots_.data() + slot * kSlotBytes;
    granted_ += 64;
    encode(Envelope{kind, options_.receive_slots + granted_, kBulkReceives + granted_, body},
           std::span<std::byte, kEnvelopeBytes>(at, kEnvelopeBytes));
    std::memcpy(at + kEnvelopeBytes, body_.data(), body);
    ibv_wc completion{};
    completion.opcode = IBV_WC_RECV;
    completion.byte_len = static_cast<std::uint32_t>(kEnvelopeBytes) + body;
    lane_.on_completion(WorkId{0, 1, 0, WorkId::Kind::receive, slot}, completion);
  }
  void acknowledge(std::uint32_t count) {
    wire::FrameHeader header;
    header.type = wire::FrameType::ack;
    header.sequence = sequence_++;
    header.ack_first = acked_;
    header.ack_count = count;
    wire::encode_header(header, std::span(body_).first<wire::kFrameHeaderBytes>());
    acked_ += count;
    receive(MessageKind::frames, wire::kFrameHeaderBytes);
  }
  void tell(bool contiguous) {
    const std::uint32_t count = contiguous ? 1 : kBlocksOfChunk;
    for (std::uint32_t i = 0; i < count; ++i) {
      encode(Segment{0x10000000ULL + std::uint64_t{2} * i * kBlock,
                     contiguous ? kBlock * kBlocksOfChunk : kBlock, {1, 1}},
             std::span<std::byte, kSegmentBytes>(body_.data() + kLeaseHeadBytes + i * kSegmentBytes,
                                                 kSegmentBytes));
    }
    const auto bytes = static_cast<std::uint32_t>(kLeaseHeadBytes + count * kSegmentBytes);
    encode(LeaseHead{kLease, payload_.total_bytes, count, count, true, true},
           std::span(body_).first(bytes));
    receive(MessageKind::lease, bytes);
    static_cast<void>(turn());
  }

  Stub stub_;
  VerbsOptions options_;
  VerbsCounters counters_;
  Devices devices_;
  MemoryMap memory_;
  OwnLeases leases_;
  SegmentPool segments_;
  BouncePool bounce_;
  LaneContext context_;
  Lane lane_;
  std::vector<std::byte> source_;
  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> starts_;
  std::vector<std::uint32_t> units_;
  Payload payload_;
  std::span<std::byte> slots_;
  std::array<std::byte, kMaxBodyBytes> body_{};
  std::uint32_t next_slot_ = 0;
  std::uint32_t granted_ = 0;
  std::uint32_t sequence_ = 0;
  std::uint64_t acked_ = 0;
};

// The same requests without us: built in a batch, posted with one call for 32.
double raw_loop() {
  Stub stub;
  std::array<ibv_send_wr, 32> requests;
  std::array<ibv_sge, 32> parts;
  const std::int64_t from = now_ns();
  for (std::uint64_t done = 0; done < kChunks * kBlocksOfChunk; done += requests.size()) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      parts[i] = {0x1000 + (done + i) * kBlock, kBlock, 1};
      requests[i] = ibv_send_wr{};
      requests[i].wr_id = done + i;
      requests[i].sg_list = &parts[i];
      requests[i].num_sge = 1;
      requests[i].opcode = IBV_WR_RDMA_WRITE;
      requests[i].wr.rdma.remote_addr = 0x10000000 + (done + i) * kBlock;
      requests[i].next = i + 1 < requests.size() ? &requests[i + 1] : nullptr;
    }
    requests.back().send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* refused = nullptr;
    static_cast<void>(::ibv_post_send(&stub.pairs[0].pair, requests.data(), &refused));
  }
  return static_cast<double>(now_ns() - from) / static_cast<double>(kChunks * kBlocksOfChunk);
}

}  // namespace

void run_verbs_stub(Report& report) {
  pin_to_core(0);
  for (const bool contiguous : {false, true}) {
    const auto lane = std::make_unique<StubLane>(contiguous);
    static_cast<void>(lane->run());
    Samples added;
    Samples ours;
    for (int i = 0; i < kPairs; ++i) {
      const double raw = raw_loop();
      ours.values.push_back(lane->run());
      added.values.push_back(ours.values.back() - raw);
    }
    std::size_t next = 0;
    report.measure(contiguous ? "verbs, 4 KiB blocks gathered, added by us"
                              : "verbs, 4 KiB descriptors, added by us",
                   "ns", kMostAddedNs, [&] { return added.values[next++ % added.values.size()]; });
    report.note(std::to_string(static_cast<int>(1e3 / ours.median())) + " M blocks/s, " +
                std::to_string(static_cast<int>(lane->blocks_per_request())) + " blocks a request");
  }
}

}  // namespace kvrail::bench
