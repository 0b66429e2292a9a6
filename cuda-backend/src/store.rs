//! The contents of parked memory, in pinned memory of the host.
//!
//! ```text
//! prepare(40 MiB, …) ─▶ a region: | saved: 20 MiB | saved: 2 MiB | free ………… |
//!                                     ▲ copies on a stream of their own
//! ```
//!
//! A call of `prepare` takes a *region* for all that the next saves bring: one that an earlier park has
//! left, or new memory (region.rs). Contents are laid one behind the other. A region without contents is kept for
//! the next park, up to a limit that the program sets, and given back otherwise.
//!
//! The copies run on a stream that is ordered with no other, in pieces as they come: one stream reaches
//! the rate of the link in either direction (51 GiB/s on an H100).

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::driver::types::{CuEvent, CuEventFlags, CuStream, CuStreamFlags};
use crate::region::Region;
use cachalot_core::{CopyMark, DevicePtr, DeviceResult, Saved};
use core::num::NonZeroU64;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Contents begin at multiples of this many bytes of their region.
const ALIGNMENT: u64 = 4096;

/// Where contents are kept.
#[derive(Clone, Copy, Debug)]
struct Place {
    region: u64,
    offset: u64,
    bytes: u64,
}

/// What is kept, and the copies.
#[derive(Debug, Default)]
struct State {
    /// Regions by number, the latest last.
    regions: VecDeque<(u64, Region)>,
    places: HashMap<u64, Place>,
    /// The number given last, to a region or to contents.
    numbers: u64,
    /// The stream of the copies, once there is one.
    stream: Option<CuStream>,
    /// Marks, with an event behind the copies before each.
    marks: VecDeque<(u64, CuEvent)>,
    /// The mark given last.
    latest: u64,
    /// Bytes of regions without contents that stay for the next park.
    retained: u64,
}

/// The contents of one device's parked memory.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<State>);

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of the state is complete before the next call that may panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn region(&mut self, number: u64) -> Option<&mut Region> {
        self.regions.iter_mut().find(|region| region.0 == number).map(|region| &mut region.1)
    }

    /// Bytes of regions without contents.
    fn idle_bytes(&self) -> u64 {
        self.regions.iter().filter(|region| region.1.kept == 0).map(|region| region.1.bytes).sum()
    }

    /// Takes a region without contents out, if those hold more than may be retained.
    fn take_excess(&mut self) -> Option<Region> {
        let excess = self.idle_bytes() > self.retained;
        let idle = self.regions.iter().position(|region| region.1.kept == 0).filter(|_| excess)?;
        self.regions.remove(idle).map(|(_, region)| region)
    }

    /// Returns the stream of the copies, which is created first if there is none.
    fn copy_stream(&mut self, context: &Context) -> DeviceResult<CuStream> {
        if let Some(stream) = self.stream {
            return Ok(stream);
        }
        let mut stream = CuStream::NULL;
        context.call(|driver| {
            // SAFETY: `stream` outlives the call, which writes one handle to it.
            unsafe { driver.stream_create(&raw mut stream, CuStreamFlags::NON_BLOCKING) }
        })?;
        Ok(*self.stream.insert(stream))
    }
}

impl Store {
    /// Sets how many bytes of pinned host memory stay after all contents of parked memory went back, so that
    /// the next park need not obtain them again. 0 at first. Gives back what is beyond.
    ///
    /// # Errors
    /// The first error of the driver or the system. Memory that could not be given back is lost.
    pub(crate) fn retain(&self, context: &Context, bytes: u64) -> DeviceResult<()> {
        self.lock().retained = bytes;
        self.give_excess_back(context)
    }

