//! Which stream is which: the numbers that the allocator knows streams by, and the handles that the driver knows.
//!
//! A handle is an address, and the driver gives it to a new stream once the old one is destroyed. A number must not come
//! back so: work of the old stream may still run when the new one is handed a block that the old one freed. So
//!
//! ```text
//! number:  63            48 47                                     0
//!         |   generation   |                handle                 |   a stream that was created
//!         |     0xffff     |           number of the thread        |   a thread's own default stream
//!         |       0        |                  0                    |   the legacy default stream
//! ```
//!
//! A handle's generation goes up when its stream is retired: because the host says so before it destroys the stream, or
//! because the driver's own number of the stream (`cuStreamGetId`, never used twice) is seen to have changed.
//! Asking the driver costs as much as a whole cached allocation (32 ns, because a capturing stream must not be asked), so
//! on the way of every call only this table is asked (a hash and a load, no lock); the driver is asked where it is called
//! anyway, see [`StreamIdentity`].

use crate::driver::types::{CuContext, CuEvent, CuStream};
use cachalot_core::StreamId;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bits of a handle. User space ends at 2^47 on x86-64 and at 2^48 on 64-bit Arm, unless a program asks for more.
const HANDLE_BITS: u32 = 48;
/// The handle in a number.
const HANDLE_MASK: u64 = (1 << HANDLE_BITS) - 1;
/// In place of a generation: the number is that of a thread's own default stream.
const PER_THREAD: u64 = 0xffff;
/// The lowest address that a process can map by default (`vm.mmap_min_addr`), so the lowest handle of a created stream.
const LOWEST_HANDLE: u64 = 65_536;
/// Slots of the first level; each further level has twice as many.
const FIRST_LEVEL_SLOTS: usize = 256;
/// Levels. Together they hold 2^28 handles, which is more than a process has room for.
const LEVELS: usize = 20;
/// How many neighbours of its place a handle may lie in, at each level.
const PROBES: usize = 8;

/// When the driver is asked for a stream's own number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StreamIdentity {
    /// Where the driver is called for the stream anyway (event, wait), so that a number costs 3 ns. The host reports
    /// each stream before it destroys it, as `stream_destroyed` says; a host that does not may be handed, on a new stream
    /// with an old one's handle, a block that the old one's last kernels still use.
    #[default]
    Reported,
    /// Each time that a handle is turned into a number, which makes two short driver calls (16 ns each on an H200 with
    /// CUDA 13.0, from any number of threads): is it capturing, and if not, what is its number. Nothing needs to be
    /// reported. To wait for a created stream is to wait for its whole context, because its handle may be dead.
    ///
    /// The use of a block by another stream is announced with [`stream_in_use`](crate::CudaDevice::stream_in_use). The
    /// block waits for what the stream had to do by then.
    ///
    /// Only a driver of CUDA 12.0 or later can say; with an older one this is the same as
    /// [`Reported`](Self::Reported).
    Asked,
}

/// What a number stands for at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The legacy default stream.
    Legacy,
    /// The calling thread's own default stream.
    OwnPerThread,
    /// Another thread's own default stream, which only that thread has a handle of.
    OtherPerThread,
    /// A stream that was created and not retired.
    Live(CuStream),
    /// A stream that was retired.
    Retired,
}

/// What is left to wait for of a retired stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    /// This event comes after all of its work.
    Event(CuEvent),
    /// None was recorded; these contexts must be waited for.
    Contexts(Vec<Doubt>),
}

/// That work of a retired stream may be under way in a context, nobody having recorded its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doubt {
    /// The stream's context; null if the driver did not tell.
    pub(crate) context: CuContext,
    /// Tells this doubt from later ones of the same handle and context.
    stamp: u64,
}

/// What is known of retired streams and of the contexts of present ones.
#[derive(Debug)]
struct Retired {
    /// Numbers whose end was recorded: the event behind it, and the event's context. Not done, as far as is known.
    ended: VecDeque<(StreamId, CuEvent, CuContext)>,
    /// Handles of which a stream was retired without a recorded end. One entry a context, however many streams.
    doubts: BTreeMap<u64, Vec<Doubt>>,
    /// The context of each handle's present stream, where the driver told.
    contexts: BTreeMap<u64, CuContext>,
    /// The last doubt's stamp.
    stamp: u64,
    /// Streams whose use of blocks was announced, by handle and by the context of the event.
    uses: BTreeMap<(u64, usize), Use>,
}

