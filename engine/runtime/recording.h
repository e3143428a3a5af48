// The file that a node's decisions are recorded in (scheduler/record.h): mapped, so that the worker writes it without system
// calls, and what was recorded is there however the process ends. `kvrail-sim replay` reads it.
//
// Thread: made and destroyed by the Conductor; the worker writes the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvrail/base/result.h"

namespace kvrail::engine {

class Recording {
 public:
  // A recording of that name is kept as PATH.1; anything else that is there is refused. The file's bytes are set aside on the
  // disk at once.
  [[nodiscard]] static Result<std::unique_ptr<Recording>> create(const std::string& path, std::uint64_t bytes);
  // Whether create() may be called: its folder is there, and nothing but a recording stands at the path.
  [[nodiscard]] static Result<void> check(const std::string& path);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();  // cuts the file to what was recorded
  [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }

 private:
  Recording(int fd, std::span<std::byte> memory) noexcept : fd_(fd), memory_(memory) {}
  int fd_;
  std::span<std::byte> memory_;
};

}  // namespace kvrail::engine
