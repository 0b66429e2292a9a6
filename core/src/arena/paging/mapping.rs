//! Mapping of pages at new places. Every such change is a transaction with two guards.
//!
//! ```text
//! PageGuard                     Mapping
//! pages taken or created ─▶ mapped, and the program told ─▶ published by the caller ─▶ keep, keep
//!   │ drop                    │ drop
//!   ▼                         ▼
//! back where they were      unmapped; what the device fails to unmap is lost
//! ```
//!
//! An operation that fails returns at once, and what it holds is undone, the mapping before the
//! pages. No lock of a heap, of the ranges or of the pages is held when a guard is dropped.

use crate::arena::Platform;
use crate::arena::paging::mapper::Mapper;
use crate::device::{DeviceError, ErrorKind, Host};
use crate::error::Error;
use crate::pages::{Batch, Page};
use crate::stats::MemoryCall;
use crate::units::DevicePtr;
use core::cell::Cell;

/// Pages in a transaction. If dropped, they return to the heaps that they came from, or to the
/// device if they came from none.
pub(in crate::arena) struct PageGuard<'a, P: Platform> {
    mapper: &'a Mapper<'a, P>,
    /// The pages, which are moving.
    pub batch: Batch,
}

impl<'a, P: Platform> PageGuard<'a, P> {
    /// Returns a guard without pages.
    pub(in crate::arena) fn empty(mapper: &'a Mapper<'a, P>) -> Self {
        Self { mapper, batch: Batch::EMPTY }
    }

    /// Returns the pages. The caller has put them in their places, or puts them there now.
    pub(in crate::arena) fn keep(mut self) -> Batch {
        core::mem::replace(&mut self.batch, Batch::EMPTY)
    }
}

impl<P: Platform> Drop for PageGuard<'_, P> {
    fn drop(&mut self) {
        if self.batch.count > 0 {
            self.mapper.return_batch(&self.batch);
        }
    }
}

/// The places at which the pages of a batch are mapped.
pub(in crate::arena) trait Places {
    /// Returns the end of the page before the first one.
    fn begin(&self) -> u64;

    /// Returns the address of the page after the one that ends at `end`.
    fn next(&self, end: u64) -> u64;

    /// Notes that the device failed to unmap a page. The addresses must not be used again.
    fn lose(&self, at: DevicePtr, bytes: u64, error: DeviceError);
}

/// Places in one row, without gaps.
pub(in crate::arena) struct Row<'c> {
    /// The first address.
    pub at: DevicePtr,
    /// The error after which any of the addresses is lost.
    pub lost: &'c Cell<Option<DeviceError>>,
}

impl Places for Row<'_> {
    fn begin(&self) -> u64 {
        self.at.0
    }

    fn next(&self, end: u64) -> u64 {
        end
    }

    fn lose(&self, _: DevicePtr, _: u64, error: DeviceError) {
        self.lost.set(Some(error));
    }
}

/// Pages that are mapped at new places, are accessible, and are known to the program. If dropped,
/// they are unmapped.
#[must_use]
pub(in crate::arena) struct Mapping<'a, T: Places, P: Platform> {
    mapper: &'a Mapper<'a, P>,
    batch: Batch,
    places: T,
    /// The number of pages that are mapped, counted from the first.
    mapped: u32,
    /// Whether the program has been told about the pages.
    told: bool,
}

impl<P: Platform> Mapper<'_, P> {
    /// Maps the pages of a batch at `places`, makes them accessible, and tells the program about
    /// each. Returns `None` if the device does not have the memory for the mapping.
    ///
    /// # Errors
    /// The first error of the device.
    pub(in crate::arena) fn map<T: Places>(
        &self,
        batch: &Batch,
        places: T,
    ) -> Result<Option<Mapping<'_, T, P>>, Error> {
        let mut mapping = Mapping { mapper: self, batch: *batch, places, mapped: 0, told: false };
        match self.in_turn(|| mapping.map()) {
            Ok(()) => {
                mapping.tell();
                Ok(Some(mapping))
            }
            Err(error) if error.kind == ErrorKind::OutOfMemory => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl<T: Places, P: Platform> Mapping<'_, T, P> {
    /// Maps the pages, and makes them accessible.
    fn map(&mut self) -> Result<(), DeviceError> {
        let mapper = self.mapper;
        // Access is set once for each run of pages, with one call to the device instead of one for
        // each page.
        let set_access = |at: u64, end: u64| {
            if at == end {
                Ok(())
            } else {
                mapper.call(MemoryCall::SetAccess, |memory| memory.set_access(DevicePtr(at), end - at))
            }
        };
        let (mut run, mut end, mut count) = (self.places.begin(), self.places.begin(), 0);
        let result = self.pages().try_for_each(|(_, page, at)| {
            if at.0 != end {
                set_access(run, end)?;
                run = at.0;
            }
            mapper.call(MemoryCall::Map, |memory| memory.map(at, page.bytes, page.handle))?;
            (count, end) = (count + 1, at.0 + page.bytes);
            Ok(())
        });
        self.mapped = count;
        result.and_then(|()| set_access(run, end))
    }

    /// Tells the program about each page. Nothing is handed out yet, and no lock is held, because
    /// the program may register the pages.
    fn tell(&mut self) {
        self.told = true;
        for (_, page, at) in self.pages() {
            self.mapper.driver.device().on_map(at, page.bytes);
        }
    }

    /// Iterates over the pages, as number, copy of the entry, and address.
    fn pages(&self) -> impl Iterator<Item = (u32, Page, DevicePtr)> {
        self.mapper.paging.pages_at(&self.batch, self.places.begin(), |end| self.places.next(end))
    }

    /// Leaves the pages mapped, because the caller has published them.
    pub(in crate::arena) fn keep(mut self) {
        self.mapped = 0;
    }
}

impl<T: Places, P: Platform> Drop for Mapping<'_, T, P> {
    fn drop(&mut self) {
        // Finding the places may need a lock that the caller of `keep` holds.
        if self.mapped == 0 {
            return;
        }
        if self.told {
            self.pages().for_each(|(_, page, at)| self.mapper.driver.device().on_unmap(at, page.bytes));
        }
        for (number, page, at) in self.pages().take(self.mapped as usize) {
            if let Err(error) = self.mapper.call(MemoryCall::Unmap, |memory| memory.unmap(at, page.bytes)) {
                self.mapper.paging.pool.lock().mark_stuck(number);
                self.places.lose(at, page.bytes, error);
            }
        }
    }
}
