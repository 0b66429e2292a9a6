//! The traits implemented by a host for the allocator: [`DeviceMemory`] for segments and stream order,
//! [`VirtualMemory`] for devices with virtual memory, and [`Contents`] for the contents of parked memory.
//!
//! An implementation stands for **one** device. Any thread may call any method, several threads at
//! once. The allocator calls them without holding a lock that another stream's fast path needs, so
//! the methods may block. A failed call must have changed nothing, or document the state it left.

mod contents;
mod error;
pub(crate) mod oom;
#[cfg(feature = "alloc")]
pub(crate) mod rehearsal;
#[cfg(feature = "alloc")]
pub mod simulated;
mod types;
#[cfg(feature = "paranoid")]
mod unlocked;

pub use contents::{Contents, CopyMark, Saved};
pub use error::{DeviceError, DeviceResult, ErrorKind};
pub use types::{CaptureMark, Descriptor, Event, MemoryInfo, PhysicalHandle};
#[cfg(feature = "paranoid")]
pub(crate) use unlocked::Unlocked;

use crate::device::oom::OutOfMemory;
use crate::pool::PoolId;
use crate::trace::{CallSite, TraceEntry};
use crate::units::{DevicePtr, StreamId};

/// A device: allocates segments, and tells when its streams have finished their work.
pub trait DeviceMemory: Send + Sync + 'static {
    /// Allocates a segment of exactly `bytes`, at an address that is a multiple of 512.
    ///
    /// `bytes` is a positive multiple of 512; under best fit with coalescing, of 256.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly lacks the memory. The allocator then
    /// releases cached memory and retries. After other errors the request fails at once.
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr>;

    /// Releases a whole segment that [`obtain`](Self::obtain) returned. May wait for the device.
    ///
    /// # Errors
    /// Any error leaves the segment in doubt: the allocator counts it as leaked and never uses it
    /// again.
    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Returns the device's total memory, and the memory that is free, counting every process.
    ///
    /// # Errors
    /// Any error of the device.
    fn memory_info(&self) -> DeviceResult<MemoryInfo>;

    /// Creates an event. The allocator records an event many times before destroying it.
    ///
    /// # Errors
    /// Any error of the device.
    fn create_event(&self) -> DeviceResult<Event>;

    /// Destroys an event. Streams may still be ordered behind it.
    ///
    /// # Errors
    /// Any error of the device.
    fn destroy_event(&self, event: Event) -> DeviceResult<()>;

    /// Records `event` at the present end of `stream`.
    ///
    /// # Errors
    /// Any error of the device. The event then counts as unrecorded, and never as complete.
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()>;

    /// Records `event` behind the work of `stream` with blocks that the program has announced
    /// ([`record_stream`](crate::Allocator::record_stream)). The stream may have ended, with or without a
    /// [report](Self::reports_end).
    ///
    /// The provided method records behind all work of the stream.
    ///
    /// # Errors
    /// Those of [`record`](Self::record).
    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.record(event, stream)
    }

    /// Returns whether all work before `event` on its stream is done. Does not block.
    ///
    /// # Errors
    /// Any answer other than yes and no. The event then does not count as complete.
    fn is_complete(&self, event: Event) -> DeviceResult<bool>;

    /// Blocks the calling thread until `event` is complete.
    ///
    /// # Errors
    /// Those of [`is_complete`](Self::is_complete).
    fn wait(&self, event: Event) -> DeviceResult<()>;

    /// Makes the work that is queued on `stream` from now on wait for `event`, which is recorded.
    /// The event may be recorded again or destroyed right afterwards.
    ///
    /// Does not block the calling thread where the device can order streams. The provided method
    /// blocks until the event is complete.
    ///
    /// # Errors
    /// Any error of the device. The order then does not count as established.
    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        let _ = stream;
        self.wait(event)
    }

    /// Returns whether [`order_behind`](Self::order_behind) makes the work of `stream` wait, and not the
    /// host. Where the host would wait, a request obtains memory in preference. Calls no device.
    fn can_order(&self, stream: StreamId) -> bool {
        let _ = stream;
        true
    }

    /// Returns whether the allocator is told of the end of `stream`
    /// ([`stream_destroyed`](crate::Allocator::stream_destroyed)) before the stream goes. If not, the stream may
    /// have gone at any moment but during a call that names it, and no other call uses the stream, except for
    /// [`record_announced`](Self::record_announced) and [`synchronize`](Self::synchronize). Calls no device.
    fn reports_end(&self, stream: StreamId) -> bool {
        let _ = stream;
        true
    }

    /// Blocks the calling thread until all work queued on `stream` so far is done.
    ///
    /// # Errors
    /// Any error of the device.
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()>;

    /// Blocks the calling thread until all work queued so far on every stream of the device's context is
    /// done. Work queued by other threads during the call is not waited for where the device can tell it apart.
    ///
    /// Not called while the allocator knows of a capture. The provided method refuses.
    ///
    /// # Errors
    /// Any error of the device; [`ErrorKind::NotPermittedInCapture`] if a stream captures.
    fn synchronize_all(&self) -> DeviceResult<()> {
        Err(DeviceError::new(ErrorKind::Unsupported, 0))
    }

    /// Returns whether `stream` is capturing a graph. An event recorded on a capturing stream
    /// becomes part of the graph, and could not be waited for.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool>;

    /// Returns whether all work queued on `stream` is complete. Returns `None` if the device cannot tell without an
    /// event, or if the stream captures a graph.
    ///
    /// The provided method is for a device without an answer.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        let _ = stream;
        Ok(None)
    }

    /// Marks the work that `stream` has captured so far: with a new mark, or with `mark`, which then marks the
    /// work of several streams. Returns `None` if the stream captures no graph, or another one than the streams of
    /// `mark`; `mark` is removed then, as on an error.
    ///
    /// The provided method is for a device that cannot look into a graph being captured.
    ///
    /// # Errors
    /// Any error of the device.
    fn mark_capture(&self, stream: StreamId, mark: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> {
        let _ = (stream, mark);
        Ok(None)
    }

    /// Returns whether all that `stream` captures from now on comes behind the work of `mark` in the
    /// graph. False if `stream` captures no graph or another one, and if no work was captured at the mark.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> DeviceResult<bool> {
        let _ = (stream, mark);
        Ok(false)
    }

    /// Removes a mark.
    fn remove_mark(&self, mark: CaptureMark) {
        let _ = mark;
    }

    /// Returns the device's virtual memory, if any. Without it, segments are never expandable, and the
    /// stitched policy places blocks as the caching policy does.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// Returns the host's memory for the contents of parked memory, if any. Without it, memory is parked
    /// only without its contents.
    fn contents(&self) -> Option<&dyn Contents> {
        None
    }

    /// Returns the bytes of the device in use by this process, by all libraries together. `None` if
    /// the device cannot tell. Appears in out-of-memory reports.
    fn process_use(&self) -> Option<u64> {
        None
    }

    /// Returns the number of the calling thread, for [`Route::Thread`](crate::pool::Route::Thread).
    fn thread_id(&self) -> u64 {
        0
    }

    /// Returns whether the [`Route::Host`](crate::pool::Route::Host) with the number `route` leads
    /// requests on `stream` into its pool.
    ///
    /// Called without a lock at each request while the route is in force, and possibly once more
    /// just after the route has ended; the answer is then false. Must not call the allocator.
    fn leads(&self, route: u64, stream: StreamId) -> bool {
        let _ = (route, stream);
        false
    }

    /// Returns whether [`obtain_for`](Self::obtain_for) allocates the segments of a private pool. The
    /// heaps of such a pool map no pages: under the stitched policy they place blocks as the caching
    /// policy does. Asked without a lock at each request that a route leads into the pool. Must not call
    /// the allocator. A new answer concerns new segments only.
    fn supplies(&self, pool: PoolId) -> bool {
        let _ = pool;
        false
    }

    /// Allocates a segment of a private pool, as [`obtain`](Self::obtain) does, for a pool with
    /// [`supplies`](Self::supplies). [`release`](Self::release) releases the segment.
    ///
    /// # Errors
    /// Those of [`obtain`](Self::obtain).
    fn obtain_for(&self, pool: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        let _ = pool;
        self.obtain(bytes)
    }

    /// Lets the program free memory, because no free block can serve a request of `bytes`. Called
    /// before memory is allocated from the device. Returns true if the program freed anything. May
    /// call the allocator.
    fn on_shortage(&self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }

    /// Reports to the program that a request is about to fail. May call the allocator.
    fn on_out_of_memory(&self, report: &OutOfMemory) {
        let _ = report;
    }

    /// Tells the program that a page of virtual memory is mapped and accessible from `at` on, before
    /// any of its addresses is handed out, and before parked blocks there wake. While a page moves, the page may be
    /// mapped at two places.
    ///
    /// Called without a lock, on the thread of the call that maps the page: a request, upkeep, or a wake. May
    /// call the allocator.
    fn on_map(&self, at: DevicePtr, bytes: u64) {
        let _ = (at, bytes);
    }

    /// Tells the program that a page is about to be unmapped: the `bytes` from `at` on, of which
    /// [`on_map`](Self::on_map) told. No work uses the addresses, and no block lies there, except for blocks that are
    /// being parked. If the device then fails to unmap the page, the addresses are never used again; but a page that a
    /// failed park or wake leaves mapped stays in use, and `on_map` tells of it once more.
    ///
    /// Called as [`on_map`](Self::on_map) is.
    fn on_unmap(&self, at: DevicePtr, bytes: u64) {
        let _ = (at, bytes);
    }

    /// Reports to the program that the device has no virtual memory, so that the stitched policy places
    /// blocks as the caching policy does. Called once, at the first request, with no lock held.
    fn on_missing_virtual_memory(&self) {}

    /// Sleeps for about `us` microseconds, while the allocator waits for other threads to free
    /// memory. Returns false if the host cannot sleep, or wants to stop waiting.
    fn pause(&self, us: u64) -> bool {
        let _ = us;
        false
    }

    /// Returns the device's clock, in any unit. The trace stores ticks and converts them on
    /// reading, so choose the unit that is cheapest to read, such as the processor's time-stamp
    /// counter.
    ///
    /// Each call must return at least two more than the call before. Return 0 without a clock;
    /// events are then numbered. Called for every traced event, under a heap's lock, and before and
    /// after each call of virtual memory: must not block, and must not call the allocator.
    fn ticks(&self) -> u64 {
        0
    }

    /// Converts the result of [`ticks`](Self::ticks) to microseconds since the Unix epoch. Returns
    /// 0 without a clock.
    fn time_us(&self, ticks: u64) -> u64 {
        let _ = ticks;
        0
    }

    /// Tells the host of an event as it happens, while the events of the device are
    /// [reported](crate::EventReports). `pool` is the pool of the block or segment. The time of
    /// `entry` is 0.
    ///
    /// Called on the thread whose call causes the event, under a heap's lock: must not block, and
    /// must not call the allocator.
    fn on_event(&self, entry: &TraceEntry, pool: PoolId) {
        let _ = (entry, pool);
    }

    /// Returns the number of the calling thread's place in the program, for the trace; 0 if there
    /// is none. The host assigns the numbers and resolves them.
    ///
    /// Called without a lock while a trace is recorded, once for each request and each free. May
    /// call the allocator, if those calls are not traced through this method again.
    fn call_site(&self, site: CallSite) -> u32 {
        let _ = site;
        0
    }
}

