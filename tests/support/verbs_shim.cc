#include "tests/support/verbs_shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace kvrail::test {
namespace {

// The library's own function of that name.
template <class F>
F* real(const char* name) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "libibverbs has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<F*>(found);
}

bool is_write(const ibv_send_wr& request) {
  return request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

int patched_post_send(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** refused) {
  return VerbsShim::get().post_send(pair, request, refused);
}
int patched_poll(ibv_cq* queue, int count, ibv_wc* out) {
  return VerbsShim::get().poll(queue, count, out);
}
ibv_mw* patched_alloc_window(ibv_pd* domain, ibv_mw_type type) {
  VerbsShim& shim = VerbsShim::get();
  if (shim.fail_windows) {
    errno = ENOMEM;
    return nullptr;
  }
  ibv_mw* const made = shim.find(domain->context)->ops.alloc_mw(domain, type);
  shim.live.windows += made != nullptr ? 1 : 0;
  return made;
}
int patched_dealloc_window(ibv_mw* window) {
  VerbsShim& shim = VerbsShim::get();
  const int failed = shim.find(window->context)->ops.dealloc_mw(window);
  shim.live.windows -= failed == 0 ? 1 : 0;
  return failed;
}

// While one lives, the context has its own event descriptor: the library reads it and names it to
// the kernel.
class OwnEvents {
 public:
  explicit OwnEvents(ibv_context* context)
      : context_(context),
        both_(std::exchange(context->async_fd, VerbsShim::get().find(context)->real_async_fd)) {}
  ~OwnEvents() { context_->async_fd = both_; }
  OwnEvents(const OwnEvents&) = delete;
  OwnEvents& operator=(const OwnEvents&) = delete;

 private:
  ibv_context* context_;
  int both_;
};

// One registration, counted and failed once: the library's functions call each other.
bool inside = false;

template <class F>
ibv_mr* registered(F&& make) {
  if (inside) return make();
  VerbsShim& shim = VerbsShim::get();
  if (shim.registration_fails()) return nullptr;
  inside = true;
  ibv_mr* const made = make();
  inside = false;
  shim.live.regions += made != nullptr ? 1 : 0;
  return made;
}

// Its event descriptor becomes one that raised events make readable too.
void patch(ibv_context* context) {
  VerbsShim& shim = VerbsShim::get();
  const int both = ::epoll_create1(EPOLL_CLOEXEC);
  const int own = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE);
  for (const int fd : {own, context->async_fd}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(both, EPOLL_CTL_ADD, fd, &event) != 0) std::abort();
  }
  ::fcntl(context->async_fd, F_SETFL, ::fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
  shim.opened.push_back({context, context->async_fd, own, context->ops, {}});
  context->async_fd = both;
  context->ops.post_send = patched_post_send;
  context->ops.poll_cq = patched_poll;
  context->ops.alloc_mw = patched_alloc_window;
  context->ops.dealloc_mw = patched_dealloc_window;
}

}  // namespace

VerbsShim& VerbsShim::get() {
  static VerbsShim shim;
  return shim;
}

void VerbsShim::reset() {
  fail_registration_at = 0;
  registration_error = ENOMEM;
  max_region_bytes = 0;
  dmabuf = 0;
  dmabuf_fd = -1;
  dmabufs_asked.clear();
  max_completions = small_queue_entries = 0;
  copies = 0;
  keep_completions = swallow_flushes = false;
  swallowed = 0;
  hold_writes = pretend_writes = false;
  fail_post = 0;
  no_gids = false;
  no_windows = fail_windows = false;
  held_.clear();
  to_tell_.clear();
  kept_.clear();
}

VerbsShim::Opened* VerbsShim::find(const ibv_context* context) {
  for (Opened& one : opened) {
    if (one.context == context) return &one;
  }
  return nullptr;
}

bool VerbsShim::registration_fails() {
  if (fail_registration_at == 0 || --fail_registration_at != 0) return false;
  errno = registration_error;
  return true;
}

