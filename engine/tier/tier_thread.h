// The tier's thread: everything that touches the disk. The worker's side of the same tier is file_tier.h.
//
// One cycle takes commands, reaps what the disk has ended, starts reads before writes, gives up and carries on what a
// full tier must, and syncs for many records at once; with nothing to do it waits for the disk or a command. Nothing
// ticks: when nobody asks for anything, it sleeps.
//
// A put: its stream is cut into pieces, each written from a buffer of its own, one record behind the other at the
// active segment's tail; when its last piece is written it waits for a sync that began after that, and only then is
// it found and acknowledged. What is on its way when the process dies is not found again, or is found whole.
// A get: its pieces are read ahead into buffers, checked and turned into rows in their order.
//
// Thread: its own, for all but the constructor, the destructor and the figures.
// State: books_ says what is found; jobs say what is under way; buffers belong to one job each, or are free.
// Invariant: a segment's file stays open and where it is while anything is under way in it (pins).
#pragma once

#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "engine/tier/books.h"
#include "engine/tier/disk.h"
#include "engine/tier/mailbox.h"
#include "engine/tier/options.h"
#include "engine/tier/scan.h"
#include "engine/tier/stream.h"

namespace kvrail::engine::tier {

class TierThread {
 public:
  TierThread(const TierOptions& options, std::unique_ptr<Directory> directory, Mailbox& mailbox);
  ~TierThread();
  TierThread(const TierThread&) = delete;
  TierThread& operator=(const TierThread&) = delete;

  // Takes buffers, chooses the disk; what it had to do without is appended to `warnings`.
  [[nodiscard]] Result<void> prepare(std::vector<std::string>& warnings);
  void begin();  // starts the thread