/// Virtual memory: addresses and physical memory are allocated separately, and joined by mappings.
///
/// Sizes and addresses are multiples of [`granularity`](Self::granularity). A mapping covers a
/// whole handle, and is unmapped as a whole.
pub trait VirtualMemory: Send + Sync {
    /// Returns the smallest size for creating and mapping, in bytes; a power of two.
    fn granularity(&self) -> u64;

    /// Reserves `bytes` of addresses without memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if the device has no such range of addresses.
    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr>;

    /// Releases a whole reservation without mappings.
    ///
    /// # Errors
    /// Any error leaves the range in doubt: the allocator never reuses the range.
    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Allocates `bytes` of physical memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly lacks the memory.
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle>;

    /// Releases the handle. The device frees the memory once no mapping is left.
    ///
    /// # Errors
    /// Any error leaves the memory in doubt: the allocator counts the memory as leaked.
    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()>;

    /// Makes a descriptor of physical memory, with which another process maps the memory.
    ///
    /// The provided method is for a device without such descriptors.
    ///
    /// # Errors
    /// * [`ErrorKind::Unsupported`] if the device shares no memory between processes.
    /// * Any error of the device. There is no descriptor then.
    fn export(&self, handle: PhysicalHandle) -> DeviceResult<Descriptor> {
        let _ = handle;
        Err(DeviceError::new(ErrorKind::Unsupported, 0))
    }

    /// Announces calls of [`map`](Self::map), and one of [`set_access`](Self::set_access) for all of
    /// them, by this thread. [`end_mapping`](Self::end_mapping) follows, with no other call between.
    ///
    /// A device may fail if two threads change mappings at the same time. Such a device lets a second
    /// thread wait in this method, and in [`unmap`](Self::unmap).
    fn begin_mapping(&self) {}

    /// Ends what [`begin_mapping`](Self::begin_mapping) announced.
    fn end_mapping(&self) {}

    /// Maps the whole of `handle`, `bytes` long, at `at`. The range is not accessible yet.
    ///
    /// # Errors
    /// Any error of the device; nothing is mapped then.
    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()>;

    /// Makes a mapped range readable and writable for this device and its peers.
    ///
    /// # Errors
    /// Any error of the device; the range stays mapped.
    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Removes a mapping. The caller has waited for all work that uses the range.
    ///
    /// # Errors
    /// Any error leaves the range in doubt: the allocator never reuses the range.
    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()>;
}
