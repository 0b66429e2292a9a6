//! Pending memory in the place of growth beyond the budget.
//!
//! A pending block is no longer the program's, so the block does not count as live: the budget
//! leaves little room for pending blocks beside the peak of live memory. A request beyond the
//! budget has the streams of pending blocks ordered after the blocks' uses first, until the free
//! pages suffice (see [`behind`](crate::arena::waits::behind)).

use super::Stitcher;
use crate::arena::request::Request;
use crate::arena::{OnDevice, Platform};
use crate::error::Error;
use crate::units::DevicePtr;

impl<P: Platform> Stitcher<'_, P> {
    /// Makes pending memory free for a request with `allowed` bytes of new memory: the oldest
    /// memory first, until the request lacks nothing. Serves the request if a freed block is large
    /// enough. Does nothing if the request lacks nothing, or where pages move only after their work
    /// is complete.
    pub(super) fn use_pending(
        &self,
        on: OnDevice<'_, P>,
        request: &Request,
        allowed: u64,
    ) -> Result<Option<DevicePtr>, Error> {
        if self.options.completed_pages_only || !super::may_move(request) {
            return Ok(None);
        }
        if !self.mapper().driver.flags.has_pending() || self.suffices(request, allowed)? {
            return Ok(None);
        }
        // Over once a freed block serves the request, or free pages and the allowed new memory
        // suffice.
        let over = on.waiting().order_events(request, || {
            let mut served = on.search(request)?;
            if served.is_none() {
                served = self.search_other_heap(on.arena, request)?;
            }
            Ok((served.is_some() || self.suffices(request, allowed)?).then_some(served))
        })?;
        Ok(over.flatten())
    }

    /// Returns whether free pages and `allowed` bytes of new memory suffice for a request.
    fn suffices(&self, request: &Request, allowed: u64) -> Result<bool, Error> {
        Ok(self.new_bytes(request, allowed)?.is_none_or(|bytes| bytes <= allowed))
    }
}
