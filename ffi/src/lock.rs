//! The lock of a heap.

use core::sync::atomic::{AtomicBool, Ordering};
use lock_api::{GuardSend, RawMutex};
use std::time::Duration;

/// How often a waiter looks before it gives its processor away: as long as a heap is held, 10 to 20 ns.
const SPINS: u32 = 16;
/// How often it does that before it goes to sleep.
const YIELDS: u32 = 1000;
/// How long it sleeps, the first time and at most.
const SLEEPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// A lock of one byte that is released by a plain store.
///
/// Releasing costs next to nothing because nobody has to be woken: waiters spin for about as long as a heap is held, then
/// give their processor away, then sleep for a while. They sleep rather than yield for ever because yielding to a holder of
/// lower real-time priority never lets it run.
#[derive(Debug)]
pub struct HeapMutex(AtomicBool);

impl HeapMutex {
    #[cold]
    fn lock_contended(&self) {
        let mut round = 0_u32;
        let [mut sleep, longest] = SLEEPS;
        loop {
            if round < SPINS {
                core::hint::spin_loop();
            } else if round < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(sleep);
                sleep = longest.min(sleep * 2);
            }
            round = round.saturating_add(1);
            // Looking first keeps the holder's line from being taken away without need.
            if !self.is_locked() && self.try_lock() {
                return;
            }
        }
    }
}

// SAFETY: the flag becomes true only by an exchange that saw it false, and false only in `unlock`, which only the holder may
// call: so there is one holder at a time. Acquire and release order what it does.
unsafe impl RawMutex for HeapMutex {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait has it so")]
    const INIT: Self = Self(AtomicBool::new(false));

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The lock that every allocator of this library uses.
pub type HeapLock = HeapMutex;

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::Mutex;

    #[test]
    fn there_is_one_holder_at_a_time() {
        // Miri takes a thousand times as long, and looks at every access.
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let counter = Mutex::<HeapLock, u64>::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..rounds).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 8 * rounds);
    }

    #[test]
    fn a_waiter_outlasts_a_holder_who_sleeps() {
        let flag = Mutex::<HeapLock, bool>::new(false);
        let mut held = flag.lock();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| *flag.lock());
            std::thread::sleep(Duration::from_millis(20));
            *held = true;
            drop(held);
            assert!(waiter.join().expect("it came through"));
        });
    }
}
