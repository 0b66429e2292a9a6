//! What the core asks of its host, and nothing else: memory, order and, where the device has it, virtual memory.
//!
//! An implementation stands for **one** device. Every method may be called from any thread, several at once.
//! The allocator calls them without holding a lock that another stream's fast path needs, so they may block.
//! A failed call must have changed nothing, or say in its documentation what it left in doubt.

mod error;
pub(crate) mod oom;
#[cfg(feature = "alloc")]
pub mod simulated;
mod types;
#[cfg(feature = "paranoid")]
mod unlocked;

pub use error::{DeviceError, DeviceResult, ErrorKind};
pub use types::{Event, MemoryInfo, PhysicalHandle};
#[cfg(feature = "paranoid")]
pub(crate) use unlocked::Unlocked;

use crate::device::oom::OutOfMemory;
use crate::trace::CallSite;
use crate::units::{DevicePtr, StreamId};

/// One device: where segments come from, and how the order of its streams is asked after.
pub trait DeviceMemory: Send + Sync + 'static {
    /// Obtains a segment of exactly `bytes` (a positive multiple of 512, or of 256 under best fit with coalescing) whose address is a multiple of 512.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly has no memory for it.
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr>;

    /// Gives back a segment that [`obtain`](Self::obtain) returned, whole. May wait for the device.
    ///
    /// # Errors
    /// The segment's state is then in doubt: the allocator counts it as leaked and never hands it out again.
    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// How much memory the device has and how much of it is free, for every process together.
    ///
    /// # Errors
    /// Those of the device.
    fn memory_info(&self) -> DeviceResult<MemoryInfo>;

    /// Makes an event. The allocator keeps events and reuses them.
    ///
    /// # Errors
    /// Those of the device.
    fn create_event(&self) -> DeviceResult<Event>;

    /// Destroys an event that is no longer waited for.
    ///
    /// # Errors
    /// Those of the device.
    fn destroy_event(&self, event: Event) -> DeviceResult<()>;

    /// Marks the present end of `stream` with `event`.
    ///
    /// # Errors
    /// Those of the device; the event is then unrecorded and must not be taken for complete.
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()>;

    /// Whether everything before `event` on its stream is done. Does not block.
    ///
    /// # Errors
    /// An answer other than yes and no; the event must then not be taken for complete.
    fn is_complete(&self, event: Event) -> DeviceResult<bool>;

    /// Blocks the calling thread until `event` is complete.
    ///
    /// # Errors
    /// As for [`is_complete`](Self::is_complete).
    fn wait(&self, event: Event) -> DeviceResult<()>;

    /// Blocks the calling thread until everything queued on `stream` so far is done.
    ///
    /// # Errors
    /// Those of the device.
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()>;

    /// Whether `stream` is capturing a graph, so that events recorded on it could not be waited for.
    ///
    /// # Errors
    /// Those of the device.
    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool>;

    /// Virtual memory, where the device has it.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// Bytes of this device that this process uses, whoever obtained them, if the device tells.
    fn process_use(&self) -> Option<u64> {
        None
    }

    /// The number of the calling thread, for routes that lead only one thread's requests into a pool.
    fn thread_id(&self) -> u64 {
        0
    }

    /// Whether the host's route of this number, a [`Route::Host`](crate::pool::Route::Host), leads requests on `stream` into its
    /// pool. Asked with no lock held, at each request while the route is in force and perhaps once more when it has just
    /// ended: then false. The allocator must not be called from here.
    fn leads(&self, route: u64, stream: StreamId) -> bool {
        let _ = (route, stream);
        false
    }

    /// Asks the program to free memory before more is obtained: no free block can serve a request of `bytes`. True if
    /// anything was freed. The allocator may be called from here.
    fn on_shortage(&self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }

    /// Tells the program that a request is about to fail. The allocator may be called from here.
    fn on_out_of_memory(&self, report: &OutOfMemory) {
        let _ = report;
    }

    /// Lets the calling thread sleep for about `us` microseconds: it waits for others to free memory. False if the host cannot
    /// sleep, or does not want to wait any longer.
    fn pause(&self, us: u64) -> bool {
        let _ = us;
        false
    }

    /// The device's clock, for the trace: a number that grows by two or more from call to call, in whatever unit is had for the least.
    /// Zero where there is none; then events are counted. Asked for each call that is recorded, under a heap's lock.
    fn ticks(&self) -> u64 {
        0
    }

    /// What [`ticks`](Self::ticks) said, in microseconds since the Unix epoch. Zero where there is no clock.
    fn time_us(&self, ticks: u64) -> u64 {
        let _ = ticks;
        0
    }

    /// The number of the place in the program that the calling thread is at, for the trace; 0 if it has none. The host chooses the
    /// numbers, and knows what they stand for. Asked while a trace is recorded, once for each request and each free, with no lock
    /// held. Requests may be made from here if those lead to no further question.
    fn call_site(&self, site: CallSite) -> u32 {
        let _ = site;
        0
    }
}

/// Virtual memory: addresses and physical memory are had apart and joined by mappings.
///
/// Sizes and addresses are multiples of [`granularity`](Self::granularity). A mapping covers one whole handle,
/// and is unmapped whole.
pub trait VirtualMemory: Send + Sync {
    /// The smallest piece that can be created and mapped, in bytes; a power of two.
    fn granularity(&self) -> u64;

    /// Reserves `bytes` of addresses, with nothing behind them.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if no such range of addresses is free.
    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr>;

    /// Gives back a reservation, whole, in which nothing is mapped.
    ///
    /// # Errors
    /// The range is then in doubt and is never used again.
    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Obtains `bytes` of physical memory.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] only if the device certainly has none.
    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle>;

    /// Drops the handle. The memory goes back once it is unmapped everywhere.
    ///
    /// # Errors
    /// The memory is then in doubt and counted as leaked.
    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()>;

    /// Maps the whole of `handle`, `bytes` long, at `at`. It cannot be accessed yet.
    ///
    /// # Errors
    /// Those of the device; nothing is mapped then.
    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()>;

    /// Makes the mapped range readable and writable for this device and its peers.
    ///
    /// # Errors
    /// Those of the device; the range stays mapped.
    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()>;

    /// Unmaps one mapping. The caller has waited for the work that uses it.
    ///
    /// # Errors
    /// The range is then in doubt and is never handed out again.
    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()>;
}
