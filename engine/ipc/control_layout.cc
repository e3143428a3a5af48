#include "engine/ipc/control_layout.h"

#include <new>

#include "kvrail/base/checked.h"

namespace kvrail::engine::ipc {
namespace {

std::uint32_t ring_bytes(std::uint32_t capacity, std::size_t record_bytes) noexcept {
  return static_cast<std::uint32_t>(RingMemory::required_bytes(capacity, record_bytes));
}

bool part_fits(std::uint32_t offset, std::uint64_t bytes, std::uint32_t total) noexcept {
  return is_aligned(offset, kRingLineBytes) && range_fits(offset, bytes, total);
}

}  // namespace

ControlLayout control_layout(std::uint32_t submit_capacity, std::uint32_t completion_capacity,
                             std::uint32_t scratch_bytes) noexcept {
  KVRAIL_ASSERT(scratch_bytes <= kMaxScratchBytes);
  ControlLayout layout;
  std::uint32_t at = 0;
  const auto place = [&at](std::uint64_t bytes) noexcept {
    const std::uint32_t offset = at;
    at += static_cast<std::uint32_t>(align_up(bytes, kRingLineBytes).value());
    return offset;
  };
  layout.shared_offset = place(sizeof(SharedWords));
  layout.probe_offset = place(sizeof(ProbeRecord));
  layout.submit_capacity = submit_capacity;
  layout.submit_offset = place(ring_bytes(submit_capacity, sizeof(SubmitRecord)));
  layout.completion_capacity = completion_capacity;
  layout.completion_offset = place(ring_bytes(completion_capacity, sizeof(CompletionRecord)));
  layout.scratch_bytes = scratch_bytes;
  layout.scratch_offset = place(scratch_bytes);
  layout.bytes = at;
  KVRAIL_ASSERT(sound(layout));
  return layout;
}

bool sound(const ControlLayout& layout) noexcept {
  constexpr std::uint32_t kMostSlots = 1U << 16;
  if (!is_power_of_two(layout.submit_capacity) || layout.submit_capacity > kMostSlots ||
      !is_power_of_two(layout.completion_capacity) || layout.completion_capacity > kMostSlots) {
    return false;
  }
  return part_fits(layout.shared_offset, sizeof(SharedWords), layout.bytes) &&
         part_fits(layout.probe_offset, sizeof(ProbeRecord), layout.bytes) &&
         part_fits(layout.submit_offset, ring_bytes(layout.submit_capacity, sizeof(SubmitRecord)), layout.bytes) &&
         part_fits(layout.completion_offset, ring_bytes(layout.completion_capacity, sizeof(CompletionRecord)),
                   layout.bytes) &&
         part_fits(layout.scratch_offset, layout.scratch_bytes, layout.bytes);
}

ControlView view_control(std::byte* base, const ControlLayout& layout) noexcept {
  KVRAIL_ASSERT(base != nullptr && sound(layout));
  ControlView view;
  view.submit = {base + layout.submit_offset, ring_bytes(layout.submit_capacity, sizeof(SubmitRecord))};
  view.completion = {base + layout.completion_offset,
                     ring_bytes(layout.completion_capacity, sizeof(CompletionRecord))};
  view.scratch = {base + layout.scratch_offset, layout.scratch_bytes};
  view.shared = std::launder(reinterpret_cast<SharedWords*>(base + layout.shared_offset));
  view.probe = std::launder(reinterpret_cast<ProbeRecord*>(base + layout.probe_offset));
  return view;
}

}  // namespace kvrail::engine::ipc