void VerbsShim::raise(ibv_event_type type, std::uint8_t port) {
  for (Opened& one : opened) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = port;
    one.raised.push_back(event);
    const std::uint64_t count = 1;
    if (::write(one.event_fd, &count, sizeof(count)) != sizeof(count)) std::abort();
  }
}

void VerbsShim::hold(ibv_qp* pair, const ibv_send_wr& request) {
  Held& one = held_.emplace_back(Held{pair, request, {}});
  one.parts.assign(request.sg_list, request.sg_list + request.num_sge);
  if (!pretend_writes || (request.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc done{};
  done.wr_id = request.wr_id;
  done.opcode = IBV_WC_RDMA_WRITE;
  done.qp_num = pair->qp_num;
  to_tell_.push_back({pair->send_cq, done});
}

int VerbsShim::post_send(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** refused) {
  if (fail_post != 0) {
    *refused = request;
    return fail_post;
  }
  const auto& ops = find(pair->context)->ops;
  if (!hold_writes) return ops.post_send(pair, request, refused);
  for (; request != nullptr; request = request->next) {
    if (is_write(*request)) {
      hold(pair, *request);
      continue;
    }
    ibv_send_wr alone = *request;
    alone.next = nullptr;
    if (const int failed = ops.post_send(pair, &alone, refused); failed != 0) return failed;
  }
  return 0;
}

void VerbsShim::release_writes(ibv_qp* instead) {
  for (Held& one : held_) {
    ibv_qp* const pair = instead != nullptr ? instead : one.pair;
    if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) continue;  // gone since
    one.request.sg_list = one.parts.data();
    one.request.next = nullptr;
    ibv_send_wr* refused = nullptr;
    static_cast<void>(find(pair->context)->ops.post_send(pair, &one.request, &refused));
  }
  held_.clear();
}

void VerbsShim::replay() {
  to_tell_.insert(to_tell_.end(), kept_.begin(), kept_.end());
  kept_.clear();
}

int VerbsShim::poll(ibv_cq* queue, int count, ibv_wc* out) {
  int told = 0;
  std::erase_if(to_tell_, [&](const Told& one) {
    if (one.queue != queue || told == count) return false;
    out[told++] = one.completion;
    return true;
  });
  if (told > 0) return told;
  const int found = find(queue->context)->ops.poll_cq(queue, count, out);
  for (int i = 0; i < found; ++i) {
    if (swallow_flushes && out[i].status == IBV_WC_WR_FLUSH_ERR) {
      ++swallowed;
      continue;
    }
    for (std::uint32_t copy = 0; copy < copies; ++copy) to_tell_.push_back({queue, out[i]});
    if (keep_completions && out[i].status == IBV_WC_SUCCESS) kept_.push_back({queue, out[i]});
    out[told++] = out[i];
  }
  return found > 0 ? told : found;
}

}  // namespace kvrail::test

// ---- what comes before the library ------------------------------------------------------------
using kvrail::test::VerbsShim;
using kvrail::test::OwnEvents;
using kvrail::test::real;
using kvrail::test::registered;

#undef ibv_reg_mr

