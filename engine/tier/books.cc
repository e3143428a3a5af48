#include "engine/tier/books.h"

#include <utility>

#include "kvrail/base/assert.h"

namespace kvrail::engine::tier {
namespace {

constexpr std::uint64_t kLittleLeft = 4;  // a segment of which less than one in so many bytes is wanted goes first

}  // namespace

std::uint32_t Books::add_segment(SegmentFile file) noexcept {
  for (std::uint32_t at = 0; at < segments_.size(); ++at) {
    if (segments_[at].used()) continue;
    file_bytes_ += file.bytes;
    segments_[at] = Segment{};
    segments_[at].file = std::move(file);
    segments_[at].tail = kPageBytes;
    return at;
  }
  return kNone;
}

void Books::remove_segment(std::uint32_t at) noexcept {
  KVRAIL_ASSERT(segments_[at].used() && segments_[at].first == kNone && segments_[at].pins == 0);
  file_bytes_ -= segments_[at].file.bytes;
  segments_[at] = Segment{};
}

void Books::resize_segment(std::uint32_t at, std::uint64_t bytes) noexcept {
  file_bytes_ = file_bytes_ - segments_[at].file.bytes + bytes;
  segments_[at].file.bytes = bytes;
}

std::uint32_t Books::add(const Record& record) noexcept {
  const std::uint32_t at = records_.insert(record);
  if (at != kNone) link(at);
  return at;
}

void Books::remove(std::uint32_t at) noexcept {
  unlink(at);
  records_.erase(at);
}

void Books::move(std::uint32_t at, std::uint32_t segment, std::uint32_t page, std::uint64_t sequence) noexcept {
  unlink(at);
  Record& record = records_[at];
  record.segment = segment;
  record.page = page;
  record.sequence = sequence;
  record.read_since = false;
  link(at);
}

void Books::link(std::uint32_t at) noexcept {
  Record& record = records_[at];
  Segment& segment = segments_[record.segment];
  record.before = kNone;
  record.next = segment.first;
  if (segment.first != kNone) records_[segment.first].before = at;
  segment.first = at;
  segment.live_bytes += record_disk_bytes(record.stream_bytes);
}

void Books::unlink(std::uint32_t at) noexcept {
  Record& record = records_[at];
  Segment& segment = segments_[record.segment];
  (record.before == kNone ? segment.first : records_[record.before].next) = record.next;
  if (record.next != kNone) records_[record.next].before = record.before;
  segment.live_bytes -= record_disk_bytes(record.stream_bytes);
}

std::uint32_t Books::victim(std::uint32_t active) const noexcept {
  std::uint32_t oldest = kNone;
  std::uint32_t emptiest = kNone;
  for (std::uint32_t at = 0; at < segments_.size(); ++at) {
    const Segment& segment = segments_[at];
    if (!segment.used() || at == active || segment.leaving || segment.pins > 0) continue;
    if (oldest == kNone || segment.file.header.id < segments_[oldest].file.header.id) oldest = at;
    const bool little = segment.live_bytes * kLittleLeft < segment.file.bytes;
    if (little && (emptiest == kNone || segment.live_bytes < segments_[emptiest].live_bytes)) emptiest = at;
  }
  return emptiest != kNone ? emptiest : oldest;
}

std::uint32_t Books::next_sealed(std::uint64_t after_id) const noexcept {
  std::uint32_t best = kNone;
  std::uint32_t lowest = kNone;
  for (std::uint32_t at = 0; at < segments_.size(); ++at) {
    const Segment& segment = segments_[at];
    if (!segment.used() || !segment.sealed || segment.leaving) continue;
    const std::uint64_t id = segment.file.header.id;
    if (lowest == kNone || id < segments_[lowest].file.header.id) lowest = at;
    if (id > after_id && (best == kNone || id < segments_[best].file.header.id)) best = at;
  }
  return best != kNone ? best : lowest;
}

}  // namespace kvrail::engine::tier
