//! The locks of the core. Each has a rank, which gives the order in which a thread may take them.
//!
//! The feature `paranoid` records the ranks that each thread holds. A lock taken out of order
//! panics with the names of both locks. Without the feature, a [`Ranked`] is a plain mutex: it
//! stores no rank and checks nothing.

use super::Lock;
use lock_api::Mutex;

/// The locks of the core, in the order in which a thread may take them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rank {
    /// Pools, routes and pairs of heaps.
    Registry,
    /// The active configuration.
    Config,
    /// The small heap of a pair.
    SmallHeap,
    /// The large heap of a pair.
    LargeHeap,
    /// The elastic ranges.
    Ranges,
    /// The heaps of ended streams, until they are released.
    Ended,
    /// The pool of pages.
    Pages,
    /// The pending events of a group of streams.
    EventQueue,
    /// Freed blocks that wait for their own fences, for the end of a capture, or for a count.
    DeferredFrees,
    /// The predictions of `reclaim:auto` for idle memory.
    Idle,
    /// The observations and plans of the planned policy.
    Planner,
    /// The state of `tune:auto`.
    Tuning,
    /// The writer of the page map.
    PageMapWriter,
    /// The peaks of the statistics.
    Peaks,
    /// The ring of recorded events.
    TraceRing,
    /// The call sites of blocks and segments.
    CallSites,
}

/// A mutex with a [`Rank`].
pub(crate) struct Ranked<R: Lock, T> {
    #[cfg(feature = "paranoid")]
    rank: Rank,
    /// The rank that [`start`](Self::start) set. It replaces `rank`.
    #[cfg(feature = "paranoid")]
    started_as: spin::Once<Rank>,
    mutex: Mutex<R, T>,
}

#[cfg(not(feature = "paranoid"))]
pub(crate) use lock_api::MutexGuard;
#[cfg(feature = "paranoid")]
pub(crate) use paranoid::{MutexGuard, assert_no_lock_held};

