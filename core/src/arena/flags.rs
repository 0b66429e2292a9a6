//! The conditions of a device, as bits of a word. Most of them keep requests off the fast path.
//!
//! A bit outside [`FAST_PATH_FLAGS`] sends every request to `declined` (malloc.rs). Frees test
//! [`SLOW_FREE_FLAGS`].

use crate::streams::deferred_frees::DeferredFrees;
use crate::streams::event_queue::EventQueues;
use crate::streams::groups::{GROUPS, GroupSet};
use crate::sync::{AtomicU64, Ordering, empty, empty_by};
use crate::tables::Storage;

/// The word of flags.
pub(crate) type FlagWord = u64;

const _: () = assert!(PENDING.count_ones() == GROUPS && GATHERED.count_ones() == GROUPS);

/// Blocks wait for events, and every request polls the events: a bit for each group of streams.
pub(crate) const PENDING: FlagWord = 0xFFFF << 16;
/// Events for some freed blocks are recorded later, when no graph is being captured any longer.
pub(crate) const DEFERRED: FlagWord = 1 << 8;
/// Some requests are routed into private pools.
pub(crate) const ROUTES: FlagWord = 1 << 1;
/// A graph is being captured.
pub(crate) const CAPTURE: FlagWord = 1 << 2;
/// Free blocks age: a memory limit and `garbage_collection_threshold` are set.
pub(crate) const AGES: FlagWord = 1 << 3;
/// Sizes are not simply rounded up to the unit of the policy.
pub(crate) const ROUNDING: FlagWord = 1 << 4;
/// Nothing is cached: every request obtains a segment, and every free releases one.
pub(crate) const DIRECT: FlagWord = 1 << 5;
/// The context is lost, and the device is no longer called.
pub(crate) const LOST: FlagWord = 1 << 6;
/// Events are recorded in the trace.
pub(crate) const TRACE: FlagWord = 1 << 7;
/// Some requests are served from plans.
pub(crate) const PLANNED: FlagWord = 1 << 10;
/// Requests and frees are observed, to be planned.
pub(crate) const OBSERVED: FlagWord = 1 << 11;
/// Frees on other streams are gathered: one event covers several blocks.
pub(crate) const GATHERS: FlagWord = 1 << 12;
/// Blocks wait for events, or for events to be recorded, and only a request that no free block can
/// serve polls the events: a bit for each group of streams. In the upper half, because the fast
/// path does not test it.
pub(crate) const GATHERED: FlagWord = 0xFFFF << 32;
/// Blocks wait for events recorded at their uses, and only a request that no free block can
/// serve polls the events.
pub(crate) const ORDERED: FlagWord = 1 << 14;
/// Blocks used by a captured graph may be reused within the graph
/// (`graph_capture_record_stream_reuse`). In the upper half, like [`GATHERED`].
pub(crate) const REUSES: FlagWord = 1 << 48;
/// The rules of heaps of the default pool are not [plain](crate::heap::Heap::plain).
pub(crate) const RULES: FlagWord = 1 << 9;
/// Frees are gathered, or were at some time, so blocks may wait for an event that is not recorded
/// yet.
pub(crate) const HAS_GATHERED: FlagWord = 1 << 13;
/// Some blocks are guarded: each request is counted, and some get their own addresses.
pub(crate) const GUARDED: FlagWord = 1 << 15;
/// The own stream of each block counts as a use: a free is complete only after the work of that
/// stream is.
pub(crate) const WATCHED: FlagWord = 1 << 0;
/// Some tags have limits. In the upper half, because only growth and release test it.
pub(crate) const TENANTS: FlagWord = 1 << 49;
/// The program holds frees off: nothing is waited for, and no memory goes back to the device. Set
/// together with [`CAPTURE`], because a hold forbids what a capture forbids, and more.
pub(crate) const HELD: FlagWord = 1 << 50;
/// The [debug layer](crate::arena::debug) has something to do with blocks.
pub(crate) const DEBUG: FlagWord = GUARDED | WATCHED;
/// The flags under which the fast path serves requests.
pub(crate) const FAST_PATH_FLAGS: FlagWord =
    AGES | ROUNDING | RULES | GATHERS | HAS_GATHERED | ORDERED | !(u32::MAX as FlagWord);
