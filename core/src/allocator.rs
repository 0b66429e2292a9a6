//! The public interface of the allocator.
//!
//! An [`Allocator`] finds the device and the heap for a call, and passes the call on to the state
//! of the device (`arena`), which makes the decisions.

/// Declares a view of an allocator: the operations on one part of a device.
macro_rules! view {
    ($(#[$doc:meta])* $View:ident, $(#[$returns:meta])* $view:ident) => {
        $(#[$doc])*
        pub struct $View<'a, D: DeviceMemory, R: Lock, S: Storage> {
            pub(super) allocator: &'a Allocator<D, R, S>,
            pub(super) arena: &'a crate::arena::Arena<crate::allocator::On<D, R, S>>,
        }

        impl<'a, D: DeviceMemory, R: Lock, S: Storage> $View<'a, D, R, S> {
            /// Returns the device.
            #[allow(dead_code, reason = "not every view changes the page map")]
            pub(super) fn on(&self) -> crate::arena::OnDevice<'a, crate::allocator::On<D, R, S>> {
                crate::arena::OnDevice { arena: self.arena, pages: &self.allocator.pages }
            }

            /// Starts an operation on the device.
            #[allow(dead_code, reason = "not every view has an operation that is checked")]
            pub(super) fn begin(&self, operation: &'static str) -> crate::allocator::Begun<'a, D, R, S> {
                let checked = self.allocator.checked(operation, DeviceIndex(self.arena.number()));
                crate::allocator::Begun { device: self.on(), _checked: checked }
            }
        }

        impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
            $(#[$returns])*
            ///
            /// # Errors
            /// [`Error::UnknownDevice`].
            pub fn $view(&self, device: DeviceIndex) -> Result<$View<'_, D, R, S>, Error> {
                Ok($View { allocator: self, arena: self.arena(device)? })
            }
        }
    };
}

mod block;
mod buffer;
mod explain;
mod forecast;
mod pages;
mod parking;
#[cfg(feature = "alloc")]
mod place;
mod plans;
mod pools;
mod ranges;
#[cfg(feature = "alloc")]
mod restore;
mod settings;
mod start;
mod statistics;
mod stats;
mod straight;
mod tenants;
mod tracing;
mod tuning;
mod uses;
#[cfg(feature = "alloc")]
mod would_fit;

pub use block::{Block, BlockAllocator, FailedDrop};
pub use buffer::Buffer;
pub use forecast::Forecasts;
pub use pages::{PageStats, Pages};
pub use parking::Parking;
pub use plans::Planning;
pub use pools::{Pools, RouteScope};
pub use ranges::{Range, Ranges};
pub use settings::DeviceSettings;
pub use statistics::{Reading, Statistic, StatisticKind};
pub use stats::Statistics;
pub use tenants::Tags;
pub use tracing::Tracing;
pub use tuning::Tuning;
#[cfg(feature = "alloc")]
pub use tuning::Window;
#[cfg(feature = "alloc")]
pub use would_fit::{Bound, Fit};

use crate::arena::allocation::Allocation;
use crate::arena::checks::Checked;
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::plans::{allocation, list_block};
use crate::arena::{Arena, Built, OnDevice};
use crate::config::Config;
use crate::device::{DeviceMemory, DeviceResult};
use crate::error::{Error, PointerFault};
use crate::page_map::{HeapRef, Owner, OwnerWord, PageMap};
use crate::sync::Lock;
use crate::tables::{Devices, Storage};
use crate::units::{DeviceIndex, DevicePtr, StreamId};
use core::borrow::Borrow;
use spin::Once;

/// A device as the allocator calls it.
#[cfg(not(feature = "paranoid"))]
type Called<D> = D;
#[cfg(feature = "paranoid")]
type Called<D> = crate::device::Unlocked<D>;

/// The platform of an allocator's arenas.
type On<D, R, S> = Built<Called<D>, R, S>;

