//! The identity of streams: maps the driver's handles to numbers that remain unique although the
//! driver reuses handles.
//!
//! A handle is an address. After a stream is destroyed, the driver gives its address to a new
//! stream. A number must not be reused, because a new stream would then get a block that the old
//! stream has freed, while work of the old stream still uses it. So a number contains a generation:
//!
//! ```text
//! number:  63            48 47                                     0
//!         |   generation   |                handle                 |   a stream that was created
//!         |     0xffff     |           number of the thread        |   a thread's own default stream
//!         |       0        |                  0                    |   the legacy default stream
//! ```
//!
//! The generation of a handle increases when its stream is retired. A stream is retired when the
//! host reports that it is about to be destroyed, or when the driver's id for the handle
//! (`cuStreamGetId`, never used twice) has changed.
//!
//! A query of the driver costs as much as a whole cached allocation (32 ns, because the id of a
//! stream that captures must not be queried). So the fast path only looks the handle up in a table
//! (a hash and a load, no lock). The driver is queried only on paths with other driver calls, see
//! [`StreamIdentity`].
//!
//! A real driver ends the process by SIGSEGV if any call gets the handle of a destroyed stream,
//! even a mere query. So only a host that reports every end lets the device use a handle outside
//! the calls that name it.

use crate::announced_work::AnnouncedWork;
use crate::driver::types::{CuContext, CuStream};
use crate::handle::Handle;
use crate::in_use::InUse;
use crate::kept_bytes::KeptBytes;
use crate::parts::spread;
use crate::retired_streams::{HANDLE_BITS, HANDLE_MASK, PER_THREAD, Retired, UnrecordedEnd};
use crate::shared_event::SharedEvent;
use cachalot_core::StreamId;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The lowest address a process can map by default (`vm.mmap_min_addr`), and so the lowest handle
/// of a created stream.
const LOWEST_HANDLE: u64 = 65_536;
/// The number of slots in the first level. Each other level has twice as many as the one before.
const FIRST_LEVEL_SLOTS: usize = 256;
/// The number of levels. Together they have room for 2^28 handles, more than a process can create.
const LEVELS: usize = 20;
/// The number of times that a report checks for calls with the handle before it sleeps between
/// checks.
const LOOKS: u32 = 100;
/// The sleep between two checks.
const PAUSE: Duration = Duration::from_micros(20);
/// The number of neighbouring slots for a handle in each level.
const PROBES: usize = 8;

/// The way in which the device learns to which stream a handle belongs, and whether the stream may
/// have ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StreamIdentity {
    /// The host reports each stream before it is destroyed, see `stream_destroyed`. The device
    /// trusts this: it queries the state of streams, records events on them and waits for them in
    /// calls that do not name them. A stream that ends without a report crashes the process. The
    /// driver is asked for an id only together with a call on the stream (event, wait), so a number
    /// costs 3 ns.
    #[default]
    Reported,
    /// Streams may end without a report. The device uses a created stream's handle only in a call
    /// that names the stream. A number costs 3 ns, as with [`Reported`](Self::Reported).
    ///
    /// A wait for a created stream waits for the stream's whole context, because the handle may
    /// belong to a destroyed stream. The use of a block by another stream is announced with
    /// [`stream_in_use`](crate::CudaDevice::stream_in_use). The block then waits for the work of
    /// the stream before the announcement, or for the whole context if the stream captured when the
    /// use was announced. Memory passes between streams only after an event has shown that the work
    /// has ended. After physical memory is created, the device keeps 16 small allocations, in one
    /// page of 2 MiB, for waits without free memory.
    ///
    /// A stream that ends without a report should have finished its work, because a new stream with
    /// the same handle has the same number until a slow call asks for its id, and may get a block
    /// that the last kernels of the old stream still use.
    Unreported,
    /// As [`Unreported`](Self::Unreported), but the driver is asked for the id at every conversion
    /// of a handle to a number, so that a new stream with an old handle always has a new number. A
    /// conversion makes two short driver calls (16 ns each on an H200 with CUDA 13.0, from any
    /// number of threads): whether the stream captures, and if not, the stream's id. The 16 small
    /// allocations are kept from the time the device is opened. This needs a driver of CUDA 12.0 or
    /// later; with an older driver it is the same as [`Unreported`](Self::Unreported).
    Asked,
}