  [[nodiscard]] const char* disk_name() const noexcept { return disk_->name(); }
  struct Figures {
    std::atomic<std::uint64_t> used_bytes{0}, damaged{0}, quarantined{0}, bytes_read{0}, bytes_written{0}, syncs{0};
    std::atomic<std::uint64_t> scrubbed_bytes{0}, carried{0};
  };
  [[nodiscard]] const Figures& figures() const noexcept { return figures_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  enum class Use : std::uint8_t { free, put, get, carry, scrub, recover };
  // An operation with the memory that it reads into or writes from.
  struct Buffer : DiskOp {
    Use use = Use::free;
    std::uint32_t job = kNone;
    std::uint32_t piece = 0;
    std::uint32_t wanted = 0;   // bytes of the whole operation; DiskOp has what is left of it
    std::uint8_t stuck = 0;     // answers in a row that got it no further
    bool ended = false;         // read, and waits for the pieces before it
    int error = 0;
    std::byte* memory = nullptr;
  };
  // A record that is being written, for a put or a carry.
  struct Write {
    bool used = false, carry = false, forgotten = false;
    bool issued = false;  // its last piece is with the disk
    std::uint32_t slot = 0;
    Hash128 hash, shape;
    std::uint32_t tokens = 0;
    std::uint64_t sequence = 0;
    std::uint32_t segment = kNone, page = 0;
    std::uint64_t stream_bytes = 0;   // issued so far
    std::uint32_t under_way = 0;
    TimeNs written_ns = 0;
    Status status;
    RowSource source;
    std::uint32_t epsilon_ppm = 0;
    Medium coding = Medium::full;
    std::uint32_t record = kNone;     // carry: which, and of which sequence it was
    std::uint64_t record_sequence = 0;
  };
  struct Read {
    bool used = false;
    std::uint32_t slot = 0;
    TierGet get;
    std::uint64_t sequence = 0, stream_bytes = 0;
    std::uint32_t segment = kNone, page = 0;
    std::uint32_t pieces = 0, issued = 0, consumed = 0, under_way = 0;
    std::uint32_t epsilon_ppm = 0;
    Status status;
    RowSink sink;
  };

  // tier_thread.cc: the cycle
  void run() noexcept;
  [[nodiscard]] bool cycle() noexcept;
  [[nodiscard]] bool take_commands() noexcept;
  [[nodiscard]] bool reap() noexcept;
  void forget(const Hash128& hash) noexcept;
  void ended(Buffer& buffer) noexcept;
  [[nodiscard]] bool go_on(Buffer& buffer) noexcept;
  [[nodiscard]] TimeNs patience() const noexcept;
  void finish() noexcept;
  [[nodiscard]] bool idle() const noexcept;

  // thread_buffers.cc
  [[nodiscard]] Buffer* take_buffer(Use use, std::uint32_t job) noexcept;
  void give_back(Buffer& buffer) noexcept;
  void start(Buffer& buffer, DiskOp::Kind kind, std::uint32_t segment, std::uint64_t offset, std::uint32_t bytes) noexcept;
  void pin(std::uint32_t segment) noexcept { ++books_.segment(segment).pins; }
  void unpin(std::uint32_t segment) noexcept;
  // The piece in the buffer, if it is the one that the record must have there.
  [[nodiscard]] bool check_piece(const Buffer& buffer, std::uint32_t segment, std::uint64_t sequence, const Hash128& hash,
                                 PieceHeader& out) noexcept;

  // thread_puts.cc
  [[nodiscard]] bool start_writes() noexcept;
  [[nodiscard]] bool begin_put() noexcept;
  void open_at_tail(Write& write) noexcept;
  enum class Room : std::uint8_t { yes, wait, no };
  [[nodiscard]] bool make_segment() noexcept;
  [[nodiscard]] Room next_segment(Status& why) noexcept;
  [[nodiscard]] Room room_for(std::uint64_t bytes, Status& why) noexcept;
  void write_piece(Write& write, std::uint32_t job, Buffer& buffer) noexcept;
  void piece_written(Buffer& buffer) noexcept;
  void settle_write(std::uint32_t job) noexcept;
  [[nodiscard]] bool maybe_sync() noexcept;
  void synced() noexcept;
  void acknowledge(std::uint32_t job) noexcept;
  void end_put(std::uint32_t job) noexcept;
  void seal_active() noexcept;

  // thread_gets.cc
  [[nodiscard]] bool start_reads() noexcept;
  void begin_get(const Command& command) noexcept;
  void piece_read(Buffer& buffer) noexcept;
  void consume(std::uint32_t job) noexcept;
  void end_get(std::uint32_t job) noexcept;
  void drop_damaged(std::uint32_t record) noexcept;

  // thread_space.cc: giving up, carrying on, scrubbing
  [[nodiscard]] bool make_room() noexcept;
  [[nodiscard]] bool carry_next(std::uint32_t record) noexcept;
  void carry_piece() noexcept;
  void carry_read(Buffer& buffer) noexcept;
  void carried() noexcept;
  void give_up(std::uint32_t record) noexcept;
  void give_up_segment(std::uint32_t segment) noexcept;
  void remove_file(std::uint32_t segment) noexcept;
  [[nodiscard]] bool scrub() noexcept;
  void scrub_read(Buffer& buffer) noexcept;
  void damaged_at(std::uint32_t segment, std::uint64_t offset) noexcept;

  // thread_recover.cc
  [[nodiscard]] bool recover_next() noexcept;
  void recover_segment(SegmentFile file, bool verify) noexcept;
  void remember(std::uint32_t segment, const SeenRecord& seen) noexcept;

  void tell(const Message& message) noexcept { mailbox_.tell(message); }

  TierOptions options_;
  std::unique_ptr<Directory> directory_;
  Mailbox& mailbox_;
  SteadyClock clock_;
  Books books_;
  std::unique_ptr<std::byte, void (*)(std::byte*)> memory_;
  std::unique_ptr<Disk> disk_;
  std::vector<Buffer> buffers_;
  std::uint32_t free_read_ = 0, free_write_ = 0;
  DiskOp sync_;

  std::vector<SegmentFile> found_;  // at the start, oldest first; read from the back
  std::uint32_t verify_left_ = 0;
  bool recovering_ = true;
  std::deque<Command> puts_, gets_;  // taken, not begun
  std::vector<Write> writes_;        // the last one is the carry's
  std::vector<Read> reads_;
  std::uint32_t open_ = kNone;       // the write that is not issued yet
  std::deque<std::uint32_t> written_;
  std::uint64_t written_bytes_ = 0;
  std::vector<std::uint32_t> syncing_;
  std::uint32_t sync_segment_ = kNone;
  std::uint32_t active_ = kNone;
  // The next segment, made on a thread of its own while this one goes on: its name has to be synced into the folder.
  std::future<Result<SegmentFile>> making_;
  std::jthread maker_;
  std::uint64_t next_segment_id_ = 1, next_sequence_ = 1;

  std::uint32_t leaving_ = kNone;
  bool wants_room_ = false, keep_unread_ = false;
  std::uint64_t carry_budget_ = 0;
  std::uint32_t carry_from_ = kNone, carry_from_page_ = 0;
  std::uint64_t carry_stream_bytes_ = 0;
  bool carry_under_way_ = false, carry_wants_buffer_ = false;

  std::uint64_t scrub_credit_ = 0;
  std::uint64_t scrub_segment_id_ = 0;
  std::uint32_t scrub_segment_ = kNone;
  std::optional<SegmentScan> scrub_scan_;
  bool scrub_under_way_ = false;
  Scratch encode_scratch_, decode_scratch_;
  Figures figures_;
  std::jthread thread_;
};

}  // namespace kvrail::engine::tier