extern "C" {

// Descriptors are told apart by where their link leads.
ssize_t readlink(const char* path, char* out, std::size_t most) noexcept {
  const int fd = VerbsShim::get().dmabuf_fd;
  constexpr std::string_view kName = "/dmabuf:test";
  if (fd < 0 || std::string("/proc/self/fd/") + std::to_string(fd) != path)
    return real<ssize_t(const char*, char*, std::size_t)>("readlink")(path, out, most);
  return static_cast<ssize_t>(kName.copy(out, most));
}

ibv_context* ibv_open_device(ibv_device* device) {
  ibv_context* const context = real<ibv_context*(ibv_device*)>("ibv_open_device")(device);
  if (context != nullptr) kvrail::test::patch(context);
  return context;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* out) {
  const int failed = real<int(ibv_context*, ibv_device_attr*)>("ibv_query_device")(context, out);
  const VerbsShim& shim = VerbsShim::get();
  if (shim.max_completions != 0) out->max_cqe = shim.max_completions;
  if (shim.max_region_bytes != 0) out->max_mr_size = shim.max_region_bytes;
  if (shim.no_windows) out->device_cap_flags &= ~unsigned{IBV_DEVICE_MEM_WINDOW_TYPE_2B};
  return failed;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* tag, ibv_comp_channel* channel,
                      int vector) {
  VerbsShim& shim = VerbsShim::get();
  const int few = shim.small_queue_entries;
  const OwnEvents own(context);
  ibv_cq* const made = real<ibv_cq*(ibv_context*, int, void*, ibv_comp_channel*, int)>(
      "ibv_create_cq")(context, few != 0 ? few : entries, tag, channel, vector);
  if (made == nullptr) return nullptr;
  ++shim.live.queues;
  if (few != 0) made->cqe = entries;
  return made;
}

int ibv_destroy_cq(ibv_cq* queue) {
  const int failed = real<int(ibv_cq*)>("ibv_destroy_cq")(queue);
  VerbsShim::get().live.queues -= failed == 0 ? 1 : 0;
  return failed;
}

ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* wanted) {
  VerbsShim& shim = VerbsShim::get();
  const OwnEvents own(domain->context);
  ibv_qp* const made = real<ibv_qp*(ibv_pd*, ibv_qp_init_attr*)>("ibv_create_qp")(domain, wanted);
  if (made == nullptr) return nullptr;
  ++shim.live.pairs;
  shim.pairs.push_back(made);
  return made;
}

int ibv_destroy_qp(ibv_qp* pair) {
  VerbsShim& shim = VerbsShim::get();
  const int failed = real<int(ibv_qp*)>("ibv_destroy_qp")(pair);
  if (failed != 0) return failed;
  --shim.live.pairs;
  std::erase(shim.pairs, pair);
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* at, std::size_t bytes, int access) {
  return registered([&] {
    return real<ibv_mr*(ibv_pd*, void*, std::size_t, int)>("ibv_reg_mr")(domain, at, bytes, access);
  });
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* at, std::size_t bytes, std::uint64_t iova,
                         unsigned access) {
  return registered([&] {
    return real<ibv_mr*(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned)>("ibv_reg_mr_iova2")(
        domain, at, bytes, iova, access);
  });
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset, std::size_t bytes,
                          std::uint64_t iova, int fd, int access) {
  VerbsShim& shim = VerbsShim::get();
  shim.dmabufs_asked.push_back(fd);
  if (shim.dmabuf > 0) {
    errno = shim.dmabuf;
    return nullptr;
  }
  return registered([&]() -> ibv_mr* {
    if (shim.dmabuf == 0) {
      return real<ibv_mr*(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int)>(
          "ibv_reg_dmabuf_mr")(domain, offset, bytes, iova, fd, access);
    }
    // As if the descriptor were the memory that is mapped there.
    return real<ibv_mr*(ibv_pd*, void*, std::size_t, int)>("ibv_reg_mr")(
        domain, reinterpret_cast<void*>(iova), bytes, access);
  });
}

int ibv_dereg_mr(ibv_mr* region) {
  const int failed = real<int(ibv_mr*)>("ibv_dereg_mr")(region);
  VerbsShim::get().live.regions -= failed == 0 ? 1 : 0;
  return failed;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t most,
                             std::uint32_t flags, std::size_t entry_bytes) {
  if (VerbsShim::get().no_gids) return 0;
  return real<ssize_t(ibv_context*, ibv_gid_entry*, std::size_t, std::uint32_t, std::size_t)>(
      "_ibv_query_gid_table")(context, entries, most, flags, entry_bytes);
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  VerbsShim::Opened* const opened = VerbsShim::get().find(context);
  if (!opened->raised.empty()) {
    std::uint64_t count = 0;
    if (::read(opened->event_fd, &count, sizeof(count)) != sizeof(count)) std::abort();
    *event = opened->raised.front();
    opened->raised.pop_front();
    return 0;
  }
  const OwnEvents own(context);
  return real<int(ibv_context*, ibv_async_event*)>("ibv_get_async_event")(context, event);
}

}  // extern "C"
