//! The device for a copy on which requests of a stream are tried.

use crate::arena::{OnDevice, flags};
use crate::device::DeviceMemory;
use crate::device::rehearsal::{Answers, RehearsalDevice};
use crate::error::Error;
use crate::pool::Route;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::StreamId;
use alloc::collections::BTreeSet;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Returns a device that answers as this one would to requests on `stream`, made by the calling
    /// thread. Asks the host about routes and supplies. Calls the driver only while a graph is captured,
    /// to learn which streams capture it.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn rehearsal_device(self, stream: StreamId) -> Result<RehearsalDevice, Error> {
        self.learn_virtual_memory();
        let device = self.driver.device();
        let route = if self.flags.has(flags::ROUTES) { self.enter_pool(stream) } else { None };
        let pool = route.map_or(0, |route| route.pool);
        let name = self.heaps.shared_pool(pool).id();
        let supplied = (pool != 0 && device.supplies(name)).then_some(name);
        if route.is_some() {
            self.heaps.leave_pool(pool);
        }
        let mut capturing = BTreeSet::new();
        if self.flags.has(flags::CAPTURE) {
            let streams = self.heaps.registry.lock().streams();
            for stream in streams.into_iter().chain([stream]) {
                if self.call(|device| device.is_capturing(stream))? {
                    capturing.insert(stream.0);
                }
            }
        }
        Ok(RehearsalDevice::new(Answers {
            stream,
            capturing,
            can_order: device.can_order(stream),
            thread: device.thread_id(),
            route: match route.map(|route| route.route) {
                Some(Route::Host(number)) => Some(number),
                _ => None,
            },
            supplied,
            granularity: device.virtual_memory().map(|memory| memory.granularity()),
            memory: self.known_memory(),
            pages: self.page_pool.lock().lengths(),
        }))
    }
}
