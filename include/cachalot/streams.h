/**
 * @file cachalot/streams.h
 * Several streams for one block, streams that end, and frees when the program's own numbered work
 * is done.
 *
 * Streams that end
 *   - A stream may be destroyed without a report. A driver crashes on the handle of a destroyed
 *     stream, so the library uses the handle of a created stream only in calls that name the
 *     stream. These calls record an event for what the library must know later. Where it has no
 *     such event, the library waits for all work of the device. Default streams always exist.
 *   - The driver reuses the handles of destroyed streams. A new stream with an old handle may
 *     receive the old stream's cached memory. So call cachalot_stream_destroyed before
 *     cudaStreamDestroy, or destroy a stream only once its work is done, or create the allocator
 *     with CACHALOT_ASK_STREAM_ID (about 30 ns for each call; driver for CUDA 12.0 or later). Every
 *     function with a stream then calls the driver, and fails with its status if the stream is not
 *     identified. A thread that used cudaStreamPerThread calls cachalot_stream_destroyed for this
 *     stream before the thread ends.
 *   - With CACHALOT_STREAMS_REPORTED the program promises to report every end of a stream: the
 *     library then waits for single streams, and orders one stream after another. A stream that
 *     ends without a report then crashes the process, unless cachalot_stream_unreported announced
 *     it.
 *   - Memory cached for a stream that ended without a report is released when memory is short, and
 *     by cachalot_empty_cache. It is also released when more than 64 streams have memory and the
 *     stream made no request while the number of streams grew by half.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_STREAMS_H
#define CACHALOT_STREAMS_H

#ifdef __cplusplus
extern "C" {
#endif

/** Announces that the work submitted to `stream` so far uses the block. With
 * cachalot_record_stream, work submitted up to the free may count, too; here, work submitted to
 * `stream` after the call does not delay the reuse of the block. If no other cached block fits a
 * request, the request may take the block before that work is done: the block's stream is then
 * ordered after it, as by cudaStreamWaitEvent, and the calling thread does not wait. If
 * cachalot_record_stream announced a use of the block as well, all its uses last until the free.
 * For the block's own stream, and for a NULL block, the call does nothing. A driver makes 4,096
 * events for this in a process, including those that the program makes for other processes. When
 * they are used up, the uses of one stream share an event, so that later work of the stream may
 * delay a reuse. If there is no event at all, the block serves no request until the use is
 * complete. cachalot_empty_cache gives idle events back.
 *   - Driver: records an event. While a graph is captured, the use lasts until the free.
 *   - Errors: INVALID_POINTER, INVALID_STREAM, TABLE_FULL, and those of the driver. */
CACHALOT_API cachalot_status cachalot_record_use(const cachalot_allocator *allocator, void *block,
                                                 cachalot_stream stream);

/** Announces the end of a stream of `device`. Call it before cudaStreamDestroy; the stream's work
 * may be unfinished. Cached memory of the stream, on every device, returns to the driver. Blocks of
 * the stream remain valid, and are freed as usual; their memory returns to the driver before a
 * later request allocates a segment. Captures that were started for the stream
 * (CACHALOT_ROUTE_STREAM) end. For cudaStreamPerThread, the call announces the end of the calling
 * thread. A thread that continues may use its stream again. After CACHALOT_OK the stream has ended
 * for the library, even if the driver fails to release memory: a later request tries again. After
 * an error it has not ended.
 *   - Driver: yes.
 *   - Errors: INVALID_STREAM, also for the legacy default stream, which never ends; TABLE_FULL;
 *     those of the driver. */
CACHALOT_API cachalot_status cachalot_stream_destroyed(const cachalot_allocator *allocator, int device,
                                                       cachalot_stream stream);

/** Tells an allocator with CACHALOT_STREAMS_REPORTED that a stream may end without a report,
 * because another library made it. Streams with this handle are then treated as without the flag:
 * see above. Call it before the first request on the stream; repeated calls only cost a table
 * look-up.
 *   - Driver: no.
 *   - Errors: INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_stream_unreported(const cachalot_allocator *allocator, int device,
                                                        cachalot_stream stream);

/** Releases free memory of a stream, in the default pool and in private pools without users, until
 * the stream holds at most `keep_bytes` there or has none. Other streams keep their caches. Does not
 * wait for pending frees. A stream without memory has nothing to release.
 *   - Driver: yes.
 *   - Errors: INVALID_STREAM, TABLE_FULL. */
CACHALOT_API cachalot_status cachalot_stream_trim(const cachalot_allocator *allocator, int device,
                                                  cachalot_stream stream, size_t keep_bytes);

/** Frees a block once the safe frontier of its device has reached `count`. For programs that number
 * their work 1, 2, 3 … and do not order it by streams: a block that work 7 uses last is freed at 7.
 * Until cachalot_set_safe_frontier declares 7 or a later number as done, the block is pending, and
 * neither a shortage of memory nor cachalot_empty_cache makes it available earlier. The block also
 * waits for streams of cachalot_record_stream and cachalot_record_use, as with cachalot_free. If
 * that number is already declared as done, the call does the same as cachalot_free. For a NULL
 * block, it does nothing.
 *   - Driver, errors: as cachalot_free. */
CACHALOT_API cachalot_status cachalot_free_at(const cachalot_allocator *allocator, void *block, uint64_t count);

/** Declares all work of a device numbered up to `count` as done, and frees the blocks that wait for
 * these numbers: see cachalot_free_at. The frontier of a device starts at 0 and never goes back: a
 * lower number changes nothing.
 *   - Driver: only if caching is off, to release memory.
 *   - Errors: UNKNOWN_DEVICE. */
CACHALOT_API cachalot_status cachalot_set_safe_frontier(const cachalot_allocator *allocator, int device,
                                                        uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