/// The announced work of a stream that nothing reports: an event behind it. The event is recorded anew
/// for later work, also of a later stream with the same handle.
#[derive(Clone, Copy, Debug)]
struct Use {
    number: StreamId,
    event: CuEvent,
}

/// One handle that needs more than generation 0.
#[derive(Default, Debug)]
struct Slot {
    /// The handle's present number; 0 iff the slot is free.
    number: AtomicU64,
    /// One more than what the driver last called the stream; 0 iff it was not asked.
    driver_id: AtomicU64,
}

/// The streams of one allocator's devices. Shared by all of them, so that a stream has one number.
#[derive(Debug)]
pub struct Streams {
    /// Slots found by hashing. A slot is never freed, and a level is only used once the handle's places in all earlier
    /// ones are taken, so a free slot among a handle's places ⟹ the handle is in no later one.
    levels: [OnceLock<Box<[Slot]>>; LEVELS],
    /// Retired streams whose work may not be done. Guards the writing of slots too. Made when first needed.
    /// A retired stream has no event here and its handle no doubt ⟹ its work is done.
    retired: Mutex<Retired>,
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

impl Streams {
    /// No streams yet. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { levels: [const { OnceLock::new() }; LEVELS], retired: Mutex::new(Retired::new()) }
    }

    /// The present number of the stream with this handle, or `None` if no stream can have it.
    ///
    /// Takes no lock and calls no driver: a hash and a load, or less. From any thread.
    #[inline]
    #[must_use]
    pub fn number(&self, stream: CuStream) -> Option<StreamId> {
        let handle = stream.0 as u64;
        if Self::is_created(stream) {
            return Some(StreamId(self.slot(handle).map_or(handle, |slot| slot.number.load(Ordering::Acquire))));
        }
        match stream {
            CuStream::NULL | CuStream::LEGACY => Some(StreamId::DEFAULT),
            CuStream::PER_THREAD => Some(StreamId(PER_THREAD << HANDLE_BITS | this_thread())),
            _ => None,
        }
    }

    /// The handle that the calling thread can use for the stream of this number. `None` if the stream was retired, or is
    /// another thread's own. Takes no lock and calls no driver.
    #[must_use]
    pub fn handle(&self, stream: StreamId) -> Option<CuStream> {
        match self.target(stream) {
            Target::Legacy => Some(CuStream::NULL),
            Target::OwnPerThread => Some(CuStream::PER_THREAD),
            Target::Live(handle) => Some(handle),
            Target::OtherPerThread | Target::Retired => None,
        }
    }

    /// Whether a handle can be that of a stream that was created.
    #[inline]
    pub(crate) const fn is_created(stream: CuStream) -> bool {
        (stream.0 as u64).wrapping_sub(LOWEST_HANDLE) <= HANDLE_MASK - LOWEST_HANDLE
    }

    /// The number of a created stream of which the driver just said `driver_id`, if it said the same before.
    #[inline]
    pub(crate) fn number_of_id(&self, stream: CuStream, driver_id: u64) -> Option<StreamId> {
        let slot = self.slot(stream.0 as u64)?;
        // Acquire: the number written before this id is seen too.
        let known = slot.driver_id.load(Ordering::Acquire);
        (known == driver_id.wrapping_add(1)).then(|| StreamId(slot.number.load(Ordering::Acquire)))
    }

    /// The number of a created stream of which the driver just said `driver_id`, which is of `context`. If it said
    /// something else before, the handle has a new stream, and the old one is retired with nothing recorded of it.
    /// `None`: the table is full.
    pub(crate) fn learn(&self, stream: CuStream, driver_id: u64, context: CuContext) -> Option<StreamId> {
        let handle = stream.0 as u64;
        let expected = driver_id.wrapping_add(1);
        let mut retired = self.lock();
        let slot = self.slot_or_insert(handle)?;
        let known = slot.driver_id.load(Ordering::Relaxed);
        if known != expected {
            if known != 0 {
                retired.doubt(handle);
                retired.advance(slot);
            }
            retired.contexts.insert(handle, context);
            slot.driver_id.store(expected, Ordering::Release);
        }
        Some(StreamId(slot.number.load(Ordering::Relaxed)))
    }

