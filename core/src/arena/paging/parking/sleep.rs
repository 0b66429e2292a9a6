//! Parking: requests are refused, work is waited for, contents are saved, and memory is given back.
//!
//! Pages are saved and given back in groups. While the host waits for the copy of a group and
//! unmaps its pages, the next groups are being copied, so the link never rests. The memory of a
//! page goes back only after its contents are safe. After a failure, parked pages are woken again.

use super::{LOOKS, NO_PAGES, ParkMode, ParkOrder, ParkState, ParkTarget, Parker, pages_from};
use crate::arena::holdings::Holdings;
use crate::arena::paging::departures::in_capture;
use crate::arena::paging::mapper::Mapper;
use crate::arena::paging::undo::Undo;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::arena::{OnDevice, Platform};
use crate::config::rounding::PoolKind;
use crate::device::{CopyMark, DeviceError, ErrorKind, StreamOrder};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::home_pages::HomePage;
use crate::pages::Kept;
use crate::stats::Stat;
use crate::sync::Ordering;
use crate::units::{DevicePtr, NO_STREAM, StreamId};

/// The bytes of the pages that are waited for and unmapped together: 1.2 ms of copying at 51 GiB/s.
const GROUP: u64 = 64 << 20;
/// The number of groups for which copies are started ahead. Unmapping a group takes 0.2 ms.
const GROUPS: usize = 4;

