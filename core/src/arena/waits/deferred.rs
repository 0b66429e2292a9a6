//! Freed blocks whose events are recorded once no graph is being captured.
//!
//! Recording an event on a stream during a capture would add the event to the graph. The block keeps its list of
//! user streams until then.

use crate::arena::{OnDevice, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::streams::deferred::Deferred;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::StreamId;

/// Outcome of recording the events of a block.
pub(in crate::arena) enum Recorded {
    /// Every user stream has an event for the block.
    All,
    /// No event of the block is queued: the given user stream captures a graph.
    Capturing(StreamId),
}

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Defers the recording of a pending block's events until a capture ends. The block is `behind` the user
    /// stream known to capture, or behind none if only the flag told of a capture.
    pub(in crate::arena) fn defer(self, deferred: Deferred, site: u32) -> Result<(), Error> {
        let device = self;
        // Reserve the entry first: after the free is traced, deferring can no longer fail.
        if !device.waits.deferred.lock().reserve() {
            return Err(Error::TableFull("deferred frees"));
        }
        if let Some(recorder) = device.tracing() {
            recorder.free_requested(&mut device.heaps.lock(deferred.heap), deferred.block, site);
        }
        let mut blocks = device.waits.deferred.lock();
        blocks.add(deferred);
        device.flags.follow_deferred(&blocks);
        Ok(())
    }

    /// Records the events of deferred blocks, except for blocks used by a stream that still
    /// captures. Returns false if the table of events has no room for all.
    pub(in crate::arena) fn record_deferred(self) -> Result<bool, Error> {
        let device = self;
        if !device.flags.has(flags::DEFERRED) {
            return Ok(true);
        }
        let mut capturing = None;
        let mut next = device.waits.deferred.lock().list.take_first(|_| true);
        while let Some(entry) = next {
            let Some(_permission) = device.driver.may_record(&device.flags) else {
                device.waits.deferred.lock().list.keep(entry);
                break;
            };
            let deferred = device.waits.deferred.lock().list[entry];
            let recorded = self.record_one_deferred(deferred);
            let mut blocks = device.waits.deferred.lock();
            let mut ended = None;
            match recorded {
                Ok(Recorded::All) => {
                    next = blocks.list.take_after(entry, |block| block.is_ready(capturing));
                    blocks.list.remove(entry);
                    ended = deferred.end;
                }
                Ok(Recorded::Capturing(stream)) => {
                    // Skip further blocks behind the stream just found capturing: one driver call answers
                    // for all.
                    capturing = Some(stream);
                    next = blocks.list.take_after(entry, |block| block.is_ready(capturing));
                    blocks.keep_behind(entry, stream);
                }
                Err(error) => {
                    // Goes to the end of the list, so that a block that always fails blocks no
                    // other.
                    blocks.list.move_to_end(entry);
                    return if matches!(error, Error::TableFull(_)) { Ok(false) } else { Err(error) };
                }
            }
            device.flags.follow_deferred(&blocks);
            drop(blocks);
            if let Some(end) = ended {
                device.driver.device().remove_mark(end.mark);
            }
        }
        Ok(true)
    }

    /// Records the events of a deferred block, unless the stream behind which the block was
    /// deferred still captures.
    fn record_one_deferred(self, deferred: Deferred) -> Result<Recorded, Error> {
        let device = self;
        let Deferred { heap, block, behind, .. } = deferred;
        match behind {
            Some(stream) if device.call(|device| device.is_capturing(stream))? => Ok(Recorded::Capturing(stream)),
            // The free was traced when the block was deferred.
            _ => device.record_events(heap, device.heaps.lock(heap), block, None),
        }
    }
}
