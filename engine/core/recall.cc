// Names of contexts that survive a restart. Blocks are found in the tier by their hash, but only by who has the token
// ids; so behind the blocks of a context goes a record of its own, by the hash of (tenant, owner, context): its newest
// number, Layout, loss and token ids. Nothing is read at start. Who fetches a context that is not known here has its
// record read, becomes it a stub, and the fetch goes on as of any other one.
//
// To the tier a record is a block, of a Layout of this file's making that has as many bytes as are wanted.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr unsigned kIndexShift = 32;
constexpr std::uint64_t kNameCookie = UINT64_MAX;
constexpr std::uint32_t kMagic = 0x314e564b;  // "KVN1"
constexpr std::uint32_t kRows = 16;

// Behind it the token ids. In the byte order of the machine, as rows are (docs/tier-format.md).
struct NameRecord {
  std::uint32_t magic = kMagic;
  std::uint32_t epsilon_ppm = 0;
  std::uint64_t number = 0, tokens = 0;
  Name tenant, owner, context;
  Layout layout;
};
static_assert(std::is_trivially_copyable_v<NameRecord>);

Layout layout_of(std::uint64_t bytes) noexcept {
  Layout layout;
  layout.model_id = {0x6e616d6573, kMagic};  // no model's
  layout.layers = 1;
  layout.head_dim = 64;
  layout.block_tokens = kRows;
  layout.kv_heads = 1;
  const std::uint64_t least = layout.block_bytes();
  layout.kv_heads = static_cast<std::uint32_t>(std::min<std::uint64_t>((bytes + least - 1) / least, UINT32_MAX));
  return layout;
}

Hash128 key_of(const Name& tenant, const Name& owner, const Name& context) noexcept {
  std::array<char, 8 + 3 * sizeof(Name)> text{'n', 'a', 'm', 'e'};
  std::memcpy(text.data() + 8, &tenant, sizeof(Name));
  std::memcpy(text.data() + 8 + sizeof(Name), &owner, sizeof(Name));
  std::memcpy(text.data() + 8 + 2 * sizeof(Name), &context, sizeof(Name));
  return codec::hash_of({text.data(), text.size()});
}

}  // namespace

// ---- written ---------------------------------------------------------------------------------------

// The offload's blocks are kept. What is too large for one record, or finds no room, has no name after a restart.
void Node::Core::put_name(const VersionView& view) noexcept {
  offload_.named = true;
  const std::uint64_t bytes = sizeof(NameRecord) + view.tokens.size_bytes();
  const Layout layout = layout_of(bytes);
  if (layout.kv_heads > 1024) return;
  offload_.record = scratch_.try_array<std::byte>(layout.block_bytes());
  if (offload_.record.empty()) return;
  std::memset(offload_.record.data(), 0, offload_.record.size());
  NameRecord record;
  std::memset(static_cast<void*>(&record), 0, sizeof(record));  // what lies between its members too
  record.magic = kMagic;
  record.epsilon_ppm = view.epsilon_ppm;
  record.number = view.number;
  record.tokens = view.tokens.size();
  record.tenant = store_->name_of(view.tenant);
  record.owner = view.owner;
  record.context = view.context;
  record.layout = view.layout;
  std::memcpy(offload_.record.data(), &record, sizeof(record));
  std::memcpy(offload_.record.data() + sizeof(record), view.tokens.data(), view.tokens.size_bytes());
  const TierPut put{kNameCookie, key_of(record.tenant, record.owner, record.context), layout, kRows, 0, offload_.record.data(), true};
  if (tier_->put(put)) ++offload_.in_flight;
}

// ---- asked for -------------------------------------------------------------------------------------

