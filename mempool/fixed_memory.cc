#include "mempool/fixed_memory.h"

#include <sys/mman.h>

#include <boost/interprocess/mem_algo/rbtree_best_fit.hpp>
#include <boost/interprocess/sync/mutex_family.hpp>
#include <cerrno>
#include <cstring>
#include <new>

#include "kvrail/base/bits.h"

namespace kvrail::mempool {
namespace {

namespace bip = boost::interprocess;

// No mutex: one owner thread. Raw pointers: nobody else maps the buffer. The algorithm object keeps
// its header at the start of the memory that it manages.
using Algorithm = bip::rbtree_best_fit<bip::null_mutex_family, void*>;

constexpr std::uint64_t kLeastBytes =
    64 * 1024;  // Room for the allocator's own header, and to spare.

}  // namespace

struct FixedMemory::Segment {
  Segment(void* buffer, std::uint64_t bytes) : memory(*new (buffer) Algorithm(bytes, 0)) {}
  ~Segment() { memory.~Algorithm(); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Algorithm& memory;
  std::uint64_t empty_bytes = 0;
};

Result<std::unique_ptr<FixedMemory>> FixedMemory::create(std::uint64_t bytes, bool touch) {
  if (bytes < kLeastBytes || bytes > (1ULL << 46)) {
    return Error{
        {Code::invalid_argument, Scope::engine},
        "table memory must have 64 KiB to 64 TiB, not " + std::to_string(bytes) + " bytes"};
  }
  const std::uint64_t rounded = *align_up(bytes, 4096);
  void* buffer = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (touch ? MAP_POPULATE : 0), -1, 0);
  if (buffer == MAP_FAILED) {
    return Error{
        {Code::out_of_memory, Scope::engine, errno},
        "no memory for tables of " + std::to_string(rounded) + " bytes; lower the table size"};
  }
  std::unique_ptr<FixedMemory> memory(new FixedMemory());
  memory->buffer_ = static_cast<std::byte*>(buffer);
  memory->bytes_ = rounded;
  memory->segment_ = std::make_unique<Segment>(buffer, rounded);
  memory->segment_->empty_bytes = memory->bytes_free();
  return memory;
}

FixedMemory::~FixedMemory() {
  segment_.reset();
  if (buffer_ != nullptr) {
    ::munmap(buffer_, bytes_);
  }
}

void* FixedMemory::try_allocate(std::uint64_t bytes, std::size_t alignment) noexcept {
  KVRAIL_ASSERT(is_power_of_two(alignment));
  if (bytes > bytes_) {
    return nullptr;  // Also keeps the allocator's own sums far from wrapping.
  }
  const std::size_t size = bytes == 0 ? 1 : bytes;
  return alignment <= alignof(std::max_align_t)
             ? segment_->memory.allocate(size)
             : segment_->memory.allocate_aligned(size, alignment);
}

void FixedMemory::give_back(void* pointer) noexcept {
  if (pointer == nullptr) {
    return;
  }
  const auto* address = static_cast<const std::byte*>(pointer);
  KVRAIL_ASSERT_MSG(address >= buffer_ && address < buffer_ + bytes_, "memory of another resource");
  segment_->memory.deallocate(pointer);
}

std::uint64_t FixedMemory::bytes_free() const noexcept {
  return segment_->memory.get_free_memory();
}

bool FixedMemory::consistent(bool expect_empty) noexcept {
  return segment_->memory.check_sanity() &&
         (!expect_empty || bytes_free() == segment_->empty_bytes);
}

void* FixedMemory::do_allocate(std::size_t bytes, std::size_t alignment) {
  void* pointer = try_allocate(bytes, alignment);
  KVRAIL_ASSERT_MSG(pointer != nullptr,
                    "table memory is exhausted: the budget check before it is wrong");
  return pointer;
}

void FixedMemory::do_deallocate(void* pointer, std::size_t /*bytes*/, std::size_t /*alignment*/) {
  give_back(pointer);
}

}  // namespace kvrail::mempool
