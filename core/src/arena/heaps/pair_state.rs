//! The state of a pair of heaps: whether it is vacant or assigned to a stream, and how many calls
//! use it. A pair is assigned to another stream only while no call uses it.
//!
//! ```text
//!           open                   enter                  leave, the last user
//!  vacant ────────▶ open, 0 users ───────▶ open, n users ─────────────────────▶ open, 0 users
//!    ▲                   │ close                                                   │ close, by
//!    │                   │                                                         │ the caller
//!    └───────────────────┴─────────────────────────────────────────────────────────┘ if leaving
//! ```
//!
//! A slow-path call looks up the pair by stream, enters it, and checks under a heap's lock that it
//! still belongs to the stream. The pair keeps its stream until the call leaves. The state is one
//! atomic word, so each transition has one owner: if one call enters while another closes, exactly
//! one of them succeeds.

use crate::sync::{AtomicU32, Ordering, empty_by};

/// The mark of a vacant pair, which belongs to no stream.
const VACANT: u32 = 1 << 31;
/// The mark of a pair that becomes vacant when both heaps are empty, because its stream has ended
/// or its pool has no users.
const LEAVING: u32 = 1 << 30;
/// The mask of the number of calls that use the pair. Each thread is in at most a few calls, so the
/// number does not reach the marks.
const USERS: u32 = LEAVING - 1;

/// An atomic word with the marks [`VACANT`] and [`LEAVING`] and the number of calls that use the
/// pair.
#[derive(Debug)]
pub(crate) struct PairState(AtomicU32);

empty_by!(PairState = Self(AtomicU32::new(VACANT)));

impl PairState {
    /// Takes over the marks of another pair. No call uses this one.
    pub(crate) fn take_over(&self, from: &Self) {
        self.0.store(from.0.load(Ordering::Acquire) & !USERS, Ordering::Relaxed);
    }

    /// Counts the caller as a user. Returns false if the pair is vacant. The caller must call
    /// [`leave`](Self::leave) in either case.
    pub(crate) fn enter(&self) -> bool {
        // Adding first and testing the old word afterwards needs one instruction and no retry. The
        // count of a vacant pair is harmless, because `close` has already succeeded, and `open`
        // adds to the count. Acquire: the caller sees all writes of the thread that opened the
        // pair.
        self.0.fetch_add(1, Ordering::Acquire) & VACANT == 0
    }

    /// Removes the caller from the count of users. Returns true for the last user of a pair marked
    /// as leaving. This caller then tries to close the pair, because an earlier attempt found it in
    /// use.
    pub(crate) fn leave(&self) -> bool {
        // Release: a thread that closes the pair sees all writes of the users.
        let word = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(word & USERS > 0, "left more often than entered");
        word == LEAVING + 1
    }

    /// Returns the number of calls that use the pair.
    pub(crate) fn users(&self) -> u32 {
        // Acquire: the caller sees all writes of the calls that have left.
        self.0.load(Ordering::Acquire) & USERS
    }

    /// Marks the pair as leaving, or clears the mark. The caller holds the registry's lock.
    pub(crate) fn set_leaving(&self, leaving: bool) {
        if leaving {
            self.0.fetch_or(LEAVING, Ordering::AcqRel);
        } else {
            self.0.fetch_and(!LEAVING, Ordering::AcqRel);
        }
    }

    /// Returns whether the pair is marked as leaving.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LEAVING != 0
    }

    /// Makes a pair with empty heaps vacant, and returns true. Returns false if a call uses the
    /// pair or it is already vacant.
    ///
    /// The caller holds the registry's lock and both heap locks, so a call that enters too late
    /// finds the pair vacant before it can add to the heaps.
    pub(crate) fn close(&self) -> bool {
        // Also clears `LEAVING`, so that the next stream starts with an unmarked pair.
        let unused = |word: u32| (word & !LEAVING == 0).then_some(VACANT);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unused).is_ok()
    }

    /// Opens a vacant pair, with the caller as its first user. The caller holds the registry's
    /// lock.
    pub(crate) fn open(&self) {
        // Calls that looked up the pair by its former stream may be counted at this moment. Such a
        // call finds another stream, and leaves. The count goes up before the mark is cleared, so
        // the pair is never open with a count of 0. Release: pairs with the Acquire in `enter`.
        self.0.fetch_add(1, Ordering::Relaxed);
        self.0.fetch_and(!VACANT, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::empty;

    #[test]
    fn a_pair_closes_once_no_call_uses_it() {
        let pair: PairState = empty!();
        assert!(!pair.enter(), "it is vacant");
        pair.leave();
        pair.open();
        assert!(pair.enter() && !pair.is_leaving());
        assert_eq!((pair.users(), pair.close(), pair.leave()), (2, false, false));
        pair.set_leaving(true);
        assert!(pair.is_leaving());
        assert_eq!((pair.users(), pair.leave(), pair.users()), (1, true, 0));
        assert!(pair.close() && !pair.close() && !pair.is_leaving());
    }

    #[test]
    fn a_copy_has_the_marks_and_no_user() {
        for (is_open, leaving) in [(false, false), (true, false), (true, true)] {
            let (pair, copy): (PairState, PairState) = (empty!(), empty!());
            if is_open {
                pair.open();
                pair.set_leaving(leaving);
            }
            copy.take_over(&pair);
            assert_eq!((copy.users(), copy.is_leaving()), (0, leaving));
            assert_eq!(copy.enter(), is_open);
        }
    }
}