    /// Returns the bytes of pinned host memory for contents: all, and those without contents at present.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.regions.iter().map(|region| region.1.bytes).sum(), state.idle_bytes())
    }

    /// Gives regions back that may not be retained.
    fn give_excess_back(&self, context: &Context) -> DeviceResult<()> {
        let mut result = Ok(());
        loop {
            // The lock ends with this statement: giving a region back takes up to 0.1 s for each GiB.
            let excess = self.lock().take_excess();
            let Some(excess) = excess else { return result };
            result = result.and(excess.give_back(context));
        }
    }

    /// Destroys the stream and the events of the copies, once the copies have ended, and gives all host
    /// memory back. For the closing of the device.
    pub(crate) fn close(&self, context: &Context) -> DeviceResult<()> {
        let state = core::mem::take(&mut *self.lock());
        let mut result = Ok(());
        if let Some(stream) = state.stream {
            result = result.and(context.call(|driver| {
                // SAFETY: takes no host pointers; the stream is this device's own.
                unsafe { driver.stream_synchronize(stream) }
            }));
            result = result.and(context.call(|driver| {
                // SAFETY: as above, and nothing uses the handle afterwards.
                unsafe { driver.stream_destroy(stream) }
            }));
        }
        for (_, event) in state.marks {
            result = result.and(destroy(context, event));
        }
        for (_, region) in state.regions {
            result = result.and(region.give_back(context));
        }
        result
    }

    /// Takes the smallest region without contents that suffices, or begins to make a new one: the saves
    /// wait for its memory piece by piece. The memory is taken from `node`, if given.
    pub(crate) fn prepare(&self, bytes: u64, node: Option<u32>) -> DeviceResult<()> {
        let mut state = self.lock();
        // Contents of pages are multiples of 2 MiB long: no gap is left between them.
        let idle = state.regions.iter().enumerate().filter(|(_, region)| region.1.kept == 0);
        let fits = idle.filter(|(_, region)| region.1.bytes >= bytes);
        let found = fits.min_by_key(|(_, region)| region.1.bytes).map(|(position, _)| position);
        let (number, mut region) = match found.and_then(|position| state.regions.remove(position)) {
            Some(found) => found,
            None => (state.number(), Region::new(bytes, node)?),
        };
        region.used = 0;
        // The latest region takes the saves.
        state.regions.push_back((number, region));
        Ok(())
    }

    /// Gives back a region that was prepared and keeps nothing.
    pub(crate) fn end_saves(&self, context: &Context) {
        // Memory that could not be given back is lost, which no caller could change.
        let _ = self.give_excess_back(context);
    }

    pub(crate) fn save(&self, context: &Context, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        let mut state = self.lock();
        let stream = state.copy_stream(context)?;
        let Some((number, region)) = state.regions.back_mut().filter(|region| bytes <= region.1.bytes - region.1.used)
        else {
            return Err(CuResult::OUT_OF_MEMORY.error());
        };
        let place = Place { region: *number, offset: region.used, bytes };
        region.each_part(context, place.offset, bytes, |to, from, part| {
            context.call(|driver| {
                // SAFETY: the part lies in the region, beside all other contents, and stays pinned while
                // contents are kept there.
                unsafe { driver.memcpy_dtoh_async(to, at.0 + from, part as usize, stream) }
            })
        })?;
        region.used = (place.offset + bytes).next_multiple_of(ALIGNMENT).min(region.bytes);
        region.kept += 1;
        let name = state.number();
        state.places.insert(name, place);
        NonZeroU64::new(name).map(Saved).ok_or(CuResult::UNKNOWN.error())
    }

    pub(crate) fn restore(&self, context: &Context, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.lock();
        let stream = state.copy_stream(context)?;
        let place = state.places.get(&saved.0.get()).copied().filter(|place| place.bytes == bytes);
        let place = place.ok_or(CuResult::INVALID_VALUE.error())?;
        let region = state.region(place.region).ok_or(CuResult::INVALID_VALUE.error())?;
        region.each_part(context, place.offset, bytes, |from, to, part| {
            context.call(|driver| {
                // SAFETY: the contents lie in a region, which stays until they are forgotten.
                unsafe { driver.memcpy_htod_async(at.0 + to, from, part as usize, stream) }
            })
        })
    }

    pub(crate) fn zero(&self, context: &Context, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let stream = self.lock().copy_stream(context)?;
        context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator has mapped the range, and hands it out after the
            // fill only.
            unsafe { driver.memset_d8_async(at.0, 0, bytes as usize, stream) }
        })
    }

    pub(crate) fn mark(&self, context: &Context) -> DeviceResult<CopyMark> {
        let mut state = self.lock();
        let stream = state.copy_stream(context)?;
        let mut event = CuEvent::NULL;
        context.call(|driver| {
            // SAFETY: `event` outlives the call, which writes one handle to it.
            unsafe { driver.event_create(&raw mut event, CuEventFlags::DISABLE_TIMING) }
        })?;
        let recorded = context.call(|driver| {
            // SAFETY: takes no host pointers; both handles are this device's own.
            unsafe { driver.event_record(event, stream) }
        });
        if let Err(error) = recorded {
            let _ = destroy(context, event);
            return Err(error);
        }
        state.latest += 1;
        let mark = state.latest;
        state.marks.push_back((mark, event));
        Ok(CopyMark(mark))
    }

    pub(crate) fn finish(&self, context: &Context, mark: CopyMark) -> DeviceResult<()> {
        let event = {
            let state = self.lock();
            let marked = state.marks.iter().rev().find(|(number, _)| *number <= mark.0);
            marked.map(|&(_, event)| event)
        };
        // Waited for before.
        let Some(event) = event else { return context.health() };
        context.call(|driver| {
            // SAFETY: takes no host pointers. Only this method destroys events of the list, and only one
            // thread at a time parks or wakes memory of a device.
            unsafe { driver.event_synchronize(event) }
        })?;
        let mut result = Ok(());
        loop {
            let ended = {
                let mut state = self.lock();
                let ended = state.marks.front().is_some_and(|(number, _)| *number <= mark.0);
                if ended { state.marks.pop_front() } else { None }
            };
            let Some((_, event)) = ended else { break };
            result = result.and(destroy(context, event));
        }
        result
    }

    pub(crate) fn forget(&self, context: &Context, saved: Saved) {
        {
            let mut state = self.lock();
            let Some(place) = state.places.remove(&saved.0.get()) else { return };
            if let Some(region) = state.region(place.region) {
                region.kept -= 1;
            }
        }
        // Memory that could not be given back is lost, which no caller could change.
        let _ = self.give_excess_back(context);
    }
}

/// Destroys the event of a mark that was taken out of the list.
fn destroy(context: &Context, event: CuEvent) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes no host pointers; the event was made here, and nothing refers to it any longer.
        unsafe { driver.event_destroy(event) }
    })
}
