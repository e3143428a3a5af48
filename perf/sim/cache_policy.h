// Caches of prefix blocks, all of one size and by one interface, so that policies can be compared: kvrail's own
// (scheduler/value.h) and those that others use, as their authors describe them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/time.h"

namespace kvrail::simulation {

// Blocks are numbered from 0 in the order of their first use.
struct CacheRequest {
  static constexpr std::uint32_t kNever = ~std::uint32_t{0};
  TimeNs at_ns = 0;
  std::uint64_t tokens = 0;
  std::span<const std::uint32_t> blocks;    // from the head of the prompt on
  std::span<const std::uint32_t> next_use;  // of each, the number of the request; only Belady may look
};
struct CacheShape {
  std::uint32_t blocks = 0;    // different ones that will be seen
  std::uint32_t capacity = 0;  // of them at once, at least 1
};

class CachePolicy {
 public:
  virtual ~CachePolicy() = default;
  [[nodiscard]] virtual bool holds(std::uint32_t block) const = 0;
  // All of the request's blocks are used, from the head on; those that are not held may be taken in.
  virtual void serve(const CacheRequest& request) = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
};

// What looks at one block at a time.
class BlockPolicy : public CachePolicy {
 public:
  void serve(const CacheRequest& request) final {
    for (std::size_t i = 0; i < request.blocks.size(); ++i) use(request.blocks[i], request.next_use[i]);
  }

 protected:
  virtual void use(std::uint32_t block, std::uint32_t next_use) = 0;
};

// "kvrail", "lru", "lfu", "sieve", "s3fifo", "wtinylfu", "belady", "unlimited".
[[nodiscard]] const std::vector<std::string>& cache_policy_names();
// nullptr: no such name.
[[nodiscard]] std::unique_ptr<CachePolicy> make_cache_policy(std::string_view name, const CacheShape& shape);

std::unique_ptr<CachePolicy> make_kvrail_cache(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_lru_cache(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_lfu_cache(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_sieve_cache(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_s3fifo_cache(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_wtinylfu_cache(const CacheShape& shape);
std::unique_ptr<CachePolicy> make_belady_cache(const CacheShape& shape);

}  // namespace kvrail::simulation
