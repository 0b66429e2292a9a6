//! The allocator: what programs call, for any number of devices, from any thread.

use crate::arena::allocation::Allocation;
use crate::arena::checks::Checked;
use crate::arena::forecast::Forecast;
use crate::arena::registry::Purpose;
use crate::arena::{Arena, OnDevice};
use crate::config::Config;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::{HeapRef, LaneRef, MAX_DEVICES, Owner, OwnerWord, PageMap};
#[cfg(feature = "alloc")]
use crate::planned::{Observed, PlannedReport};
use crate::pool::{PoolId, PoolOptions, Route};
use crate::stats::Stats;
use crate::sync::Lock;
use crate::tables::{Storage, Table};
use crate::trace::TraceEntry;
use crate::units::{DeviceIndex, DevicePtr, StreamId};
#[cfg(feature = "alloc")]
use cachalot_planner::Plan;
use core::borrow::Borrow;

/// A device as the allocator calls it.
#[cfg(not(feature = "paranoid"))]
type Called<D> = D;
#[cfg(feature = "paranoid")]
type Called<D> = crate::device::Unlocked<D>;

/// A caching allocator over the memory of one or more devices.
///
/// * `D` — the devices.
/// * `R` — the lock of a heap: one that parks its waiters where there is an operating system, a spin lock where there is none.
/// * `S` — where the tables live: [`Growable`](crate::tables::Growable) or [`Fixed`](crate::tables::Fixed).
///
/// # Stream order
/// A block may be used at once on the stream it was allocated on, and on any other stream once that one waits for it. A freed
/// block is reused at once on its own stream; the program therefore frees it when its last use on that stream has been queued.
/// Use on other streams is announced with [`record_stream`](Self::record_stream).
///
/// # Threads
/// Every method may be called from any thread. Requests of different streams share no lock.
///
/// # The device
/// `malloc` calls it when no free block fits, or when frees wait for events; `free` calls it to record events when other streams
/// used the block. Dropping the allocator calls nothing: memory that is still held goes back with the context.
pub struct Allocator<D: DeviceMemory, R: Lock, S: Storage> {
    arenas: S::Devices<Arena<Called<D>, R, S>>,
    pages: PageMap<R, S>,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// An allocator over `devices`, numbered in the order given, all with the same configuration.
    ///
    /// # Errors
    /// [`Error::PolicyUnavailable`]; [`Error::TableFull`] for more devices than there can be; those of the device, if the configuration sets a fraction
    /// of its memory.
    pub fn new(devices: impl IntoIterator<Item = D>, config: &Config) -> Result<Self, Error> {
        if !config.policy().is_available() || config.planned().is_some() && !cfg!(feature = "alloc") {
            return Err(Error::PolicyUnavailable(config.policy_name()));
        }
        let mut arenas = S::Devices::<Arena<Called<D>, R, S>>::default();
        for (number, device) in devices.into_iter().enumerate() {
            if number >= MAX_DEVICES || !arenas.make_room(1) {
                return Err(Error::TableFull("devices"));
            }
            let arena = Arena::new(Called::<D>::from(device), number as u32, config);
            if config.per_process_memory_fraction() < 1.0 {
                arena.set_fraction(config.per_process_memory_fraction())?;
            }
            arenas.add(arena);
        }
        Ok(Self { arenas, pages: PageMap::default() })
    }

