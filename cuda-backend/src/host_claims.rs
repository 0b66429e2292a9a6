//! Claims to memory of the system that is not touched yet.
//!
//! The system counts memory as available until a thread touches it, and ends a program that touches
//! more than is available. Two threads may each find enough memory, and together touch too much. So
//! a thread first claims the memory that it is about to touch. A claim is refused if earlier claims
//! leave too little. A claim shrinks while its memory is touched.

use core::sync::atomic::{AtomicU64, Ordering};

/// The claims of the process.
static CLAIMS: Claims = Claims { claimed: AtomicU64::new(0), touched: AtomicU64::new(0) };

/// The sums of all claims.
#[derive(Debug)]
struct Claims {
    /// The bytes that are claimed and not touched yet.
    claimed: AtomicU64,
    /// The bytes of claims that have been touched so far.
    touched: AtomicU64,
}

/// A claim to memory. When it is dropped, it gives up the part that was not touched.
#[derive(Debug)]
pub(crate) struct Claim {
    of: &'static Claims,
    /// The bytes that are not touched yet.
    left: AtomicU64,
}

impl Claim {
    /// Claims memory. `available` returns the bytes that the system has left. Returns `None` if
    /// these are fewer than all claims together. If the system reports no number, every claim is
    /// accepted.
    pub(crate) fn new(bytes: u64, available: impl FnOnce() -> Option<u64>) -> Option<Self> {
        CLAIMS.claim(bytes, available)
    }

    /// Notes that another `bytes` bytes of the memory were touched.
    pub(crate) fn touched(&self, bytes: u64) {
        let take = |left: u64| Some(left.saturating_sub(bytes));
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        self.of.touched.fetch_add(bytes.min(left), Ordering::AcqRel);
        self.of.claimed.fetch_sub(bytes.min(left), Ordering::AcqRel);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.claimed.fetch_sub(*self.left.get_mut(), Ordering::AcqRel);
    }
}

impl Claims {
    /// Claims memory as [`Claim::new`] does.
    fn claim(&'static self, bytes: u64, available: impl FnOnce() -> Option<u64>) -> Option<Claim> {
        let before = self.touched.load(Ordering::Acquire);
        let free = available().unwrap_or(u64::MAX);
        let more = |claimed: u64| {
            // Others may have touched memory after the system was asked. It is gone, and no longer
            // claimed.
            let gone = self.touched.load(Ordering::Acquire) - before;
            let all = claimed.checked_add(bytes)?;
            (all <= free.saturating_sub(gone)).then_some(all)
        };
        self.claimed.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Claim { of: self, left: AtomicU64::new(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> &'static Claims {
        Box::leak(Box::new(Claims { claimed: AtomicU64::new(0), touched: AtomicU64::new(0) }))
    }

    #[test]
    fn claims_of_several_threads_share_what_the_system_has() {
        let claims = claims();
        let first = claims.claim(6, || Some(10)).expect("there is enough");
        assert!(claims.claim(6, || Some(10)).is_none(), "the first claim leaves 4");
        let second = claims.claim(4, || Some(10)).expect("there is enough");
        assert!(claims.claim(1, || Some(10)).is_none());
        drop(second);
        first.touched(5);
        // The system has 5 less, of which 1 is claimed.
        assert!(claims.claim(5, || Some(5)).is_none());
        assert!(claims.claim(4, || Some(5)).is_some());
        first.touched(u64::MAX);
        assert!(claims.claim(4, || Some(4)).is_some(), "the first claim is touched");
        drop(first);
        assert_eq!((claims.claimed.load(Ordering::Relaxed), claims.touched.load(Ordering::Relaxed)), (0, 6));
    }

    #[test]
    fn memory_that_was_touched_after_the_system_was_asked_is_gone() {
        let claims = claims();
        let first = claims.claim(6, || Some(10)).expect("there is enough");
        let asked = || {
            first.touched(6);
            // The answer is about the moment before.
            Some(10)
        };
        assert!(claims.claim(6, asked).is_none());
        assert!(claims.claim(4, || Some(4)).is_some());
    }

    #[test]
    fn an_absurd_claim_disturbs_no_other() {
        let claims = claims();
        let _first = claims.claim(6, || Some(10)).expect("there is enough");
        for bytes in [u64::MAX, u64::MAX - 5, 1 << 60] {
            assert!(claims.claim(bytes, || Some(10)).is_none());
        }
        assert!(claims.claim(u64::MAX, || None).is_none(), "the sum has no number");
        assert!(claims.claim(4, || Some(10)).is_some());
        assert!(claims.claim(1 << 40, || None).is_some(), "the system does not tell");
        assert_eq!(claims.claimed.load(Ordering::Relaxed), 6);
    }
}
