// Faults below the verbs transport. A program that links verbs_shim.cc defines some of the functions
// that libibverbs exports, and so comes before the library, as one that is preloaded does; what is
// inline in its header goes through a table of each opened device, which is patched.
//
// Thread: none of its own; tests drive it from the one that polls.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace kvrail::test {

class VerbsShim {
 public:
  /// The one of this program.
  [[nodiscard]] static VerbsShim& get();
  /// No faults; what was held is dropped. The counts of live objects stay.
  void reset();

  // Registration. The n-th from now on fails with that errno; 0: none does.
  std::uint32_t fail_registration_at = 0;
  int registration_error = ENOMEM;
  std::uint64_t max_region_bytes = 0;  // that devices claim; 0: what they have
  // DMA-BUF registration: 0: the device's own; else this errno; -1: a made-up success.
  int dmabuf = 0;
  int dmabuf_fd = -1;  // passes for one, whatever it is
  std::vector<int> dmabufs_asked;  // descriptors that were to be registered

  // Completion queues.
  int max_completions = 0;   // that devices claim; 0: what they have
  int small_queue_entries = 0;  // queues have so many, and claim what they were asked for
  std::uint32_t copies = 0;     // each completion is told of so many times more
  bool keep_completions = false;  // remembers successful ones, for replay()
  bool swallow_flushes = false;
  std::uint64_t swallowed = 0;
  void replay();  // tells of the kept ones again

  // Sends.
  bool hold_writes = false;     // RDMA WRITEs stay here
  bool pretend_writes = false;  // and are told of as done
  [[nodiscard]] std::size_t held() const { return held_.size(); }
  /// Posts what was held: to the queue pair where it was posted, or to another one.
  void release_writes(ibv_qp* instead = nullptr);
  void drop_writes() { held_.clear(); }
  int fail_post = 0;  // posting a send fails with this errno

  bool no_gids = false;  // the tables of GIDs are empty
  /// An event as the device would raise it, on every opened device.
  void raise(ibv_event_type type, std::uint8_t port = 1);

  // Memory windows.
  bool no_windows = false;  // devices claim to have none
  bool fail_windows = false;

  struct Live {
    int regions = 0, windows = 0, queues = 0, pairs = 0;
    friend bool operator==(const Live&, const Live&) = default;
  } live;
  std::vector<ibv_qp*> pairs;  // live ones, oldest first

  // For the functions in verbs_shim.cc.
  struct Opened {
    ibv_context* context;
    int real_async_fd, event_fd;
    ibv_context_ops ops;
    std::deque<ibv_async_event> raised;
  };
  std::deque<Opened> opened;
  [[nodiscard]] Opened* find(const ibv_context* context);
  [[nodiscard]] bool registration_fails();
  int post_send(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** refused);
  int poll(ibv_cq* queue, int count, ibv_wc* out);

 private:
  struct Held {
    ibv_qp* pair;
    ibv_send_wr request;
    std::vector<ibv_sge> parts;
  };
  struct Told {
    ibv_cq* queue;
    ibv_wc completion;
  };
  void hold(ibv_qp* pair, const ibv_send_wr& request);
  std::deque<Held> held_;
  std::deque<Told> to_tell_;  // not the device's
  std::vector<Told> kept_;
};

}  // namespace kvrail::test
