//! Segments retired after a change of the settings: no request gets them any more, and they go
//! back to the device once the device has finished with them.
//!
//! A retired segment is in no heap and not in the page map, and counts as held from the device. A departure of the
//! segment's own stream tells the end of the work. Nothing here waits for the device.

use crate::arena::{Arena, Platform, flags};
use crate::error::Error;
use crate::pages::departures::Departing;
use crate::stats::Occurrence as Counted;
use crate::units::{DevicePtr, StreamId};

impl<P: Platform> Arena<P> {
    /// Retires a segment that was taken out of a heap of `stream`. The caller has permission to record.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The segment is then the caller's.
    pub(in crate::arena) fn retire(&self, stream: StreamId, base: DevicePtr, bytes: u64) -> Result<(), Error> {
        let what = Departing::Segment { base, bytes };
        // Without a fence the segment waits until cached memory is released.
        let retired = self.begin_departure(Some(stream), what).or_else(|_| self.begin_departure(None, what));
        retired.map(|_departure| ())
    }

    /// Returns the bytes of all retired segments.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.paging.pool.lock().departures.segment_bytes
    }

    /// Returns the address of the first retired segment.
    pub(crate) fn first_retired(&self) -> Option<DevicePtr> {
        self.paging.pool.lock().departures.segment(true).map(|(_, base, _)| base)
    }

    /// Gives retired segments back with which the device is known to have finished. With `all`, gives every retired
    /// segment back, which may wait for the device.
    ///
    /// # Errors
    /// The last failure. All other segments are given back even so.
    pub(crate) fn release_retired(&self, all: bool) -> Result<(), Error> {
        let mut outcome = Ok(());
        while !self.driver.flags.has(flags::LOST) {
            let (base, bytes, over) = {
                let departures = &mut self.paging.pool.lock().departures;
                let Some((departure, base, bytes)) = departures.segment(all) else { break };
                departures.take_segment(departure);
                (base, bytes, departures.release(departure))
            };
            self.end_departure(over);
            self.peaks.device.count(Counted::DeviceFree);
            match self.release_memory(base, bytes) {
                Ok(()) => self.tuning.lock().report.given_back_bytes += bytes,
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }
}
