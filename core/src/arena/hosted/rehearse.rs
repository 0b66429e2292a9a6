//! Makes the device for a copy on which requests of a stream are tried.

use crate::arena::{OnDevice, Platform, flags};
use crate::device::rehearsal::{Answers, RehearsalDevice};
use crate::device::{Host, Segments, StreamOrder, VirtualMemory};
use crate::error::Error;
use crate::pool::Route;
use crate::units::StreamId;
use alloc::collections::BTreeSet;

/// Returns a device that answers as `on` would answer requests on `stream` made by the calling
/// thread. Asks the host about routes and supplies. Calls the driver only while a graph is
/// captured, to learn which streams capture it.
///
/// # Errors
/// Those of the device.
pub(crate) fn rehearsal_device<P: Platform>(on: OnDevice<'_, P>, stream: StreamId) -> Result<RehearsalDevice, Error> {
    on.learn_virtual_memory();
    let device = on.driver.device();
    let route = if on.driver.flags.has(flags::ROUTES) { on.heaps.enter_pool(&on.driver, stream) } else { None };
    let pool = route.map_or(0, |route| route.pool);
    let name = on.heaps.shared_pool(pool).id();
    let supplied = (pool != 0 && device.supplies(name)).then_some(name);
    if route.is_some() {
        on.heaps.leave_pool(pool);
    }
    let (mut capturing, mut unreported) = (BTreeSet::new(), BTreeSet::new());
    let captures = on.driver.flags.has(flags::CAPTURE);
    let streams = on.heaps.registry.lock().streams();
    for other in streams.into_iter().chain([stream]) {
        if !device.reports_end(other) {
            unreported.insert(other.0);
        }
        if captures && on.driver.may_use(other, stream) && on.driver.call(|device| device.is_capturing(other))? {
            capturing.insert(other.0);
        }
    }
    Ok(RehearsalDevice::new(Answers {
        stream,
        capturing,
        unreported,
        can_order: device.can_order(stream),
        thread: device.thread_id(),
        route: match route.map(|route| route.route) {
            Some(Route::Host(number)) => Some(number),
            _ => None,
        },
        supplied,
        granularity: device.virtual_memory().map(VirtualMemory::granularity),
        memory: on.driver.known_memory(on.ledger.reserved()),
        pages: on.paging.lengths(),
    }))
}