/// The stream of a number, with its handle if it is a created stream.
#[derive(Debug)]
pub(crate) enum Target<'a> {
    /// The legacy default stream.
    Legacy,
    /// The calling thread's own default stream.
    OwnPerThread,
    /// The default stream of another thread. Only that thread has a handle for it.
    OtherPerThread,
    /// A created stream that is not retired. It exists as long as the handle lives.
    Live(Handle<'a>),
    /// A retired stream.
    Retired,
}

/// The remaining work of a retired stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Remaining {
    /// The event is after all work of the stream.
    Event(SharedEvent),
    /// No event was recorded, so all work of these contexts must complete.
    Contexts(Vec<UnrecordedEnd>),
}

/// The state of a handle beyond generation 0.
#[derive(Default, Debug)]
struct Slot {
    /// The handle's present number, or 0 iff the slot is free.
    number: AtomicU64,
    /// The driver's id of the stream plus 1, or 0 iff the driver was not asked.
    driver_id: AtomicU64,
    /// Whether streams with the handle may end without a report, although the host reports its own
    /// ones.
    unreported: AtomicBool,
}

/// The streams of the devices of an allocator. All devices share this table, so a stream has a
/// single number.
#[derive(Debug)]
pub struct Streams {
    /// The slots, which are found by hashing. A slot is never freed. A handle goes to a level only
    /// if its slots in all earlier levels are taken. So a free slot among the slots of a handle ⟹
    /// no later level contains the handle.
    levels: [OnceLock<Box<[Slot]>>; LEVELS],
    /// Whether a slot has an unreported stream. A host that reports all its streams has none, and
    /// then no slot is looked up.
    has_unreported: AtomicBool,
    /// The handles that calls are using.
    in_use: InUse,
    /// The retired streams with work that may be incomplete. The lock also guards all writes to
    /// slots. A retired stream has no event here, and its handle has no unrecorded end ⟹ its work
    /// is complete.
    retired: Mutex<Retired>,
    /// The work that was announced on streams that may be gone.
    pub(crate) work: AnnouncedWork,
    /// The bytes of device memory that are kept for waits for the contexts of the devices.
    kept_bytes: KeptBytes,
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Streams {
    /// Creates an empty table. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            levels: [const { OnceLock::new() }; LEVELS],
            has_unreported: AtomicBool::new(false),
            in_use: InUse::new(),
            retired: Mutex::new(Retired::new()),
            work: AnnouncedWork::new(),
            kept_bytes: KeptBytes::new(),
        }
    }

    /// Returns the bytes of device memory that are kept for waits.
    pub(crate) const fn kept_bytes(&self) -> &KeptBytes {
        &self.kept_bytes
    }

    /// Returns the present number of the stream with the given handle, or `None` if no stream can
    /// have the handle.
    ///
    /// Takes no lock and calls no driver. This is a hash and a load, or less. May be called from
    /// any thread.
    #[inline]
    #[must_use]
    pub fn number(&self, stream: CuStream) -> Option<StreamId> {
        let handle = stream.0 as u64;
        if Self::is_created(stream) {
            // The first place is enough for almost every handle. The walk over all places is out of
            // line, because it needs every register.
            let first = self.levels[0].get().and_then(|slots| places(slots, handle).next());
            return match first.map_or(0, |slot| slot.number.load(Ordering::Acquire)) {
                // There is no slot, or a free one, so the handle is at generation 0.
                0 => Some(StreamId(handle)),
                number if number & HANDLE_MASK == handle => Some(StreamId(number)),
                _ => Some(self.number_beyond(handle)),
            };
        }
        match stream {
            CuStream::NULL | CuStream::LEGACY => Some(StreamId::DEFAULT),
            CuStream::PER_THREAD => Some(StreamId(PER_THREAD << HANDLE_BITS | this_thread())),
            _ => None,
        }
    }

    /// Returns the number of a created stream if its handle is not in its first place.
    #[cold]
    #[inline(never)]
    fn number_beyond(&self, handle: u64) -> StreamId {
        StreamId(self.slot(handle).map_or(handle, |slot| slot.number.load(Ordering::Acquire)))
    }

    /// Returns the calling thread's handle for the stream of a number. Returns `None` if the stream
    /// is retired, or is the default stream of another thread. Takes no lock and calls no driver.
    ///
    /// The handle is valid only as long as the caller keeps the stream alive, because the report of
    /// the stream's end does not wait for the caller.
    #[must_use]
    pub fn handle(&self, stream: StreamId) -> Option<CuStream> {
        if Self::is_of_created(stream) {
            return self.is_present(stream).then_some(CuStream((stream.0 & HANDLE_MASK) as usize));
        }
        match self.hold(stream) {
            Target::Legacy => Some(CuStream::NULL),
            Target::OwnPerThread => Some(CuStream::PER_THREAD),
            Target::OtherPerThread | Target::Live(_) | Target::Retired => None,
        }
    }

    /// Notes that streams with a handle may end without a report. Returns false if the table is
    /// full.
    ///
    /// This is for a host that reports the ends of its own streams and also serves streams of other
    /// libraries, which do not report them. The note remains with the handle. Takes a lock the
    /// first time, and calls no driver.
    #[must_use]
    pub fn set_unreported(&self, stream: CuStream) -> bool {
        let handle = stream.0 as u64;
        if !Self::is_created(stream) || self.slot(handle).is_some_and(|slot| slot.unreported.load(Ordering::Acquire)) {
            return true;
        }
        let _retired = self.lock();
        let Some(slot) = self.slot_or_insert(handle) else { return false };
        // First, so that whoever sees the note of the slot looks for it.
        self.has_unreported.store(true, Ordering::Relaxed);
        slot.unreported.store(true, Ordering::Release);
        true
    }

    /// Returns whether the stream of a number may end without a report, although the host reports
    /// its own ones.
    pub(crate) fn is_unreported(&self, stream: StreamId) -> bool {
        self.has_unreported.load(Ordering::Relaxed)
            && self.slot(stream.0 & HANDLE_MASK).is_some_and(|slot| slot.unreported.load(Ordering::Acquire))
    }

    /// Returns whether a handle can belong to a created stream.
    #[inline]
    pub(crate) const fn is_created(stream: CuStream) -> bool {
        (stream.0 as u64).wrapping_sub(LOWEST_HANDLE) <= HANDLE_MASK - LOWEST_HANDLE
    }

    /// Returns the number of a created stream, if `driver_id` is the latest id from the driver.
    #[inline]
    pub(crate) fn number_of_id(&self, stream: &Handle<'_>, driver_id: u64) -> Option<StreamId> {
        let slot = self.slot(stream.key())?;
        // Acquire, so that a reader of the id also reads the number that was written before it.
        let known = slot.driver_id.load(Ordering::Acquire);
        (known == driver_id.wrapping_add(1)).then(|| StreamId(slot.number.load(Ordering::Acquire)))
    }

    /// Stores the id and the context of a stream that the driver has just reported, and returns the
    /// number of the stream. If the driver reported another id before, the handle has a new stream,
    /// and the old one is retired without a recorded end. Returns `None` if the table is full.
    ///
    /// Stores nothing if the end of the stream was reported after its handle was looked up, because
    /// the id does not belong to the next stream with the handle.
    pub(crate) fn learn(&self, stream: &Handle<'_>, driver_id: u64, context: CuContext) -> Option<StreamId> {
        let handle = stream.key();
        let expected = driver_id.wrapping_add(1);
        let mut retired = self.lock();
        let slot = self.slot_or_insert(handle)?;
        let number = StreamId(slot.number.load(Ordering::Relaxed));
        if stream.number().is_some_and(|of_stream| of_stream != number) {
            return Some(number);
        }
        let known = slot.driver_id.load(Ordering::Relaxed);
        if known != expected {
            if known != 0 {
                retired.end_unrecorded(handle);
                retired.advance(&slot.number);
            }
            retired.contexts.insert(handle, context);
            slot.driver_id.store(expected, Ordering::Release);
        }
        Some(StreamId(slot.number.load(Ordering::Relaxed)))
    }

    /// Retires the present stream of a handle: the number becomes [`Target::Retired`], and the
    /// handle gets a new number. `end` is an event after all work of the stream. Returns the old
    /// number, or `None` if the table is full.
    ///
    /// Waits for the calls that are using the handle. No such call waits for work of the stream.
    pub(crate) fn retire(&self, stream: CuStream, end: Option<SharedEvent>) -> Option<StreamId> {
        let handle = stream.0 as u64;
        let number = self.retire_number(handle, end)?;
        let looks = Cell::new(0);
        self.in_use.wait_until_unused(handle, || {
            // A driver call takes a microsecond, or longer if the driver blocks calls.
            looks.set(looks.get() + 1);
            if looks.get() < LOOKS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        });
        Some(number)
    }

    /// Retires the present stream of a handle, as [`retire`](Self::retire) does, without the wait.
    fn retire_number(&self, handle: u64, end: Option<SharedEvent>) -> Option<StreamId> {
        let mut retired = self.lock();
        let slot = self.slot_or_insert(handle)?;
        // The next stream with this handle has another id. Clearing the old id prevents a second
        // retirement.
        slot.driver_id.store(0, Ordering::Relaxed);
        match end {
            Some(event) => {
                let number = StreamId(slot.number.load(Ordering::Relaxed));
                retired.ended.push_back((number, event));
            }
            None => retired.end_unrecorded(handle),
        }
        Some(retired.advance(&slot.number))
    }

    /// Returns the present stream of a number, as seen by the calling thread. A created stream
    /// exists as long as the target lives, because the report of its end waits.
    pub(crate) fn hold(&self, stream: StreamId) -> Target<'_> {
        let handle = stream.0 & HANDLE_MASK;
        if stream.0 >> HANDLE_BITS == PER_THREAD {
            return if handle == this_thread() { Target::OwnPerThread } else { Target::OtherPerThread };
        }
        if handle < LOWEST_HANDLE {
            return if handle == CuStream::PER_THREAD.0 as u64 { Target::OwnPerThread } else { Target::Legacy };
        }
        // The use starts before the number is checked, because a report first gives the handle its
        // next number and then waits for the use.
        let used = self.in_use.begin(handle, this_thread());
        if self.is_present(stream) {
            Target::Live(Handle::held(CuStream(handle as usize), stream, used))
        } else {
            Target::Retired
        }
    }

    /// Returns whether a number belongs to a created stream, retired or not.
    pub(crate) const fn is_of_created(stream: StreamId) -> bool {
        stream.0 >> HANDLE_BITS != PER_THREAD && stream.0 & HANDLE_MASK >= LOWEST_HANDLE
    }

    /// Returns whether the number of a created stream is the present number of its handle.
    pub(crate) fn is_present(&self, stream: StreamId) -> bool {
        let handle = stream.0 & HANDLE_MASK;
        self.slot(handle).map_or(handle, |slot| slot.number.load(Ordering::Acquire)) == stream.0
    }

    /// Returns the handle of a stream that can take part in a capture, including the calling
    /// thread's default stream. The legacy stream never captures.
    pub(crate) fn capturing(&self, stream: StreamId) -> Option<Handle<'_>> {
        match self.hold(stream) {
            Target::Live(stream) => Some(stream),
            Target::OwnPerThread => Some(Handle::vouched(CuStream::PER_THREAD)),
            Target::Legacy | Target::OtherPerThread | Target::Retired => None,
        }
    }

    /// Returns the handle of a stream, or `None` if the stream has ended or is another thread's
    /// default stream.
    pub(crate) fn held(&self, stream: StreamId) -> Option<Handle<'_>> {
        match self.hold(stream) {
            Target::Legacy => Some(Handle::vouched(CuStream::NULL)),
            _ => self.capturing(stream),
        }
    }

    /// Returns the context of the present stream with the handle of a number, or null if the driver
    /// did not report it.
    pub(crate) fn present_context(&self, stream: StreamId) -> CuContext {
        self.lock().contexts.get(&(stream.0 & HANDLE_MASK)).copied().unwrap_or(CuContext::NULL)
    }

    /// Returns the remaining work of a retired stream, or `None` if all work is complete.
    pub(crate) fn remaining(&self, stream: StreamId) -> Option<Remaining> {
        let retired = self.lock();
        match retired.ended.iter().find(|(number, _)| *number == stream) {
            Some((_, event)) => Some(Remaining::Event(event.clone())),
            None => retired.unrecorded.get(&(stream.0 & HANDLE_MASK)).cloned().map(Remaining::Contexts),
        }
    }

    /// Examines the next `limit` retired streams in turn. Returns the streams with an event of
    /// `context`.
    pub(crate) fn next_ended(&self, context: CuContext, limit: usize) -> Vec<(StreamId, SharedEvent)> {
        let mut retired = self.lock();
        let count = limit.min(retired.ended.len());
        let of_context = |entry: &&(StreamId, SharedEvent)| entry.1.context() == context;
        let next = retired.ended.iter().take(count).filter(of_context).cloned().collect();
        // Examined streams go to the end, so that unfinished streams do not block the others
        // forever.
        retired.ended.rotate_left(count);
        next
    }

    /// Forgets a retired stream with a complete recorded end. Only the caller that removes the
    /// entry gets the event.
    pub(crate) fn finish(&self, stream: StreamId) -> Option<SharedEvent> {
        let mut retired = self.lock();
        let found = retired.ended.iter().position(|(number, _)| *number == stream);
        found.and_then(|at| retired.ended.remove(at)).map(|(_, event)| event)
    }

    /// Removes unrecorded ends of the handle of a retired stream, after a wait for their contexts.
    /// Later entries remain.
    pub(crate) fn forget_unrecorded(&self, stream: StreamId, ends: &[UnrecordedEnd]) {
        let handle = stream.0 & HANDLE_MASK;
        let mut retired = self.lock();
        if let Some(unrecorded) = retired.unrecorded.get_mut(&handle) {
            unrecorded.retain(|end| !ends.contains(end));
            if unrecorded.is_empty() {
                retired.unrecorded.remove(&handle);
            }
        }
    }

    /// Returns the slot of a handle, if it has one.
    #[inline]
    fn slot(&self, handle: u64) -> Option<&Slot> {
        for level in &self.levels {
            let slots = level.get()?;
            for slot in places(slots, handle) {
                match slot.number.load(Ordering::Acquire) {
                    0 => return None,
                    number if number & HANDLE_MASK == handle => return Some(slot),
                    _ => {}
                }
            }
        }
        None
    }

    /// Returns the slot of a handle. If it has none, takes one at generation 0. The caller holds
    /// the lock. Returns `None` if every possible slot of the handle is taken, in every level.
    fn slot_or_insert(&self, handle: u64) -> Option<&Slot> {
        if let Some(slot) = self.slot(handle) {
            return Some(slot);
        }
        for (index, level) in self.levels.iter().enumerate() {
            let slots = level.get_or_init(|| (0..FIRST_LEVEL_SLOTS << index).map(|_| Slot::default()).collect());
            if let Some(slot) = places(slots, handle).find(|slot| slot.number.load(Ordering::Relaxed) == 0) {
                slot.number.store(handle, Ordering::Release);
                return Some(slot);
            }
        }
        None
    }

    /// Locks the retired streams. Poison is ignored, because a panic under the lock leaves only
    /// whole entries.
    fn lock(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Iterates over the possible slots of a handle in a level, in the order of use.
#[inline]
fn places(slots: &[Slot], handle: u64) -> impl Iterator<Item = &Slot> {
    let first = spread(handle);
    (0..PROBES).map(move |step| &slots[(first + step) & (slots.len() - 1)])
}

/// Returns the calling thread's number. Threads are counted from 1 in the order of their first
/// call.
#[inline]
#[must_use]
pub fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        // A plain number has no destructor, so no code runs when the thread ends.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}
