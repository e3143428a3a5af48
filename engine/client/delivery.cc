// Delivery: a context that was handed over, read from its manifest (engine/core/manifest.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/client/state.h"
#include "engine/core/manifest.h"
#include "kvrail/base/checked.h"

namespace kvrail {

using engine::ManifestBlock;
using engine::ManifestHeader;

static_assert(sizeof(ManifestBlock) == 24 && sizeof(ManifestHeader) % 8 == 0);

namespace {

constexpr double kPerMillion = 1e-6;
constexpr std::uint64_t kSmallBytes = 64 << 10;

ManifestBlock block_record(const std::byte* records, std::size_t index) noexcept {
  ManifestBlock block;
  std::memcpy(&block, records + index * sizeof(block), sizeof(block));
  return block;
}

}  // namespace

BlockView BlockList::operator[](std::size_t index) const noexcept {
  KVRAIL_ASSERT_MSG(index < size_, "a block that the delivery does not have");
  const ManifestBlock block = block_record(records_, index);
  BlockView view;
  view.data = {session_->held(block.arena, block.offset), block_bytes_};
  view.tokens = block.tokens;
  view.position = block.position;
  view.epsilon = block.epsilon_ppm * kPerMillion;
  return view;
}

Delivery::Delivery() noexcept = default;

// The moved-from object must not release as well; everything else may stay as it is.
Delivery::Delivery(Delivery&& other) noexcept { *this = std::move(other); }

Delivery& Delivery::operator=(Delivery&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  session_ = std::move(other.session_);
  other.session_.reset();
  claims_ = std::move(other.claims_);
  arenas_ = other.arenas_;
  arena_count_ = other.arena_count_;
  handle_ = std::exchange(other.handle_, 0);
  owner_ = other.owner_;
  context_ = other.context_;
  version_ = other.version_;
  layout_ = other.layout_;
  tokens_ = std::exchange(other.tokens_, {});
  blocks_ = std::exchange(other.blocks_, {});
  summary_ = std::exchange(other.summary_, {});
  positions_ = std::exchange(other.positions_, {});
  task_ = other.task_;
  transfer_ = other.transfer_;
  bytes_ = other.bytes_;
  missing_blocks_ = other.missing_blocks_;
  predicted_ns_ = other.predicted_ns_;
  observed_ns_ = other.observed_ns_;
  recompute_ns_ = other.recompute_ns_;
  epsilon_ = other.epsilon_;
  first_token_ = other.first_token_;
  medium_ = other.medium_;
  divided_ = other.divided_;
  summary_kind_ = other.summary_kind_;
  critical_ = other.critical_;
  return *this;
}

Delivery::~Delivery() { give_back(); }

void Delivery::give_back() noexcept {
  if (session_ == nullptr) return;
  // What is held back is little memory, and nobody's own pages: their agent may be leaving.
  bool may_wait = blocks_.size_ * blocks_.block_bytes_ + summary_.size() <= kSmallBytes && arena_count_ <= kArenas;
  if (arena_count_ > kArenas) {
    session_->let_go_all();
  } else {
    for (std::uint32_t i = 0; i < arena_count_; ++i) {
      may_wait = may_wait && !session_->is_lent(arenas_[i]);
      session_->let_go(arenas_[i]);
    }
  }
  if (handle_ != 0 && session_->alive().ok()) client::State::release(*session_, handle_, recompute_ns_, may_wait);
  session_.reset();
  arena_count_ = 0;
  handle_ = 0;
}

std::string_view Delivery::owner() const noexcept { return owner_.view(); }
std::string_view Delivery::context() const noexcept { return context_.view(); }
std::uint64_t Delivery::version() const noexcept { return version_; }

namespace client {
namespace {

constexpr Status kBadManifest{Code::protocol_error, Scope::transfer};

// header + blocks + tokens (or the summary) must lie in the manifest.
bool sizes_fit(const ManifestHeader& header, std::uint64_t bytes) noexcept {
  const auto blocks = checked_mul(header.block_count, sizeof(ManifestBlock));
  const auto tokens = checked_mul(header.token_count, sizeof(TokenId));
  const std::uint64_t positions = std::uint64_t{header.position_count} * sizeof(std::uint32_t);
  if (!blocks || !tokens || header.header_bytes < sizeof(ManifestHeader) || header.header_bytes % 8 != 0) return false;
  const std::uint64_t body = header.medium == Medium::summary ? header.summary_bytes : *blocks + *tokens + positions;
  return range_fits(header.header_bytes, body, bytes);
}

}  // namespace

Status State::read_manifest(const ipc::CompletionRecord& record, Delivery& out) {
  const Deadline deadline(kCallTimeout);
  if (record.manifest_bytes < sizeof(ManifestHeader)) return kBadManifest;
  const std::byte* base = session->at(record.arena, record.offset, record.manifest_bytes, deadline);
  if (base == nullptr) return session->alive().ok() ? kBadManifest : session->alive();
  ManifestHeader header;
  std::memcpy(&header, base, sizeof(header));
  if (header.magic != engine::kManifestMagic || !sizes_fit(header, record.manifest_bytes)) return kBadManifest;
  out.owner_ = header.owner;
  out.context_ = header.context;
  out.version_ = header.version;
  out.layout_ = header.layout;
  out.epsilon_ = header.epsilon_ppm * kPerMillion;
  out.first_token_ = header.first_token;
  out.medium_ = header.medium;
  const std::byte* body = base + header.header_bytes;
  if (header.medium == Medium::summary) {
    out.summary_kind_ = header.summary_kind;
    out.summary_ = {body, header.summary_bytes};
    return {};
  }
  out.blocks_.session_ = session.get();
  out.blocks_.records_ = body;
  out.blocks_.size_ = header.block_count;
  out.blocks_.block_bytes_ = header.layout.block_bytes();
  const std::byte* tokens = body + std::size_t{header.block_count} * sizeof(ManifestBlock);
  out.tokens_ = {reinterpret_cast<const TokenId*>(tokens), header.token_count};
  const std::byte* positions = tokens + out.tokens_.size_bytes();
  out.positions_ = {reinterpret_cast<const std::uint32_t*>(positions), header.position_count};
  return {};
}

// Maps every arena that a block lies in, and keeps it mapped as long as the delivery lives.
Status State::hold_blocks(Delivery& out, const Deadline& deadline) {
  std::uint32_t last = 0;
  bool any = false;
  MappedRange range;  // around the block before: a delivery of many blocks should not cost a search for each
  for (std::size_t i = 0; i < out.blocks_.size_; ++i) {
    const ManifestBlock block = block_record(out.blocks_.records_, i);
    if (range.holds(block.arena, block.offset, out.blocks_.block_bytes_)) continue;
    if (session->at(block.arena, block.offset, out.blocks_.block_bytes_, deadline) == nullptr) {
      return session->alive().ok() ? kBadManifest : session->alive();
    }
    range = session->range_around(block.arena, block.offset);
    if (any && block.arena == last) continue;
    any = true;
    last = block.arena;
    const auto known = out.arenas_.begin() + std::min<std::size_t>(out.arena_count_, Delivery::kArenas);
    if (out.arena_count_ > Delivery::kArenas || std::find(out.arenas_.begin(), known, last) != known) continue;
    if (out.arena_count_ < Delivery::kArenas) {
      out.arenas_[out.arena_count_++] = last;
      session->hold(last);
      continue;
    }
    session->hold_all();
    for (const std::uint32_t arena : out.arenas_) session->let_go(arena);
    ++out.arena_count_;
  }
  return {};
}

Result<Delivery> State::open(const ipc::CompletionRecord& record) {
  Delivery delivery;
  delivery.session_ = session;
  delivery.handle_ = record.delivery;
  const Status read = read_manifest(record, delivery);
  if (!read.ok()) return error_of(read, "a delivery cannot be read");
  const Status held = hold_blocks(delivery, Deadline(kCallTimeout));
  if (!held.ok()) return error_of(held, "the blocks of a delivery cannot be mapped");
  delivery.medium_ = static_cast<Medium>(record.medium);
  delivery.divided_ = delivery.medium_ == Medium::split;
  delivery.critical_ = (record.flags & ipc::kCompletionCritical) != 0;
  delivery.task_ = Task{record.task};
  delivery.transfer_ = record.transfer;
  delivery.bytes_ = record.bytes;
  delivery.missing_blocks_ = record.missing_blocks;
  delivery.predicted_ns_ = record.predicted_ns;
  delivery.observed_ns_ = record.observed_ns;
  return delivery;
}

}  // namespace client
}  // namespace kvrail
