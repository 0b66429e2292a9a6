//! Reuse of a block by the same graph that uses it, before the capture of this graph ends
//! (`graph_capture_record_stream_reuse`).
//!
//! ```text
//! own stream   malloc ── fork ────────── free ─────────── join ── malloc: after the mark, the same block
//! user stream              └── use ── work ──┴ mark ────────┘
//! ```
//!
//! A captured event can neither be queried nor waited for, but the graph itself says what comes
//! before what. When a block is freed, all that its own stream and its user streams have captured
//! so far is marked. Once everything that the own stream will capture comes after this mark, a new
//! use of the block comes after it, too.
//!
//! The decisions are those of PyTorch's allocator (2.10 and 2.11). If a stream that uses the block
//! does not capture, the block stays deferred until the capture ends. Uses announced before the
//! capture count as complete, because `torch.cuda.graph` waits for the device before it starts a
//! capture.
//!
//! If the host does not [report](crate::device::StreamOrder::reports_end) the end of a stream, the
//! stream may be gone at the free. It is not asked then, and the block stays deferred.

use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::platform::Platform;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::device::{CaptureMark, DeviceMemory, StreamOrder};
use crate::streams::deferred_frees::EndOfUses;
use crate::streams::pending::PendingBlock;
use crate::tables::slot_table::NONE;
use crate::units::{NO_STREAM, StreamId};

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Frees the deferred blocks of `stream`, which is capturing, if everything that it captures
    /// from now on comes after their uses.
    pub(in crate::arena) fn free_ordered_in_graph(self, stream: StreamId) {
        if !self.driver().flags.has(flags::REUSES) || !self.driver().flags.has(flags::DEFERRED) {
            return;
        }
        let mut from = 0;
        loop {
            let taken = self.waits.deferred.lock().take_marked(stream, from);
            let Some((entry, mark)) = taken else { return };
            let is_behind = self.driver().call(|device| device.is_behind(stream, mark)).unwrap_or(false);
            from = self.waits.deferred.lock().get(entry).age + 1;
            if is_behind {
                // The graph orders all uses before the next one: no event is needed.
                self.end_deferred(entry);
            } else {
                self.waits.deferred.lock().put_back(entry);
            }
        }
    }
}

/// Marks what `stream` has captured, in addition to what `mark` marks already. Returns `None` if
/// the order is not known, because the stream captures no graph or another graph, may be gone, or
/// the device fails. `mark` is then removed, and the block waits for the end of the capture.
fn mark_captured<D: DeviceMemory>(
    driver: &Driver<D>,
    stream: StreamId,
    mark: Option<CaptureMark>,
) -> Option<CaptureMark> {
    if !driver.may_use(stream, NO_STREAM) {
        mark.inspect(|&mark| driver.device().remove_mark(mark));
        return None;
    }
    driver.call(|device| device.mark_capture(stream, mark)).ok()?
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Marks the end of the uses of a pending block. Returns `None` if the setting is off, or if
    /// the block's own stream and its user streams do not all capture the same graph. The caller
    /// keeps the mark with the block.
    pub(in crate::arena) fn mark_end_in_graph(self, PendingBlock { slot, index }: PendingBlock) -> Option<EndOfUses> {
        if !self.driver().flags.may_reuse_in_graph() {
            return None;
        }
        // A pending block is in no set, so nothing but this call changes its list of uses.
        let (own, mut next) = {
            let heap = self.heaps().lock(slot);
            (heap.stream, heap.blocks[index].uses)
        };
        let mut mark = mark_captured(self.driver(), own, None)?;
        while next != NONE {
            let streams = self.heaps().lock(slot).uses().next_streams(&mut next);
            for stream in streams {
                mark = mark_captured(self.driver(), stream, Some(mark))?;
            }
        }
        Some(EndOfUses { mark, own })
    }
}
