//! The pages of guarded blocks: mapped for one block each, and unmapped once the block is free.
//!
//! ```text
//! map_guarded ─ addresses reserved ─ page: spare, new or shared ─ mapped ─▶ block
//! unmap_guarded ─ page spare ─ addresses kept ─ some frees later ─▶ addresses given back
//! ```

use crate::arena::Platform;
use crate::arena::flags;
use crate::arena::holdings::Holdings;
use crate::arena::ledger::Ledger;
use crate::arena::paging::Paging;
use crate::arena::paging::mapper::{Charge, Mapper};
use crate::arena::paging::mapping::{PageGuard, Row};
use crate::arena::paging::undo::Undo;
use crate::config::Guard;
use crate::error::Error;
use crate::pages::Batch;
use crate::pages::guards::{GuardedBlock, GuardedPlace, Guards, Shelf};
use crate::units::{DevicePtr, StreamId};
use core::cell::Cell;

/// Number of the addresses kept longest that are given back where addresses are short.
const GIVEN_UP: u32 = 64;

impl<P: Platform> Mapper<'_, P> {
    /// Maps pages for a guarded block of `size` bytes, and notes the block as held. Returns `None`
    /// if the memory or the addresses lack. The caller publishes the block, or calls
    /// [`unmap_guarded`](Self::unmap_guarded).
    pub(in crate::arena) fn map_guarded(
        &self,
        guard: Guard,
        size: u64,
        of: impl FnOnce(GuardedPlace) -> GuardedBlock,
    ) -> Result<Option<DevicePtr>, Error> {
        self.paging.pool.lock().guards.make_room().map_err(|_| Error::TableFull("guarded blocks"))?;
        let granule = self.memory.granularity();
        let bytes = size.next_multiple_of(granule);
        let Some((page, offset)) = self.page_for_guard(guard, size, bytes)? else { return Ok(None) };
        let taken = Undo::by(|| self.paging.end_guard(self.ledger, page, size, false));
        // One granule more than the page stays unmapped.
        let span = bytes + granule;
        let Some(base) = self.reserve_guarded(span)? else { return Ok(None) };
        let reserved = Undo::by(|| self.unreserve(Some((base, span))));
        let mapped = if guard == Guard::Before { base.offset(granule) } else { base };
        // A page with a lost mapping is stuck. The driver keeps the addresses of the mapping.
        let lost = Cell::new(None);
        let row = Row { at: mapped, lost: &lost };
        let Some(mapping) = self.map(&Batch::of(page, bytes), row)? else { return Ok(None) };
        let place = GuardedPlace { at: mapped.offset(offset), size, base, span, mapped, page };
        {
            let mut pages = self.paging.pool.lock();
            // Another thread may have filled the table since room was made.
            pages.guards.make_room().map_err(|_| Error::TableFull("guarded blocks"))?;
            pages.guards.add(of(place));
        }
        mapping.keep();
        reserved.keep();
        taken.keep();
        Ok(Some(place.at))
    }

    /// Returns the page for a guarded block of `size` bytes, and the block's offset in the page,
    /// which is `bytes` long.
    fn page_for_guard(&self, guard: Guard, size: u64, bytes: u64) -> Result<Option<(u32, u64)>, Error> {
        let shares = guard == Guard::All && size <= bytes / 2;
        if shares && let Some(cut) = self.paging.pool.lock().cut_off_shelf(size) {
            return Ok(Some(cut));
        }
        if self.paging.pool.lock().has_spares_of_other_sizes(bytes) {
            self.destroy_spares()?;
        }
        let mut new = PageGuard::empty(self);
        if !self.new_page(bytes, Charge::WithinLimit, &mut new.batch)? {
            return Ok(None);
        }
        let page = new.keep().first;
        let mut pages = self.paging.pool.lock();
        pages.begin_to_guard(page, size);
        if shares {
            // What is left of an earlier shelf stays unused until its last block is gone.
            pages.guards.shelf = Some(Shelf { page, used: size });
        }
        let at_begin = shares || guard == Guard::Before;
        Ok(Some((page, if at_begin { 0 } else { bytes - size })))
    }

    /// Returns whether the limit and the pages at hand allow a guarded block of `size` bytes.
    pub(in crate::arena) fn has_room_to_guard(&self, guard: Guard, size: u64) -> bool {
        let bytes = size.next_multiple_of(self.memory.granularity());
        let shares = guard == Guard::All && size <= bytes / 2;
        shares && self.paging.pool.lock().has_room_on_shelf(size) || self.has_room_to_map(bytes)
    }

    /// Reserves `span` bytes of addresses; if there are none, after those kept away longest were
    /// given back.
    fn reserve_guarded(&self, span: u64) -> Result<Option<DevicePtr>, Error> {
        loop {
            let reserved = self.reserve(span)?;
            if reserved.is_some() {
                return Ok(reserved);
            }
            let given = (0..GIVEN_UP).take_while(|_| self.forget_oldest(0)).count();
            if given == 0 {
                return self.reserve_again(span);
            }
        }
    }

    /// Unmaps the guarded block at `at`, which is in no heap and used by no work known to the
    /// allocator, but that of the stream `behind`, which is waited for. The addresses serve no
    /// block for `keep` frees. Returns false if no mapped block begins there.
    ///
    /// # Errors
    /// The error of the device, after the bytes were counted as leaked.
    pub(in crate::arena) fn unmap_guarded(
        &self,
        at: DevicePtr,
        behind: Option<StreamId>,
        keep: u64,
    ) -> Result<bool, Error> {
        let place = {
            let mut pages = self.paging.pool.lock();
            let Some(place) = pages.guards.unmap(at) else { return Ok(false) };
            place
        };
        let bytes = self.paging.pool.lock()[place.page].bytes;
        let waited = behind.map_or(Ok(()), |stream| self.driver.synchronize(stream));
        let unmapped = waited.and_then(|()| self.unmap(place.mapped, bytes));
        self.paging.end_guard(self.ledger, place.page, place.size, unmapped.is_err());
        self.paging.pool.lock().guards.keep_away(at);
        while self.forget_oldest(keep) {}
        unmapped?;
        Ok(true)
    }

    /// Gives back the addresses of all unmapped guarded blocks.
    pub(in crate::arena) fn end_quarantine(&self) {
        while self.forget_oldest(0) {}
    }

    /// Gives back the addresses kept away longest, if more than `keep` blocks are unmapped.
    fn forget_oldest(&self, keep: u64) -> bool {
        let forgotten = self.paging.pool.lock().guards.forget_oldest(keep);
        self.unreserve(forgotten.map(|place| (place.base, place.span)));
        forgotten.is_some()
    }
}

