//! Forecasts: the effects of requests, without making them.

use super::Allocator;
use crate::arena::request::Forecast;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DeviceIndex, StreamId};

view! {
    /// The forecast of requests to a device: a view of an [`Allocator`], returned by
    /// [`Allocator::forecast`].
    Forecasts,
    /// Returns the forecast of requests to `device`.
    forecast
}

impl<D: DeviceMemory, R: Lock, S: Storage> Forecasts<'_, D, R, S> {
    /// Predicts the first step that [`Allocator::malloc`] would take for a request made now.
    /// Allocates nothing.
    ///
    /// Pending frees count as pending, and decommitted memory of ranges counts as in use, although
    /// [`Allocator::malloc`] would poll their events. With `compact` and with stitched memory, work
    /// counts as running until a request has polled the device.
    ///
    /// Device: called to get the size of its memory, if the limit or the policy depends on it, and
    /// to find out whether streams capture a graph. No memory is obtained or released.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::InvalidStream`], [`Error::TableFull`], [`Error::Device`], as
    /// for [`Allocator::malloc`].
    pub fn malloc(&self, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        self.begin("forecast").forecast(bytes, stream)
    }
}
