#include "perf/bench/verbs_link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "perf/bench/bench.h"
#include "transport/payload_ops.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::bench {
namespace {

using namespace kvrail::transport;

constexpr LeaseId kLease{0, 1};
constexpr std::size_t kPoolBytes = 16 << 20;
constexpr std::int64_t kTimeoutNs = 120'000'000'000;

// One end: a transport, its pool as one piece, and the lane.
struct End {
  End(NodeId node, const std::string& listen) : pool(kPoolBytes, static_cast<std::byte>(node)) {
    verbs::VerbsOptions options;
    options.node = node;
    options.incarnation = 1;
    options.listen_address = listen;
    options.silent_after_ns = 3'600 * kSecondNs;  // nobody polls while the baseline runs
    auto made = verbs::VerbsTransport::create(options);
    if (!made.ok()) throw Failure(made.error().message);
    transport = std::move(made).value();
    if (auto known = transport->register_memory(pool.data(), pool.size(), -1); !known.ok())
      throw Failure(known.error().message);
    piece = {pool.data(), pool.size()};
    payload.pieces = {&piece, 1};
    payload.starts = {&start, 1};
    payload.first_unit = {&first_unit, 1};
    payload.total_bytes = pool.size();
    payload.total_units = units_in(pool.size());
  }
  std::span<const Event> step() {
    return std::span(events).first(transport->poll(clock.now_ns(), events));
  }
  void await_lane() {
    while (!lane) {
      for (const Event& event : step()) {
        if (event.kind == EventKind::lane_up) lane = event.lane;
        if (event.kind == EventKind::lane_down) throw Failure("the verbs lane does not come up");
      }
    }
  }
  void post(std::span<const std::byte> frame) {
    while (!transport->try_post_frame(lane, frame)) static_cast<void>(step());
  }

  SteadyClock clock;
  std::vector<std::byte> pool;
  std::unique_ptr<verbs::VerbsTransport> transport;
  LaneId lane;
  Piece piece;
  std::uint64_t start = 0;
  std::uint32_t first_unit = 0;
  std::vector<std::uint64_t> digests;
  Payload payload;
  std::array<Event, 256> events;
};

struct Meeting {
  std::atomic<bool> listens{false};
  std::array<char, 64> address{};
};

// Gives every frame back, takes every chunk, until the lane goes.
void receive(Meeting& meeting, const std::string& host) {
  End end(2, host + ":0");
  const std::string_view address = end.transport->listen_address();
  address.copy(meeting.address.data(), meeting.address.size() - 1);
  meeting.listens.store(true, std::memory_order_release);
  end.await_lane();
  end.transport->expose(kLease, 1, end.payload);
  std::vector<std::byte> copy;
  for (;;) {
    for (const Event& event : end.step()) {
      if (event.kind == EventKind::lane_down) return;
      if (event.kind != EventKind::frame) continue;
      copy.assign(event.bytes.begin(), event.bytes.end());
      end.post(copy);
    }
  }
}

// The numbers of the last line that begins with one.
std::vector<double> last_numbers(const std::string& output) {
  std::istringstream lines(output);
  std::vector<double> best;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream row(line);
    std::vector<double> numbers;
    for (double number = 0; row >> number;) numbers.push_back(number);
    if (numbers.size() >= 4) best = std::move(numbers);
  }
  return best;
}

std::vector<double> run_perftest(const std::string& program, const std::string& host,
                                 std::vector<std::string> options) {
  const std::string port = std::to_string(free_port());
  options.insert(options.begin(), {program, "-F", "-R", "-p", port});
  Child::Program server;
  server.command = options;
  const Child running(server);
  Child::Program client = server;
  client.command.push_back(host);
  // The server needs a moment to listen; the client does not try again by itself.
  for (const std::int64_t until = now_ns() + kTimeoutNs; now_ns() < until; ::usleep(100'000)) {
    const auto output = output_of(client, kTimeoutNs);
    if (!output) continue;
    auto numbers = last_numbers(*output);
    if (numbers.empty()) throw Failure(program + " printed something else: " + *output);
    return numbers;
  }
  throw Failure(program + " does not run on " + host);
}

}  // namespace