impl<P: Platform> Holdings<'_, P> {
    /// Unmaps a segment that was removed from its heap, if a guarded block, as
    /// [`unmap_guarded`](Mapper::unmap_guarded) does. Returns whether it was one.
    ///
    /// # Errors
    /// The error of the device, after the bytes were counted as leaked.
    pub(in crate::arena) fn release_guarded(&self, base: DevicePtr, behind: Option<StreamId>) -> Result<bool, Error> {
        if !self.driver.flags.has(flags::GUARDED) {
            return Ok(false);
        }
        let keep = self.settings.config.lock().quarantine();
        self.mapper().map_or(Ok(false), |mapper| mapper.unmap_guarded(base, behind, keep))
    }
}

impl<P: Platform> Paging<P> {
    /// Ends a mapping of a page under a guarded block of `size` bytes, which is unmapped or `stuck`
    /// for good.
    fn end_guard(&self, ledger: &Ledger, page: u32, size: u64, stuck: bool) {
        let leaked = self.pool.lock().end_guard(page, size, stuck);
        ledger.leak(leaked);
    }

    /// Calls `with` with the table of guarded blocks, which is locked meanwhile.
    pub(in crate::arena) fn with_guards<T>(&self, with: impl FnOnce(&mut Guards<P::Storage>) -> T) -> T {
        with(&mut self.pool.lock().guards)
    }
}
