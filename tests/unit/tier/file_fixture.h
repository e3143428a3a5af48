// A file tier in a folder of its own, asked until it has answered.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "engine/tier/file_tier.h"
#include "tests/unit/tier/fixture.h"

namespace kvrail::engine::testing {

class Folder {
 public:
  // `parent`: where there is room for it.
  explicit Folder(const std::string& parent = std::filesystem::temp_directory_path().string()) {
    std::string name = parent + "/kvrail-tier-XXXXXX";
    KVRAIL_ASSERT(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::vector<std::filesystem::path> segments() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().filename().string().starts_with("segment-")) found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string path;
};

// For what is not about a disk: memory, where there is a folder of that kind.
inline std::string memory_folder() {
  std::error_code ignored;
  return std::filesystem::is_directory("/dev/shm", ignored) ? "/dev/shm" : std::filesystem::temp_directory_path().string();
}

inline tier::TierOptions small_tier(const Folder& folder) {
  tier::TierOptions options;
  options.directory = folder.path;
  options.segment_bytes = 256U << 10;
  options.capacity_bytes = 2U << 20;
  options.max_blocks = 1024;
  options.depth = 4;
  options.in_flight = 16;
  options.retry_ns = 1;
  return options;
}

// A deadline against hangs alone.
constexpr TimeNs kHangNs = 60 * kSecondNs;

class Tier {
 public:
  explicit Tier(const tier::TierOptions& options, Layout wanted = small_layout()) : layout(wanted) {
    auto made = tier::FileTier::create(options);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? std::string() : made.error().message));
    port = std::move(made).value();
    until([&] { return port->figures().state != TierState::recovering; });
  }
  // Polls until `done` holds; what comes is kept in `puts`, `gets` and `gone`.
  template <class Done>
  void until(Done done) {
    const SteadyClock clock;
    const TimeNs limit = clock.now_ns() + kHangNs;
    while (true) {
      poll();
      if (done()) return;
      REQUIRE(clock.now_ns() < limit);
      pollfd wake{port->wake_fd(), POLLIN, 0};
      ::poll(&wake, 1, 10);
    }
  }
  void poll() {
    std::array<TierCompletion, 8> out;
    while (const std::size_t count = port->poll(out)) {
      for (const TierCompletion& done : std::span(out).first(count)) {
        if (done.event == TierEvent::put) puts[done.cookie] = done;
        if (done.event == TierEvent::get) gets[done.cookie] = done;
        if (done.event == TierEvent::gone) gone.push_back(done.hash);
      }
    }
  }
  // Starts it; the rows live until the tier is gone.
  void start_put(std::uint64_t number, std::uint32_t tokens = 0, std::uint32_t epsilon_ppm = 0) {
    const std::uint32_t count = tokens == 0 ? layout.block_tokens : tokens;
    rows[number] = make_rows(number, count);
    puts.erase(number);
    until([&] { return port->put({number, hash_of(number), layout, count, epsilon_ppm, rows[number].data()}); });
  }
  TierCompletion end_put(std::uint64_t number) {
    until([&] { return puts.contains(number); });
    return puts[number];
  }
  TierCompletion put(std::uint64_t number, std::uint32_t tokens = 0, std::uint32_t epsilon_ppm = 0) {
    start_put(number, tokens, epsilon_ppm);
    return end_put(number);
  }
  TierCompletion get(std::uint64_t number, std::uint32_t tokens = 0) {
    slot.assign(layout.block_bytes(), std::byte{});
    gets.erase(number);
    REQUIRE(port->get({number, hash_of(number), layout, tokens == 0 ? layout.block_tokens : tokens, slot.data()}));
    until([&] { return gets.contains(number); });
    return gets[number];
  }
  // Whether it comes back as it was put, byte for byte.
  bool good(std::uint64_t number, std::uint32_t tokens = 0) {
    return get(number, tokens).status.ok() && slot == make_rows(number, tokens == 0 ? layout.block_tokens : tokens);
  }
  [[nodiscard]] bool has(std::uint64_t number) const { return port->find(hash_of(number)).has_value(); }
  [[nodiscard]] std::vector<std::byte> make_rows(std::uint64_t number, std::uint32_t tokens) const {
    return rows_of(number, layout, tokens);
  }

  Layout layout;
  std::map<std::uint64_t, TierCompletion> puts, gets;
  std::vector<Hash128> gone;
  // They belong to the tier while it is at work, so they outlive it.
  std::map<std::uint64_t, std::vector<std::byte>> rows;
  std::vector<std::byte> slot;
  std::unique_ptr<tier::FileTier> port;
};

}  // namespace kvrail::engine::testing