/// Caches the memory of one or more devices, and serves requests for blocks from the cache.
///
/// * `D`: the devices.
/// * `R`: the lock of a heap. Use a parking lock on an operating system, and a spin lock elsewhere.
/// * `S`: the tables, either [`Growable`](crate::tables::Growable) or
///   [`Fixed`](crate::tables::Fixed).
///
/// All sizes are in bytes. The devices of an allocator must not share addresses.
///
/// # Parts of a device
/// Methods of the allocator itself make, use and free blocks. Everything else about a device is in
/// a view, which borrows the allocator and costs a look-up of the device: [`pools`](Self::pools),
/// [`tags`](Self::tags), [`ranges`](Self::ranges), [`pages`](Self::pages),
/// [`parking`](Self::parking), [`plans`](Self::plans), [`tuning`](Self::tuning),
/// [`settings`](Self::settings), [`stats`](Self::stats), [`trace`](Self::trace),
/// [`forecast`](Self::forecast).
///
/// # Stream order
/// A block is allocated on one stream, which is the block's *own* stream. Work on this stream may
/// use the block at once. Work on another stream may use it after that stream has waited for the
/// own stream, and must be announced with [`record_stream`](Self::record_stream).
///
/// The program frees a block as soon as its last use on the own stream is queued, without waiting
/// for it to finish. The next block at this address goes to the same stream, after the last use. If
/// other streams were announced, the block remains *pending* until their work is done.
///
/// # Threads
/// Any thread may call any method at any time. Requests on different streams share no lock. No lock
/// is held during a call to the device, except as described in
/// [`DeviceMemory`](crate::DeviceMemory).
///
/// # Calls to the device
/// A method calls the device, and may block, only if a *Device* line says so. After the first error
/// that means the context is lost, the device is not called again. Dropping the allocator calls
/// nothing: the memory is freed with the context.
///
/// # Errors
/// A failed call leaves every block as it was. In the attempt, segments may have been released, and
/// pending blocks may have become free. [`Error::Device`] means that a call to the device failed,
/// or that an earlier call lost the context. [`Error::TableFull`] means that there is no host
/// memory, or no entry left in a table of fixed capacity.
pub struct Allocator<D: DeviceMemory, R: Lock, S: Storage> {
    /// The devices, indexed by [`DeviceIndex`].
    arenas: S::Devices<Arena<On<D, R, S>>>,
    /// The owner of every page of device memory, for all devices together.
    pages: PageMap<R, S>,
    /// The function that is called for blocks that could not be freed on drop.
    failed_drop: lock_api::Mutex<R, Option<fn(&FailedDrop)>>,
    /// Initialized ⟺ the allocator has its devices.
    started: Once<()>,
}

/// A device on which an operation is running, until the value is dropped.
struct Begun<'a, D: DeviceMemory, R: Lock, S: Storage> {
    device: OnDevice<'a, On<D, R, S>>,
    _checked: Checked<'a, On<D, R, S>>,
}

