/**
 * @file cachalot/streams.hpp
 * Several streams for one block, streams that end, and frees when the program's own numbered work
 * is done.
 */
#include "../cachalot.hpp" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_STREAMS_HPP
#define CACHALOT_STREAMS_HPP

namespace cachalot {

inline void allocator::free_at(void* data, std::uint64_t count) const {
  check(cachalot_free_at(get(), data, count));
}

inline void allocator::set_safe_frontier(int device, std::uint64_t count) const {
  check(cachalot_set_safe_frontier(get(), device, count));
}

inline void allocator::record_use(void* data, cachalot_stream stream) const {
  check(cachalot_record_use(get(), data, stream));
}

inline void allocator::stream_destroyed(int device, cachalot_stream stream) const {
  check(cachalot_stream_destroyed(get(), device, stream));
}

inline void allocator::stream_unreported(int device, cachalot_stream stream) const {
  check(cachalot_stream_unreported(get(), device, stream));
}

inline void allocator::trim_stream(int device, cachalot_stream stream, std::size_t keep_bytes) const {
  check(cachalot_stream_trim(get(), device, stream, keep_bytes));
}

}  // namespace cachalot

#endif
