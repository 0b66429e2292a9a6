//! Segments retired after a change of the settings. No request gets them any more, and they go back
//! to the device once it has finished with them.
//!
//! A retired segment is in no heap and not in the page map, but still counts as held from the
//! device. Its own departure shows when the work on its stream has ended. Nothing here waits for
//! the device.

use crate::arena::Platform;
use crate::arena::paging::Paging;
use crate::arena::paging::departures::GivenUp;
use crate::error::Error;
use crate::pages::departures::Departing;
use crate::sync::Ordering;
use crate::units::{DevicePtr, StreamId};

impl<P: Platform> GivenUp<'_, P> {
    /// Retires a segment that was taken out of a heap of `stream`. The caller has permission to
    /// record.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The segment then still belongs to the caller.
    pub(in crate::arena) fn retire(&self, stream: StreamId, base: DevicePtr, bytes: u64) -> Result<(), Error> {
        let what = Departing::Segment { base, bytes };
        // Without a fence, the segment waits until cached memory is released.
        let retired = self.begin_departure(Some(stream), what).or_else(|_| self.begin_departure(None, what));
        retired.map(|_departure| ())
    }

    /// Takes out a retired segment that the device is known to have finished with. With `all`,
    /// takes any retired segment; to release it may then mean waiting for the device.
    pub(in crate::arena) fn take_retired(&self, all: bool) -> Option<(DevicePtr, u64)> {
        let (base, bytes, over) = {
            let departures = &mut self.paging.pool.lock().departures;
            let (departure, base, bytes) = departures.segment(all)?;
            departures.take_segment(departure);
            (base, bytes, departures.release(departure))
        };
        self.end_departure(over);
        Some((base, bytes))
    }
}

impl<P: Platform> Paging<P> {
    /// Returns the bytes of all retired segments.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.pool.lock().departures.segment_bytes
    }

    /// Notes that a retired segment has gone back to the device.
    pub(in crate::arena) fn note_retired_end(&self, bytes: u64) {
        self.retired_given_back.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of retired segments that have gone back to the device.
    pub(crate) fn retired_given_back(&self) -> u64 {
        self.retired_given_back.load(Ordering::Relaxed)
    }

    /// Returns the address of the first retired segment.
    pub(in crate::arena) fn first_retired(&self) -> Option<DevicePtr> {
        self.pool.lock().departures.segment(true).map(|(_, base, _)| base)
    }
}
