// topk and window at their sender: what they would take, and, for topk, the rows that are kept, gathered in
// budgeted steps into blocks of the tenant's receive arena that nothing finds. The stream is then that of
// these blocks, and their positions behind it.
#include <algorithm>
#include <cstring>
#include <new>

#include "engine/core/node_core.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::engine {
namespace {

constexpr std::uint64_t kMostTokens = 1U << 18;  // of a context that topk chooses from
constexpr std::uint32_t kTokensPerStep = 16;     // what costs about as much as a block elsewhere
constexpr TimeNs kNoMemoryRetryNs = 2 * kMillisecondNs;

}  // namespace

void Node::Core::fill_sparse(const Outgoing& out, const VersionView& view, scheduler::SenderFacts& facts) const noexcept {
  const Layout& layout = view.layout;
  const std::uint64_t tokens = view.tokens.size();
  const auto fill = [&](scheduler::SparseFacts& sparse, std::uint64_t rows, bool coded) {
    const auto tail_rows = static_cast<std::uint32_t>(rows % layout.block_tokens);
    Coding coding;
    coded = coded && !out.raw_values && codecs_.plan(layout, options_.sparse_values, tail_rows, coding);
    sparse.values = coded ? options_.sparse_values : Medium::full;
    sparse.block_bytes = coded ? coded_bytes(layout, coding, layout.block_tokens) : layout.block_bytes();
    if (tail_rows > 0) sparse.tail_bytes = coded ? coded_bytes(layout, coding, tail_rows) : tail_rows * layout.token_bytes();
    if (coded) sparse.encode_ns_per_block = codecs_.encode_ns(options_.sparse_values, layout.block_bytes());
    sparse.fixed_bytes = rows / layout.block_tokens * sparse.block_bytes + sparse.tail_bytes;
  };
  const bool codes = is_coded(options_.sparse_values);
  if (options_.window_tokens > 0) {
    const std::uint32_t first = window_first_block(layout, tokens, options_.window_tokens);
    const std::uint64_t skipped = first > 1 ? first - 1 : 0;
    // Rows that came coded have the planes that they came in, and get no others.
    const auto came_coded = [&](BlockHandle block) { return store_->block(block).came_coded; };
    const std::span<const BlockHandle> last = view.blocks.subspan(first);
    const bool lossy = codes && (came_coded(view.blocks[0]) || std::any_of(last.begin(), last.end(), came_coded));
    fill(facts.window, tokens - skipped * layout.block_tokens, codes && !lossy);
    // As many as say "all blocks", where the window is longer than the context.
    const std::uint64_t all = (div_ceil(tokens, layout.block_tokens) + 1) * layout.block_tokens;
    facts.window.rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(options_.window_tokens, all));
  }
  const std::uint64_t kept = std::max<std::uint64_t>(tokens * options_.topk_percent / 100, 1);
  if (options_.topk_percent == 0 || view.importance.empty() || tokens > kMostTokens) return;
  fill(facts.topk, kept, codes);
  facts.topk.rows = static_cast<std::uint32_t>(kept);
  facts.topk.fixed_bytes += positions_room(kept, tokens);
  facts.topk.encode_ns_per_block += codecs_.encode_ns(Medium::topk, layout.block_bytes());
}

std::span<const BlockHandle> Node::Core::blocks_of(const Outgoing& out, const VersionView& view) const noexcept {
  if (out.gather.empty()) return view.blocks;  // not by the medium, which DONE may call by another name
  Store::StagingView staged;
  KVRAIL_ASSERT_MSG(store_->view(out.gather[0].staging, staged), "rows that are not gathered");
  return staged.blocks;
}

// True: the rows lie in blocks_of(). False: it goes on in another cycle, or the transfer takes another way.
bool Node::Core::gather(std::uint32_t index, const VersionView& view) noexcept {
  Outgoing& out = out_at(index);
  if (out.gather.empty()) {
    out.gather = scratch_.try_array<GatherWork>(1);
    const std::span<std::uint32_t> places = scratch_.try_array<std::uint32_t>(view.tokens.size());
    if (!out.gather.empty()) new (out.gather.data()) GatherWork{};
    if (out.gather.empty() || places.empty()) {
      std::span<std::uint32_t> back = places;
      scratch_.give_back(back);
      release_gather(out);
      out.state_due_ns = now_ + kNoMemoryRetryNs;
      arm_out(index);
      return false;
    }
    out.gather[0].places = places;
    out.gather[0].choice = codec::TopkChoice(static_cast<std::uint32_t>(view.tokens.size()), out.rows, codec::kSinks, codec::kRecent);
  }
  GatherWork& work = out.gather[0];
  if (work.ready) return true;
  Status status;
  if (!stage_gather(out, view, status) || !copy_gather(out, view)) {
    status.ok() ? want(Kind::out, index) : without_medium(index);
    return false;
  }
  return true;
}

