//! The host of an allocator: threads, pauses and the clock, routes, and reports to the program.

use crate::device::explanation::Explanation;
use crate::device::forwarder::{Forwarder, device_trait};
use crate::device::oom::OutOfMemory;
use crate::pool::PoolId;
use crate::trace::{CallSite, TraceEntry};
use crate::units::{DevicePtr, StreamId};

device_trait! {
    /// The host of an allocator: threads and time, routes that the host decides, and reports to the
    /// program.
    pub trait Host: Send + Sync;

    /// Forwards [`Host`], except for the methods that the implementation defines.
    pub trait ForwardHost, to Forwarder::inner;

    /// Returns the number of the calling thread, for [`Route::Thread`](crate::pool::Route::Thread).
    fn thread_id(&self) -> u64 = 0;

    /// Sleeps for about `us` microseconds, while the allocator waits for other threads to free
    /// memory. Returns false if the host cannot sleep, or wants the wait to end.
    fn pause(&self, us: u64) -> bool = false;

    /// Returns the device's clock, in any unit. The trace stores these ticks and converts them when
    /// it is read, so choose the unit that is cheapest to read, such as the processor's time-stamp
    /// counter.
    ///
    /// Each call must return at least two more than the previous one. Return 0 if there is no
    /// clock; events are then numbered. This is called for every traced event, under a heap's lock,
    /// and before and after each virtual memory call. It must not block, and must not call the
    /// allocator.
    fn ticks(&self) -> u64 = 0;

    /// Converts a result of [`ticks`](Self::ticks) to microseconds since the Unix epoch. Returns 0
    /// if there is no clock.
    fn time_us(&self, ticks: u64) -> u64 = 0;

    /// Returns whether the [`Route::Host`](crate::pool::Route::Host) with the number `route` leads
    /// requests on `stream` to the route's pool.
    ///
    /// This is called without a lock at each request while the route is active, and possibly once
    /// more just after the route has ended, when it must return false. It must not call the
    /// allocator.
    fn leads(&self, route: u64, stream: StreamId) -> bool = false;

    /// Lets the program free memory, because no free block can serve a request of `bytes`. This is
    /// called before memory is allocated from the device. Returns true if the program freed
    /// anything. It may call the allocator.
    fn on_shortage(&self, bytes: u64) -> bool = false;

    /// Reports to the program that a request is about to fail. It may call the allocator.
    fn on_out_of_memory(&self, report: &OutOfMemory);

    /// Reports to the program that the device has no virtual memory, so the stitched policy places
    /// blocks as the caching policy does. This is called once, at the first request, with no lock
    /// held.
    fn on_missing_virtual_memory(&self);

    /// Tells the program that a page of virtual memory is mapped and accessible from `at` on. This
    /// is called before any address of the page is handed out, and before parked blocks on the page
    /// wake. A page that is being moved may be mapped at two places.
    ///
    /// This is called without a lock, on the thread that maps: during a request, upkeep, or a wake.
    /// It may call the allocator.
    fn on_map(&self, at: DevicePtr, bytes: u64);

    /// Tells the program that a page announced by [`on_map`](Self::on_map) is about to be unmapped:
    /// the `bytes` from `at` on. No work uses the addresses, and no block is on the page, except
    /// blocks that are about to be parked. If the device then fails to unmap the page, the
    /// addresses are never used again. There is one exception: a page that a failed park or wake
    /// leaves mapped remains in use, and `on_map` announces it once more.
    ///
    /// This is called in the same way as [`on_map`](Self::on_map).
    fn on_unmap(&self, at: DevicePtr, bytes: u64);

    /// Tells the host about an event as it happens, while the events of the device are
    /// [reported](crate::Tracing::report). `pool` is the pool of the block or segment. The
    /// time of `entry` is 0.
    ///
    /// This is called under a heap's lock, on the thread that causes the event. It must not block,
    /// and must not call the allocator.
    fn on_event(&self, entry: &TraceEntry, pool: PoolId);

    /// Tells the program that bytes after the end of a block were overwritten (`canary`). The
    /// address in `block` is that of the first such byte. This is called at the end of the block's
    /// free, with no lock held. It must not call the allocator.
    fn on_damage(&self, block: &Explanation);

    /// Returns a number for the place in the program at which the calling thread is, for the trace;
    /// 0 if there is none. The host assigns these numbers and resolves them.
    ///
    /// This is called without a lock while a trace is recorded, once for each request and each
    /// free. It may call the allocator, if those calls are not traced through this method again.
    fn call_site(&self, site: CallSite) -> u32 = 0;
}
