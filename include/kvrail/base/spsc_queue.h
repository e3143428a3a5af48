// The queue between two threads of one process: Boost's, with its capacity fixed at compile time so
// that nothing is allocated after construction. One thread pushes, one pops; push() returns false
// when it is full. Across a trust boundary use shared_ring.h instead.
#pragma once

#include <boost/lockfree/spsc_queue.hpp>
#include <cstddef>

namespace kvrail {

template <class T, std::size_t Capacity>
using SpscQueue = boost::lockfree::spsc_queue<T, boost::lockfree::capacity<Capacity>>;

}  // namespace kvrail