// Its event is reserved. False: the tier has no such name, or there is no room to ask.
bool Node::Core::begin_recall(const Recall& wanted) noexcept {
  const Hash128 key = key_of(store_->name_of(wanted.tenant), wanted.owner, wanted.context);
  const auto kept = tier_->find(key);
  if (!kept || kept->tokens != kRows || recalls_.full()) return false;
  const Layout layout = layout_of(kept->stored_bytes);
  if (layout.kv_heads > 1024) return false;
  std::span<std::byte> record = scratch_.try_array<std::byte>(layout.block_bytes());
  if (record.empty()) return false;
  const Handle<Recall> handle = recalls_.try_emplace();
  Recall& recall = *recalls_.get(handle);
  recall = wanted;
  recall.record = record;
  const TimeNs limit = wanted.options.deadline_ns != 0 ? wanted.options.deadline_ns : options_.accept_timeout_ns;
  recall.give_up_ns = add_saturating(now_, limit);
  const std::uint64_t cookie = std::uint64_t{restores_.capacity() + handle.index} << kIndexShift;
  if (tier_->get({cookie, key, layout, kRows, record.data()})) return true;
  scratch_.give_back(record);
  recalls_.erase(handle);
  return false;
}

void Node::Core::on_name_back(std::uint32_t index, const TierCompletion& done) noexcept {
  const Handle<Recall> handle = recalls_.handle_at(index);
  Recall recall = *must(recalls_.get(handle));
  const VersionHandle version = done.status.ok() && !recall.ended ? stub_of(recall) : VersionHandle{};
  VersionView view;
  const bool found = version.valid() && store_->view(version, view);
  if (!found && !recall.ended) end_recall(index, Status{Code::not_found});
  scratch_.give_back(recall.record);
  recalls_.erase(handle);
  if (!found) return;
  const AgentWhere* place = where(store_->name_of(recall.tenant), recall.owner);
  const AgentHandle from = place == nullptr ? AgentHandle{} : place->local;
  deliver_locally({next_transfer_++, from, recall.agent, recall.ticket, true, 0, recall.context, version, recall.options, recall.submitted_ns}, view);
}

// Nothing of a record is believed before it has been looked at: the tier is a folder of files.
VersionHandle Node::Core::stub_of(const Recall& recall) noexcept {
  NameRecord record;
  std::memcpy(&record, recall.record.data(), sizeof(record));
  const std::uint64_t room = (recall.record.size() - sizeof(record)) / sizeof(TokenId);
  const bool ours = record.magic == kMagic && record.tenant == store_->name_of(recall.tenant) && record.owner == recall.owner &&
                    record.context == recall.context && record.tokens > 0 && record.tokens <= room &&
                    (recall.version == 0 || recall.version == record.number);
  if (!ours) return {};
  // The tier's memory is bytes; the ids in it begin where TokenIds may.
  static_assert(sizeof(NameRecord) % alignof(TokenId) == 0);
  const std::span ids(reinterpret_cast<const TokenId*>(recall.record.data() + sizeof(record)), record.tokens);
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  StageRequest request;
  request.tenant = recall.tenant;
  request.owner = recall.owner;
  request.context = recall.context;
  request.version = record.number;
  request.layout = record.layout;
  request.tokens = ids;
  const auto made = store_->publish_stub(request, record.epsilon_ppm);
  return made.ok() ? made.value() : VersionHandle{};
}

// For who waits; what the tier writes to stays until it has answered.
void Node::Core::end_recall(std::uint32_t index, Status status) noexcept {
  Recall& recall = *must(recalls_.get(recalls_.handle_at(index)));
  recall.ended = true;
  AgentEvent event;
  event.kind = AgentEventKind::fetched;
  event.ticket = recall.ticket;
  event.status = status;
  event.task = recall.options.task;
  event.critical = recall.options.critical;
  event.observed_ns = now_ - recall.submitted_ns;
  push_event(recall.agent, event);
}

void Node::Core::drop_overdue_recalls() noexcept {
  recalls_.for_each([&](Handle<Recall> handle, const Recall& recall) {
    if (!recall.ended && now_ >= recall.give_up_ns) end_recall(handle.index, Status{Code::timed_out});
  });
}

}  // namespace kvrail::engine
