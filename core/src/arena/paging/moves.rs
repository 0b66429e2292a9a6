//! Moves of the pages under a live block to the host and back: the addresses and the contents stay.
//!
//! ```text
//! new page of the other kind ─▶ mapped at addresses of ours ─▶ contents copied ─▶ unmapped there
//!                                        old page unmapped in its place ─▶ new page mapped there
//! ```
//!
//! A page moves only while no work uses it. So the program says that a block is cold or hot at a
//! moment when no call and no later work uses the block, and the call waits for the earlier work.
//! Only pages that are wholly under the block move, because other blocks have the rest. In parked
//! memory nothing is copied: the page is noted to wake on the host.
//!
//! Pages move one after the other, so that no more than one page is there twice. If a call of the
//! device fails, its page is where it was, and the pages before it have moved. A device that keeps
//! refusing to map a page where it has just unmapped one is lost.

use crate::arena::Platform;
use crate::arena::holdings::Holdings;
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::paging::departures::in_capture;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::paging::mapper::Charge;
use crate::arena::paging::mapping::{PageGuard, Row};
use crate::arena::paging::parking::left::ASKED;
use crate::arena::paging::parking::wait_for_turn;
use crate::arena::paging::spill::UNSET;
use crate::arena::paging::undo::Undo;
use crate::device::{Contents, DeviceError, DeviceResult, ErrorKind, Host, Segments, StreamOrder};
use crate::error::Error;
use crate::heap::home_pages::{HomePage, Stays};
use crate::heap::{Heap, Keeps};
use crate::pages::{Batch, Page};
use crate::stats::MemoryCall;
use crate::sync::Taken;
use crate::tables::slot_table::NONE;
use crate::units::{DevicePtr, NO_STREAM};
use core::cell::Cell;

/// How soon a block will be used; see [`Pages::advise`](crate::Pages::advise).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Rarely: its pages may lie on the host.
    Cold,
    /// Soon or often: its pages belong on the device.
    Hot,
}

/// Moves the pages of one block.
struct Mover<'a, P: Platform> {
    mapper: HeapMapper<'a, P>,
    contents: &'a dyn Contents,
    /// The slot of the block's heap.
    slot: u32,
    /// The address of the block.
    block: DevicePtr,
    /// Whether the pages go to the host.
    to_host: bool,
    /// No park and no other move is in progress.
    _turn: Taken<'a>,
}

/// Addresses of ours, at which one page at a time is mapped.
struct Staging {
    at: DevicePtr,
    bytes: u64,
    /// The error after which a page is stuck there.
    lost: Cell<Option<DeviceError>>,
}

impl<P: Platform> Holdings<'_, P> {
    /// Moves the pages that are wholly under the block at `ptr` in the heap of `slot` to where
    /// `advice` says, as far as there is memory. Returns their bytes.
    ///
    /// # Errors
    /// Those of [`Pages::advise`](crate::Pages::advise).
    pub(crate) fn advise(&self, slot: u32, ptr: DevicePtr, advice: Advice) -> Result<u64, Error> {
        self.driver.health()?;
        let to_host = advice == Advice::Cold;
        if to_host && !self.set_limit_of_host()? {
            return Err(Error::SpillRefused(UNSET));
        }
        let (Some(mapper), Some(contents)) = (self.heap_mapper(), self.driver.device().contents()) else {
            return Ok(0);
        };
        let busy = Error::ParkingRefused("another call parks or wakes memory at the moment");
        let turn = wait_for_turn(self.driver, &mapper.paging.parking).ok_or(busy)?;
        Mover { mapper, contents, slot, block: ptr, to_host, _turn: turn }.run()
    }
}

