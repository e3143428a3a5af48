// Between the model and kvrail: KV that the model computed goes into block slots, and blocks that
// were delivered go into the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvrail/agent.h"
#include "kvrail/base/time.h"
#include "perf/model/facts.h"
#include "perf/model/session.h"

namespace kvrail::demo {

/// How much slower than here the model that this one stands for would read. The agent really waits.
struct Pace {
  TimeNs prefill_per_token_ns = 0;
};

/// What taking a delivery over came to.
struct Taken {
  std::uint32_t kept = 0;        // tokens whose KV the agent had computed or imported before
  std::uint32_t imported = 0;    // rows taken from the delivery
  std::uint32_t recomputed = 0;  // tokens that were read anew
  TimeNs recompute_ns = 0;
};

/// One agent's model with the context it holds at present. Thread: its owner.
class Reader {
 public:
  Reader(const model::Model& model, std::uint32_t capacity_tokens, Pace pace);

  [[nodiscard]] std::span<const TokenId> tokens() const noexcept { return tokens_; }
  [[nodiscard]] const model::Session& session() const noexcept { return session_; }
  [[nodiscard]] std::uint32_t length() const noexcept { return session_.length(); }

  void forget();
  void truncate(std::uint32_t length);
  /// Computes more tokens, at the pace of the bigger model.
  [[nodiscard]] Result<void> read(std::span<const TokenId> tokens);
  /// The same at our own pace: work that is not part of a measured task.
  [[nodiscard]] Result<void> read_ahead(std::span<const TokenId> tokens);
  /// Makes the delivery's context the one held: keeps the common start, imports what came as KV,
  /// reads the rest anew. Of a split it reads what `agent` may claim, until the tail has come.
  [[nodiscard]] Result<Taken> take(Delivery& delivery, Agent& agent);
  /// Appends a question and the greedy answer to the context.
  [[nodiscard]] Result<model::Answer> answer(const model::FactWorld& world,
                                             const model::Fact& fact);

 private:
  /// Rows of the delivery's blocks that follow on what is held, without a gap.
  [[nodiscard]] Result<void> import_blocks(const Delivery& delivery, Taken& taken);
  [[nodiscard]] Result<void> read_head(Delivery& delivery, Agent& agent, Taken& taken);

  model::Session session_;
  Pace pace_;
  std::vector<TokenId> tokens_;
};

/// Writes rows [from, session.length()) of the session into the blocks, block 0 holding position 0.
/// Rows before `from` are not touched: they may be committed already.
[[nodiscard]] Result<void> write_rows(const model::Session& session, const Layout& layout,
                                      std::uint32_t from, Blocks& blocks);

/// Sleeps until the point in time; returns at once if it has passed.
void sleep_until(TimeNs point_ns) noexcept;

}  // namespace kvrail::demo