impl<P: Platform> Parker<'_, P> {
    /// Parks the target's memory. If it is already parked, parks the pages that the earlier park
    /// left mapped, or does nothing if there are none.
    ///
    /// # Errors
    /// After an error, everything is awake. There is one exception: pages that are already parked
    /// by then stay parked if they cannot be woken again or have no contents to be woken with, and
    /// the rest is mapped. What an earlier park has parked stays parked.
    pub(crate) fn park(&self, on: OnDevice<'_, P>, mode: ParkMode, order: ParkOrder) -> Result<(), Error> {
        let mapper = &self.mapper;
        let before = self.report().state;
        if before == ParkState::Lent {
            return Err(Error::ParkingRefused("the memory is lent, and must be reclaimed first"));
        }
        if before == ParkState::Waking || before == ParkState::Asleep && !self.has_rest() {
            return Ok(());
        }
        if !self.uses_pages(&on.settings) {
            return Err(Error::ParkingRefused(NO_PAGES));
        }
        if mode != ParkMode::Drop {
            self.contents()?;
        }
        // From the first park on, the budget of the stitched policy does not count parked blocks.
        let most = mapper.peaks.device.most(Stat::AllocatedBytes).max(1);
        let _since = mapper.peaks.most_awake.compare_exchange(0, most, Ordering::Relaxed, Ordering::Relaxed);
        self.target.set_asleep(mapper.heaps, true);
        let result = self
            .prepare(on.waiting(), &on.holdings(), order, mode)
            .and_then(|()| self.slots().try_for_each(|slot| self.put_to_sleep(slot, mode)));
        self.in_each_heap(Heap::end_stay);
        if result.is_err() {
            self.forget_all();
            // A second park leaves the state, and what is parked, to the first.
            if before == ParkState::Awake {
                if self.report().parked == 0 {
                    self.end_sleep();
                } else if mode == ParkMode::Keep && mapper.driver.health().is_ok() {
                    // If waking fails too, the pages stay parked with their contents. Without
                    // contents there is no way back.
                    let _awake = self.wake_wait(on);
                }
            }
        }
        if mode == ParkMode::Keep {
            self.contents()?.end_saves();
        }
        result
    }

    /// Returns whether pages of the target are mapped that the program has not pinned.
    fn has_rest(&self) -> bool {
        self.pages().any(|(_, page)| self.uses_device(&page) || self.mapper.is_left(&page))
    }

    /// Waits for the requests in progress and for the work before, and gives back the target's
    /// cached memory.
    ///
    /// On the way, marks everything that must stay mapped, so that no other page becomes movable
    /// afterwards. A block that is lent now may be used and freed by its borrower at any later
    /// moment, and a page may be unpinned. No wait ends work that the program numbers itself.
    fn prepare<'w>(
        &self,
        on: DeviceWaits<'w, P, impl Outside<'w, P>>,
        held: &Holdings<'_, P>,
        order: ParkOrder,
        mode: ParkMode,
    ) -> Result<(), Error> {
        self.wait_for_requests()?;
        if self.lent_stays() {
            self.in_each_heap(Heap::keep_lent_pages);
        }
        self.in_each_heap(Heap::keep_pinned_pages);
        self.wait_for_work(on, order)?;
        on.process_events()?;
        self.end_fills(on, order)?;
        self.in_each_heap(Heap::keep_pages_of_numbered_work);
        // A page with a second mapping, at the place that it left, cannot go back to the device.
        held.wait_for_departures()?;
        held.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale())?;
        self.slots().try_for_each(|slot| self.mapper.take_left(slot).and(self.mapper.unmap_cached(slot)))?;
        self.mapper.destroy_spares()?;
        if mode == ParkMode::Keep { self.prepare_contents() } else { Ok(()) }
    }

    /// Returns whether blocks may be lent to streams outside the target.
    fn lent_stays(&self) -> bool {
        // Only the default pool lends, and only to its own streams.
        !matches!(self.target, ParkTarget::Streams | ParkTarget::LargeOfStreams)
    }

    /// Waits until no other call uses the pairs. Later calls find the heaps asleep.
    pub(super) fn wait_for_requests(&self) -> Result<(), Error> {
        let mapper = &self.mapper;
        for used in self.pairs() {
            let mut looks = 0;
            while !mapper.heaps.is_only_user(&used) {
                if looks == LOOKS {
                    return Err(Error::ParkingRefused("a request for the memory has been in progress for long"));
                }
                looks += 1;
                mapper.driver.give_way();
            }
        }
        Ok(())
    }

    /// Waits for all work that uses the memory.
    fn wait_for_work<'w>(&self, on: DeviceWaits<'w, P, impl Outside<'w, P>>, order: ParkOrder) -> Result<(), Error> {
        let mapper = &self.mapper;
        // Held during the wait, so that no capture starts, which the wait would invalidate.
        let _permission = mapper.driver.may_record().ok_or_else(in_capture)?;
        self.refuse_captured()?;
        if order == ParkOrder::Device || self.has_ended_stream() {
            return Ok(mapper.driver.wait(P::Device::synchronize_all)?);
        }
        self.slots().try_for_each(|slot| self.wait_for_streams(on, slot))
    }

    /// Returns an error if a stream of the target captures a graph.
    pub(super) fn refuse_captured(&self) -> Result<(), Error> {
        let Mapper { driver, heaps, .. } = *self.mapper;
        for used in self.pairs() {
            let stream = driver.usable_stream(&heaps.lock(used.slot(PoolKind::Small)), NO_STREAM);
            if let Some(stream) = stream
                && driver.call(|memory| memory.is_capturing(stream))?
            {
                return Err(in_capture().into());
            }
        }
        Ok(())
    }

    /// Waits for the streams that use blocks of the heap in `slot`.
    ///
    /// Other threads free blocks in between. If a block is freed before its users are read, it is
    /// still pending when the pending blocks are counted, or its own stream has been ordered after
    /// the users. This is why the own stream comes last.
    fn wait_for_streams<'w>(&self, on: DeviceWaits<'w, P, impl Outside<'w, P>>, slot: u32) -> Result<(), Error> {
        let mapper = &self.mapper;
        let mut last = None;
        while let Some(other) = self.using_stream(slot, last) {
            mapper.driver.synchronize(other)?;
            last = Some(other);
        }
        let (stream, pending) = {
            let heap = mapper.heaps.lock(slot);
            let counters = &mapper.heaps.slot(slot).counters;
            (heap.stream, counters.current(Stat::Active) != counters.current(Stat::Allocation))
        };
        if pending {
            on.wait_for_events()?;
        }
        Ok(mapper.driver.synchronize(stream)?)
    }

    /// Waits for the work that the ends of frees have queued on the memory of the target. Later
    /// ends queue nothing.
    fn end_fills<'w>(&self, on: DeviceWaits<'w, P, impl Outside<'w, P>>, order: ParkOrder) -> Result<(), Error> {
        if !self.debug.tends_frees() {
            return Ok(());
        }
        self.in_each_heap(Heap::rest);
        // Other threads may have been about to queue a fill.
        self.wait_for_requests()?;
        self.wait_for_work(on, order)
    }

    /// Returns whether the target has a stream that has ended, so that its handle may not be used.
    fn has_ended_stream(&self) -> bool {
        self.pairs().any(|used| self.mapper.heaps.lock(used.slot(PoolKind::Small)).ended)
    }

    /// Returns the lowest stream above `last` that uses a block of the heap in `slot`.
    fn using_stream(&self, slot: u32, last: Option<StreamId>) -> Option<StreamId> {
        let mapper = &self.mapper;
        let mut heap = mapper.heaps.lock(slot);
        if heap.is_empty() { None } else { heap.uses().next_stream(last) }
    }

    /// Prepares the host to keep the contents of the target.
    fn prepare_contents(&self) -> Result<(), Error> {
        let movable = self.pages().filter(|(_, page)| self.uses_device(page));
        let (bytes, largest) =
            movable.fold((0, 0), |(bytes, largest), (_, page)| (bytes + page.bytes, page.bytes.max(largest)));
        if bytes == 0 {
            return Ok(());
        }
        let contents = self.contents()?;
        if !contents.lie_elsewhere() {
            return Err(Error::ParkingRefused(
                "the device and the host have one memory, so only files would keep contents elsewhere",
            ));
        }
        self.mapper.driver.call(|_| contents.prepare(bytes, largest)).map_err(unkept)
    }

    /// Saves the pages of the heap in `slot` and gives their memory back, group by group. While one
    /// group is unmapped, the next ones are being copied.
    fn put_to_sleep(&self, slot: u32, mode: ParkMode) -> Result<(), Error> {
        let mut saved = 0;
        let mut groups = heapless::Deque::<(CopyMark, u64, u64), GROUPS>::new();
        let mut result = Ok(());
        loop {
            while !groups.is_full()
                && let Some(group) = self.save_group(slot, saved, mode)?
            {
                saved = group.2;
                let _room = groups.push_back(group);
            }
            let Some((mark, from, end)) = groups.pop_front() else { return result };
            if mode == ParkMode::Keep {
                let contents = self.contents()?;
                self.mapper.driver.call(|_| contents.finish(mark))?;
            }
            for page in pages_from(self.mapper.heaps, slot, from).take_while(|page| page.at < end) {
                if self.is_parkable(slot, &page) && self.is_ready(page, mode) {
                    result = result.and(self.unmap_one(slot, page));
                }
            }
            // After a failure nothing else is parked, because the caller goes back. Without
            // contents the caller does not go back, and all pages that can be parked are.
            if result.is_err() && mode == ParkMode::Keep {
                return result;
            }
        }
    }

    /// Starts to save pages of the heap in `slot` from `from` on, [`GROUP`] bytes or a little more.
    /// Returns a mark after the copies, and the addresses of the group. Returns `None` after the
    /// last page.
    fn save_group(&self, slot: u32, from: u64, mode: ParkMode) -> Result<Option<(CopyMark, u64, u64)>, Error> {
        let mapper = &self.mapper;
        let (mut end, mut bytes) = (from, 0);
        let mut pages = pages_from(mapper.heaps, slot, from);
        while bytes < GROUP
            && let Some(page) = pages.next()
        {
            end = page.end();
            if !self.is_parkable(slot, &page) {
                continue;
            }
            bytes += page.bytes;
            let kept = match mode {
                ParkMode::Keep => {
                    let contents = self.contents()?;
                    Kept::Saved(mapper.driver.call(|_| contents.save(DevicePtr(page.at), page.bytes)).map_err(unkept)?)
                }
                ParkMode::Drop => Kept::Nothing,
                ParkMode::Zero => Kept::Zeroes,
            };
            let _nothing = mapper.paging.pool.lock().keep(page.page, kept);
        }
        if bytes == 0 {
            return Ok(None);
        }
        let mark = if mode == ParkMode::Keep {
            let contents = self.contents()?;
            mapper.driver.call(|_| contents.mark())?
        } else {
            CopyMark::default()
        };
        Ok(Some((mark, from, end)))
    }

    /// Drops contents that were saved for pages that are awake. Copies in progress end first.
    fn forget_all(&self) {
        if let Ok(contents) = self.contents() {
            // A failed copy is not in progress any more, either.
            let _ended = self.mapper.end_copies(contents);
        }
        self.pages().filter(|(_, page)| !page.asleep).for_each(|(_, page)| self.stay_awake(page));
    }

    /// Returns whether a page of the heap in `slot` should be parked. A page that was already
    /// moving to another heap before the park does not belong to the target. A heap created since
    /// then, for the first request of a stream that had no memory, is awake.
    fn is_parkable(&self, slot: u32, page: &HomePage) -> bool {
        let mapper = &self.mapper;
        self.uses_device(page) && mapper.heaps.lock(slot).asleep && mapper.paging.pool.lock().is_home(page.page)
    }

    /// Returns whether a page may go back to the device. A page of the host stays mapped, because
    /// it would be copied from one place of the host to another.
    fn uses_device(&self, page: &HomePage) -> bool {
        page.is_movable() && !self.mapper.paging.pool.lock()[page.page].is_host
    }

    /// Returns whether the page may be unmapped, because its contents after waking have been noted.
    fn is_ready(&self, home: HomePage, mode: ParkMode) -> bool {
        match self.mapper.paging.pool.lock()[home.page].kept {
            Kept::Nothing => mode == ParkMode::Drop,
            Kept::Zeroes => mode == ParkMode::Zero,
            Kept::Saved(_) => mode == ParkMode::Keep,
        }
    }

    /// Unmaps a page, and gives its memory back.
    fn unmap_one(&self, slot: u32, home: HomePage) -> Result<(), Error> {
        let mapper = &self.mapper;
        let awake = Undo::by(|| self.stay_awake(home));
        if !mapper.paging.pool.lock().has_one_mapping(home.page) {
            return Ok(());
        }
        #[cfg(any(test, feature = "paranoid"))]
        mapper.heaps.lock(slot).assert_unused(&home, self.lent_stays());
        mapper.unmap_or_stay(DevicePtr(home.at), home.bytes)?;
        awake.keep();
        mapper.destroy(mapper.fall_asleep(slot, home))
    }

    /// Drops the contents saved for a page that stays mapped.
    fn stay_awake(&self, home: HomePage) {
        // The lock ends with this statement.
        let kept = self.mapper.paging.pool.lock().keep(home.page, Kept::Nothing);
        self.mapper.forget(kept);
    }
}

/// Returns the error of a park if the host could not keep the contents. Preparing and saving only
/// needs memory of the host.
fn unkept(error: DeviceError) -> Error {
    match error.kind {
        ErrorKind::OutOfMemory => Error::NoHostMemory,
        _ => error.into(),
    }
}
