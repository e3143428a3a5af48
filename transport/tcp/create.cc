// Making a tcp transport: options checked, a way of doing I/O chosen, the listening socket opened.
#include <unistd.h>

#include <cstring>

#include "transport/tcp/core.h"

namespace kvrail::transport::tcp {
namespace {

constexpr std::uint32_t kMaxLanes = 1024;

Error bad_option(const char* sentence) { return Error{{Code::invalid_argument}, sentence}; }

Result<void> check(const TcpOptions& options) {
  if (options.node == 0 || options.incarnation == 0) {
    return bad_option("tcp: node and incarnation must not be 0");
  }
  if (options.max_lanes == 0 || options.max_lanes > kMaxLanes) {
    return bad_option("tcp: max_lanes must be 1 to 1024");
  }
  if (options.max_half_open == 0 || options.max_half_open > kMaxLanes) {
    return bad_option("tcp: max_half_open must be 1 to 1024");
  }
  if (options.max_leases == 0 || options.max_leases > wire::kMaxLeaseSlots) {
    return bad_option("tcp: max_leases must be 1 to 4096");
  }
  if (!is_power_of_two(options.max_chunks_in_flight) || options.max_chunks_in_flight > 65536) {
    return bad_option("tcp: max_chunks_in_flight must be a power of two up to 65536");
  }
  if (options.max_chunk_bytes == 0 || options.max_chunk_bytes > wire::kMaxChunkBytes) {
    return bad_option("tcp: max_chunk_bytes must be 1 to 1 MiB");
  }
  if (!is_power_of_two(options.frame_queue_bytes) ||
      options.frame_queue_bytes < 2 * wire::kMaxMessageBytes ||
      options.frame_queue_bytes > (1U << 30)) {
    return bad_option("tcp: frame_queue_bytes must be a power of two from 128 KiB to 1 GiB");
  }
  if (options.zero_copy != ZeroCopy::off &&
      (options.integrity != Integrity::full || options.io == IoChoice::io_uring)) {
    return bad_option("tcp: zero-copy sends need integrity full and the epoll back end");
  }
  if (options.handshake_timeout_ns <= 0 || options.half_lane_timeout_ns <= 0) {
    return bad_option("tcp: time-outs must be positive");
  }
  return check_congestion_control(options.congestion_control);
}

struct ChosenIo {
  std::unique_ptr<SocketIo> io;
  std::string warning;
};

Result<ChosenIo> choose_io(const TcpOptions& options, const SocketIoLimits& limits) {
  ChosenIo chosen;
  if (options.io != IoChoice::epoll && options.zero_copy == ZeroCopy::off) {
    Result<std::unique_ptr<SocketIo>> uring = make_uring_io(limits);
    if (uring) {
      chosen.io = std::move(uring).value();
      return Result<ChosenIo>(std::move(chosen));
    }
    if (options.io == IoChoice::io_uring) {
      return std::move(uring).error();
    }
    chosen.warning = uring.error().message + "; tcp uses epoll instead (slower, same results). " +
                     "Allow io_uring in the seccomp profile or set kernel.io_uring_disabled=0";
  }
  Result<std::unique_ptr<SocketIo>> epoll = make_epoll_io(limits);
  if (!epoll) {
    return std::move(epoll).error();
  }
  chosen.io = std::move(epoll).value();
  return Result<ChosenIo>(std::move(chosen));
}

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::create(const TcpOptions& options) {
  if (Result<void> good = check(options); !good) {
    return std::move(good).error();
  }
  Result<ChosenIo> chosen = choose_io(options, SocketIoLimits{sockets_needed(options)});
  if (!chosen) {
    return std::move(chosen).error();
  }
  auto core = std::make_unique<Core>(options, std::move(chosen->io), std::move(chosen->warning));
  if (!options.listen_address.empty()) {
    Result<Listening> listening = make_listen_socket(options);
    if (!listening) {
      return std::move(listening).error();
    }
    if (const Status status = core->start_listening(*listening); !status.ok()) {
      ::close(listening->fd);
      return Error{status, "cannot watch the listening socket: " +
                               std::string(std::strerror(status.detail))};
    }
  }
  return Result<std::unique_ptr<TcpTransport>>(std::move(core));
}

}  // namespace kvrail::transport::tcp