    #[inline]
    fn on(&self, device: DeviceIndex) -> Result<OnDevice<'_, Called<D>, R, S>, Error> {
        Ok(OnDevice { arena: self.arena(device)?, pages: &self.pages })
    }

    /// The device of an owner that the page map names.
    #[inline(always)]
    fn on_owner(&self, device: u32) -> OnDevice<'_, Called<D>, R, S> {
        OnDevice { arena: &self.arenas[device as usize], pages: &self.pages }
    }

    #[inline]
    pub(crate) fn arena(&self, device: DeviceIndex) -> Result<&Arena<Called<D>, R, S>, Error> {
        self.arenas.get(device.0 as usize).ok_or(Error::UnknownDevice(device))
    }

    /// Begins an operation on one device. Under the feature `paranoid` every invariant of the device is checked here, and again
    /// when the returned value is dropped.
    #[inline(always)]
    fn checked(&self, operation: &'static str, device: DeviceIndex) -> Checked<'_, Called<D>, R, S> {
        Checked::begin(operation, &self.arenas, || Some(device))
    }

    /// Begins an operation on all devices.
    #[inline(always)]
    fn checked_everywhere(&self, operation: &'static str) -> Checked<'_, Called<D>, R, S> {
        Checked::begin(operation, &self.arenas, || None)
    }

    /// Begins an operation on the device that owns `ptr`; on all devices if the page map does not know which one does.
    #[inline(always)]
    fn checked_at(&self, operation: &'static str, ptr: DevicePtr) -> Checked<'_, Called<D>, R, S> {
        Checked::begin(operation, &self.arenas, || match self.pages.owner(ptr) {
            Owner::Heap(HeapRef { device, .. }) | Owner::Lane(LaneRef { device, .. }) => Some(DeviceIndex(device)),
            Owner::Shared | Owner::None => None,
        })
    }

    /// The device with this number.
    pub fn device(&self, device: DeviceIndex) -> Option<&D> {
        self.arenas.get(device.0 as usize).map(|arena| arena.driver.device().borrow())
    }

    /// How many devices there are.
    pub fn device_count(&self) -> u32 {
        self.arenas.len() as u32
    }

    /// A block of at least `bytes`, aligned to 512 (under [`Policy::Bfc`](crate::config::Policy) to 256), for use on `stream` at once. Zero bytes are answered with the null address.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when everything that could be given back was, and it was not enough; [`Error::TooLarge`];
    /// those of the device. Nothing has changed then, but for segments that were given back.
    #[inline]
    pub fn malloc(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        let _checked = self.checked("malloc", device);
        self.on(device)?.malloc(bytes, stream)
    }

    /// Frees the block at `ptr`, on its own stream's order. The null address is none, and fine.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] if the program holds no block that begins there; those of the device when an event of another
    /// stream cannot be recorded. The block is the program's still.
    #[inline]
    pub fn free(&self, ptr: DevicePtr) -> Result<(), Error> {
        self.free_checked(ptr, None)
    }

    /// Frees the block at `ptr` once [`set_safe_frontier`](Self::set_safe_frontier) has reached `count`, at once if it has: for programs
    /// that number their work instead of ordering it by streams. Until then the block is pending, and nothing makes anybody get
    /// it: neither a shortage nor [`empty_cache`](Self::empty_cache). Uses on other streams are waited for as by
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// [`Error::TableFull`], and those of [`free`](Self::free). The block is the program's still.
    pub fn free_at(&self, ptr: DevicePtr, count: u64) -> Result<(), Error> {
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        let _checked = self.checked_at("free_at", ptr);
        self.at_owner(ptr, |device, heap| device.free_at(heap, ptr, count))
    }

    /// All work that the program has numbered up to `count` is done: blocks freed at such a count can be had again. The frontier
    /// begins at 0 and never goes back: a count that it has passed changes nothing. Calls the device only where nothing is cached.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn set_safe_frontier(&self, device: DeviceIndex, count: u64) -> Result<(), Error> {
        let _checked = self.checked("set_safe_frontier", device);
        self.on(device)?.set_safe_frontier(count);
        Ok(())
    }

    /// As [`free`](Self::free), if the block was requested with exactly `bytes`.
    ///
    /// # Errors
    /// [`Error::WrongSize`] if it was not, and those of [`free`](Self::free).
    #[inline]
    pub fn free_sized(&self, ptr: DevicePtr, bytes: u64) -> Result<(), Error> {
        self.free_checked(ptr, Some(bytes))
    }

    #[inline]
    fn free_checked(&self, ptr: DevicePtr, bytes: Option<u64>) -> Result<(), Error> {
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        let _checked = self.checked_at("free", ptr);
        let word = self.pages.word(ptr);
        if let Some(heap) = word.heap()
            && let Some(arena) = self.arenas.get(heap.device as usize)
        {
            return OnDevice { arena, pages: &self.pages }.free(heap, ptr, bytes);
        }
        self.free_elsewhere(word, ptr, bytes)
    }

    /// Frees the block at an address that belongs to a lane, or that leads to no single heap. Out of line, so that the
    /// fast path needs no register for lanes: 3 instructions of a pair.
    #[inline(never)]
    fn free_elsewhere(&self, word: OwnerWord, ptr: DevicePtr, bytes: Option<u64>) -> Result<(), Error> {
        match word.owner() {
            Owner::Lane(lane) => self.on_owner(lane.device).free_planned(lane, ptr, bytes),
            _ => self.free_anywhere(ptr, bytes),
        }
    }

    /// Frees the block at an address whose page leads to no single heap.
    #[cold]
    fn free_anywhere(&self, ptr: DevicePtr, bytes: Option<u64>) -> Result<(), Error> {
        self.at_owner(ptr, |device, heap| device.free(heap, ptr, bytes))
    }

    /// Calls `act` with the heap that owns `ptr`. A heap that does not own it answers [`Error::InvalidPointer`].
    fn at_owner<T>(
        &self,
        ptr: DevicePtr,
        act: impl Fn(OnDevice<'_, Called<D>, R, S>, HeapRef) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.pages.owner(ptr) {
            Owner::Heap(heap) => act(self.on_owner(heap.device), heap),
            Owner::Lane(lane) => {
                let device = self.on_owner(lane.device);
                act(device, device.home_of(lane, ptr)?)
            }
            Owner::Shared => self.ask_every_heap(ptr, &act),
            Owner::None => Err(Error::InvalidPointer(ptr)),
        }
    }

    /// Calls `act` with one heap after another until one owns `ptr`.
    #[cold]
    fn ask_every_heap<T>(
        &self,
        ptr: DevicePtr,
        act: &impl Fn(OnDevice<'_, Called<D>, R, S>, HeapRef) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for arena in self.arenas.iter() {
            // Every block of a lane is in a heap's care afterwards.
            arena.show_lanes();
            for slot in arena.slot_numbers() {
                match act(OnDevice { arena, pages: &self.pages }, arena.heap_ref(slot)) {
                    Err(Error::InvalidPointer(_)) => {}
                    acted => return acted,
                }
            }
        }
        Err(Error::InvalidPointer(ptr))
    }

    /// Announces that work queued on `stream` uses the block at `ptr`: once it is freed, it is not reused before that work is
    /// done. Does nothing for the block's own stream.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] if the program holds no block that begins there.
    pub fn record_stream(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        let _checked = self.checked_at("record_stream", ptr);
        if let Owner::Lane(lane) = self.pages.owner(ptr)
            && self.on_owner(lane.device).is_planned_on(lane, ptr, stream)
        {
            return Ok(());
        }
        self.at_owner(ptr, |device, heap| device.record_stream(heap.heap, ptr, stream))
    }

    /// The block that contains `ptr`, which may point anywhere into it.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] if the program holds no such block.
    pub fn base_of(&self, ptr: DevicePtr) -> Result<Allocation, Error> {
        let _checked = self.checked_at("base_of", ptr);
        if let Owner::Lane(lane) = self.pages.owner(ptr)
            && let Some(allocation) = self.on_owner(lane.device).planned_allocation(lane, ptr)
        {
            return Ok(allocation);
        }
        self.at_owner(ptr, |device, heap| device.allocation(heap.heap, ptr).ok_or(Error::InvalidPointer(ptr)))
    }

    /// Frees the blocks that other streams no longer use. `malloc` does so by itself.
    ///
    /// # Errors
    /// Those of the device; the blocks whose events could not be asked after stay as they are.
    pub fn process_events(&self, device: DeviceIndex) -> Result<(), Error> {
        let _checked = self.checked("process_events", device);
        self.on(device)?.process_events()
    }

    /// Waits for all pending frees, then gives every wholly free segment back: those of the default pool and of private
    /// pools that nobody uses. Blocks the calling thread.
    ///
    /// # Errors
    /// The first error of the device; everything else is given back all the same.
    pub fn empty_cache(&self, device: DeviceIndex) -> Result<(), Error> {
        let _checked = self.checked("empty_cache", device);
        let device = self.on(device)?;
        let waited = device.wait_for_events();
        waited.and(device.release_cached(None))
    }

    /// As [`empty_cache`](Self::empty_cache), for one private pool without users only.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], and those of [`empty_cache`](Self::empty_cache).
    pub fn empty_pool(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let _checked = self.checked("empty_pool", device);
        let device = self.on(device)?;
        let pool = device.private_pool(pool)?;
        let waited = device.wait_for_events();
        waited.and(device.release_cached(Some(pool)))
    }

    /// Gives wholly free segments back, the largest first, until at most `keep` bytes are held from the device or none is left.
    ///
    /// # Errors
    /// The first error of the device.
    pub fn trim(&self, device: DeviceIndex, keep: u64) -> Result<(), Error> {
        let _checked = self.checked("trim", device);
        self.on(device)?.trim(keep)
    }

    /// What [`malloc`](Self::malloc) would do first, if it were called now. Changes nothing.
    ///
    /// # Errors
    /// Those by which `malloc` would refuse the request outright.
    pub fn forecast(&self, device: DeviceIndex, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        let _checked = self.checked("forecast", device);
        self.arena(device)?.forecast(bytes, stream)
    }

    /// Sets the most bytes that may be held from the device; what is held already is not given back.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn set_limit(&self, device: DeviceIndex, limit: Option<u64>) -> Result<(), Error> {
        let _checked = self.checked("set_limit", device);
        self.arena(device)?.set_limit(limit);
        Ok(())
    }

    /// The most bytes that may be held from the device.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn limit(&self, device: DeviceIndex) -> Result<Option<u64>, Error> {
        Ok(self.arena(device)?.limit())
    }

    /// Sets the limit to a fraction of the device's memory, rounded to bytes; 1 is no limit.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`] outside of 0 … 1; those of the device.
    pub fn set_memory_fraction(&self, device: DeviceIndex, fraction: f64) -> Result<(), Error> {
        let _checked = self.checked("set_memory_fraction", device);
        self.arena(device)?.set_fraction(fraction)
    }

    /// Puts a configuration in force on every device, but for its policy: that stays, as do blocks and segments.
    pub fn configure(&self, config: &Config) {
        let _checked = self.checked_everywhere("configure");
        for arena in self.arenas.iter() {
            *arena.config.lock() = config.clone();
            arena.apply_config();
        }
    }

    /// The configuration in force.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn config(&self, device: DeviceIndex) -> Result<Config, Error> {
        Ok(self.arena(device)?.config())
    }

    /// Turns the cache off or on. Off, every request is a call to the device and every free gives the memory back: for debugging
    /// with memory checkers. Blocks handed out before stay valid.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn set_caching(&self, device: DeviceIndex, caching: bool) -> Result<(), Error> {
        let _checked = self.checked("set_caching", device);
        self.arena(device)?.flags.set(crate::arena::flags::DIRECT, !caching);
        Ok(())
    }

    /// Whether the free blocks are searched again after a wait for events, before anything is released: on from the start.
    /// Off, the allocator does as `PyTorch` 2.11 does, so that a recorded program can be repeated exactly.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn set_second_search(&self, device: DeviceIndex, on: bool) -> Result<(), Error> {
        let _checked = self.checked("set_second_search", device);
        self.arena(device)?.single_search.store(u32::from(!on), crate::sync::Ordering::Relaxed);
        Ok(())
    }

    /// Makes a private pool with one user and a name of its own.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn create_pool(&self, device: DeviceIndex, options: PoolOptions) -> Result<PoolId, Error> {
        let _checked = self.checked("create_pool", device);
        self.arena(device)?.create_pool(None, options)
    }

    /// Adds a user to the pool of this name; it is made if there is none.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub fn retain_pool(&self, device: DeviceIndex, pool: PoolId, options: PoolOptions) -> Result<(), Error> {
        let _checked = self.checked("retain_pool", device);
        self.arena(device)?.retain_pool(pool, options)
    }

    /// Changes a pool's options.
    ///
    /// # Errors
    /// [`Error::UnknownPool`].
    pub fn set_pool_options(&self, device: DeviceIndex, pool: PoolId, options: PoolOptions) -> Result<(), Error> {
        let _checked = self.checked("set_pool_options", device);
        self.arena(device)?.set_pool_options(pool, options)
    }

    /// How many users a pool has.
    ///
    /// # Errors
    /// [`Error::UnknownPool`].
    pub fn pool_users(&self, device: DeviceIndex, pool: PoolId) -> Result<u32, Error> {
        self.arena(device)?.pool_users(pool)
    }

    /// Leads the requests of `route` into a pool from here on, before any route that is in force already. The pool gains a user.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::TableFull`].
    pub fn begin_allocate_to_pool(&self, device: DeviceIndex, pool: PoolId, route: Route) -> Result<(), Error> {
        let _checked = self.checked("begin_allocate_to_pool", device);
        self.arena(device)?.begin_route(pool, route, Purpose::Requests)
    }

    /// Ends the latest such route into the pool. What it holds stays; so does the user, until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::NotRouted`].
    pub fn end_allocate_to_pool(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let _checked = self.checked("end_allocate_to_pool", device);
        self.arena(device)?.end_route(pool, Purpose::Requests).map(|_| ())
    }

    /// As [`begin_allocate_to_pool`](Self::begin_allocate_to_pool), for a graph that is captured meanwhile: on streams that are
    /// capturing, events are neither recorded nor asked after, and nothing is released.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::TableFull`].
    pub fn begin_capture(&self, device: DeviceIndex, pool: PoolId, route: Route) -> Result<(), Error> {
        let _checked = self.checked("begin_capture", device);
        self.arena(device)?.begin_route(pool, route, Purpose::Capture)
    }

    /// The capture into the pool has ended. The graph uses the pool until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::NotRouted`].
    pub fn end_capture(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let _checked = self.checked("end_capture", device);
        self.arena(device)?.end_route(pool, Purpose::Capture).map(|_| ())
    }

    /// As [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) or [`begin_capture`](Self::begin_capture), for a caller who
    /// is not told which: `PyTorch` calls one hook for both, before the capture begins. It counts as a capture until a request
    /// that it leads is on a stream which captures nothing.
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::TableFull`].
    pub fn begin_route(&self, device: DeviceIndex, pool: PoolId, route: Route) -> Result<(), Error> {
        let _checked = self.checked("begin_route", device);
        self.arena(device)?.begin_route(pool, route, Purpose::SizeUnknown)
    }

    /// Ends the latest such route into the pool, and answers it. Its user stays until [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// [`Error::UnknownPool`], [`Error::NotRouted`].
    pub fn end_route(&self, device: DeviceIndex, pool: PoolId) -> Result<Route, Error> {
        let _checked = self.checked("end_route", device);
        self.arena(device)?.end_route(pool, Purpose::SizeUnknown)
    }

    /// Takes a user of a pool away. The free segments of a pool without users go back with the rest of the cache.
    ///
    /// # Errors
    /// [`Error::UnknownPool`].
    pub fn release_pool(&self, device: DeviceIndex, pool: PoolId) -> Result<(), Error> {
        let _checked = self.checked("release_pool", device);
        self.arena(device)?.release_pool(pool)
    }

    /// The stream is no more: what it has cached is given back, and its number may come to mean another stream. Blocks of it
    /// that the program holds stay valid.
    ///
    /// # Errors
    /// The first error of the device.
    pub fn stream_destroyed(&self, device: DeviceIndex, stream: StreamId) -> Result<(), Error> {
        let _checked = self.checked("stream_destroyed", device);
        let device = self.on(device)?;
        let forgotten = device.forget_stream(stream);
        forgotten.and(device.stream_destroyed(stream))
    }

    /// An iteration of the program ends, and the next begins: under `policy:planned`. One of the first iterations is observed;
    /// once plans for it are [adopted](Self::adopt_plans) the next announcement puts them in force. See [`planned`](crate::planned).
    ///
    /// Asks after pending events. When plans come into force, gives back what is cached and obtains a segment for each stream; when
    /// they are given up, gives theirs back. Without memory for them everything stays as it is, until the next announcement.
    /// Other threads may go on allocating; what they do meanwhile is of the one iteration or of the other. Does nothing under
    /// another policy.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; those of the device. The iteration has begun all the same.
    #[cfg(feature = "alloc")]
    pub fn iteration(&self, device: DeviceIndex) -> Result<(), Error> {
        let _checked = self.checked("iteration", device);
        self.on(device)?.iteration()
    }

    /// Takes out what the observed iteration was, to be planned, on whatever thread: once for each observation.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    #[cfg(feature = "alloc")]
    pub fn observed(&self, device: DeviceIndex) -> Result<Option<Observed>, Error> {
        let _checked = self.checked("observed", device);
        Ok(self.arena(device)?.observed())
    }

    /// Brings plans for what was [`observed`](Self::observed), one for each of its streams, in their order. They are verified, and
    /// the next [`iteration`](Self::iteration) puts them in force. Calls no device.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::PlanRefused`] for plans that are none, or too late; [`Error::TooLarge`].
    #[cfg(feature = "alloc")]
    pub fn adopt_plans(&self, device: DeviceIndex, observed: Observed, plans: &[Plan]) -> Result<(), Error> {
        let _checked = self.checked("adopt_plans", device);
        self.arena(device)?.adopt_plans(observed, plans)
    }

    /// Gives up the plans in force, and what is observed or planned so far: the next [`iteration`](Self::iteration) is observed. The
    /// segments go back to the device as soon as nothing of them is in use.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; those of the device.
    #[cfg(feature = "alloc")]
    pub fn give_plans_up(&self, device: DeviceIndex) -> Result<(), Error> {
        let _checked = self.checked("give_plans_up", device);
        self.on(device)?.give_plans_up()
    }

    /// How the planned policy has done. Under another policy everything is 0.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    #[cfg(feature = "alloc")]
    pub fn planned_report(&self, device: DeviceIndex) -> Result<PlannedReport, Error> {
        Ok(self.arena(device)?.planned_report())
    }

    /// The statistics of a device.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn stats(&self, device: DeviceIndex) -> Result<Stats, Error> {
        let arena = self.arena(device)?;
        Ok(arena.with_totals(|totals| totals.stats(arena.tallies())))
    }

    /// Every peak becomes what there is now.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn reset_peak_stats(&self, device: DeviceIndex) -> Result<(), Error> {
        let _checked = self.checked("reset_peak_stats", device);
        let arena = self.arena(device)?;
        arena.with_totals(|totals| totals.reset_peaks(arena.tallies()));
        Ok(())
    }

    /// Everything that was ever allocated or freed counts as 0 from here on, as do the counts of events.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn reset_accumulated_stats(&self, device: DeviceIndex) -> Result<(), Error> {
        let _checked = self.checked("reset_accumulated_stats", device);
        let arena = self.arena(device)?;
        arena.with_totals(|totals| totals.reset_accumulated(arena.tallies()));
        Ok(())
    }

    /// Bytes whose release failed: whether the device still holds them is in doubt, and they are never handed out again.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn leaked_bytes(&self, device: DeviceIndex) -> Result<u64, Error> {
        Ok(self.arena(device)?.ledger.leaked())
    }

    /// Whether the context is well. After the first error that lost it the device is not called any more.
    ///
    /// # Errors
    /// [`Error::Device`] with the code that lost the context.
    pub fn health(&self, device: DeviceIndex) -> Result<(), Error> {
        Ok(self.arena(device)?.health()?)
    }

    /// Records the latest `capacity` events of a device from here on; 0 ends it. What was recorded is dropped. Where more than 16 streams
    /// and pools are busy at the same time it may be a few hundred fewer: an event is told only with all that came after it.
    ///
    /// # Errors
    /// [`Error::TableFull`] if there is no room for so many.
    pub fn record_trace(&self, device: DeviceIndex, capacity: usize) -> Result<(), Error> {
        let _checked = self.checked("record_trace", device);
        let arena = self.arena(device)?;
        if arena.start_trace(capacity) { Ok(()) } else { Err(Error::TableFull("trace entries")) }
    }

    /// Calls `visit` with every recorded event, oldest first. The allocator must not be called from there.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn for_each_trace_entry(&self, device: DeviceIndex, visit: impl FnMut(&TraceEntry)) -> Result<(), Error> {
        let _checked = self.checked("for_each_trace_entry", device);
        self.arena(device)?.visit_trace(visit);
        Ok(())
    }

    /// Every segment and block of every device, by address.
    #[cfg(feature = "alloc")]
    pub fn snapshot(&self) -> alloc::vec::Vec<crate::snapshot::SnapshotSegment> {
        let _checked = self.checked_everywhere("snapshot");
        let mut segments = alloc::vec::Vec::new();
        for arena in self.arenas.iter() {
            arena.show_lanes();
            arena.snapshot(&mut segments);
        }
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    /// Checks every invariant of every heap. For tests: it visits every block.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), &'static str> {
        for arena in self.arenas.iter() {
            let mut reserved = arena.ledger.leaked();
            arena.check_lanes()?;
            for slot in arena.slot_numbers() {
                let heap = arena.lock(slot);
                reserved += heap.check_invariants(&arena.slot(slot).tally)?;
            }
            if reserved != arena.ledger.reserved() {
                return Err("the bytes held from the device are not the sum of the segments");
            }
        }
        Ok(())
    }
}
