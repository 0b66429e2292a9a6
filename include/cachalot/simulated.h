/**
 * @file cachalot/simulated.h
 * Simulated devices, for tests: they need neither a GPU nor a driver. The functions are declared
 * with CACHALOT_EXPERIMENTAL.
 */
#include "../cachalot.h" /* includes this header, too, after those that it needs */

#ifndef CACHALOT_SIMULATED_H
#define CACHALOT_SIMULATED_H

#ifdef __cplusplus
extern "C" {
#endif

/** A flag of cachalot_options: simulates devices. They make every decision, but have no memory. */
#define CACHALOT_SIMULATED 0x1u

#ifdef CACHALOT_EXPERIMENTAL
/** Completes the submitted work of a simulated device's stream. Without the call, work completes
 * only when the allocator waits for the stream.
 *   - Errors: INVALID_STREAM; UNSUPPORTED on CUDA devices. */
CACHALOT_API cachalot_status cachalot_simulate_progress(const cachalot_allocator *allocator, int device,
                                                        cachalot_stream stream);

/** Starts (not 0) or ends (0) the capture of a graph on a simulated device's stream.
 *   - Errors: INVALID_STREAM; UNSUPPORTED on CUDA devices. */
CACHALOT_API cachalot_status cachalot_simulate_capture(const cachalot_allocator *allocator, int device,
                                                       cachalot_stream stream, int on);
#endif

#ifdef __cplusplus
}
#endif

#endif
