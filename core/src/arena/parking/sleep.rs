//! The way to sleep: requests refused, work waited for, contents saved, memory given back.
//!
//! Nothing is unmapped before all contents are saved: a failure before then leaves everything awake. A
//! page that the device then fails to unmap stays mapped, with its contents; the others go on.

use super::{ParkMode, ParkOrder, Parker};
use crate::arena::ranges;
use crate::arena::ranges::Elastic;
use crate::device::{Contents, DeviceError, DeviceMemory, ErrorKind};
use crate::error::Error;
use crate::heap::home_pages::HomePage;
use crate::pages::Kept;
use crate::stats::Stat;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::trace::Action;
use crate::units::{DevicePtr, StreamId};

/// How often a park looks whether the requests in progress have left, 20 µs apart: five seconds. A
/// request that takes longer waits for the program, which may be the thread that parks.
const LOOKS: u32 = 250_000;

impl<D: DeviceMemory, R: Lock, S: Storage> Parker<'_, D, R, S> {
    /// Parks the target's memory. Does nothing if it is parked.
    ///
    /// # Errors
    /// Everything is awake, or, after a failure to unmap a page, parked but for that page. The contents
    /// are the same in either case.
    pub(crate) fn park(&self, mode: ParkMode, order: ParkOrder) -> Result<(), Error> {
        let device = self.device();
        if device.park_report(self.target).state != super::ParkState::Awake {
            return Ok(());
        }
        if mode != ParkMode::Drop {
            self.contents()?;
        }
        device.begin_to_follow_awake();
        device.heaps.set_asleep(self.target, true);
        let result = self.prepare(order).and_then(|()| self.save(mode)).and_then(|()| self.unmap_saved());
        if result.is_err() && device.park_report(self.target).parked == 0 {
            self.forget_all();
            device.heaps.set_asleep(self.target, false);
        }
        result
    }

    /// Waits for the requests in progress and for the work before, and gives the memory back that the
    /// target only caches.
    fn prepare(&self, order: ParkOrder) -> Result<(), Error> {
        let device = self.device();
        self.wait_for_requests()?;
        self.wait_for_work(order)?;
        device.process_events()?;
        // A page with a second mapping, at the place that it left, cannot go back to the device.
        ranges::wait(device)?;
        device.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale())?;
        self.each_heap(|slot| self.mapper.unmap_cached(slot))?;
        self.mapper.destroy_spares().map(|_| ())
    }

    /// Waits until no other call uses the pairs. Later calls find the heaps asleep.
    fn wait_for_requests(&self) -> Result<(), Error> {
        let device = self.device();
        for used in self.pairs() {
            let mut looks = 0;
            while !device.heaps.is_only_user(&used) {
                if looks == LOOKS {
                    return Err(Error::ParkingRefused("a request for the memory has been in progress for long"));
                }
                looks += 1;
                device.driver.give_way();
            }
        }
        Ok(())
    }

    /// Waits for the work that may use the memory.
    fn wait_for_work(&self, order: ParkOrder) -> Result<(), Error> {
        let device = self.device();
        let in_capture = DeviceError::new(ErrorKind::NotPermittedInCapture, 0);
        // Kept during the wait: no capture begins, which the wait would make invalid.
        let _permission = Elastic { mapper: self.mapper }.permission().ok_or(in_capture)?;
        for used in self.pairs() {
            let stream = device.heaps.lock(used.pair * 2).stream;
            if device.call(|memory| memory.is_capturing(stream))? {
                return Err(in_capture.into());
            }
        }
        if order == ParkOrder::Device || self.has_ended_stream() {
            return Ok(device.call(D::synchronize_all)?);
        }
        self.each_heap(|slot| {
            let (stream, pending) = {
                let counters = &device.heaps.slot(slot).counters;
                (device.heaps.lock(slot).stream, counters.current(Stat::Active) != counters.current(Stat::Allocation))
            };
            device.call(|memory| memory.synchronize(stream))?;
            let mut last = None;
            while let Some(other) = self.using_stream(slot, last) {
                device.call(|memory| memory.synchronize(other))?;
                last = Some(other);
            }
            if pending { device.wait_for_events() } else { Ok(()) }
        })
    }

    /// Returns whether the handle of a stream may not be used any longer.
    fn has_ended_stream(&self) -> bool {
        self.pairs().any(|used| self.device().heaps.lock(used.pair * 2).ended)
    }

    /// Returns the lowest stream above `last` that uses a block of the heap in `slot`.
    fn using_stream(&self, slot: u32, last: Option<StreamId>) -> Option<StreamId> {
        let device = self.device();
        let mut heap = device.heaps.lock(slot);
        if heap.is_empty() { None } else { heap.uses().next_stream(last) }
    }

    /// Saves what the pages are to contain when they wake.
    fn save(&self, mode: ParkMode) -> Result<(), Error> {
        let device = self.device();
        if mode == ParkMode::Keep {
            let (mut bytes, mut largest) = (0, 0);
            self.each_page(HomePage::is_movable, |_, page| {
                (bytes, largest) = (bytes + page.bytes, page.bytes.max(largest));
                Ok(())
            })?;
            if bytes > 0 {
                let contents = self.contents()?;
                device.call(|_| contents.prepare(bytes, largest)).map_err(|error| match error.kind {
                    ErrorKind::OutOfMemory => Error::ParkingRefused("the host lacks the memory for the contents"),
                    _ => error.into(),
                })?;
            }
        }
        self.each_page(HomePage::is_movable, |_, page| {
            let kept = match mode {
                ParkMode::Keep => {
                    let contents = self.contents()?;
                    Kept::Saved(device.call(|_| contents.save(DevicePtr(page.at), page.bytes))?)
                }
                ParkMode::Drop => Kept::Nothing,
                ParkMode::Zero => Kept::Zeroes,
            };
            let _nothing = device.page_pool.lock().keep(page.page, kept);
            Ok(())
        })
        .and_then(|()| if mode == ParkMode::Keep { self.finish_copies(self.contents()?) } else { Ok(()) })
    }

    /// Waits for every copy that was begun.
    pub(super) fn finish_copies(&self, contents: &dyn Contents) -> Result<(), Error> {
        let mark = self.device().call(|_| contents.mark())?;
        Ok(self.device().call(|_| contents.finish(mark))?)
    }

    /// Gives up what was saved for pages that are awake. Copies in progress end first.
    fn forget_all(&self) {
        if let Ok(contents) = self.contents() {
            // A failed copy is no longer in progress either.
            let _ended = self.finish_copies(contents);
        }
        let _always = self.each_page(|page| !page.asleep, |_, page| Ok(self.stay_awake(page)));
    }

    /// Unmaps the pages, and gives their memory back to the device.
    ///
    /// # Errors
    /// The first error of the device, after all pages were tried. A page that could not be unmapped is
    /// awake.
    fn unmap_saved(&self) -> Result<(), Error> {
        let mut result = Ok(());
        self.each_page(HomePage::is_movable, |slot, page| {
            result = core::mem::replace(&mut result, Ok(())).and(self.unmap_one(slot, page));
            Ok(())
        })?;
        result
    }

    /// Unmaps one page, and gives its memory back.
    fn unmap_one(&self, slot: u32, home: HomePage) -> Result<(), Error> {
        let device = self.device();
        if !device.page_pool.lock().has_one_mapping(home.page) {
            return Ok(self.stay_awake(home));
        }
        if let Err(error) = self.mapper.unmap(DevicePtr(home.at), home.bytes) {
            self.stay_awake(home);
            return Err(error.into());
        }
        let mut heap = device.heaps.lock(slot);
        heap.sets.pages.fall_asleep(home.at);
        device.heaps.slot(slot).counters.down(Stat::ReservedBytes, home.bytes);
        let page = device.page_pool.lock().fall_asleep(home.page);
        if let Some(recorder) = device.tracing() {
            recorder.release(&mut heap, Action::SegmentUnmap, DevicePtr(home.at), home.bytes);
        }
        drop(heap);
        self.mapper.destroy(page)
    }

    /// Gives up what was saved for a page that stays mapped.
    fn stay_awake(&self, home: HomePage) {
        // The lock ends with this statement.
        let kept = self.device().arena.page_pool.lock().keep(home.page, Kept::Nothing);
        self.forget(kept);
    }
}
