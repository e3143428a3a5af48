// Small transfers: the bytes follow the OFFER at once, so that one way is enough. The receiver may
// still prefer another medium, or ask for the bytes by ACCEPT as if nothing had come.
#include <algorithm>
#include <cstring>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

// Calls f(block, layer, kv, first row, rows, bytes before) for each run of valid rows from `base` on,
// in stream order.
template <class F>
void for_each_run(const Layout& layout, std::uint64_t base_tokens, std::uint64_t total_tokens, F&& f) {
  std::uint64_t offset = 0;
  for (std::uint64_t token = base_tokens; token < total_tokens; token += layout.block_tokens) {
    const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(layout.block_tokens, total_tokens - token));
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
      for (std::uint32_t kv = 0; kv < 2; ++kv) {
        f(static_cast<std::uint32_t>(token / layout.block_tokens), layer, kv, rows, offset);
        offset += rows * layout.row_bytes();
      }
    }
  }
}

}  // namespace

void Node::Core::choose_eager(Outgoing& out, const VersionView& view) noexcept {
  out.eager = false;
  if (options_.eager_limit_bytes == 0 || out.eager_failed || view.blocks.empty()) return;
  if (out.wish != Medium::automatic && out.wish != Medium::full) return;
  bool full = false;
  for (std::uint32_t i = 0; i < out.candidate_count; ++i) full |= out.candidates[i].medium == Medium::full;
  const Belief* belief = beliefs_.find(belief_key(out));
  if (!full || (out.base_tokens > 0 && (belief == nullptr || !belief->has_kv))) return;
  const std::uint64_t bytes = (view.tokens.size() - out.base_tokens) * view.layout.token_bytes();
  const std::uint64_t room = message_limit(*lane_at(out.lane)) - wire::kMaxEagerOverhead;
  out.eager = bytes > 0 && bytes <= std::min<std::uint64_t>({options_.eager_limit_bytes, eager_.size(), room});
  for (std::uint32_t i = 0; out.eager && i < out.candidate_count; ++i) {
    if (out.candidates[i].medium == Medium::full) out.candidates[i].wait_ns = 0;  // right behind the OFFER
  }
}

bool Node::Core::post_eager(Outgoing& out, const VersionView& view) noexcept {
  const std::uint64_t row_bytes = view.layout.row_bytes();
  std::uint64_t bytes = 0;
  for_each_run(view.layout, out.base_tokens, view.tokens.size(),
               [&](std::uint32_t block, std::uint32_t layer, std::uint32_t kv, std::uint32_t rows, std::uint64_t at) {
                 const std::byte* from = store_->block(view.blocks[block]).raw + view.layout.row_offset(layer, kv, 0);
                 std::memcpy(eager_.data() + at, from, rows * row_bytes);
                 bytes = at + rows * row_bytes;
               });
  const std::span<const std::byte> data = std::span(eager_).first(bytes);
  const wire::Eager message{out.id, options_.integrity ? codec::digest(data) : 0, data};
  if (!post(out.lane, message)) return false;
  counters_.copied_bytes += bytes;
  out.eager_posted = true;
  return true;
}

void Node::Core::on_eager(std::uint32_t lane, const wire::Eager& message) noexcept {
  const std::uint32_t index = find_in(lane, message.transfer);
  if (index == kNoIndex) return;
  Incoming& in = in_at(index);
  if (in.state != InState::eager) return;  // another medium was picked, or it has come before
  const bool intact = message.digest == 0 || message.digest == codec::digest(message.bytes);
  if (!intact) ++counters_.corrupt_units;
  if (!intact || !place_eager(in, message.bytes)) {
    in.eager_announced = false;  // asked for like any other transfer
    return plan_lease(index);
  }
  ++counters_.eager_transfers;
  counters_.payload_bytes_in += message.bytes.size();
  in.eager_bytes = message.bytes.size();
  move(in, InState::decoding);
  run_decoding(index);
}

bool Node::Core::place_eager(const Incoming& in, std::span<const std::byte> bytes) noexcept {
  if (bytes.size() != (in.tokens.size() - in.base_tokens) * in.layout.token_bytes()) return false;
  Store::StagingView view;
  KVRAIL_ASSERT(store_->view(in.staging, view));
  const std::uint64_t row_bytes = in.layout.row_bytes();
  for_each_run(in.layout, in.base_tokens, in.tokens.size(),
               [&](std::uint32_t block, std::uint32_t layer, std::uint32_t kv, std::uint32_t rows, std::uint64_t at) {
                 if (view.missing[block] == 0) return;
                 const std::uint32_t first = block == view.tail_block ? view.tail_from_row : 0;
                 std::byte* to = store_->block(view.blocks[block]).raw + in.layout.row_offset(layer, kv, first);
                 std::memcpy(to, bytes.data() + at + first * row_bytes, (rows - first) * row_bytes);
                 counters_.copied_bytes += (rows - first) * row_bytes;
               });
  return true;
}

}  // namespace kvrail::engine
