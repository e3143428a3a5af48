// Whose a socket is, in the 32 bits that travel with its operations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvrail::transport::tcp {

enum class TagOwner : std::uint8_t { listener = 1, greeter = 2, lane = 3 };

struct Tag {
  TagOwner owner = TagOwner::listener;
  std::uint32_t index = 0;   // < 2^24
  std::size_t stream = 0;    // lane: control or bulk

  [[nodiscard]] constexpr std::uint32_t pack() const noexcept {
    return (static_cast<std::uint32_t>(owner) << 28) | (index << 1) |
           static_cast<std::uint32_t>(stream);
  }
  [[nodiscard]] static constexpr Tag unpack(std::uint32_t word) noexcept {
    return Tag{static_cast<TagOwner>(word >> 28), (word & 0x0FFF'FFFFU) >> 1, word & 1U};
  }
};

}  // namespace kvrail::transport::tcp
