//! Conditions that keep requests off the fast path, as bits of one word.
//!
//! A bit outside [`FAST_PATH_FLAGS`] sends every request to [`malloc_cold`](super::malloc). Frees test three bits of their own.

use crate::streams::event_queue::EventQueues;
use crate::sync::{AtomicU32, Ordering};
use crate::tables::Storage;

/// Blocks wait for events, or for events to be recorded, and every request asks after the events.
pub(crate) const PENDING: u32 = 1;
/// Events of some freed blocks are recorded later, once no graph is being captured.
pub(crate) const DEFERRED: u32 = 1 << 8;
/// Some requests are routed into private pools.
pub(crate) const ROUTES: u32 = 1 << 1;
/// A graph is being captured.
pub(crate) const CAPTURE: u32 = 1 << 2;
/// Free blocks age: a memory limit and `garbage_collection_threshold` are set.
pub(crate) const AGES: u32 = 1 << 3;
/// Sizes are not simply rounded up to the unit of the policy.
pub(crate) const ROUNDING: u32 = 1 << 4;
/// Nothing is cached: every request obtains a segment, and every free releases one.
pub(crate) const DIRECT: u32 = 1 << 5;
/// The context is lost: the device is called no more.
pub(crate) const LOST: u32 = 1 << 6;
/// Events are recorded in the trace.
pub(crate) const TRACE: u32 = 1 << 7;
/// Some requests are served from plans.
pub(crate) const PLANNED: u32 = 1 << 10;
/// Requests and frees are observed, to be planned.
pub(crate) const OBSERVED: u32 = 1 << 11;
/// Frees on other streams are gathered: one event covers several blocks.
pub(crate) const GATHERS: u32 = 1 << 12;
/// Blocks wait for events, or for events to be recorded, and only a request that no free block can
/// serve asks after the events.
pub(crate) const GATHERED: u32 = 1 << 13;
/// The flags under which the fast path serves requests.
pub(crate) const FAST_PATH_FLAGS: u32 = AGES | ROUNDING | GATHERS | GATHERED;

/// The flags of one device, in one word that the fast path reads once.
#[derive(Debug)]
pub(crate) struct Flags(AtomicU32);

impl Flags {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// All flags.
    #[inline(always)]
    pub(crate) fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// All flags, after everything that other threads wrote before they set them.
    pub(super) fn load_ordered(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether one of `bits` is set.
    #[inline]
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.load() & bits != 0
    }

    /// Sets or clears `bits`. Setting is ordered with [`Driver::may_record`](super::driver::Driver::may_record).
    pub(crate) fn set(&self, bits: u32, on: bool) {
        if self.has(bits) == on {
            return;
        }
        if on {
            self.0.fetch_or(bits, Ordering::SeqCst);
        } else {
            self.0.fetch_and(!bits, Ordering::Relaxed);
        }
    }

    /// Sets the flags that make requests ask after events while frees are pending or deferred. The
    /// caller holds the lock of the queues, so the flags match the queues.
    pub(super) fn follow<S: Storage>(&self, queues: &EventQueues<S>) {
        let (waits, gathers) = (!queues.is_idle(), self.has(GATHERS));
        self.set(PENDING, waits && !gathers);
        self.set(GATHERED, waits && gathers);
        self.set(DEFERRED, queues.has_deferred());
    }
}
