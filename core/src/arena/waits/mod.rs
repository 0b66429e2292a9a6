//! The blocks and the free memory that wait for the device.
//!
//! ```text
//! a use of a block has         at the free, the block waits                      table
//! no fence                     for a fence recorded then or later                streams/event_queue.rs: by stream
//! its own fence                for this fence                                    streams/deferred_frees.rs: by heap and use
//! no fence yet: a capture      for the end of the capture                        streams/deferred_frees.rs: by age
//! a number of the program      for the safe frontier                             streams/deferred_frees.rs: by count
//! ```
//!
//! A free ends in [`events`], which chooses the table. A request looks for pending memory with
//! [`search`], and each step of the ladder makes more effort. The last wait to end makes the block
//! free (`arena/free.rs`).

mod behind;
mod capture_reuse;
pub(in crate::arena) mod deferred;
mod events;
pub(in crate::arena) mod fences;
mod free_at;
mod gathered;
mod ordered;
mod polls;
pub(in crate::arena) mod search;

use crate::arena::driver::Driver;
use crate::arena::flags::Flags;
use crate::arena::heaps::{HeapGuard, Heaps};
use crate::arena::platform::Platform;
use crate::heap::Heap;
use crate::streams::deferred_frees::DeferredFrees;
use crate::streams::groups::Groups;
use crate::streams::pending::PendingBlock;
use crate::sync::{AtomicU32, Ordering, Rank, Ranked, empty, impl_empty};
#[cfg(feature = "alloc")]
use crate::{streams::event_queue::EventQueues, sync::MutexGuard};
#[cfg(feature = "alloc")]
use alloc::vec::Vec;

/// The parts of the arena that the waits use, besides their own tables. They know nothing else
/// about it.
pub(crate) trait Outside<'a, P: Platform>: Copy {
    /// The device.
    fn driver(self) -> &'a Driver<P::Device>;

    /// The heaps, with the blocks that wait.
    fn heaps(self) -> &'a Heaps<P>;

    /// Keeps the peaks exact after a block of the heap in `slot` has become pending.
    fn follow_pending(self, slot: u32);

    /// Records in the trace that the program has freed a block, with the call site of the free.
    fn free_requested(self, heap: &mut Heap<P::Storage>, block: u32, site: u32);

    /// Counts a wait for all streams.
    fn count_sync(self);

    /// Ends one wait of each of the given pending blocks of a heap, and frees those that wait for
    /// nothing else.
    fn end_waits(self, slot: u32, blocks: impl Iterator<Item = u32>);

    /// Frees a pending block if it has no user stream and no event left. Unlocks the heap.
    ///
    /// The caller has removed a use or an event under the lock that it passes here. If several
    /// threads remove uses and events of a block, exactly one of them finds that it is unused.
    fn free_if_unused(self, heap: HeapGuard<'_, P>, block: PendingBlock);
}

/// The waits of a device, with the parts of the arena that they use.
#[derive(Clone, Copy)]
pub(crate) struct DeviceWaits<'a, P: Platform, O> {
    pub(super) waits: &'a Waits<P>,
    pub(super) outside: O,
}

impl<'a, P: Platform, O: Outside<'a, P>> DeviceWaits<'a, P, O> {
    /// Returns the device.
    #[inline(always)]
    fn driver(self) -> &'a Driver<P::Device> {
        self.outside.driver()
    }

    /// Returns the heaps, with the blocks that wait.
    #[inline(always)]
    fn heaps(self) -> &'a Heaps<P> {
        self.outside.heaps()
    }
}

/// The tables of everything that waits for one device.
pub(crate) struct Waits<P: Platform> {
    /// Blocks that wait for fences recorded at their frees, and the events of all fences.
    queues: Groups<P::Lock, P::Storage>,
    /// Blocks that wait for fences of their uses, for the end of a capture, or for the safe
    /// frontier.
    deferred: Ranked<P::Lock, DeferredFrees<P::Storage>>,
    /// Not 0 once an event has been made. Until then there is nothing to destroy.
    made: AtomicU32,
    /// Not 0 if the device had no more events for streams at the last attempt. Then all existing
    /// events are tried before another is made.
    short: AtomicU32,
    /// Not 0 ⟺ the policy lets a request that is short of memory order streams after the work that
    /// blocks wait for.
    orders: AtomicU32,
}

impl_empty! {
    [P: Platform] Waits<P> { queues, deferred: Ranked::new(Rank::DeferredFrees, empty!()), made, short, orders }
}

impl<P: Platform> Waits<P> {
    /// Sets whether the policy orders streams after the work that blocks wait for.
    pub(in crate::arena) fn start(&self, orders: bool) {
        self.orders.store(u32::from(orders), Ordering::Relaxed);
    }

    /// Sets the flags to match what waits now.
    pub(in crate::arena) fn set_flags(&self, flags: &Flags) {
        for group in 0..self.queues.count() {
            flags.follow(group, &self.queues.lock(group));
        }
        flags.follow_deferred(&self.deferred.lock());
    }
}

/// The tables of everything that waits for one device, locked.
#[cfg(feature = "alloc")]
pub(in crate::arena) struct LockedWaits<'a, P: Platform> {
    orders: bool,
    queues: Vec<MutexGuard<'a, P::Lock, EventQueues<P::Storage>>>,
    deferred: MutexGuard<'a, P::Lock, DeferredFrees<P::Storage>>,
}

#[cfg(feature = "alloc")]
impl<P: Platform> Waits<P> {
    /// Locks all the tables.
    pub(in crate::arena) fn lock_all(&self) -> LockedWaits<'_, P> {
        // Fields are evaluated from top to bottom, which is the order of the ranks.
        let orders = self.orders.load(Ordering::Relaxed) != 0;
        LockedWaits { orders, queues: self.queues.lock_all(), deferred: self.deferred.lock_beside() }
    }
}

#[cfg(feature = "alloc")]
impl<P: Platform> LockedWaits<'_, P> {
    /// Returns a copy, in which no thread is at work.
    pub(in crate::arena) fn copy<Q: Platform<Lock = P::Lock, Storage = P::Storage>>(&self) -> Waits<Q> {
        let mut deferred = self.deferred.clone();
        deferred.forget_threads();
        let orders = AtomicU32::new(u32::from(self.orders));
        Waits {
            queues: Groups::copy_of(&self.queues),
            deferred: Ranked::new(Rank::DeferredFrees, deferred),
            made: AtomicU32::new(1),
            short: empty!(),
            orders,
        }
    }
}
