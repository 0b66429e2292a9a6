//! The search for pending memory, which is the only way from a request to the blocks that wait for
//! the device.
//!
//! ```text
//! effort    what may happen                                            host waits
//! Ask       the device is asked which uses are complete; open frees    no
//!           get their events
//! Order     a stream is ordered after uses that have fences           no
//! Wait      the events complete, one after the other                   yes
//! ```
//!
//! Each effort ends at the first block that serves the request. Under `stitched`, pages of other
//! heaps can serve it as well, so [`order_events`](DeviceWaits::order_events) orders their streams
//! too.

use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::error::Error;
use crate::units::DevicePtr;

/// The effort that a search for pending memory may make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::arena) enum Effort {
    /// Ask the device which uses are complete.
    Ask,
    /// Ask, and order the stream of the request after uses that are not complete.
    Order,
    /// Wait for all uses.
    Wait,
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Serves a request that no free block could serve from blocks that wait for the device. Calls
    /// `search` each time some of them have become free. If [`Effort::Wait`] finds nothing, all
    /// blocks are free except those that a captured graph uses.
    ///
    /// # Errors
    /// The first error of the device.
    pub(in crate::arena) fn search_pending(
        self,
        request: &Request,
        effort: Effort,
        mut search: impl FnMut() -> Result<Option<DevicePtr>, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        match effort {
            Effort::Ask => self.search_gathered(request, &mut search),
            Effort::Order => self.search_ordered(request, &mut search),
            Effort::Wait => {
                let served = self.search_event_by_event(&mut search)?;
                if served.is_none() {
                    self.wait_for_events()?;
                }
                Ok(served)
            }
        }
    }
}
