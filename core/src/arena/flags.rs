//! Circumstances to be seen to. Any bit but the [`FAST_PATH_FLAGS`] ones sends every request the attentive way.

use crate::sync::{AtomicU32, Ordering};

/// Events are waited for, or their recording is deferred.
pub(crate) const PENDING: u32 = 1;
/// The recording of events is deferred until no graph is being captured.
pub(crate) const DEFERRED: u32 = 1 << 8;
/// Some requests are routed into private pools.
pub(crate) const ROUTES: u32 = 1 << 1;
/// A graph is being captured.
pub(crate) const CAPTURE: u32 = 1 << 2;
/// Free blocks age: a limit and a collection threshold are set.
pub(crate) const AGES: u32 = 1 << 3;
/// Sizes are rounded otherwise than to the [unit](Policy::unit).
pub(crate) const ROUNDING: u32 = 1 << 4;
/// Nothing is cached: every request goes to the device.
pub(crate) const DIRECT: u32 = 1 << 5;
/// The context is lost: the device is not called any more.
pub(crate) const LOST: u32 = 1 << 6;
/// Events are recorded in the trace.
pub(crate) const TRACE: u32 = 1 << 7;
/// Some requests are served from plans.
pub(crate) const PLANNED: u32 = 1 << 10;
/// Requests are noted, to be planned.
pub(crate) const OBSERVED: u32 = 1 << 11;
/// Of some blocks or segments it is known where they were allocated.
pub(crate) const SITES: u32 = 1 << 9;
/// What the fast path sees to itself.
pub(crate) const FAST_PATH_FLAGS: u32 = AGES | ROUNDING;

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
}