#[cfg(not(feature = "paranoid"))]
impl<R: Lock, T> Ranked<R, T> {
    pub(crate) const fn new(_rank: Rank, value: T) -> Self {
        Self { mutex: Mutex::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, R, T> {
        self.mutex.lock()
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, R, T>> {
        self.mutex.try_lock()
    }

    /// Takes this lock together with other locks of the same tier. Only the call that holds all
    /// locks of a device does this. In that call all heaps form a single tier. The caller takes the
    /// locks of a tier in the order of their ranks, and the locks of one rank in the order of their
    /// numbers. No other thread holds two locks of a tier, except the two heaps of a pair, which it
    /// takes in the order of their ranks.
    pub(crate) fn lock_beside(&self) -> MutexGuard<'_, R, T> {
        self.mutex.lock()
    }
}

impl<R: Lock, T> Ranked<R, T> {
    /// Sets the rank, and changes the value with `set`, before any other thread can reach the lock.
    /// The caller may hold other locks.
    #[cfg_attr(not(feature = "paranoid"), expect(unused_variables, reason = "no rank is stored"))]
    pub(crate) fn start(&self, rank: Rank, set: impl FnOnce(&mut T)) {
        #[cfg(feature = "paranoid")]
        self.started_as.call_once(|| rank);
        set(&mut self.mutex.lock());
    }

    /// Returns whether any thread holds the lock.
    #[inline(always)]
    pub(crate) fn is_locked(&self) -> bool {
        self.mutex.is_locked()
    }
}

#[cfg(feature = "paranoid")]
mod paranoid {
    use super::{Lock, Mutex, Rank, Ranked};
    use core::cell::Cell;
    use core::ops::{Deref, DerefMut};

    std::thread_local! {
        /// The locks that the thread holds, as bits `1 << rank as u32`. A thread holds each rank at
        /// most once.
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    impl Rank {
        /// All ranks, in tiers. A thread takes locks in ascending tiers, so it never holds two
        /// locks of the same tier.
        const TIERS: [&[Self]; 7] = [
            &[Self::Registry],
            &[Self::Config],
            &[Self::SmallHeap],
            &[Self::LargeHeap],
            &[Self::Ranges],
            &[
                Self::Ended,
                Self::Pages,
                Self::EventQueue,
                Self::DeferredFrees,
                Self::Idle,
                Self::Planner,
                Self::Tuning,
                Self::PageMapWriter,
                Self::Peaks,
            ],
            &[Self::TraceRing, Self::CallSites],
        ];

        /// Returns the first rank of this rank's tier.
        fn tier(self) -> Self {
            let tier = Self::TIERS.into_iter().find(|tier| tier.contains(&self));
            tier.expect("each rank is in a tier")[0]
        }

        /// Returns the ranks that have a bit set in `held`.
        fn of(held: u32) -> impl Iterator<Item = Self> {
            Self::TIERS.into_iter().flatten().copied().filter(move |&rank| held & rank.bit() != 0)
        }

        fn bit(self) -> u32 {
            1 << self as u32
        }
    }

    /// A bit set in [`HELD`], which is cleared on drop.
    struct HeldRank(Rank);

    impl HeldRank {
        /// Adds a lock to those that the thread holds.
        ///
        /// # Panics
        /// If the thread holds a lock of the same tier or of a later one.
        fn add(rank: Rank) -> Self {
            let held = HELD.get();
            if let Some(above) = Rank::of(held).find(|&above| above as u32 >= rank.tier() as u32) {
                panic!("the lock {rank:?} is taken while {above:?} is held: ARCHITECTURE.md has the order of locks");
            }
            HELD.set(held | rank.bit());
            Self(rank)
        }

        /// Adds a lock to those that the thread holds, next to locks of the same tier.
        ///
        /// # Panics
        /// If the thread holds a lock of a later tier.
        fn add_beside(rank: Rank) -> Self {
            let tier = |rank: Rank| if rank == Rank::LargeHeap { Rank::SmallHeap } else { rank.tier() };
            let held = HELD.get();
            if let Some(above) = Rank::of(held).find(|&above| tier(above) as u32 > tier(rank) as u32) {
                panic!("the lock {rank:?} is taken beside others while {above:?} is held");
            }
            HELD.set(held | rank.bit());
            Self(rank)
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !self.0.bit());
        }
    }

    /// A locked [`Ranked`].
    pub(crate) struct MutexGuard<'a, R: Lock, T> {
        guard: lock_api::MutexGuard<'a, R, T>,
        _held: HeldRank,
    }

    impl<R: Lock, T> Deref for MutexGuard<'_, R, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.guard
        }
    }

    impl<R: Lock, T> DerefMut for MutexGuard<'_, R, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.guard
        }
    }

    impl<R: Lock, T> Ranked<R, T> {
        pub(crate) const fn new(rank: Rank, value: T) -> Self {
            Self { rank, started_as: spin::Once::new(), mutex: Mutex::new(value) }
        }

        fn rank(&self) -> Rank {
            self.started_as.get().copied().unwrap_or(self.rank)
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, R, T> {
            let held = HeldRank::add(self.rank());
            MutexGuard { guard: self.mutex.lock(), _held: held }
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, R, T>> {
            let held = HeldRank::add(self.rank());
            self.mutex.try_lock().map(|guard| MutexGuard { guard, _held: held })
        }

        /// Takes this lock together with other locks of the same tier; see the method of the same
        /// name that is compiled without the feature.
        pub(crate) fn lock_beside(&self) -> MutexGuard<'_, R, T> {
            let held = HeldRank::add_beside(self.rank());
            MutexGuard { guard: self.mutex.lock(), _held: held }
        }
    }

    /// Panics if the thread holds a lock of the core. `call` names the forbidden call.
    pub(crate) fn assert_no_lock_held(call: &str) {
        if let Some(held) = Rank::of(HELD.get()).last() {
            panic!("the device's `{call}` is called while the lock {held:?} is held");
        }
    }

    #[cfg(test)]
    mod tests {
        use super::super::{Rank, Ranked};
        use super::assert_no_lock_held;

        type Tested = Ranked<spin::mutex::SpinMutex<()>, ()>;

        #[test]
        fn locks_may_be_taken_in_the_order_of_their_ranks() {
            let [registry, small, large, ring] =
                [Rank::Registry, Rank::SmallHeap, Rank::LargeHeap, Rank::TraceRing].map(|rank| Tested::new(rank, ()));
            for _ in 0..2 {
                let (first, second) = (registry.lock(), small.lock());
                let (third, fourth) = (large.lock(), ring.try_lock());
                // Guards may be dropped in any order.
                drop(first);
                drop((second, third, fourth));
            }
            assert_no_lock_held("obtain");
        }

        #[test]
        #[should_panic(expected = "the lock Registry is taken while LargeHeap is held")]
        fn a_lock_out_of_order_panics_with_both_names() {
            let (heap, registry) = (Tested::new(Rank::LargeHeap, ()), Tested::new(Rank::Registry, ()));
            let _heap = heap.lock();
            let _registry = registry.lock();
        }

        #[test]
        #[should_panic(expected = "the lock Ended is taken while Peaks is held")]
        fn two_locks_of_one_tier_are_not_held_together() {
            let (peaks, ended) = (Tested::new(Rank::Peaks, ()), Tested::new(Rank::Ended, ()));
            let _peaks = peaks.try_lock();
            let _ended = ended.lock();
        }

        #[test]
        #[should_panic(expected = "the device's `obtain` is called while the lock Config is held")]
        fn the_device_is_not_called_under_a_lock() {
            let config = Tested::new(Rank::Config, ());
            let _config = config.lock();
            assert_no_lock_held("obtain");
        }

        #[test]
        #[cfg(feature = "alloc")]
        fn one_call_may_hold_every_heap_and_every_lock_of_a_tier() {
            const RANKS: [Rank; 6] =
                [Rank::SmallHeap, Rank::LargeHeap, Rank::SmallHeap, Rank::LargeHeap, Rank::Ended, Rank::EventQueue];
            let locks = RANKS.map(|rank| Tested::new(rank, ()));
            drop(locks.each_ref().map(Tested::lock_beside));
            assert_no_lock_held("obtain");
        }

        #[test]
        #[cfg(feature = "alloc")]
        #[should_panic(expected = "the lock LargeHeap is taken beside others while Ranges is held")]
        fn an_earlier_tier_panics_beside_others_too() {
            let (ranges, heap) = (Tested::new(Rank::Ranges, ()), Tested::new(Rank::LargeHeap, ()));
            let _ranges = ranges.lock_beside();
            let _heap = heap.lock_beside();
        }

        #[test]
        fn another_thread_holds_nothing() {
            let peaks = Tested::new(Rank::Peaks, ());
            let held = peaks.lock();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert_no_lock_held("obtain");
                    assert!(peaks.try_lock().is_none() && peaks.is_locked());
                    let _registry = Tested::new(Rank::Registry, ()).try_lock().is_some();
                });
            });
            drop(held);
            assert!(peaks.try_lock().is_some());
        }
    }
}