    /// Retires the stream that has this handle at present: its number becomes [`Target::Retired`], and the handle gets a
    /// new one. `end` is an event behind all of its work, and the event's context. Answers the old number, or `None` if
    /// the table is full.
    pub(crate) fn retire(&self, stream: CuStream, end: Option<(CuEvent, CuContext)>) -> Option<StreamId> {
        let handle = stream.0 as u64;
        let mut retired = self.lock();
        let slot = self.slot_or_insert(handle)?;
        // The next stream with this handle will have another id: it is learnt anew, not taken for a change.
        slot.driver_id.store(0, Ordering::Relaxed);
        match end {
            Some((event, context)) => {
                let number = StreamId(slot.number.load(Ordering::Relaxed));
                retired.ended.push_back((number, event, context));
            }
            None => retired.doubt(handle),
        }
        Some(retired.advance(slot))
    }

    /// Retires the stream of this number, which the driver says is no more, with nothing recorded of its end. Does nothing if its
    /// handle has another number by now.
    pub(crate) fn retire_gone(&self, number: StreamId) {
        let handle = number.0 & HANDLE_MASK;
        let mut retired = self.lock();
        let Some(slot) = self.slot_or_insert(handle) else { return };
        if slot.number.load(Ordering::Relaxed) == number.0 {
            slot.driver_id.store(0, Ordering::Relaxed);
            retired.doubt(handle);
            retired.advance(slot);
        }
    }

    /// What a number stands for at present, seen from the calling thread.
    pub(crate) fn target(&self, stream: StreamId) -> Target {
        let handle = stream.0 & HANDLE_MASK;
        if stream.0 >> HANDLE_BITS == PER_THREAD {
            return if handle == this_thread() { Target::OwnPerThread } else { Target::OtherPerThread };
        }
        if handle < LOWEST_HANDLE {
            return if handle == CuStream::PER_THREAD.0 as u64 { Target::OwnPerThread } else { Target::Legacy };
        }
        let present = self.slot(handle).map_or(handle, |slot| slot.number.load(Ordering::Acquire));
        if present == stream.0 { Target::Live(CuStream(handle as usize)) } else { Target::Retired }
    }

    /// The context of a handle's present stream; null if the driver did not tell.
    pub(crate) fn present_context(&self, stream: CuStream) -> CuContext {
        self.lock().contexts.get(&(stream.0 as u64)).copied().unwrap_or(CuContext::NULL)
    }

    /// The event of `context` behind the announced work of a handle's streams, to be recorded anew.
    pub(crate) fn event_of_use(&self, stream: CuStream, context: CuContext) -> Option<CuEvent> {
        self.lock().uses.get(&(stream.0 as u64, context.0)).map(|its| its.event)
    }

    /// Notes that `event`, of `context`, is behind the announced work of a stream. Answers an event that
    /// another thread noted meanwhile, which is not needed any more.
    pub(crate) fn note_use(&self, number: StreamId, event: CuEvent, context: CuContext) -> Option<CuEvent> {
        let earlier = self.lock().uses.insert((number.0 & HANDLE_MASK, context.0), Use { number, event });
        earlier.map(|its| its.event).filter(|its| *its != event)
    }

    /// An event behind the announced work of a stream, if there was any.
    pub(crate) fn announced(&self, number: StreamId) -> Option<CuEvent> {
        let handle = number.0 & HANDLE_MASK;
        let retired = self.lock();
        let mut its = retired.uses.range((handle, 0)..=(handle, usize::MAX));
        its.find(|(_, its)| its.number == number).map(|(_, its)| its.event)
    }

    /// Takes the events of `context` that stand for announced work.
    pub(crate) fn take_uses(&self, context: CuContext) -> Vec<CuEvent> {
        let mut retired = self.lock();
        let (taken, kept) = core::mem::take(&mut retired.uses).into_iter().partition(|((_, its), _)| *its == context.0);
        retired.uses = kept;
        BTreeMap::into_values(taken).map(|its: Use| its.event).collect()
    }

