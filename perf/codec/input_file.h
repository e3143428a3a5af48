// A file that is read in parts. What it says of itself is checked against what it really has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvrail/base/result.h"

namespace kvrail::fidelity {

/// Read, never mapped: a file that shrinks meanwhile gives an error and no signal.
class InputFile {
 public:
  /// not_found or io_error in one line; only regular files have a size to check against.
  [[nodiscard]] static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  /// Fills `out` from `offset`, all of it or an error.
  [[nodiscard]] Result<void> read(std::uint64_t offset, std::span<std::byte> out) const;
  /// The same into a string, for headers.
  [[nodiscard]] Result<std::string> text(std::uint64_t offset, std::uint64_t bytes) const;
  /// "PATH: what", as invalid_argument.
  [[nodiscard]] Error fault(const std::string& what) const;

 private:
  InputFile(std::string path, int fd, std::uint64_t size);

  std::string path_;
  int fd_;
  std::uint64_t size_;
};

}  // namespace kvrail::fidelity
