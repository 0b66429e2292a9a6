//! What requests would do, without making them.

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
    /// Predicts the first action of [`Allocator::malloc`] for a request made now. Hands out
    /// nothing.
    ///
    /// Pending frees count as pending, and decommitted memory of ranges as in use, although
    /// [`Allocator::malloc`] would poll their events. With `compact`, work counts as running until
    /// a request has asked the device.
    ///
    /// Device: asked for the size of its memory where the limit or the policy depends on the size,
    /// and whether streams capture a graph. No memory is obtained or released.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::InvalidStream`], [`Error::TableFull`], [`Error::Device`], as
    /// for [`Allocator::malloc`].
    pub fn malloc(&self, bytes: u64, stream: StreamId) -> Result<Forecast, Error> {
        self.begin("forecast").forecast(bytes, stream)
    }
}