// Which tokens, and memory for their rows.
bool Node::Core::stage_gather(Outgoing& out, const VersionView& view, Status& status) noexcept {
  GatherWork& work = out.gather[0];
  Steps steps(*this);
  if (!work.chosen) {
    std::uint64_t tokens = steps.left * kTokensPerStep;
    work.chosen = work.choice.step(view.importance, work.places, tokens);
    steps.left = tokens / kTokensPerStep;
    if (!work.chosen) return false;
    KVRAIL_ASSERT(work.choice.kept(work.places).size() == out.rows);
  }
  if (work.staged) return true;
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  if (!work.staging.valid()) {
    StageRequest request = stage_request_of(view);
    request.coding = out.coding;
    request.epsilon_ppm = view.epsilon_ppm;
    request.kept_tokens = out.rows;
    request.outgoing = true;
    const auto staging = store_->begin_stage(request);
    status = staging.status();
    if (!staging.ok()) return false;
    work.staging = staging.value();
  }
  const auto advanced = store_->advance(work.staging, steps.left);
  if (!advanced) return false;
  status = *advanced;
  if (!status.ok()) work.staging = StagingHandle{};
  work.staged = status.ok();
  return work.staged;
}

// The rows of a layer of a block at a time, then the positions.
bool Node::Core::copy_gather(Outgoing& out, const VersionView& view) noexcept {
  GatherWork& work = out.gather[0];
  const Layout& layout = view.layout;
  const std::span<const std::uint32_t> kept = work.choice.kept(work.places);
  Store::StagingView staged;
  KVRAIL_ASSERT(store_->view(work.staging, staged));
  const std::uint64_t end = std::uint64_t{staged.block_count} * layout.layers;
  const std::uint64_t row = layout.row_bytes();
  for (; work.at < end; ++work.at) {
    if (budget_ == 0) return false;
    const auto layer = static_cast<std::uint32_t>(work.at % layout.layers);
    const std::uint64_t block = work.at / layout.layers;
    const BlockView to = store_->block(staged.blocks[block]);
    std::span<const std::uint32_t> positions = kept.subspan(block * layout.block_tokens, to.tokens);
    const TimeNs before = clock_.now_ns();
    for (std::uint32_t at = 0; at < to.tokens;) {
      const std::uint32_t source = positions[at] / layout.block_tokens;
      const BlockView from = store_->block(view.blocks[source]);
      const codec::RunShape shape = codec::run_shape(layout, from.tokens);
      const codec::RunView run{{from.raw + layout.row_offset(layer, 0, 0), shape.side_bytes()},
                               {from.raw + layout.row_offset(layer, 1, 0), shape.side_bytes()}};
      const std::uint64_t room = (to.tokens - at) * row;
      at += codec::gather_rows(shape, run, source * layout.block_tokens, positions.subspan(at),
                               {{to.raw + layout.row_offset(layer, 0, at), room},
                                {to.raw + layout.row_offset(layer, 1, at), room}});
    }
    const std::uint64_t bytes = 2 * to.tokens * row;
    codecs_.learn_encode(Medium::topk, clock_.now_ns() - before, bytes);
    budget_ -= std::min(budget_, bytes);
  }
  std::memset(staged.positions.data(), 0, staged.positions.size());
  const std::size_t length = codec::encode_positions(kept, static_cast<std::uint32_t>(view.tokens.size()),
                                                     staged.positions.subspan(kRunHeadBytes));
  store_le32(staged.positions.data(), static_cast<std::uint32_t>(length));
  scratch_.give_back(work.places);
  work.ready = true;
  return true;
}

// Its chunks are through, and no planes are held.
void Node::Core::release_gather(Outgoing& out) noexcept {
  if (out.gather.empty()) return;
  GatherWork& work = out.gather[0];
  KVRAIL_ASSERT(out.planes_held == 0);
  if (work.staging.valid()) store_->abandon(work.staging);
  scratch_.give_back(work.places);
  scratch_.give_back(out.gather);
}

// What was picked can't be made: offered anew.
void Node::Core::without_medium(std::uint32_t index) noexcept {
  rule_out_medium(out_at(index));
  restart(index);
}

}  // namespace kvrail::engine
