//! The lock of a heap: one byte that is released by a plain store.

use core::sync::atomic::{AtomicBool, Ordering};
use lock_api::{GuardSend, RawMutex};
use std::time::Duration;

/// The number of polls before a waiter yields its processor. They take about as long as a heap is
/// locked, 10 to 20 ns.
const SPINS: u32 = 16;
/// The number of yields before a waiter sleeps.
const YIELDS: u32 = 1000;
/// The first and the longest duration of a sleep.
const SLEEPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// A lock of one byte that is released by a plain store.
///
/// A release wakes no waiter, so it costs next to nothing. A waiter spins for about as long as a
/// heap is locked, then yields the processor, then sleeps. Yielding alone is not enough, because a
/// waiter with a higher real-time priority would never let the holder run.
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
            // This loads before the exchange, because a failed exchange would take the cache line
            // from the holder.
            if !self.is_locked() && self.try_lock() {
                return;
            }
        }
    }
}

// SAFETY: the flag becomes true only by an exchange that found false, and false only in `unlock`,
// which only the holder may call. So there is one holder at a time. Acquire and release order the
// holder's accesses.
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
        // A lock that belongs to its most frequent thread was measured, and left out. The processor
        // does the exchange alongside the other work of a pair: on a Xeon, a pair through the C
        // interface takes 1 to 3 % less time with a load and a store in place of the exchange,
        // which would exclude no thread, and 1 to 8 % more with a lock biased to its thread.
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

/// The lock of every allocator over the driver.
pub type HeapLock = HeapMutex;

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::Mutex;

    #[test]
    fn there_is_one_holder_at_a_time() {
        // Miri checks every access and takes a thousand times as long.
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
    fn waiters_come_through_one_by_one() {
        let lock = Mutex::<HeapLock, u64>::new(0);
        let (held, inside) = (lock.lock(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut count = lock.lock();
                    assert!(!inside.swap(true, Ordering::Relaxed), "another waiter has the lock");
                    // All others wait, and poll the lock.
                    std::thread::sleep(Duration::from_millis(2));
                    assert!(lock.try_lock().is_none());
                    inside.store(false, Ordering::Relaxed);
                    *count += 1;
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!((*held, lock.is_locked()), (0, true));
            drop(held);
        });
        assert!(!lock.is_locked());
        assert_eq!(*lock.lock(), 8);
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
