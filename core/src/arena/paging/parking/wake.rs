//! Waking: memory is created and mapped at the old addresses, and the contents are copied back.
//!
//! Saved contents are kept until the replacement of the page contains all of them. If anything
//! fails before then, the replacements are removed again, and everything is asleep as before.

use super::Parker;
use crate::arena::holdings::Holdings;
use crate::arena::paging::mapper::{Charge, Mapper};
use crate::arena::paging::mapping::{Mapping, PageGuard, Row};
use crate::arena::paging::parking::ParkState;
use crate::arena::paging::undo::Undo;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::arena::{OnDevice, Platform};
use crate::device::CopyMark;
use crate::error::Error;
use crate::heap::Outcome;
use crate::heap::home_pages::HomePage;
use crate::pages::{Batch, Kept};
use crate::stats::Stat;
use crate::tables::slot_table::NONE;
use crate::trace::Action;
use crate::units::DevicePtr;
use core::cell::Cell;

impl<P: Platform> Parker<'_, P> {
    /// Maps memory for every parked page, and starts to copy the contents. Does nothing for pages
    /// that the wake of another target has already started with.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] and errors of the device. Everything is then asleep.
    pub(crate) fn wake_start(&self, on: OnDevice<'_, P>) -> Result<(), Error> {
        let is_asleep = match self.report().state {
            ParkState::Awake | ParkState::Lent => false,
            ParkState::Asleep => true,
            ParkState::Waking => self.pages().any(|(_, page)| self.is_unbegun(&page)),
        };
        if !is_asleep {
            return Ok(());
        }
        self.slots().try_for_each(|slot| self.mapper.give_up_freed(slot))?;
        if let Some(stitcher) = on.stitcher() {
            stitcher.make_room_to_wake(self.report().parked)?;
        }
        let asleep = Undo::by(|| self.stay_asleep());
        let mut unbegun = self.pages().filter(|(_, page)| self.is_unbegun(page));
        unbegun.try_for_each(|(_, page)| self.begin_to_wake(on, page))?;
        self.mark_copies()?;
        asleep.keep();
        Ok(())
    }

    /// Returns whether a page is parked, and no wake has started with it.
    pub(super) fn is_unbegun(&self, home: &HomePage) -> bool {
        home.asleep && {
            let pages = self.mapper.paging.pool.lock();
            pages[home.page].replacement == NONE || pages.left(home.page).is_some()
        }
    }

    /// Waits for the copies that [`wake_start`](Self::wake_start) started, and lets the memory
    /// serve requests again. Starts the copies if this has not been done. Does nothing if the
    /// target is awake.
    ///
    /// # Errors
    /// Those of `wake_start`. Everything is then asleep.
    pub(crate) fn wake_wait(&self, on: OnDevice<'_, P>) -> Result<(), Error> {
        if matches!(self.report().state, ParkState::Awake | ParkState::Lent) {
            return Ok(());
        }
        self.wake_start(on)?;
        let asleep = Undo::by(|| self.stay_asleep());
        self.wait_for_copies()?;
        self.renew_canaries()?;
        asleep.keep();
        self.pages().filter(|(_, page)| page.asleep).for_each(|(slot, page)| self.finish_waking(slot, page));
        self.end_sleep();
        Ok(())
    }

    /// Writes the canaries again on the pages that are about to wake and were not kept by the park.
    pub(super) fn renew_canaries(&self) -> Result<(), Error> {
        let Mapper { driver, heaps, paging, .. } = *self.mapper;
        let is_kept = |page: &HomePage| matches!(paging.pool.lock()[page.page].kept, Kept::Saved(_));
        let mut renewed = self.pages().filter(|(_, page)| page.asleep && !is_kept(page));
        renewed.try_for_each(|(slot, page)| self.debug.renew_canaries(driver, heaps, slot, &page))
    }

    /// Lets the target's memory serve requests again.
    pub(super) fn end_sleep(&self) {
        let Mapper { driver, heaps, .. } = *self.mapper;
        if self.debug.tends_frees() {
            self.slots().for_each(|slot| self.debug.end_rest(driver, heaps, slot));
        }
        self.target.set_asleep(heaps, false);
    }

    /// Notes in each heap the copies of its contents.
    fn mark_copies(&self) -> Result<(), Error> {
        let Ok(contents) = self.contents() else { return Ok(()) };
        let mark = self.mapper.driver.call(|_| contents.mark())?;
        self.in_each_heap(|heap| {
            if !heap.is_empty() {
                heap.sets.copied = mark;
            }
        });
        Ok(())
    }

    /// Waits for the copies noted in the heaps, and not for later ones.
    fn wait_for_copies(&self) -> Result<(), Error> {
        let Ok(contents) = self.contents() else { return Ok(()) };
        let marks = self.slots().map(|slot| {
            let heap = self.mapper.heaps.lock(slot);
            if heap.is_empty() { CopyMark::default() } else { heap.sets.copied }
        });
        let mark = marks.max().unwrap_or_default();
        Ok(self.mapper.driver.call(|_| contents.finish(mark))?)
    }

    /// Maps a replacement for a page asleep, unless an earlier wake has left one, and starts to
    /// copy the contents.
    pub(super) fn begin_to_wake(&self, on: OnDevice<'_, P>, home: HomePage) -> Result<(), Error> {
        let mapper = &self.mapper;
        let at = DevicePtr(home.at);
        let kept = mapper.paging.pool.lock()[home.page].kept;
        if self.mapper.is_left(&home) {
            self.mapper.take_up_left(home)?;
        } else {
            self.map_replacement(on, home)?;
        }
        match kept {
            Kept::Nothing => {}
            Kept::Zeroes => {
                let contents = self.contents()?;
                mapper.driver.call(|_| contents.zero(at, home.bytes))?;
            }
            Kept::Saved(saved) => {
                let contents = self.contents()?;
                mapper.driver.call(|_| contents.restore(saved, at, home.bytes))?;
            }
        }
        Ok(())
    }

    /// Maps a replacement for a page asleep.
    fn map_replacement(&self, on: OnDevice<'_, P>, home: HomePage) -> Result<(), Error> {
        let bytes = home.bytes;
        let lacks_memory = || Error::OutOfMemory(on.memory_report(bytes, bytes, bytes, None));
        let mut guard = PageGuard::empty(&self.mapper);
        // The lock ends with this statement.
        let wakes_on_host = self.mapper.paging.pool.lock()[home.page].is_host;
        let is_on_host = wakes_on_host && self.mapper.new_page_of_host(bytes, &mut guard.batch)?;
        if !is_on_host && !self.provide(on.waiting(), &on.holdings(), bytes, &mut guard.batch)? {
            return Err(lacks_memory());
        }
        let lost = Cell::new(None);
        let mapped = self.mapper.map(&guard.batch, Row { at: DevicePtr(home.at), lost: &lost });
        let result = mapped.and_then(|mapping| mapping.ok_or_else(lacks_memory)).map(Mapping::keep);
        if result.is_ok() || lost.get().is_some() {
            let mut pages = self.mapper.paging.pool.lock();
            pages.begin_to_wake(home.page, guard.keep().first);
            if result.is_err() {
                pages.leave_replacement(home.page);
            }
        }
        result
    }

    /// Provides a page of `bytes`. If the limit or the device does not allow this, waits for
    /// pending frees, and releases cached memory elsewhere. Returns false if there is still not
    /// enough memory.
    fn provide<'w>(
        &self,
        on: DeviceWaits<'w, P, impl Outside<'w, P>>,
        held: &Holdings<'_, P>,
        bytes: u64,
        batch: &mut Batch,
    ) -> Result<bool, Error> {
        if self.mapper.new_page(bytes, Charge::WithinLimit, batch)? {
            return Ok(true);
        }
        // Held during the wait, so that no capture starts, which the wait would invalidate.
        if let Some(_permission) = self.mapper.driver.may_record() {
            on.wait_for_events()?;
        }
        while held.give_by_shares(bytes)? > 0 {
            if self.mapper.new_page(bytes, Charge::WithinLimit, batch)? {
                return Ok(true);
            }
        }
        held.release_cached(None)?;
        self.mapper.new_page(bytes, Charge::WithinLimit, batch)
    }

    /// Removes the replacements again, once no copy uses them. A replacement stays for the next
    /// wake if the device fails to unmap it, or fails to report that the copies have ended.
    pub(super) fn stay_asleep(&self) {
        let mapper = &self.mapper;
        let have_ended = self.contents().map_or(Ok(()), |contents| mapper.end_copies(contents)).is_ok();
        let is_begun = |home: &HomePage| home.asleep && mapper.paging.pool.lock()[home.page].replacement != NONE;
        for (_, home) in self.pages().filter(|(_, page)| is_begun(page)) {
            if have_ended {
                // The caller reports its own error.
                let _stays = mapper.take_away(home);
            } else {
                mapper.paging.pool.lock().leave_replacement(home.page);
            }
        }
        let _counted = mapper.destroy_spares();
    }

    /// Puts the replacement of a page in place.
    pub(super) fn finish_waking(&self, slot: u32, home: HomePage) {
        let mapper = &self.mapper;
        let slot = mapper.heaps.slot(slot);
        let mut heap = mapper.heaps.lock(slot.number());
        let (page, kept, of_host) = {
            let mut pages = mapper.paging.pool.lock();
            let (page, kept) = pages.wake(home.page);
            (page, kept, pages[page].is_host)
        };
        heap.sets.pages.change(home.at, |home| (home.asleep, home.page, home.of_host) = (false, page, of_host));
        heap.note_kinds_of_pages();
        let peaks_stale = slot.counters.up(Stat::ReservedBytes, home.bytes);
        mapper.trace(|recorder| recorder.segment(&mut heap, Action::SegmentMap, 0, DevicePtr(home.at), home.bytes));
        mapper.trace_spilled(&mut heap);
        drop(heap);
        mapper.reconcile(slot, Outcome { value: (), peaks_stale });
        self.mapper.forget(kept);
    }
}
