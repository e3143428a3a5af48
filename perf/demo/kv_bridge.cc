#include "perf/demo/kv_bridge.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace kvrail::demo {
namespace {

constexpr std::chrono::seconds kClaimLimit{20};

}  // namespace

void sleep_until(TimeNs point_ns) noexcept {
  timespec point{};
  point.tv_sec = static_cast<time_t>(point_ns / kSecondNs);
  point.tv_nsec = static_cast<long>(point_ns % kSecondNs);
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &point, nullptr) == EINTR) {
  }
}

Reader::Reader(const model::Model& model, std::uint32_t capacity_tokens, Pace pace)
    : session_(model, capacity_tokens), pace_(pace) {}

void Reader::forget() {
  truncate(0);
}

void Reader::truncate(std::uint32_t length) {
  session_.truncate(length);
  tokens_.resize(length);
}

Result<void> Reader::read_ahead(std::span<const TokenId> tokens) {
  if (Result<void> done = session_.append(tokens); !done.ok()) return done;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

Result<void> Reader::read(std::span<const TokenId> tokens) {
  const TimeNs until_ns =
      SteadyClock().now_ns() + static_cast<TimeNs>(tokens.size()) * pace_.prefill_per_token_ns;
  if (Result<void> done = read_ahead(tokens); !done.ok()) return done;
  sleep_until(until_ns);
  return {};
}

Result<void> Reader::import_blocks(const Delivery& delivery, Taken& taken) {
  for (const BlockView block : delivery.blocks()) {
    const std::uint32_t end = block.position + block.tokens;
    if (end <= session_.length()) continue;
    if (block.position > session_.length()) break;  // a gap: what comes after it is read anew
    const std::uint32_t before = session_.length();
    auto done = session_.import_kv(delivery.layout(), block.position, block.tokens, block.data);
    if (!done.ok()) return done;
    taken.imported += end - before;
  }
  const std::span<const TokenId> wanted = delivery.tokens();
  const std::uint32_t held = session_.length();
  if (held > wanted.size()) return Error{{Code::internal}, "a delivery has more rows than tokens"};
  tokens_.assign(wanted.begin(), wanted.begin() + held);
  return {};
}

// A few tokens at a time: what both sides work on at the end is what neither waits for.
Result<void> Reader::read_head(Delivery& delivery, Agent& agent, Taken& taken) {
  constexpr std::uint32_t kTokensAtOnce = 64;
  while (delivery.medium() == Medium::split) {
    auto claim = agent.claim(delivery, kTokensAtOnce, kClaimLimit);
    if (!claim.ok()) return {};  // the tail does not come: all that is missing is read
    if (!*claim) break;
    const std::uint32_t end = (*claim)->first_token + (*claim)->tokens;
    if (end <= session_.length()) continue;  // held since an earlier version
    const std::uint32_t more = end - session_.length();
    if (auto done = read(delivery.tokens().subspan(session_.length(), more)); !done.ok()) return done;
    taken.recomputed += more;
  }
  return import_blocks(delivery, taken);
}

Result<Taken> Reader::take(Delivery& delivery, Agent& agent) {
  const std::span<const TokenId> begun = delivery.tokens();
  const auto [mine, theirs] = std::mismatch(tokens_.begin(), tokens_.end(), begun.begin(), begun.end());
  Taken taken;
  taken.kept = static_cast<std::uint32_t>(mine - tokens_.begin());
  truncate(taken.kept);
  if (auto done = import_blocks(delivery, taken); !done.ok()) return std::move(done).error();
  const TimeNs begin_ns = SteadyClock().now_ns();
  if (auto done = read_head(delivery, agent, taken); !done.ok()) return std::move(done).error();
  const std::span<const TokenId> wanted = delivery.tokens();
  const std::uint32_t held = session_.length();
  if (held < wanted.size()) {
    if (Result<void> done = read(wanted.subspan(held)); !done.ok()) return std::move(done).error();
    taken.recomputed += static_cast<std::uint32_t>(wanted.size()) - held;
  }
  if (taken.recomputed > 0) taken.recompute_ns = SteadyClock().now_ns() - begin_ns;
  return taken;
}

Result<model::Answer> Reader::answer(const model::FactWorld& world, const model::Fact& fact) {
  const auto question = world.question(fact);
  if (Result<void> done = read_ahead(question); !done.ok()) return std::move(done).error();
  std::array<TokenId, model::kAnswerTokens> words{};
  for (TokenId& word : words) {
    word = session_.greedy();
    if (Result<void> done = read_ahead({&word, 1}); !done.ok()) return std::move(done).error();
  }
  return model::Answer{words[0], words[1]};
}

Result<void> write_rows(const model::Session& session, const Layout& layout, std::uint32_t from,
                        Blocks& blocks) {
  std::vector<std::byte> slot(layout.block_bytes());
  const std::uint32_t step = layout.block_tokens;
  const std::uint64_t row_bytes = layout.row_bytes();
  for (std::uint32_t first = from / step * step; first < session.length(); first += step) {
    const std::uint32_t count = std::min(step, session.length() - first);
    KVRAIL_ASSERT(first / step >= blocks.first_block());
    const std::size_t slot_at = first / step - blocks.first_block();
    KVRAIL_ASSERT(slot_at < blocks.size());
    if (auto done = session.export_kv(layout, first, count, slot); !done.ok()) return done;
    const std::uint32_t skip = from > first ? from - first : 0;
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
      for (std::uint32_t kv = 0; kv < 2; ++kv) {
        const std::byte* rows = slot.data() + layout.row_offset(layer, kv, skip);
        std::memcpy(blocks.row(slot_at, layer, kv, skip).data(), rows,
                    (count - skip) * row_bytes);
      }
    }
  }
  return {};
}

}  // namespace kvrail::demo
