//! What the waits see of a device.

use crate::arena::OnDevice;
use crate::arena::driver::Driver;
use crate::arena::guarding::Guarding;
use crate::arena::heaps::{Heaps, Slot};
use crate::arena::holdings::Holdings;
use crate::arena::paging::Paging;
use crate::arena::platform::Platform;
use crate::arena::tracing::Recorder;
use crate::arena::waits::Waits;
use crate::heap::Heap;
use crate::stats::Occurrence;
use crate::streams::pending::PendingBlock;
use crate::units::DevicePtr;

/// The waits of a device, with what they need of the rest: the heaps with the blocks that wait, the
/// device, and what the end of a wait changes. Not the settings, the plans, or the way of a
/// request.
///
/// Two words, which are passed in registers.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a, P: Platform>(OnDevice<'a, P>);

impl<'a, P: Platform> Waiting<'a, P> {
    #[inline(always)]
    pub(in crate::arena) fn of(device: OnDevice<'a, P>) -> Self {
        Self(device)
    }

    #[inline(always)]
    pub(in crate::arena) fn waits(self) -> &'a Waits<P> {
        &self.0.arena.waits
    }

    #[inline(always)]
    pub(in crate::arena) fn driver(self) -> &'a Driver<P::Device> {
        &self.0.arena.driver
    }

    #[inline(always)]
    pub(in crate::arena) fn heaps(self) -> &'a Heaps<P> {
        &self.0.arena.heaps
    }

    #[inline(always)]
    pub(in crate::arena) fn paging(self) -> &'a Paging<P> {
        &self.0.arena.paging
    }

    #[inline(always)]
    pub(in crate::arena) fn guarding(self) -> &'a Guarding {
        &self.0.arena.guarding
    }

    /// Returns what gives memory back, for the end of a wait in direct mode.
    #[inline(always)]
    pub(in crate::arena) fn holdings(self) -> Holdings<'a, P> {
        Holdings::of(self.0)
    }

    /// Records an event, if a trace is recorded.
    #[inline]
    pub(in crate::arena) fn trace(self, record: impl FnOnce(Recorder<'_, P>)) {
        self.0.arena.trace(record);
    }

    /// Reconciles the peaks if they are stale.
    #[inline(always)]
    pub(in crate::arena) fn settle_peaks(self, slot: &Slot<P>, peaks_stale: bool) {
        self.0.arena.settle_peaks(slot, peaks_stale);
    }

    /// Keeps the peaks exact after a block of the heap in `slot` has become pending.
    #[inline]
    pub(in crate::arena) fn follow_pending(self, slot: u32) {
        self.0.arena.peaks.follow_pending(&self.heaps().slot(slot).counters);
    }

    /// Counts a wait for all streams.
    pub(in crate::arena) fn count_sync(self) {
        self.0.arena.peaks.device.count(Occurrence::SyncAllStreams);
    }

    /// Takes the contents of a held block as its free takes them; see
    /// [`Guarding::end_contents`].
    pub(in crate::arena) fn end_contents(self, block: PendingBlock) {
        self.guarding().end_contents(self.0.arena.recorder(), self.paging(), block.slot, block.index);
    }

    /// Removes the guarded block `block`, which has just become free, from its heap. Returns the
    /// address to unmap once the heap is unlocked. `None` for an ordinary block.
    pub(in crate::arena) fn remove_guarded(
        self,
        heap: &mut Heap<P::Storage>,
        block: PendingBlock,
    ) -> Option<DevicePtr> {
        self.0.remove_guarded(block.slot, heap, block.index)
    }
}
