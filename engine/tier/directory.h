// The folder of a tier: its lock, its manifest, its segment files, and where files go that are none of ours.
//
// In it: kvrail.lock (the process that has it), kvrail.manifest (says that this folder is a tier's, and of which
// version), segment-ID, new-segment (one that is being made), quarantine/ (what was moved aside, never deleted).
// A folder without a manifest that holds anything else is refused: it is somebody's.
//
// Thread: one at a time, but for create(), which may run beside the others; all calls may block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/ipc/fd.h"
#include "engine/tier/format.h"
#include "kvrail/base/result.h"

namespace kvrail::engine::tier {

enum class DirectMode : std::uint8_t { automatic, on, off };

struct SegmentFile {
  SegmentHeader header;
  std::uint64_t bytes = 0;  // of the file
  ipc::UniqueFd fd;
};

class Directory {
 public:
  // One line with the path, what is wrong and what to do: no such folder, not writable, read-only, full, on another
  // machine, somebody else's, in use by another process.
  [[nodiscard]] static Result<std::unique_ptr<Directory>> open(const std::string& path, DirectMode mode);
  // The same questions, but for the lock; leaves nothing behind.
  [[nodiscard]] static Result<void> check(const std::string& path, DirectMode mode);

  // Opens all segments, oldest first, and moves aside what is none.
  [[nodiscard]] std::vector<SegmentFile> segments();
  // A new one, filled with zeros; its name is there after a crash, its header once the file is synced.
  // out_of_capacity with ENOSPC in detail: no room.
  [[nodiscard]] Result<SegmentFile> create(std::uint64_t id, std::uint64_t bytes);
  void remove(std::uint64_t id) noexcept;
  // Moves a segment aside.
  void quarantine(std::uint64_t id) noexcept;

  [[nodiscard]] bool direct() const noexcept { return direct_; }
  [[nodiscard]] std::uint64_t quarantined() const noexcept { return quarantined_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }

 private:
  Directory() = default;
  [[nodiscard]] Result<void> lock();
  [[nodiscard]] Result<void> settle_manifest();
  [[nodiscard]] Result<void> write_manifest();
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool open_segment(const std::string& name, SegmentFile& out, bool& unfinished) noexcept;
  void move_aside(const std::string& name) noexcept;
  [[nodiscard]] int open_flags() const noexcept;

  std::string path_;
  ipc::UniqueFd dir_, lock_;
  bool direct_ = false;
  std::uint64_t quarantined_ = 0;
  std::vector<std::string> warnings_;
};

// The name of a file system that lies on another machine, or nullptr. `type` is statfs()'s.
[[nodiscard]] const char* remote_file_system(long type) noexcept;

}  // namespace kvrail::engine::tier