/// The flags under which the straight path serves requests.
pub(crate) const STRAIGHT_PATH_FLAGS: FlagWord = FAST_PATH_FLAGS & !(AGES | ROUNDING | RULES);
/// The flags under which a free is more than the return of the block to its heap.
pub(crate) const SLOW_FREE_FLAGS: FlagWord = TRACE | DIRECT | OBSERVED | AGES | GUARDED;

/// Every flag. No two have a bit in common.
const ALL: [FlagWord; 21] = [
    WATCHED,
    ROUTES,
    CAPTURE,
    AGES,
    ROUNDING,
    DIRECT,
    LOST,
    TRACE,
    DEFERRED,
    RULES,
    PLANNED,
    OBSERVED,
    GATHERS,
    HAS_GATHERED,
    ORDERED,
    GUARDED,
    PENDING,
    GATHERED,
    REUSES,
    TENANTS,
    HELD,
];

const _: () = {
    let (mut seen, mut at) = (0, 0);
    while at < ALL.len() {
        assert!(seen & ALL[at] == 0);
        seen |= ALL[at];
        at += 1;
    }
};

/// The flags of a device, in a word that the fast path reads once.
#[derive(Debug)]
pub(crate) struct Flags(AtomicU64);

empty_by!(Flags = Self(empty!()));

impl Flags {
    /// Returns a copy of the flags without the bits in `without`.
    pub(super) fn copy(&self, without: FlagWord) -> Self {
        Self(AtomicU64::new(self.load() & !without))
    }

    /// Returns all flags.
    #[inline(always)]
    pub(crate) fn load(&self) -> FlagWord {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns all flags. The caller sees everything that other threads wrote before they set a
    /// flag.
    #[inline]
    pub(super) fn load_ordered(&self) -> FlagWord {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns whether one of `bits` is set.
    #[inline]
    pub(crate) fn has(&self, bits: FlagWord) -> bool {
        self.load() & bits != 0
    }

    /// Sets or clears `bits`. Setting is ordered with
    /// [`Driver::may_record`](super::driver::Driver::may_record).
    #[inline]
    pub(crate) fn set(&self, bits: FlagWord, on: bool) {
        if self.has(bits) == on {
            return;
        }
        if on {
            self.0.fetch_or(bits, Ordering::SeqCst);
        } else {
            // Release: for `are_waiting` and `waiting`.
            self.0.fetch_and(!bits, Ordering::Release);
        }
    }

    /// Sets the flags that make requests poll the events of a group while blocks wait for them. The
    /// caller holds the lock of the group's queues, so the flags match the queues.
    pub(crate) fn follow<S: Storage>(&self, group: u32, queues: &EventQueues<S>) {
        let (waits, gathers) = (queues.is_waiting(), self.has(GATHERS));
        let bit = 1 << group;
        self.set(bit << PENDING.trailing_zeros(), waits && !gathers);
        self.set(bit << GATHERED.trailing_zeros(), waits && gathers);
    }

    /// Returns whether a graph is being captured that may reuse its own blocks.
    #[inline]
    pub(super) fn may_reuse_in_graph(&self) -> bool {
        let both = REUSES | CAPTURE;
        self.load() & both == both
    }

    /// Returns whether any block waits for an event.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        self.has(PENDING | GATHERED | ORDERED)
    }

    /// Returns whether any block waits for the device. If none does, the caller sees everything
    /// that other threads wrote before they cleared the flags.
    pub(crate) fn are_waiting(&self) -> bool {
        self.0.load(Ordering::Acquire) & (PENDING | GATHERED | DEFERRED | ORDERED) != 0
    }

    /// Returns the groups with blocks that wait for events. Of the other groups, the caller sees
    /// everything that other threads wrote before they cleared the flag.
    #[inline]
    pub(super) fn waiting(&self) -> GroupSet {
        let word = self.0.load(Ordering::Acquire);
        GroupSet((word >> PENDING.trailing_zeros() | word >> GATHERED.trailing_zeros()) as u16)
    }

    /// Sets the flags of freed blocks that keep their uses. The caller holds their lock.
    pub(crate) fn follow_deferred<S: Storage>(&self, deferred: &DeferredFrees<S>) {
        self.set(DEFERRED, deferred.has_captured());
        self.set(ORDERED, deferred.has_ordered());
    }
}
