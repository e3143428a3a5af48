// A tier in segment files of one local folder: the worker's side of it. What is where is known here too, as the
// thread tells it, so that find() is a look-up in this thread's own memory.
//
// Threads: the worker, for all calls but create(); the thread behind it is tier_thread.h, and mailbox.h between them.
// Memory is taken by create(), and no call after it takes any, waits or locks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/core/tier_port.h"
#include "engine/tier/mailbox.h"
#include "engine/tier/options.h"
#include "engine/tier/record_table.h"
#include "engine/tier/tier_thread.h"

namespace kvrail::engine::tier {

class FileTier final : public TierPort {
 public:
  // One line that says what is wrong with the folder or the options and what to do.
  [[nodiscard]] static Result<std::unique_ptr<FileTier>> create(const TierOptions& options);
  ~FileTier() override;

  [[nodiscard]] bool put(const TierPut& put) noexcept override;
  [[nodiscard]] bool get(const TierGet& get) noexcept override;
  void forget(const Hash128& hash) noexcept override;
  [[nodiscard]] std::optional<TierEntry> find(const Hash128& hash) const noexcept override;
  [[nodiscard]] bool lossy() const noexcept override { return options_.coding == Medium::int8 || options_.coding == Medium::int4; }
  [[nodiscard]] TimeNs restore_ns(std::uint64_t stored_bytes) const noexcept override;
  [[nodiscard]] std::size_t poll(std::span<TierCompletion> out) noexcept override;
  [[nodiscard]] int wake_fd() const noexcept override { return mailbox_.message_fd(); }
  [[nodiscard]] TierFigures figures() const noexcept override;

  // What it goes on without: io_uring, direct I/O; files that were moved aside.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  [[nodiscard]] const TierThread& thread() const noexcept { return *thread_; }

  // What is known here of a block.
  struct Known {
    Hash128 hash{};
    TierEntry entry{};
    std::uint32_t next = UINT32_MAX;  // RecordTable's
  };

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Slot {
    bool used = false, is_put = false, forgotten = false;
    std::uint64_t cookie = 0, bytes = 0;
    Hash128 hash{};
    TimeNs started_ns = 0;
    std::uint32_t next = kNone;
  };
  // Bytes by time, of what has ended lately.
  struct Rate {
    std::uint64_t bytes = 0;
    TimeNs ns = 0;
    void learn(std::uint64_t more, TimeNs took_ns) noexcept;
    [[nodiscard]] std::uint64_t per_s() const noexcept;
  };

  explicit FileTier(const TierOptions& options);
  [[nodiscard]] std::uint32_t take_slot(std::uint64_t cookie, const Hash128& hash, std::uint64_t bytes, bool is_put) noexcept;
  void free_slot(std::uint32_t slot) noexcept;
  [[nodiscard]] bool take(const Message& message, TierCompletion& out) noexcept;
  [[nodiscard]] bool end(const Message& message, TierCompletion& out) noexcept;
  void know(const Hash128& hash, const TierEntry& entry) noexcept;
  [[nodiscard]] bool unknow(const Hash128& hash) noexcept;
  void watch_puts() noexcept;

  TierOptions options_;
  SteadyClock clock_;
  Mailbox mailbox_;
  RecordTable<Known> known_;
  std::vector<Slot> slots_;
  std::uint32_t free_slot_ = kNone;
  std::uint32_t puts_under_way_ = 0;
  std::uint64_t get_bytes_under_way_ = 0;
  TierState state_ = TierState::recovering;
  TimeNs retry_at_ns_ = 0;  // no put before; 0: none failed lately
  Rate reads_, writes_;
  TimeNs write_busy_since_ns_ = 0, read_busy_since_ns_ = 0;
  TierFigures figures_;
  std::vector<std::string> warnings_;
  std::unique_ptr<TierThread> thread_;
};

}  // namespace kvrail::engine::tier