    /// What is left to wait for of a retired stream; `None` if nothing is.
    pub(crate) fn last(&self, stream: StreamId) -> Option<Last> {
        let retired = self.lock();
        match retired.ended.iter().find(|(number, ..)| *number == stream) {
            Some((_, event, _)) => Some(Last::Event(*event)),
            None => retired.doubts.get(&(stream.0 & HANDLE_MASK)).cloned().map(Last::Contexts),
        }
    }

    /// Some retired streams that an event of `context` stands for, out of the next `limit` in turn.
    pub(crate) fn next_ended(&self, context: CuContext, limit: usize) -> Vec<(StreamId, CuEvent)> {
        let mut retired = self.lock();
        let count = limit.min(retired.ended.len());
        let of_context = |entry: &&(StreamId, CuEvent, CuContext)| entry.2 == context;
        let next = retired.ended.iter().take(count).filter(of_context).map(|entry| (entry.0, entry.1)).collect();
        // Whatever is not done now goes behind the others, so that it does not stand before them for ever.
        retired.ended.rotate_left(count);
        next
    }

    /// Forgets a retired stream whose recorded end has come. Whether it was listed: true for one caller only.
    pub(crate) fn finish(&self, stream: StreamId) -> bool {
        let mut retired = self.lock();
        let found = retired.ended.iter().position(|(number, ..)| *number == stream);
        found.and_then(|at| retired.ended.remove(at)).is_some()
    }

    /// Forgets these doubts of a retired stream's handle, their contexts having been waited for. Later ones stay.
    pub(crate) fn settle(&self, stream: StreamId, settled: &[Doubt]) {
        let handle = stream.0 & HANDLE_MASK;
        let mut retired = self.lock();
        if let Some(doubts) = retired.doubts.get_mut(&handle) {
            doubts.retain(|doubt| !settled.contains(doubt));
            if doubts.is_empty() {
                retired.doubts.remove(&handle);
            }
        }
    }

    /// The slot of a handle, if it has one.
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

    /// The slot of a handle, taken at generation 0 if it had none. The caller holds the lock. `None`: every place that
    /// the handle may lie in is taken, at every level.
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

    /// The lock. A thread that panicked while it held it left whole entries only.
    fn lock(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Retired {
    /// Nothing retired yet. Allocates nothing.
    const fn new() -> Self {
        Self {
            ended: VecDeque::new(),
            doubts: BTreeMap::new(),
            contexts: BTreeMap::new(),
            stamp: 0,
            uses: BTreeMap::new(),
        }
    }

    /// Notes that the handle's present stream ends without a recorded end.
    fn doubt(&mut self, handle: u64) {
        let context = self.contexts.remove(&handle).unwrap_or(CuContext::NULL);
        self.stamp += 1;
        let doubts = self.doubts.entry(handle).or_default();
        doubts.retain(|doubt| doubt.context != context);
        doubts.push(Doubt { context, stamp: self.stamp });
    }

    /// Gives a slot's handle its next number. Answers the old one.
    fn advance(&self, slot: &Slot) -> StreamId {
        let old = slot.number.load(Ordering::Relaxed);
        let mut next = old;
        loop {
            // A number comes back after 65,535 streams with this handle, unless one of them is not done even then.
            let generation = (next >> HANDLE_BITS) + 1;
            next = (next & HANDLE_MASK) | (if generation == PER_THREAD { 0 } else { generation }) << HANDLE_BITS;
            if !self.ended.iter().any(|(number, ..)| number.0 == next) {
                break;
            }
        }
        slot.number.store(next, Ordering::Release);
        StreamId(old)
    }
}

/// The slots of one level in which a handle may lie, in the order in which they are taken.
#[inline]
fn places(slots: &[Slot], handle: u64) -> impl Iterator<Item = &Slot> {
    // Fibonacci hashing: handles differ in their middle bits, the product's top bits depend on all of those.
    let first = (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..PROBES).map(move |step| &slots[(first + step) & (slots.len() - 1)])
}

/// The calling thread's number, counted from 1 in the order in which threads first asked.
#[inline]
#[must_use]
pub fn this_thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        // A plain number has no destructor, so nothing runs when the thread ends.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}
