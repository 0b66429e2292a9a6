//! The lock of a world: a thread in front of a taken lock gives its turn up.

use crate::turns;
use lock_api::{GuardSend, RawMutex};
use std::sync::atomic::{AtomicBool, Ordering};

/// The lock of a world. Each call offers the turn, so threads meet in every state between two
/// locks.
#[derive(Debug)]
pub struct Latch(AtomicBool);

impl Latch {
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

// SAFETY: `take` answers true to one caller until `unlock`, and only then do `lock` and `try_lock`
// succeed.
unsafe impl RawMutex for Latch {
    const INIT: Self = Self(AtomicBool::new(false));

    type GuardMarker = GuardSend;

    fn lock(&self) {
        turns::offer();
        while !self.take() {
            turns::wait_for(self.address());
        }
    }

    fn try_lock(&self) -> bool {
        turns::offer();
        self.take()
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
        turns::release(self.address());
        // What follows the release may touch atomics only, which offer no turn.
        if !std::thread::panicking() {
            turns::offer();
        }
    }
}
