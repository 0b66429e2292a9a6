//! Freed blocks whose events are recorded once no graph is being captured.
//!
//! Recording an event on a stream during a capture would add the event to the graph. The block keeps its list of
//! user streams until then.

use crate::arena::waits::{Outside, Waits};
use crate::arena::{Platform, flags};
use crate::device::StreamOrder;
use crate::error::Error;
use crate::streams::deferred_frees::{DeferredFree, Until};
use crate::tables::CapacityError;
use crate::units::StreamId;

/// Outcome of recording the events of a block.
pub(in crate::arena) enum Recorded {
    /// Every user stream has an event for the block.
    All,
    /// No event of the block is queued: the given user stream captures a graph.
    Capturing(StreamId),
}

impl<P: Platform> Waits<P> {
    /// Defers the free of a pending block, which keeps its uses, and traces the free with the call site `site`.
    ///
    /// # Errors
    /// [`Error::TableFull`]. The block is not deferred then.
    pub(in crate::arena) fn defer<'a>(
        &self,
        on: impl Outside<'a, P>,
        slot: u32,
        block: u32,
        until: Until,
        site: u32,
    ) -> Result<(), Error> {
        // The entry is busy until the free is traced: afterwards the free can no longer fail.
        let added = self.deferred.lock().add(slot, block, until);
        let full = if matches!(until, Until::Fence(_)) { "events" } else { "deferred frees" };
        let entry = added.map_err(|CapacityError| Error::TableFull(full))?;
        if on.driver().flags.has(flags::TRACE) {
            on.free_requested(&mut on.heaps().lock(slot), block, site);
        }
        let mut blocks = self.deferred.lock();
        blocks.keep(entry);
        on.driver().flags.follow_deferred(&blocks);
        Ok(())
    }

    /// Records the events of deferred blocks, except for blocks used by a stream that still
    /// captures. Returns false if the table of events has no room for all.
    pub(in crate::arena) fn record_deferred<'a>(&self, on: impl Outside<'a, P>) -> Result<bool, Error> {
        let (mut from, mut capturing) = (0, None);
        while on.driver().flags.has(flags::DEFERRED) {
            let Some(_permission) = on.driver().may_record() else { break };
            // Further blocks behind a stream found capturing are passed over: one driver call answers for all.
            let taken = self.deferred.lock().take_captured(from, capturing);
            let Some(entry) = taken else { break };
            let deferred = self.deferred.lock().block(entry);
            from = deferred.age + 1;
            let recorded = self.record_one_deferred(on, &deferred);
            let mut blocks = self.deferred.lock();
            match recorded {
                Ok(Recorded::All) => blocks.remove(entry),
                Ok(Recorded::Capturing(stream)) => {
                    capturing = Some(stream);
                    blocks.keep_behind(entry, stream);
                    continue;
                }
                Err(error) => {
                    // Goes to the end of the list, so that a block that always fails blocks no
                    // other.
                    blocks.move_to_end(entry);
                    return if matches!(error, Error::TableFull(_)) { Ok(false) } else { Err(error) };
                }
            }
            on.driver().flags.follow_deferred(&blocks);
            drop(blocks);
            if let Some(end) = deferred.captured().and_then(|captured| captured.end) {
                on.driver().device().remove_mark(end.mark);
            }
        }
        Ok(true)
    }

    /// Records the events of a deferred block, unless the stream behind which the block was
    /// deferred still captures.
    fn record_one_deferred<'a>(&self, on: impl Outside<'a, P>, deferred: &DeferredFree) -> Result<Recorded, Error> {
        let DeferredFree { heap, block, .. } = *deferred;
        match deferred.captured().and_then(|captured| captured.behind) {
            Some(stream) if on.driver().call(|device| device.is_capturing(stream))? => Ok(Recorded::Capturing(stream)),
            // The free was traced when the block was deferred.
            _ => self.record_events(on, heap, on.heaps().lock(heap), block, None),
        }
    }
}
