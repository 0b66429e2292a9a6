//! The contents of parked memory, in pinned memory of the host.
//!
//! ```text
//! prepare(40 MiB, …) ─▶ a region: | saved: 20 MiB | saved: 2 MiB | free ………… |
//!                                     ▲ copies on a stream of their own
//! ```
//!
//! A call of `prepare` takes a *region* for all contents of the next saves: an idle region of an earlier
//! park, or new memory (region.rs). Contents are laid next to each other. The region is *under way* until
//! `end_saves`: all saves go to the region, and no thread gives the region back. A region without contents is
//! kept for the next park, up to a limit set by the program, and otherwise given back.
//!
//! The copies run on a non-blocking stream of their own, in pieces as the pieces come. A single stream
//! reaches the rate of the link in either direction (51 GiB/s on an H100). Copies are numbered in the order
//! of their calls. A region goes back after the last of its copies.
//!
//! No lock is held across a call of the driver. Any thread may call any method at any time, with a single
//! rule for the allocator: from `prepare` to `end_saves`, only one thread saves, for one park.

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::driver::types::{CuEvent, CuStream};
use crate::own_stream::OwnStream;
use crate::region::Region;
use crate::spare_events;
use cachalot_core::{CopyMark, DevicePtr, DeviceResult, Saved};
use core::num::NonZeroU64;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of contents in their region, in bytes.
const ALIGNMENT: u64 = 4096;

/// Where contents are kept.
#[derive(Clone, Copy, Debug)]
struct ContentsPlace {
    region: u64,
    offset: u64,
    bytes: u64,
}

/// A region with its contents.
#[derive(Debug)]
struct Entry {
    number: u64,
    /// Shared with calls that copy to or from the region at the moment.
    region: Arc<Region>,
    /// Bytes from the beginning with contents, past or present.
    used: u64,
    /// How many contents are kept here, or are about to be.
    kept: u32,
    /// The number of the last copy to or from the region.
    copied: u64,
}

/// An event behind copies.
#[derive(Debug)]
struct EventAfterCopies {
    event: CuEvent,
    /// The number of the last copy before the event.
    copied: u64,
}

/// The regions and the copies.
#[derive(Debug, Default)]
struct State {
    regions: Vec<Entry>,
    /// The number of the region under way.
    under_way: Option<u64>,
    places: HashMap<u64, ContentsPlace>,
    /// The number given last, to a region or to contents.
    numbers: u64,
    /// Marks without a finished wait, by number. Shared with the waiting threads. The last thread destroys
    /// the event.
    marks: BTreeMap<u64, Arc<EventAfterCopies>>,
    /// The mark given last.
    latest: u64,
    /// The number of the copy begun last, and of the last copy known to have ended.
    begun: u64,
    ended: u64,
    /// Bytes of regions without contents kept for the next park.
    retained: u64,
}

