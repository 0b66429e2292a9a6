//! Pages that a failed wake has left mapped in the places of parked pages, because the device
//! failed to unmap them.
//!
//! Nothing else can be mapped there, so the next wake fills the page that it finds. A park, or any
//! call that gives cached memory back, tries again to remove the page.

use super::pages_from;
use crate::arena::Platform;
use crate::arena::paging::mapper::Mapper;
use crate::device::{Contents, Host, Segments};
use crate::error::Error;
use crate::heap::home_pages::HomePage;
use crate::stats::MemoryCall;
use crate::units::DevicePtr;

/// The number of times that a failing device is asked whether copies have ended, or to map a page
/// again.
pub(in crate::arena::paging) const ASKED: u32 = 16;

impl<P: Platform> Mapper<'_, P> {
    /// Waits after a failure until no copy is in progress.
    ///
    /// # Errors
    /// The last error, if the device fails each time. Copies may then still be in progress.
    pub(in crate::arena) fn end_copies(&self, contents: &dyn Contents) -> Result<(), Error> {
        let finish = || self.driver.call(|_| contents.mark().and_then(|mark| contents.finish(mark)));
        // The error may come from an earlier copy, and then says nothing about the others.
        let mut ended = finish();
        for _ in 1..ASKED {
            if ended.is_ok() || self.driver.health().is_err() {
                break;
            }
            ended = finish();
        }
        Ok(ended?)
    }

    /// Removes the pages that failed wakes have left mapped in the parked heap in `slot`.
    ///
    /// # Errors
    /// The first error of the device, after all pages have been tried.
    pub(super) fn take_left(&self, slot: u32) -> Result<(), Error> {
        let (mut any, mut result) = (false, Ok(()));
        for home in pages_from(self.heaps, slot, 0).filter(|home| self.is_left(home)) {
            if let Some(contents) = self.driver.device().contents().filter(|_| !any) {
                // The wake that left the page may have been unable to wait for its copies.
                self.end_copies(contents)?;
            }
            (any, result) = (true, result.and(self.take_away(home)));
        }
        if any { result.and(self.destroy_spares().map(|_| ())) } else { result }
    }

    /// Returns whether a failed wake has left a page mapped in the place of `home`.
    pub(super) fn is_left(&self, home: &HomePage) -> bool {
        home.asleep && self.paging.pool.lock().left(home.page).is_some()
    }

    /// Unmaps the page that is meant to replace a page asleep, and makes it spare. If the device
    /// fails, the page stays for the next wake.
    pub(super) fn take_away(&self, home: HomePage) -> Result<(), Error> {
        let (at, bytes) = (DevicePtr(home.at), home.bytes);
        // No lock is held across the call to the device.
        let is_told = !self.paging.pool.lock().is_replacement_stuck(home.page);
        let unmapped = if is_told {
            self.unmap_or_stay(at, bytes)
        } else {
            self.call(MemoryCall::Unmap, |memory| memory.unmap(at, bytes))
        };
        if let Err(error) = unmapped {
            self.paging.pool.lock().leave_replacement(home.page);
            return Err(error.into());
        }
        let replacement = self.paging.pool.lock().stay_asleep(home.page);
        self.spare_page(replacement);
        Ok(())
    }

    /// Prepares the page that a failed wake has left in the place of `home` for being filled.
    pub(super) fn take_up_left(&self, home: HomePage) -> Result<(), Error> {
        let (at, bytes) = (DevicePtr(home.at), home.bytes);
        if self.paging.pool.lock().is_replacement_stuck(home.page) {
            self.in_turn(|| self.call(MemoryCall::SetAccess, |memory| memory.set_access(at, bytes)))?;
            self.driver.device().on_map(at, bytes);
        }
        self.paging.pool.lock().begin_to_fill(home.page);
        Ok(())
    }
}
