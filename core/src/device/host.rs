//! A device as the host of an allocator: threads, pauses and the clock, routes, and calls of the
//! program.

use crate::device::explanation::Explanation;
use crate::device::forwarder::{Forwarder, device_trait};
use crate::device::oom::OutOfMemory;
use crate::pool::PoolId;
use crate::trace::{CallSite, TraceEntry};
use crate::units::{DevicePtr, StreamId};

device_trait! {
    /// The host of an allocator: threads and time, routes decided by the host, and reports to the
    /// program.
    pub trait Host: Send + Sync;

    /// Forwards [`Host`], except for the methods written in the implementation.
    pub trait ForwardHost, to Forwarder::inner;

    /// Returns the number of the calling thread, for [`Route::Thread`](crate::pool::Route::Thread).
    fn thread_id(&self) -> u64 = 0;

    /// Sleeps for about `us` microseconds, while the allocator waits for other threads to free
    /// memory. Returns false if the host cannot sleep, or wants to stop waiting.
    fn pause(&self, us: u64) -> bool = false;

    /// Returns the device's clock, in any unit. The trace stores ticks and converts them on
    /// reading, so choose the unit that is cheapest to read, such as the processor's time-stamp
    /// counter.
    ///
    /// Each call must return at least two more than the call before. Return 0 without a clock;
    /// events are then numbered. Called for every traced event, under a heap's lock, and before and
    /// after each call of virtual memory: must not block, and must not call the allocator.
    fn ticks(&self) -> u64 = 0;

    /// Converts the result of [`ticks`](Self::ticks) to microseconds since the Unix epoch. Returns
    /// 0 without a clock.
    fn time_us(&self, ticks: u64) -> u64 = 0;

    /// Returns whether the [`Route::Host`](crate::pool::Route::Host) with the number `route` leads
    /// requests on `stream` into the route's pool.
    ///
    /// Called without a lock at each request while the route is active, and possibly once more
    /// just after the route has ended; the answer is then false. Must not call the allocator.
    fn leads(&self, route: u64, stream: StreamId) -> bool = false;

    /// Lets the program free memory, because no free block can serve a request of `bytes`. Called
    /// before memory is allocated from the device. Returns true if the program freed anything. May
    /// call the allocator.
    fn on_shortage(&self, bytes: u64) -> bool = false;

    /// Reports to the program that a request is about to fail. May call the allocator.
    fn on_out_of_memory(&self, report: &OutOfMemory);

    /// Reports to the program that the device has no virtual memory, so the stitched policy places
    /// blocks as the caching policy does. Called once, at the first request, with no lock held.
    fn on_missing_virtual_memory(&self);

    /// Tells the program of a page of virtual memory, mapped and accessible from `at` on. Called
    /// before any address of the page is handed out, and before parked blocks on the page wake. A
    /// moving page may be mapped at two places.
    ///
    /// Called without a lock, on the thread of the mapping call: a request, upkeep, or a wake. May
    /// call the allocator.
    fn on_map(&self, at: DevicePtr, bytes: u64);

    /// Tells the program that a page, announced by [`on_map`](Self::on_map), is about to be
    /// unmapped: the `bytes` from `at` on. No work uses the addresses, and no block lies on the
    /// page, except for blocks about to be parked. If the device then fails to unmap the page, the
    /// addresses are never used again. Exception: a page left mapped by a failed park or wake stays
    /// in use, and `on_map` announces the page once more.
    ///
    /// Called as [`on_map`](Self::on_map) is.
    fn on_unmap(&self, at: DevicePtr, bytes: u64);

    /// Tells the host of an event as it happens, while the events of the device are
    /// [reported](crate::Allocator::report_events). `pool` is the pool of the block or segment. The
    /// time of `entry` is 0.
    ///
    /// Called on the thread whose call causes the event, under a heap's lock: must not block, and
    /// must not call the allocator.
    fn on_event(&self, entry: &TraceEntry, pool: PoolId);

    /// Tells the program that bytes behind the end of a block were overwritten (`canary`): the
    /// address of `block` is that of the first one. Called at the end of the block's free, with no
    /// lock held. Must not call the allocator.
    fn on_damage(&self, block: &Explanation);

    /// Returns the number of the calling thread's place in the program, for the trace; 0 for a
    /// thread without a place. The host assigns the numbers and resolves the numbers.
    ///
    /// Called without a lock while a trace is recorded, once for each request and each free. May
    /// call the allocator, if those calls are not traced through this method again.
    fn call_site(&self, site: CallSite) -> u32 = 0;
}