/// The contents of a device's parked memory.
#[derive(Debug, Default)]
pub(crate) struct Store {
    state: Mutex<State>,
    /// The stream of the copies.
    stream: OwnStream,
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        self.regions.iter_mut().find(|entry| entry.number == number)
    }

    /// Returns whether the region has no contents and no park has prepared the region.
    fn is_idle(&self, entry: &Entry) -> bool {
        entry.kept == 0 && self.under_way != Some(entry.number)
    }

    /// Bytes of idle regions.
    fn idle_bytes(&self) -> u64 {
        self.regions.iter().filter(|entry| self.is_idle(entry)).map(|entry| entry.region.bytes).sum()
    }

    /// Takes an idle region out: a useless region, or any if the idle regions hold more bytes than the limit.
    fn take_excess(&mut self) -> Option<Entry> {
        let excess = self.idle_bytes() > self.retained;
        let goes = |entry: &Entry| self.is_idle(entry) && (excess || entry.region.is_useless());
        let found = self.regions.iter().position(goes)?;
        Some(self.regions.remove(found))
    }

    /// Returns the number of the smallest idle region of at least `bytes`.
    fn fitting(&self, bytes: u64) -> Option<u64> {
        let fits = |entry: &&Entry| self.is_idle(entry) && entry.region.bytes >= bytes && !entry.region.is_useless();
        self.regions.iter().filter(fits).min_by_key(|entry| entry.region.bytes).map(|entry| entry.number)
    }

    /// Takes a place of `bytes` in the region under way. `None` if no region is under way, or the region lacks the room.
    fn take_place(&mut self, bytes: u64) -> Option<(ContentsPlace, Arc<Region>)> {
        let entry = self.entry(self.under_way?)?;
        let end = entry.used.checked_add(bytes).filter(|end| *end <= entry.region.bytes)?;
        let place = ContentsPlace { region: entry.number, offset: entry.used, bytes };
        entry.used = end.next_multiple_of(ALIGNMENT).min(entry.region.bytes);
        entry.kept += 1;
        Some((place, Arc::clone(&entry.region)))
    }

    /// Notes the beginning of a call's copies to or from a region.
    fn note_copies(&mut self, region: u64) {
        self.begun += 1;
        let begun = self.begun;
        if let Some(entry) = self.entry(region) {
            entry.copied = begun;
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of the state is complete before the next call that may panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the bytes of pinned host memory that stay when all contents of parked memory are gone, for the
    /// next park. The initial value is 0. Gives excess memory back.
    ///
    /// # Errors
    /// The first error of the driver or the system. Memory whose return failed is lost.
    pub(crate) fn retain(&self, context: &Context, bytes: u64) -> DeviceResult<()> {
        self.lock().retained = bytes;
        self.give_excess_back(context)
    }

    /// Returns the bytes of pinned host memory for contents: all bytes, and the bytes without contents at
    /// present.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.regions.iter().map(|entry| entry.region.bytes).sum(), state.idle_bytes())
    }

    /// Lets every region lack memory, as if the system had refused the rest.
    #[cfg(test)]
    pub(crate) fn lose_memory(&self) {
        self.lock().regions.iter().for_each(|entry| entry.region.lose_memory());
    }

    /// Gives regions back beyond the limit, and useless regions.
    fn give_excess_back(&self, context: &Context) -> DeviceResult<()> {
        let mut result = Ok(());
        loop {
            // The lock ends with this statement: giving a region back takes up to 0.1 s for each GiB.
            let excess = self.lock().take_excess();
            let Some(excess) = excess else { return result };
            if let Err(error) = self.wait_for_copy(context, excess.copied)
                && context.health().is_ok()
            {
                // A copy may be in progress. A later call tries again.
                self.lock().regions.push(excess);
                return result.and(Err(error));
            }
            result = result.and(give_back(context, excess));
        }
    }

    /// Waits until the copy with the number has ended. Calls the driver only if no mark behind the copy was waited for:
    /// after a failed save, mark or wait.
    fn wait_for_copy(&self, context: &Context, copy: u64) -> DeviceResult<()> {
        let begun = {
            let state = self.lock();
            if copy <= state.ended {
                return Ok(());
            }
            state.begun
        };
        self.stream.synchronize(context)?;
        let mut state = self.lock();
        state.ended = state.ended.max(begun);
        Ok(())
    }

    /// Destroys the stream and the events of the copies after the end of the copies, and gives all host
    /// memory back, for the closing of the device. No other thread may be inside a call of the device.
    pub(crate) fn close(&self, context: &Context) -> DeviceResult<()> {
        let state = core::mem::take(&mut *self.lock());
        let mut result = self.stream.synchronize(context).and(self.stream.destroy(context));
        result = result.and(release(context, state.marks.into_values()));
        for entry in state.regions {
            result = result.and(give_back(context, entry));
        }
        result
    }

    /// Takes the smallest sufficient region without contents, or starts a new region: the saves wait for the
    /// new memory piece by piece. The memory is taken from `node`, if given. The region is under way until
    /// [`end_saves`](Self::end_saves).
    pub(crate) fn prepare(&self, bytes: u64, node: Option<u32>) -> DeviceResult<()> {
        {
            let mut state = self.lock();
            state.under_way = None;
            // Contents of pages are multiples of 2 MiB long: no gap is left between them.
            let found = state.fitting(bytes);
            if let Some(entry) = found.and_then(|number| state.entry(number)) {
                entry.used = 0;
                state.under_way = found;
                return Ok(());
            }
        }
        let region = Arc::new(Region::new(bytes, node)?);
        let mut state = self.lock();
        let number = state.number();
        state.regions.push(Entry { number, region, used: 0, kept: 0, copied: 0 });
        state.under_way = Some(number);
        Ok(())
    }

    /// Ends the saves to the region under way. Gives the region back if the region has no contents and
    /// exceeds the limit.
    pub(crate) fn end_saves(&self, context: &Context) {
        self.lock().under_way = None;
        // Memory that could not be given back is lost, which no caller could change.
        let _ = self.give_excess_back(context);
    }

    pub(crate) fn save(&self, context: &Context, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        let stream = self.stream.get(context)?;
        let taken = self.lock().take_place(bytes);
        let (place, region) = taken.ok_or(CuResult::OUT_OF_MEMORY.error())?;
        let copied = region.each_part(context, place.offset, bytes, |to, from, part| {
            context.call(|driver| {
                // SAFETY: the part lies in the region, beside all other contents, and stays pinned while
                // contents are kept there or copies are in progress.
                unsafe { driver.memcpy_dtoh_async(to, at.0 + from, part as usize, stream) }
            })
        });
        let mut state = self.lock();
        state.note_copies(place.region);
        if let Err(error) = copied {
            if let Some(entry) = state.entry(place.region) {
                // Copies of earlier parts may be in progress. A later save to the place comes behind them.
                entry.used = place.offset;
                entry.kept -= 1;
            }
            return Err(error);
        }
        let name = state.number();
        state.places.insert(name, place);
        NonZeroU64::new(name).map(Saved).ok_or(CuResult::UNKNOWN.error())
    }

    pub(crate) fn restore(&self, context: &Context, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let stream = self.stream.get(context)?;
        let (place, region) = {
            let mut state = self.lock();
            let place = state.places.get(&saved.0.get()).copied().filter(|place| place.bytes == bytes);
            let place = place.ok_or(CuResult::INVALID_VALUE.error())?;
            let entry = state.entry(place.region).ok_or(CuResult::INVALID_VALUE.error())?;
            (place, Arc::clone(&entry.region))
        };
        let copied = region.each_part(context, place.offset, bytes, |from, to, part| {
            context.call(|driver| {
                // SAFETY: the contents lie in a region, which stays until they are forgotten.
                unsafe { driver.memcpy_htod_async(at.0 + to, from, part as usize, stream) }
            })
        });
        self.lock().note_copies(place.region);
        copied
    }

    pub(crate) fn zero(&self, context: &Context, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let stream = self.stream.get(context)?;
        context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator has mapped the range, and hands it out after the
            // fill only.
            unsafe { driver.memset_d8_async(at.0, 0, bytes as usize, stream) }
        })
    }

    pub(crate) fn mark(&self, context: &Context) -> DeviceResult<CopyMark> {
        let stream = self.stream.get(context)?;
        // Read before the event is recorded, so that the event comes behind every copy that counts.
        let copied = self.lock().begun;
        let event = match Self::record(context, stream) {
            Ok(event) => event,
            Err(error) => {
                // Copies that nothing waits for would go on after their memory is unmapped. Without an event, the calling
                // thread waits for them here.
                self.stream.synchronize(context).map_err(|_| error)?;
                let mut state = self.lock();
                state.ended = state.ended.max(copied);
                return Ok(CopyMark::default());
            }
        };
        let mut state = self.lock();
        state.latest += 1;
        let mark = state.latest;
        state.marks.insert(mark, Arc::new(EventAfterCopies { event, copied }));
        Ok(CopyMark(mark))
    }

    /// Returns a new event behind the copies begun so far.
    fn record(context: &Context, stream: CuStream) -> DeviceResult<CuEvent> {
        let event = spare_events::create(context)?;
        let recorded = context.call(|driver| {
            // SAFETY: takes no host pointers; both handles are this device's own.
            unsafe { driver.event_record(event, stream) }
        });
        if recorded.is_err() {
            let _ = spare_events::destroy(context, event);
        }
        recorded.map(|()| event)
    }

    pub(crate) fn finish(&self, context: &Context, mark: CopyMark) -> DeviceResult<()> {
        let due: Vec<_> =
            self.lock().marks.range(..=mark.0).map(|(&number, marked)| (number, Arc::clone(marked))).collect();
        // The latest event comes behind the earlier ones, unless two threads made marks at the same time.
        let waited = due.iter().rev().try_for_each(|(_, marked)| {
            context.call(|driver| {
                // SAFETY: takes no host pointers; the event is destroyed by the last thread that has it.
                unsafe { driver.event_synchronize(marked.event) }
            })
        });
        if waited.is_ok() {
            let mut state = self.lock();
            for (number, marked) in &due {
                state.marks.remove(number);
                state.ended = state.ended.max(marked.copied);
            }
        }
        // Without an event, the mark was waited for before.
        let waited = if due.is_empty() { context.health() } else { waited };
        waited.and(release(context, due.into_iter().map(|(_, marked)| marked)))
    }

    pub(crate) fn forget(&self, context: &Context, saved: Saved) {
        {
            let mut state = self.lock();
            let Some(place) = state.places.remove(&saved.0.get()) else { return };
            if let Some(entry) = state.entry(place.region) {
                entry.kept -= 1;
            }
        }
        // Memory that could not be given back is lost, which no caller could change.
        let _ = self.give_excess_back(context);
    }
}

/// Gives the memory of a region back, after the region was taken out of the state. No copy uses the memory.
fn give_back(context: &Context, entry: Entry) -> DeviceResult<()> {
    // Calls that copy have their region's contents kept.
    Arc::into_inner(entry.region).map_or(Ok(()), |region| region.give_back(context))
}

/// Gives up events of marks. Destroys each event without a further owner in the state or a thread.
fn release(context: &Context, marks: impl Iterator<Item = Arc<EventAfterCopies>>) -> DeviceResult<()> {
    let mut result = Ok(());
    for marked in marks.filter_map(Arc::into_inner) {
        result = result.and(spare_events::destroy(context, marked.event));
    }
    result
}