struct VerbsLink::Sender : End {
  Sender() : End(1, "") {
    for (std::uint32_t unit = 0; unit < payload.total_units; ++unit) {
      const auto memory = unit_memory(payload, unit);
      digests.push_back(XXH3_64bits(memory.data(), memory.size()));
    }
  }
  Shared<Meeting> meeting;
  std::unique_ptr<Child> receiver;
};

VerbsLink::VerbsLink(const std::string& host) {
  // The copy is made before this process knows the device, which does not live through a fork.
  auto meeting = std::make_unique<Shared<Meeting>>();
  auto receiver = std::make_unique<Child>([&] { receive(**meeting, host); });
  wait_for("the receiver's address", kTimeoutNs,
           [&] { return (*meeting)->listens.load(std::memory_order_acquire); });
  sender_ = std::make_unique<Sender>();
  sender_->receiver = std::move(receiver);
  if (!sender_->transport->open_lane((*meeting)->address.data(), 1).ok())
    throw Failure("cannot dial the receiver");
  sender_->await_lane();
  static_cast<void>(half_round_trip_us(64, 1));  // it answers once its pool is exposed
}

VerbsLink::~VerbsLink() = default;

double VerbsLink::write(std::uint32_t bytes, std::uint64_t count, std::uint32_t ahead,
                        bool digests) {
  End& end = *sender_;
  end.payload.digests =
      digests ? std::span<const std::uint64_t>(end.digests) : std::span<const std::uint64_t>{};
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  const std::int64_t from = now_ns();
  while (done < count) {
    for (; posted < count && posted - done < ahead; ++posted) {
      ChunkPost post;
      post.lease = kLease;
      post.transfer = 1;
      post.source = &end.payload;
      post.offset = posted * bytes % kPoolBytes;
      post.bytes = bytes;
      if (!end.transport->try_post_chunk(end.lane, post)) break;
    }
    for (const Event& event : end.step()) {
      if (event.kind == EventKind::lane_down) throw Failure("the lane was lost");
      if (event.kind != EventKind::chunk_done) continue;
      if (!event.status.ok()) throw Failure("a chunk ended as " + std::string(name(event.status.code)));
      ++done;
    }
  }
  return static_cast<double>(bytes) * static_cast<double>(count) * 1e9 /
         static_cast<double>(now_ns() - from);
}

double VerbsLink::half_round_trip_us(std::uint32_t bytes, std::uint64_t count) {
  End& end = *sender_;
  const std::vector<std::byte> frame(bytes, std::byte{1});
  Samples samples;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::int64_t from = now_ns();
    end.post(frame);
    for (bool back = false; !back;) {
      for (const Event& event : end.step()) {
        if (event.kind == EventKind::lane_down) throw Failure("the lane was lost");
        back = back || event.kind == EventKind::frame;
      }
    }
    samples.values.push_back(static_cast<double>(now_ns() - from) / 2e3);
  }
  return samples.median();
}

bool has_perftest() {
  return in_path("ib_write_bw") && in_path("ib_read_bw") && in_path("ib_send_lat");
}

double ib_write_bw(const std::string& host, std::uint32_t bytes, std::uint64_t count,
                   std::uint32_t ahead) {
  // Columns: bytes, iterations, peak and average in MB/s of 2^20 (without --report_gbits),
  // messages.
  const auto numbers = run_perftest(
      "ib_write_bw", host,
      {"-s", std::to_string(bytes), "-n", std::to_string(count), "-t", std::to_string(ahead)});
  return numbers[3] * 1048576.0;
}

double ib_read_bw(const std::string& host, std::uint32_t bytes, std::uint64_t count) {
  const auto numbers =
      run_perftest("ib_read_bw", host, {"-s", std::to_string(bytes), "-n", std::to_string(count)});
  return numbers[3] * 1048576.0;
}

double ib_send_lat(const std::string& host, std::uint32_t bytes, std::uint64_t count) {
  // Columns: bytes, iterations, least, most and typical (the median) in us, then averages.
  const auto numbers =
      run_perftest("ib_send_lat", host, {"-s", std::to_string(bytes), "-n", std::to_string(count)});
  if (numbers.size() < 5) throw Failure("ib_send_lat printed too little");
  return numbers[4];
}

}  // namespace kvrail::bench
