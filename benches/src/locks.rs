//! Locks for a heap on a host, in addition to the locks of `parking_lot`, `usync` and `spin`.

use lock_api::{GuardSend, RawMutex};
use std::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and a thread may sleep until the lock is free.
const AWAITED: u32 = 2;

/// Number of looks at the lock before sleeping, as in the standard library on Linux.
const SPINS: u32 = 100;

/// A lock of a single word over the system's futex: the algorithm of the standard library's `Mutex`
/// on Linux. The standard library offers no unlock without a guard.
#[derive(Debug)]
pub struct Futex(AtomicU32);

impl Futex {
    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS {
            if self.0.load(Ordering::Relaxed) != TAKEN {
                break;
            }
            std::hint::spin_loop();
        }
        if self.try_lock() {
            return;
        }
        // Always `AWAITED`: a waking thread cannot know whether other threads sleep.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            atomic_wait::wait(&self.0, AWAITED);
        }
    }
}

// SAFETY: the state leaves `FREE` only by an atomic exchange that saw `FREE`, and returns only in
// `unlock`, which only the holder may call. So at most one thread holds the lock. Acquire and
// release order the holder's accesses.
unsafe impl RawMutex for Futex {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait has it so")]
    const INIT: Self = Self(AtomicU32::new(FREE));

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_contended();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            atomic_wait::wake_one(&raw const self.0);
        }
    }
}

/// Waiting strategy for `spin`'s lock: yields the processor to another thread.
#[derive(Debug)]
pub struct Yielding;

impl spin::RelaxStrategy for Yielding {
    #[inline]
    fn relax() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::Mutex;

    #[test]
    fn the_futex_lock_has_one_holder_at_a_time() {
        let counter = Mutex::<Futex, u64>::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 160_000);
    }
}
