// Blocks: slots that the agent writes; where they come from.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/client/state.h"
#include "kvrail/base/checked.h"

namespace kvrail {

Blocks::Blocks() noexcept = default;

Blocks::Blocks(Blocks&& other) noexcept
    : session_(std::move(other.session_)),
      runs_(std::move(other.runs_)),
      size_(std::exchange(other.size_, 0)),
      committed_(std::exchange(other.committed_, 0)),
      claim_(std::exchange(other.claim_, 0)),
      copied_bytes_(std::exchange(other.copied_bytes_, 0)),
      first_block_(std::exchange(other.first_block_, 0)) {
  other.runs_.clear();
}

Blocks& Blocks::operator=(Blocks&& other) noexcept {
  if (this != &other) {
    give_back();
    session_ = std::move(other.session_);
    runs_ = std::move(other.runs_);
    other.runs_.clear();
    size_ = std::exchange(other.size_, 0);
    committed_ = std::exchange(other.committed_, 0);
    claim_ = std::exchange(other.claim_, 0);
    copied_bytes_ = std::exchange(other.copied_bytes_, 0);
    first_block_ = std::exchange(other.first_block_, 0);
  }
  return *this;
}

Blocks::~Blocks() { give_back(); }

void Blocks::give_back() noexcept {
  if (session_ != nullptr && session_->alive().ok()) {
    const std::uint64_t block_bytes = session_->layout().block_bytes();
    // The engine keeps what a version holds; which of the slots that is, only it knows.
    for (const Run& run : runs_) {
      session_->claims().for_each_run(
          run.arena, run.offset / block_bytes, run.count, claim_, [&](std::uint64_t first, std::uint64_t count) {
            client::State::free_run(*session_, run.arena, first * block_bytes, static_cast<std::uint32_t>(count));
          });
    }
  }
  session_.reset();
  runs_.clear();
  size_ = committed_ = 0;
}

std::size_t Blocks::size() const noexcept { return size_; }

std::span<std::byte> Blocks::slot(std::size_t index) const noexcept {
  KVRAIL_ASSERT_MSG(index < size_, "a slot that these blocks do not have");
  const std::uint64_t block_bytes = session_->layout().block_bytes();
  for (const Run& run : runs_) {
    if (index < run.count) return {run.base + index * block_bytes, block_bytes};
    index -= run.count;
  }
  KVRAIL_UNREACHABLE();
}

std::span<std::byte> Blocks::row(std::size_t index, std::uint32_t layer, std::uint32_t kv,
                                 std::uint32_t token) const noexcept {
  const std::span<std::byte> bytes = slot(index);
  const Layout& layout = session_->layout();
  KVRAIL_ASSERT(layer < layout.layers && kv < 2 && token < layout.block_tokens);
  return bytes.subspan(layout.row_offset(layer, kv, token), layout.row_bytes());
}

void Blocks::append(Blocks&& more) {
  if (more.size_ == 0) return;
  if (size_ == 0) {
    const std::uint32_t first_block = first_block_;
    *this = std::move(more);
    first_block_ = first_block;
    return;
  }
  KVRAIL_ASSERT_MSG(session_ == more.session_, "blocks of two attachments");
  KVRAIL_ASSERT_MSG(more.committed_ == 0, "blocks that a version holds belong to one context");
  for (Run& run : more.runs_) {
    const std::uint64_t block_bytes = session_->layout().block_bytes();
    session_->claims().take(run.arena, run.offset / block_bytes, run.count, claim_);
    Run& last = runs_.back();
    const std::uint64_t last_bytes = std::uint64_t{last.count} * block_bytes;
    if (last.arena == run.arena && last.offset + last_bytes == run.offset && last.base + last_bytes == run.base) {
      last.count += run.count;
    } else {
      runs_.push_back(run);
    }
  }
  size_ += more.size_;
  copied_bytes_ += more.copied_bytes_;
  more.runs_.clear();
  more.session_.reset();
  more.size_ = 0;
  more.copied_bytes_ = 0;
}

namespace client {

Result<Blocks> State::blocks_of(std::uint32_t arena, std::uint32_t count, std::uint64_t offset,
                                const Deadline& deadline) {
  const std::uint64_t bytes = std::uint64_t{count} * session->layout().block_bytes();
  std::byte* base = session->at(arena, offset, bytes, deadline);
  if (base == nullptr) {
    free_run(*session, arena, offset, count);
    return Error{{Code::protocol_error, Scope::engine}, "the engine gave blocks that lie in no arena of this agent"};
  }
  Blocks blocks;
  blocks.session_ = session;
  blocks.runs_.push_back({arena, count, offset, base});
  blocks.size_ = count;
  blocks.claim_ = session->claims().next();
  session->claims().take(arena, offset / session->layout().block_bytes(), count, blocks.claim_);
  return blocks;
}

Result<Blocks> State::allocate(std::uint64_t count, const Deadline& deadline) {
  const std::optional<std::uint32_t> narrow = checked_narrow<std::uint32_t>(count);
  if (!narrow || *narrow == 0) return Error{{Code::invalid_argument}, "a number of blocks must be at least 1"};
  ipc::SubmitRecord record;
  record.command = ipc::Command::allocate;
  record.count = *narrow;
  Result<ipc::CompletionRecord> reply = call(record, {}, deadline, "cannot allocate blocks");
  if (!reply.ok() && reply.status().scope != Scope::engine) {
    const std::uint64_t all = session->attachment().arena.bytes / session->layout().block_bytes();
    return Error{reply.status(), "cannot allocate " + std::to_string(count) + " blocks (" + name(reply.status().code) +
                                     "): the agent's arena has " + std::to_string(all) +
                                     "; free some, or attach with more arena_bytes"};
  }
  if (!reply.ok()) return std::move(reply).error();
  return blocks_of(reply->arena, reply->count, reply->offset, deadline);
}

Result<Blocks> State::copy_pages(std::span<const std::byte> pages, const Deadline& deadline) {
  const std::uint64_t block_bytes = session->layout().block_bytes();
  Result<Blocks> blocks = allocate(pages.size() / block_bytes, deadline);
  if (!blocks.ok()) return blocks;
  for (std::size_t i = 0; i < blocks->size(); ++i) {
    std::memcpy(blocks->slot(i).data(), pages.data() + i * block_bytes, block_bytes);
  }
  blocks->copied_bytes_ = pages.size();
  count_copied(pages.size());
  return blocks;
}

Result<Blocks> State::copy_fd(const ImportSource& source, const Deadline& deadline) {
  Result<Blocks> blocks = allocate(source.bytes / session->layout().block_bytes(), deadline);
  if (!blocks.ok()) return blocks;
  std::uint64_t at = source.offset;
  for (std::size_t i = 0; i < blocks->size(); ++i) {
    std::span<std::byte> left = blocks->slot(i);
    while (!left.empty()) {
      const ssize_t got = ::pread(source.fd, left.data(), left.size(), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return Error{{Code::io_error, Scope::transfer, got < 0 ? errno : 0}, "the memory to import ends early"};
      left = left.subspan(static_cast<std::size_t>(got));
      at += static_cast<std::uint64_t>(got);
    }
  }
  blocks->copied_bytes_ = source.bytes;
  count_copied(source.bytes);
  return blocks;
}

}  // namespace client
}  // namespace kvrail
