//! Pending memory that serves requests instead of growth beyond the budget.
//!
//! A pending block no longer belongs to the program, so it does not count as live, and the budget
//! leaves little room for pending blocks above the peak of live memory. A request beyond the budget
//! therefore first orders the streams of pending blocks after the blocks' uses, until the free
//! pages are enough (see waits/behind.rs).

use super::Stitcher;
use crate::arena::request::Request;
use crate::arena::{OnDevice, Platform};
use crate::error::Error;
use crate::units::DevicePtr;

impl<P: Platform> Stitcher<'_, P> {
    /// Makes pending memory free for a request that may use `allowed` bytes of new memory, the
    /// oldest memory first, until the request needs nothing more. Serves the request if a freed
    /// block is large enough. Does nothing if the request already has enough, or if pages move only
    /// after their work is complete.
    pub(super) fn use_pending(
        &self,
        on: OnDevice<'_, P>,
        request: &Request,
        allowed: u64,
    ) -> Result<Option<DevicePtr>, Error> {
        // Frees that wait in other pools stay there.
        if self.options.completed_pages_only || request.pool != 0 || !self.may_move(request) {
            return Ok(None);
        }
        if !self.mapper().driver.flags.has_pending() || self.suffices(request, allowed)? {
            return Ok(None);
        }
        // This ends once a freed block serves the request, or free pages and the allowed new memory
        // are enough.
        let over = on.waiting().order_events(request, || {
            let mut served = on.search(request)?;
            if served.is_none() {
                served = self.search_other_heap(on.arena, request)?;
            }
            Ok((served.is_some() || self.suffices(request, allowed)?).then_some(served))
        })?;
        Ok(over.flatten())
    }

    /// Returns whether free pages and `allowed` bytes of new memory are enough for a request.
    fn suffices(&self, request: &Request, allowed: u64) -> Result<bool, Error> {
        Ok(self.new_bytes(request, allowed)?.is_none_or(|bytes| bytes <= allowed))
    }
}
