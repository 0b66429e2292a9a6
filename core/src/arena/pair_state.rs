//! Which calls use a pair of heaps, so that the pair is given to another stream only while none does.
//!
//! ```text
//!            open                     enter                  leave, the last one
//!  vacant ─────────▶ open, 0 users ─────────▶ open, n users ─────────────────────▶ open, 0 users
//!    ▲                    │ close                                                    │ marked as leaving: the caller closes it
//!    └────────────────────┴───────────────────────────────────────────────────────────┘
//! ```
//!
//! A call on the slow path enters the pair that it found by its stream, checks under a heap's lock that the pair is still
//! that stream's, and leaves when it is done: between the two the pair keeps its stream. Everything is one atomic word, so
//! each transition has one owner: of a call that enters and a call that closes, exactly one succeeds.

use crate::sync::{AtomicU32, Ordering};

/// The pair is vacant: it belongs to no stream.
const VACANT: u32 = 1 << 31;
/// The pair is to become vacant once its heaps are empty: its stream has ended, or its pool has no users.
const LEAVING: u32 = 1 << 30;

/// The word: [`VACANT`], [`LEAVING`], and the number of calls that use the pair.
#[derive(Debug)]
pub(crate) struct PairState(AtomicU32);

impl Default for PairState {
    fn default() -> Self {
        Self(AtomicU32::new(VACANT))
    }
}

impl PairState {
    /// Counts the caller as a user. False if the pair is vacant; the caller calls [`leave`](Self::leave) in either case.
    pub(crate) fn enter(&self) -> bool {
        // Acquire: what the thread that opened the pair wrote is seen.
        self.0.fetch_add(1, Ordering::Acquire) & VACANT == 0
    }

    /// Counts the caller as a user no longer. True if it was the last one of a pair that is leaving: the caller then tries to
    /// close the pair, since a call that wanted to close it earlier has found it in use.
    pub(crate) fn leave(&self) -> bool {
        // Release: a thread that closes the pair sees what this user did to it.
        self.0.fetch_sub(1, Ordering::AcqRel) == LEAVING + 1
    }

    /// Says whether the pair is to become vacant once its heaps are empty. The registry is locked.
    pub(crate) fn set_leaving(&self, leaving: bool) {
        if leaving {
            self.0.fetch_or(LEAVING, Ordering::AcqRel);
        } else {
            self.0.fetch_and(!LEAVING, Ordering::AcqRel);
        }
    }

    /// Whether the pair is to become vacant once its heaps are empty.
    pub(crate) fn is_leaving(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LEAVING != 0
    }

    /// Makes a pair vacant whose heaps are empty, unless a call uses it or it is vacant. True if it is vacant now. The registry and
    /// both heaps are locked, so no call can add to the heaps before it has entered the pair.
    pub(crate) fn close(&self) -> bool {
        let unused = |word: u32| (word & !LEAVING == 0).then_some(VACANT);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unused).is_ok()
    }

    /// Gives a vacant pair to a stream, with the caller as its first user. The registry is locked.
    pub(crate) fn open(&self) {
        // Calls that found the pair by its last stream may be counted at this moment: they find another stream, and leave.
        self.0.fetch_add(1, Ordering::Relaxed);
        self.0.fetch_and(!VACANT, Ordering::Release);
    }
}
