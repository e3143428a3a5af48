// The seam between the core and a tier: memory slower than the node's own that keeps blocks by their
// hash (a local file, another node). Blocks go there before they leave memory and come back from
// there; what a hash means is not the tier's concern, that the bytes are the ones that were put is.
//
// Thread: the scheduler worker, for all calls. Nothing blocks: put() and get() start, poll() tells.
// A block's memory belongs to the tier from the call that returned true until its completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kvrail/base/status.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail::engine {

// The rows of one block as agents read them: [layer][K|V][token][kv_head][dim], a whole slot of
// layout.block_bytes(), of which `tokens` rows of each half are valid.
struct TierPut {
  std::uint64_t cookie = 0;  // the caller's, given back in the completion
  Hash128 hash;
  Layout layout;
  std::uint32_t tokens = 0;
  std::uint32_t epsilon_ppm = 0;  // what the rows have lost already
  const std::byte* rows = nullptr;
  bool exact = false;             // these rows are kept as they are, whatever the tier does with others
};

struct TierGet {
  std::uint64_t cookie = 0;
  Hash128 hash;
  Layout layout;             // a record of another shape is refused: layout_mismatch
  std::uint32_t tokens = 0;
  std::byte* rows = nullptr;
};

enum class TierEvent : std::uint8_t {
  // status; ok: the block is found from now on, instead of one of the same hash that was there.
  // cancelled: forgotten meanwhile. Else the tier kept nothing new (out_of_capacity, too_large, io_error).
  put,
  // status; corrupt, not_found, layout_mismatch, io_error: the rows are worth nothing. After all of these but
  // layout_mismatch nothing finds the block, and `gone` follows where find() had found it.
  get,
  gone,  // hash: the tier gave it up (space, damage) without being asked to
};

struct TierCompletion {
  TierEvent event = TierEvent::put;
  std::uint64_t cookie = 0;
  Hash128 hash{};
  Status status{};
  std::uint32_t epsilon_ppm = 0;  // of the rows that a get brought; more than were put where the tier codes with loss
  std::uint64_t stored_bytes = 0;
  TimeNs took_ns = 0;
};

// What the tier knows of a block without reading it.
struct TierEntry {
  std::uint32_t tokens = 0;
  std::uint32_t epsilon_ppm = 0;
  std::uint64_t stored_bytes = 0;
};

enum class TierState : std::uint8_t {
  recovering,  // what was kept before the start is being read; entries appear
  ready,
  slow,        // takes no more blocks until it has caught up; what it has can be had
  failed,      // takes none and gives none
};

struct TierFigures {
  TierState state = TierState::ready;
  std::uint64_t capacity_bytes = 0, used_bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t puts = 0, gets = 0, bytes_written = 0, bytes_read = 0;
  std::uint64_t refused = 0;      // puts that ended in no record: full, slow, an error
  std::uint64_t damaged = 0;      // records whose checksum did not hold
  std::uint64_t quarantined = 0;  // files that are not ours, or of no version that is known
  std::uint64_t read_bytes_per_s = 0, write_bytes_per_s = 0;  // measured; 0: not yet
};

class TierPort {
 public:
  TierPort() = default;
  TierPort(const TierPort&) = delete;
  TierPort& operator=(const TierPort&) = delete;
  virtual ~TierPort() = default;

  // False: as many are under way as it takes, or it takes none; nothing was started.
  [[nodiscard]] virtual bool put(const TierPut& put) noexcept = 0;
  [[nodiscard]] virtual bool get(const TierGet& get) noexcept = 0;
  // Nothing finds the block any more; gets that are under way end as they may.
  virtual void forget(const Hash128& hash) noexcept = 0;
  [[nodiscard]] virtual std::optional<TierEntry> find(const Hash128& hash) const noexcept = 0;
  // Whether what comes back may have lost something that was there when it was put.
  [[nodiscard]] virtual bool lossy() const noexcept { return false; }
  // How long a get of so many stored bytes takes from now on, waits included.
  [[nodiscard]] virtual TimeNs restore_ns(std::uint64_t stored_bytes) const noexcept = 0;
  // Fills what has happened since; 0: nothing.
  [[nodiscard]] virtual std::size_t poll(std::span<TierCompletion> out) noexcept = 0;
  // Readable when poll() may have something; armed by the worker before it parks. -1: none.
  [[nodiscard]] virtual int wake_fd() const noexcept { return -1; }
  [[nodiscard]] virtual TierFigures figures() const noexcept = 0;
};

}  // namespace kvrail::engine