impl<'a, D: DeviceMemory, R: Lock, S: Storage> core::ops::Deref for Begun<'a, D, R, S> {
    type Target = OnDevice<'a, On<D, R, S>>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.device
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Returns the device with this number, for operations that change the page map.
    #[inline]
    pub(crate) fn on(&self, device: DeviceIndex) -> Result<OnDevice<'_, On<D, R, S>>, Error> {
        Ok(OnDevice { arena: self.arena(device)?, pages: &self.pages })
    }

    /// Returns the device of an owner that the page map returned. The map only contains devices
    /// that exist.
    #[inline(always)]
    fn on_owner(&self, device: u32) -> OnDevice<'_, On<D, R, S>> {
        OnDevice { arena: &self.arenas.published()[device as usize], pages: &self.pages }
    }

    /// Returns the state of the device with this number.
    #[inline]
    pub(crate) fn arena(&self, device: DeviceIndex) -> Result<&Arena<On<D, R, S>>, Error> {
        self.arenas.get(device.0 as usize).ok_or(Error::UnknownDevice(device))
    }

    /// Starts an operation on one device, or on all devices if it is `None`. With the feature
    /// `paranoid`, this checks every invariant of the device, and dropping the returned value
    /// checks them again.
    #[inline(always)]
    fn checked(&self, operation: &'static str, device: impl Into<Option<DeviceIndex>>) -> Checked<'_, On<D, R, S>> {
        Checked::begin(operation, || self.arenas.published(), || device.into())
    }

    /// Starts an operation on one device, as [`checked`](Self::checked) does, and returns the
    /// device.
    #[inline(always)]
    fn begin(&self, operation: &'static str, device: DeviceIndex) -> Result<Begun<'_, D, R, S>, Error> {
        let checked = self.checked(operation, device);
        Ok(Begun { device: self.on(device)?, _checked: checked })
    }

    /// Starts an operation on the device that owns `ptr`, or on all devices if the page map does
    /// not know the owner.
    #[inline(always)]
    fn checked_at(&self, operation: &'static str, ptr: DevicePtr) -> Checked<'_, On<D, R, S>> {
        Checked::begin(
            operation,
            || self.arenas.published(),
            || match self.pages.owner(ptr) {
                Owner::Heap(HeapRef { device, .. }) | Owner::Planned(HeapRef { device, .. }) => {
                    Some(DeviceIndex(device))
                }
                Owner::Shared | Owner::None => None,
            },
        )
    }

    /// Returns the device with this number, or `None` if there is none.
    pub fn device(&self, device: DeviceIndex) -> Option<&D> {
        self.arenas.get(device.0 as usize).map(|arena| arena.driver.device().borrow())
    }

    /// Returns the number of devices.
    pub fn device_count(&self) -> u32 {
        self.arenas.published().len() as u32
    }

    /// Allocates a block of at least `bytes` bytes on `device`, and returns the address of its
    /// first byte.
    ///
    /// The address is a multiple of 512, or of 256 under [`Policy::Bfc`](crate::config::Policy).
    /// Work on `stream` may use the block at once. Its contents are undefined. For zero bytes, the
    /// result is the null address.
    ///
    /// Device: called if no cached block fits, if frees are pending, and while a graph is captured.
    /// Otherwise a cached block is returned without a call.
    ///
    /// # Errors
    /// * [`Error::UnknownDevice`].
    /// * [`Error::OutOfMemory`]: the device has too little memory, or the limit is reached, even
    ///   after all memory that can be released was released.
    /// * [`Error::Rejected`]: the request would exceed the memory fraction, and the configuration
    ///   sets `throw_on_cudamalloc_oom`. No memory was released for it.
    /// * [`Error::TooLarge`]: `bytes`, rounded up, is 1 EiB or more.
    /// * [`Error::InvalidStream`]: `stream` is the reserved number `u64::MAX`.
    /// * [`Error::TableFull`], [`Error::Device`].
    #[inline]
    pub fn malloc(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let _checked = self.checked("malloc", device);
        let device = self.on(device)?;
        device.malloc_straight(bytes, stream).map_or_else(|| device.malloc(bytes, stream), Ok)
    }

    /// Frees the block at `ptr`, in the order of its own stream. Does nothing for the null address.
    ///
    /// The last use on the own stream must be queued, but need not be done. If streams were
    /// announced with [`record_stream`](Self::record_stream), the block remains pending until the
    /// work that they have now is done.
    ///
    /// Device: called to record an event on each announced stream, and, if the cache is
    /// [turned off](DeviceSettings::set_caching), to release the memory.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: the program has no block that starts here. A double free is
    ///   detected until the address is allocated again.
    /// * [`Error::TableFull`], [`Error::Device`]: an event could not be recorded.
    ///
    /// After an error, the program still has the block.
    #[inline]
    pub fn free(&self, ptr: DevicePtr) -> Result<(), Error> {
        self.free_by(ptr, None, |device, heap| device.free_straight(heap, ptr, None))
    }

    /// Frees the block at `ptr` once the safe frontier has reached `count`.
    ///
    /// This is for programs that number their work instead of ordering it by streams. The work is
    /// numbered 1, 2, 3 …, and a block that work 7 uses last is freed with count 7. After
    /// [`set_safe_frontier(device, 7)`](Self::set_safe_frontier), or a higher count, the block can
    /// be reused. Until then it is pending, and neither a shortage of memory nor
    /// [`empty_cache`](Self::empty_cache) makes it available earlier. Announced streams are waited
    /// for as with [`free`](Self::free). If the `count` is already reached, this is a plain free.
    ///
    /// Device: as [`free`](Self::free).
    ///
    /// # Errors
    /// Those of [`free`](Self::free). After an error the program still holds the block.
    pub fn free_at(&self, ptr: DevicePtr, count: u64) -> Result<(), Error> {
        let _checked = self.checked_at("free_at", ptr);
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        self.at_owner(ptr, |device, heap| device.free_at(heap, ptr, count))
    }

    /// Declares that all work numbered up to `count` is done, and frees the blocks that wait for
    /// these counts; see [`free_at`](Self::free_at).
    ///
    /// Each device has its own frontier, which begins at 0 and never goes back. A `count`
    /// below the frontier changes nothing.
    ///
    /// Device: called only if the cache is [turned off](DeviceSettings::set_caching), to release
    /// memory.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn set_safe_frontier(&self, device: DeviceIndex, count: u64) -> Result<(), Error> {
        let device = self.begin("set_safe_frontier", device)?;
        device.waiting().set_safe_frontier(count);
        Ok(())
    }

    /// Frees the block at `ptr` if the program requested exactly `bytes` bytes for it; see
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// * [`Error::WrongSize`]: the block was requested with another size. The program still has the
    ///   block.
    /// * Those of [`free`](Self::free).
    #[inline]
    pub fn free_sized(&self, ptr: DevicePtr, bytes: u64) -> Result<(), Error> {
        self.free_by(ptr, Some(bytes), |device, heap| device.free_straight(heap, ptr, Some(bytes)))
    }

    /// Frees the block at `ptr`. If `bytes` is given, checks the requested size first. Calls
    /// `first` before all else if one heap owns the page, and is done if that returns true.
    #[inline(always)]
    fn free_by(
        &self,
        ptr: DevicePtr,
        bytes: Option<u64>,
        first: impl FnOnce(OnDevice<'_, On<D, R, S>>, HeapRef) -> bool,
    ) -> Result<(), Error> {
        let _checked = self.checked_at("free", ptr);
        let word = self.pages.word(ptr);
        let heap = word.unplanned();
        if let Some(device) = self.device_of(heap) {
            return if first(device, heap) { Ok(()) } else { device.free(heap, ptr, bytes) };
        }
        self.free_elsewhere(word, ptr, bytes)
    }

    /// Returns the device of a page's [`unplanned`](OwnerWord::unplanned) heap, or `None` if the
    /// page does not belong to one. The null address has no owner.
    #[inline(always)]
    fn device_of(&self, heap: HeapRef) -> Option<OnDevice<'_, On<D, R, S>>> {
        let arena = self.arenas.get(heap.device as usize)?;
        Some(OnDevice { arena, pages: &self.pages })
    }

    /// Calls `act` with the heap that owns `ptr`, and has an entry for the block. `act` returns
    /// [`Error::InvalidPointer`] if the heap has no such block.
    fn at_owner<T>(
        &self,
        ptr: DevicePtr,
        act: impl Fn(OnDevice<'_, On<D, R, S>>, HeapRef) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.pages.owner(ptr) {
            Owner::Heap(heap) => act(self.on_owner(heap.device), heap),
            Owner::Planned(heap) => {
                let device = self.on_owner(heap.device);
                list_block(&device.heaps, heap.heap, ptr)?;
                act(device, heap)
            }
            Owner::Shared => self.search_every_heap(ptr, &act),
            Owner::None => Err(Error::foreign(ptr)),
        }
    }

    /// Describes the block that contains `ptr`, which may be anywhere in the block.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`]: the program has no block there.
    pub fn base_of(&self, ptr: DevicePtr) -> Result<Allocation, Error> {
        let _checked = self.checked_at("base_of", ptr);
        // An unlisted block need not be listed.
        if let Owner::Planned(heap) = self.pages.owner(ptr)
            && let Some(allocation) = allocation(&self.on_owner(heap.device).heaps, heap.heap, ptr)
        {
            return Ok(allocation);
        }
        self.at_owner(ptr, |device, heap| {
            device.heaps.allocation(heap.heap, ptr).ok_or_else(|| not_in_heap(&device.heaps.lock(heap.heap), ptr))
        })
    }

    /// Frees the pending blocks that only waited for events that are now complete. Does not wait.
    /// [`malloc`](Self::malloc) does this by itself.
    ///
    /// Device: polled if frees are pending.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Device`]: the first failure. If the event of a block
    /// cannot be polled, the block remains pending, and the others are freed.
    pub fn process_events(&self, device: DeviceIndex) -> Result<(), Error> {
        let device = self.begin("process_events", device)?;
        device.holdings().collect_departed(u32::MAX, true);
        device.waiting().process_events()
    }

    /// Waits for the pending frees, then releases every segment without blocks in use. Private
    /// pools with users keep their segments, unless their tag has [limits](Tags::limit) and no
    /// captured graph uses their memory. Under `policy:planned`, plans without a block in use end.
    ///
    /// While a graph is captured, pending frees remain pending, and no plans end.
    ///
    /// Device: called, and waited for.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::TableFull`], [`Error::Device`]: the first failure. The
    /// rest of the cache is still released, unless the context is lost.
    pub fn empty_cache(&self, device: DeviceIndex) -> Result<(), Error> {
        let device = self.begin("empty_cache", device)?;
        let waited = device.waiting().wait_for_events();
        let emptied = device.holdings().empty(device.plan_switch());
        device.waits.give_events_back(&device.driver);
        waited.and(emptied)
    }

    /// Releases segments without blocks in use, the largest first, until the allocator holds at
    /// most `keep` bytes of the device or no such segment is left. If it still holds more, releases
    /// free memory of pools with users if their tags have limits, and plans without a block in use,
    /// as [`empty_cache`](Self::empty_cache) does. Does not wait for pending frees.
    ///
    /// Device: called if a segment is released. For expandable segments, waits for their stream.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::TableFull`], [`Error::Device`]: the first failure, which
    /// ends the trimming.
    pub fn trim(&self, device: DeviceIndex, keep: u64) -> Result<(), Error> {
        let device = self.begin("trim", device)?;
        let trimmed = device.holdings().trim(keep, device.plan_switch());
        device.waits.give_spare_events_back(&device.driver);
        trimmed
    }

    /// Releases free memory of one stream until it holds at most `keep` bytes of the device or has
    /// no free memory: in the default pool, and in private pools without users. Other streams keep
    /// their caches. Does not wait for pending frees.
    ///
    /// Device: called. For expandable segments, waits for the stream.
    ///
    /// # Errors
    /// Those of [`trim`](Self::trim).
    pub fn trim_stream(&self, device: DeviceIndex, stream: StreamId, keep: u64) -> Result<(), Error> {
        self.begin("trim_stream", device)?.holdings().trim_stream(stream, keep)
    }

    /// Holds the frees of the device's driver off, until as many calls of
    /// [`end_hold`](Self::end_hold). For the time between the launches of a collective over several
    /// devices, and for functions that a stream calls on the host: a free of the driver waits there
    /// for work that waits for the caller.
    ///
    /// Meanwhile no call of the allocator waits for the device, and none releases memory to it. A
    /// request grows the cache, or fails where it would have waited or released memory before. What
    /// is freed serves requests of the same stream; blocks that other streams have used serve again
    /// after the hold. [`trim`](Self::trim) and upkeep do nothing, and calls that have to wait fail
    /// as they do while a graph is captured.
    ///
    /// Threads: any. It holds for the calls of all threads, from the end of this call on. Device:
    /// not called.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn begin_hold(&self, device: DeviceIndex) -> Result<(), Error> {
        let device = self.begin("begin_hold", device)?;
        device.heaps.begin_hold(&device.driver);
        Ok(())
    }

    /// Ends a hold that [`begin_hold`](Self::begin_hold) has started. Returns false if there is
    /// none. Gives nothing back by itself: later calls do.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn end_hold(&self, device: DeviceIndex) -> Result<bool, Error> {
        let device = self.begin("end_hold", device)?;
        Ok(device.heaps.end_hold(&device.driver))
    }

    /// Replaces the configuration of every device, except for what an allocator keeps from its
    /// start: the policy, and what is done to blocks for debugging (`guard`, `zero`, `pattern`,
    /// `canary`). Blocks and segments do not change, and neither does the limit: to apply a memory
    /// fraction in `config`, call [`DeviceSettings::set_memory_fraction`].
    pub fn configure(&self, config: &Config) {
        let _checked = self.checked("configure", None);
        for arena in self.arenas.published() {
            arena.configure(config);
        }
    }

    /// Announces that a stream is about to be destroyed, so that its number may name another stream
    /// later.
    ///
    /// Releases the memory cached for the stream. Captures that were started on the stream end.
    /// Blocks that the program has remain valid, and are freed as usual. The work on the stream
    /// need not be done. Call this before the stream is destroyed.
    ///
    /// Device: called to release memory.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::TableFull`], [`Error::Device`]: the first failure.
    pub fn stream_destroyed(&self, device: DeviceIndex, stream: StreamId) -> Result<(), Error> {
        let device = self.begin("stream_destroyed", device)?;
        let forgotten = device
            .plan_switch()
            .map_or(Ok(()), |plans| plans.forget_stream(stream))
            .and(device.forget_range_stream(stream));
        forgotten.and(device.holdings().stream_destroyed(device.waiting(), stream))
    }

    /// Checks that the context of a device is not lost. Does not call the device.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Device`] with the code of the call that lost the context.
    pub fn health(&self, device: DeviceIndex) -> Result<(), Error> {
        Ok(self.arena(device)?.driver.health()?)
    }

    /// Passes on the result of a call that the host made to the device by itself. If the call lost
    /// the context, the allocator remembers this.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Device`] with the error of the result.
    pub fn note_result<T>(&self, device: DeviceIndex, result: DeviceResult<T>) -> Result<T, Error> {
        Ok(self.arena(device)?.driver.note_loss(result)?)
    }

    /// Lists the segments of all devices with their blocks, by address. Heaps are locked one at a
    /// time, so the result is exact only if no other thread allocates or frees during the call.
    #[cfg(feature = "alloc")]
    pub fn snapshot(&self) -> alloc::vec::Vec<crate::snapshot::SnapshotSegment> {
        let _checked = self.checked("snapshot", None);
        let mut segments = alloc::vec::Vec::new();
        for arena in self.arenas.published() {
            arena.plans.list_all(&arena.heaps);
            arena.heaps.snapshot(&arena.history.sites, &mut segments);
        }
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    /// Checks every invariant of every heap, for tests. Visits every block.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        for arena in self.arenas.published() {
            arena.check_invariants(true)?;
        }
        Ok(())
    }

    /// Calls `act` with one heap after another until one owns `ptr`, for a page that several
    /// segments share.
    #[cold]
    fn search_every_heap<T>(
        &self,
        ptr: DevicePtr,
        act: &impl Fn(OnDevice<'_, On<D, R, S>>, HeapRef) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for arena in self.arenas.published() {
            // The walk over heaps only finds blocks that have an entry.
            arena.plans.list_all(&arena.heaps);
            for slot in arena.heaps.slot_numbers() {
                match act(OnDevice { arena, pages: &self.pages }, arena.heaps.heap_ref(slot)) {
                    // The address is in none of this heap's segments.
                    Err(Error::InvalidPointer { fault: PointerFault::Foreign, .. }) => {}
                    acted => return acted,
                }
            }
        }
        Err(Error::foreign(ptr))
    }

    /// Frees the block at an address that a plan serves, or that no single heap owns.
    // Out of line, so that the fast path needs no register for plans. This saves 3 instructions of
    // a pair.
    #[inline(never)]
    fn free_elsewhere(&self, word: OwnerWord, ptr: DevicePtr, bytes: Option<u64>) -> Result<(), Error> {
        match word.owner() {
            _ if ptr == DevicePtr::NULL => Ok(()),
            Owner::Planned(heap) => self.on_owner(heap.device).free_planned(heap, ptr, bytes),
            _ => self.at_owner(ptr, |device, heap| device.free(heap, ptr, bytes)),
        }
    }
}