impl<P: Platform> Mover<'_, P> {
    /// Moves the pages. Returns their bytes.
    fn run(&self) -> Result<u64, Error> {
        if self.with_block(|heap, _| heap.asleep)? {
            return self.note_in_sleep();
        }
        // Nothing is waited for if there is nothing to move.
        let Some(longest) = self
            .pages()
            .map(|home| home.map(|home| home.bytes))
            .try_fold(None, |most, bytes| Ok::<_, Error>(most.max(Some(bytes?))))?
        else {
            return Ok(0);
        };
        // Held to the end, so that no capture starts, which the wait and the copies would break.
        let _permission = self.mapper.driver.may_record().ok_or_else(in_capture)?;
        self.wait_for_work()?;
        let reserved = self.mapper.reserve_again(longest)?;
        let reserved_bytes = self.mapper.paging.address_bytes();
        let no_addresses = Error::OutOfAddresses { requested: longest, reserved: reserved_bytes };
        let staging = Staging { at: reserved.ok_or(no_addresses)?, bytes: longest, lost: Cell::new(None) };
        let moved = self.move_all(&staging);
        // Addresses with a stuck page are never used again.
        if staging.lost.get().is_none() {
            self.mapper.unreserve(Some((staging.at, staging.bytes)));
        }
        moved
    }

    /// Calls `act` with the heap, locked, and the number of the block.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`] if the program has freed the block.
    fn with_block<T>(&self, act: impl FnOnce(&mut Heap<P::Storage>, u32) -> T) -> Result<T, Error> {
        let mut heap = self.mapper.heaps.lock(self.slot);
        let block = heap.lookup(self.block).ok_or_else(|| not_in_heap(&heap, self.block))?;
        Ok(act(&mut heap, block))
    }

    /// Iterates over the pages that are wholly under the block and are to move. The heap is locked
    /// during each step, but not between two steps.
    fn pages(&self) -> impl Iterator<Item = Result<HomePage, Error>> {
        let mut from = self.block.0;
        core::iter::from_fn(move || {
            let next = self.with_block(|heap, block| {
                let end = heap.blocks[block].end();
                let pool = self.mapper.paging.pool.lock();
                let is_elsewhere = |home: &HomePage| {
                    home.is_movable()
                        && pool.is_home(home.page)
                        && !pool[home.page].stuck
                        && pool[home.page].is_host != self.to_host
                };
                if heap.is_empty() { None } else { heap.sets.pages.within(from, end).find(is_elsewhere) }
            });
            if let Ok(Some(home)) = next {
                from = home.end();
            }
            next.transpose()
        })
    }

    /// Notes where the pages of a block in a parked heap wake. Returns the bytes for which this is
    /// new.
    fn note_in_sleep(&self) -> Result<u64, Error> {
        self.with_block(|heap, block| {
            let mut pool = self.mapper.paging.pool.lock();
            let pages = heap.sets.pages.within(self.block.0, heap.blocks[block].end());
            pages.filter(|home| pool.set_wakes_on_host(home.page, self.to_host)).map(|home| home.bytes).sum()
        })
    }

    /// Waits for the work that uses the block: that of its stream and of the streams recorded as
    /// its users. Of a block in the memory of a captured graph, or of a stream that has ended, it
    /// is not known which streams these are, and all work of the device is waited for.
    fn wait_for_work(&self) -> Result<(), Error> {
        let driver = self.mapper.driver;
        let (own, mut next) = self.with_block(|heap, block| {
            let own = driver.usable_stream(heap, NO_STREAM).filter(|_| heap.keeps != Keeps::ForGraphs);
            (own, heap.blocks[block].uses)
        })?;
        let Some(own) = own else { return Ok(driver.wait(P::Device::synchronize_all)?) };
        // Some programs announce no capture, and a wait for its stream would break it. A stream
        // that may be gone is not asked: the wait itself takes care of it.
        let wait = |stream| {
            if driver.may_use(stream, NO_STREAM) && driver.call(|device| device.is_capturing(stream))? {
                return Err(in_capture().into());
            }
            Ok::<_, Error>(driver.synchronize(stream)?)
        };
        while next != NONE {
            for stream in self.with_block(|heap, _| heap.uses().next_streams(&mut next))? {
                wait(stream)?;
            }
        }
        wait(own)
    }

    /// Moves the pages one by one, until there is no memory for the next. Returns the bytes of
    /// those that have moved.
    fn move_all(&self, staging: &Staging) -> Result<u64, Error> {
        let mut moved = 0;
        for home in self.pages() {
            let home = home?;
            self.set_stays(home, Stays::Moving);
            let _stayed = Undo::by(|| self.set_stays(home, Stays::No));
            if !self.move_page(home, staging)? {
                break;
            }
            moved += home.bytes;
            self.mapper.trace_spilled(&mut self.mapper.heaps.lock(self.slot));
        }
        Ok(moved)
    }

    fn set_stays(&self, home: HomePage, stays: Stays) {
        self.mapper.heaps.lock(self.slot).sets.pages.change(home.at, |home| home.stays = stays);
    }

    /// Moves a page. Returns false if there is no memory for it.
    fn move_page(&self, home: HomePage, staging: &Staging) -> Result<bool, Error> {
        let mapper = &self.mapper;
        let mut guard = PageGuard::empty(mapper);
        let made = if self.to_host {
            mapper.new_page_of_host(home.bytes, &mut guard.batch)?
        } else {
            mapper.new_page(home.bytes, Charge::WithinLimit, &mut guard.batch)?
        };
        if !made || !self.copy_to(&guard.batch, home, staging)? {
            return Ok(false);
        }
        let (at, lost) = (DevicePtr(home.at), Cell::new(None));
        if let Err(error) = mapper.unmap_or_stay(at, home.bytes) {
            // The device may have unmapped the page all the same. If not, it refuses this.
            let _is_mapped = self.map_again(home);
            return Err(error.into());
        }
        let mapping = match mapper.map(&guard.batch, Row { at, lost: &lost }) {
            Ok(Some(mapping)) => mapping,
            refused => {
                self.map_back(home)?;
                return refused.map(|_| false);
            }
        };
        mapping.keep();
        let new = guard.keep().first;
        let mut heap = mapper.heaps.lock(self.slot);
        heap.sets.pages.change(home.at, |home| (home.page, home.of_host) = (new, self.to_host));
        heap.note_kinds_of_pages();
        mapper.paging.pool.lock().take_place(home.page, new);
        Ok(true)
    }

    /// Copies the contents of a page to the page of `batch`, which is mapped at `staging` for this.
    /// Returns false if the device does not have the memory for the mapping.
    fn copy_to(&self, batch: &Batch, home: HomePage, staging: &Staging) -> Result<bool, Error> {
        let Staging { at, lost, .. } = staging;
        let Some(mapping) = self.mapper.map(batch, Row { at: *at, lost })? else { return Ok(false) };
        let from = DevicePtr(home.at);
        let copied = self.mapper.driver.call(|_| self.contents.copy(from, *at, home.bytes));
        // Also after a failure: no copy may be in progress when the page is unmapped.
        let ended = self.mapper.end_copies(self.contents);
        drop(mapping);
        copied.map_err(Error::from).and(ended)?;
        lost.get().map_or(Ok(true), |error| Err(error.into()))
    }

    /// Maps a page again in its place, after its replacement could not be mapped there.
    ///
    /// # Errors
    /// [`ErrorKind::ContextLost`] if the device refuses this, too, however often it is asked. The
    /// addresses of a live block then have no memory, and would later serve other blocks, so the
    /// context counts as lost.
    fn map_back(&self, home: HomePage) -> Result<(), Error> {
        let (mapper, at) = (&self.mapper, DevicePtr(home.at));
        let mut result = self.map_again(home);
        for _ in 1..ASKED {
            if result.is_ok() || mapper.driver.health().is_err() {
                break;
            }
            // A call that failed may have mapped a page there all the same.
            let _nothing_there = mapper.call(MemoryCall::Unmap, |memory| memory.unmap(at, home.bytes));
            result = self.map_again(home);
        }
        mapper.driver.note_loss(result.map_err(|error| DeviceError::new(ErrorKind::ContextLost, error.code)))?;
        mapper.driver.device().on_map(at, home.bytes);
        Ok(())
    }

    /// Maps a page in its place.
    fn map_again(&self, home: HomePage) -> DeviceResult<()> {
        let Page { handle, bytes, .. } = self.mapper.paging.pool.lock()[home.page];
        let at = DevicePtr(home.at);
        self.mapper.in_turn(|| {
            self.mapper.call(MemoryCall::Map, |memory| memory.map(at, bytes, handle))?;
            self.mapper.call(MemoryCall::SetAccess, |memory| memory.set_access(at, bytes))
        })
    }
}
