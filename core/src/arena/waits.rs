//! What waits for the device: blocks that other streams use, and epochs of heaps.

use crate::streams::deferred::DeferredBlocks;
use crate::streams::epochs::Epochs;
use crate::streams::frontier::Frontier;
use crate::streams::groups::Groups;
use crate::streams::ordered::OrderedBlocks;
use crate::sync::{Lock, Rank, Ranked};
use crate::tables::Storage;
#[cfg(feature = "alloc")]
use crate::{streams::event_queue::EventQueues, sync::MutexGuard};
#[cfg(feature = "alloc")]
use alloc::vec::Vec;

/// What waits for one device.
pub(crate) struct Waits<R: Lock, S: Storage> {
    /// Blocks that wait for fences recorded at their frees, and the events of all fences.
    pub queues: Groups<R, S>,
    /// Blocks whose fences cannot be recorded yet.
    pub deferred: Ranked<R, DeferredBlocks<S>>,
    /// Freed blocks whose uses have fences.
    pub ordered: Ranked<R, OrderedBlocks<S>>,
    /// Fences that tell which free blocks the device has finished with.
    pub epochs: Ranked<R, Epochs<S>>,
    /// Blocks that wait for the safe frontier.
    pub frontier: Ranked<R, Frontier<S>>,
}

impl<R: Lock, S: Storage> Waits<R, S> {
    /// Returns a device for which nothing waits.
    pub(super) fn new() -> Self {
        Self {
            queues: Groups::new(),
            deferred: Ranked::new(Rank::Deferred, DeferredBlocks::default()),
            ordered: Ranked::new(Rank::Ordered, OrderedBlocks::default()),
            epochs: Ranked::new(Rank::Epochs, Epochs::default()),
            frontier: Ranked::new(Rank::Frontier, Frontier::default()),
        }
    }
}

/// All that waits for one device, locked.
#[cfg(feature = "alloc")]
pub(super) struct LockedWaits<'a, R: Lock, S: Storage> {
    queues: Vec<MutexGuard<'a, R, EventQueues<S>>>,
    deferred: MutexGuard<'a, R, DeferredBlocks<S>>,
    ordered: MutexGuard<'a, R, OrderedBlocks<S>>,
    epochs: MutexGuard<'a, R, Epochs<S>>,
    frontier: MutexGuard<'a, R, Frontier<S>>,
}

#[cfg(feature = "alloc")]
impl<R: Lock, S: Storage> Waits<R, S> {
    /// Locks all that waits.
    pub(super) fn lock_all(&self) -> LockedWaits<'_, R, S> {
        // Fields are evaluated from top to bottom: in the order of the ranks.
        LockedWaits {
            queues: self.queues.lock_all(),
            deferred: self.deferred.lock_beside(),
            ordered: self.ordered.lock_beside(),
            epochs: self.epochs.lock_beside(),
            frontier: self.frontier.lock_beside(),
        }
    }
}

#[cfg(feature = "alloc")]
impl<R: Lock, S: Storage> LockedWaits<'_, R, S> {
    /// Returns a copy, on which no thread works.
    pub(super) fn copy(&self) -> Waits<R, S> {
        Waits {
            queues: Groups::copy_of(&self.queues),
            deferred: Ranked::new(Rank::Deferred, self.deferred.clone()),
            ordered: Ranked::new(Rank::Ordered, self.ordered.clone()),
            epochs: Ranked::new(Rank::Epochs, self.epochs.clone()),
            frontier: Ranked::new(Rank::Frontier, self.frontier.clone()),
        }
    }
}
