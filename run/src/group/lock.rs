//! A lock in a shared file, which outlives the death of the holder.
//!
//! ```text
//! how often the lock was taken (48 bits) │ the holder's number + 1, or 0 (16 bits)
//! ```
//!
//! The system's robust mutex knows its holder by the id of a thread, and containers have threads
//! with the same ids: the death of a thread that tried to take such a mutex freed it while a thread
//! of another container held it. Here the holder is the number of an entry, which the system keeps
//! for one process of all containers ([`marks`](crate::shared::marks)).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a process waits for the lock. The holder computes for microseconds. A holder under a
/// debugger must not stop every program of the group.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a waiting process tries again at once, before it sleeps between two tries, and asks
/// whether the holder lives.
const QUICK_TRIES: u32 = 20;

/// The first sleep between two tries, which doubles up to the longest.
const FIRST_REST: Duration = Duration::from_micros(20);
const LONGEST_REST: Duration = Duration::from_millis(1);

/// The bits of the holder in the word of a lock.
const HOLDER: u64 = 0xffff;

/// A lock between processes. Zero bytes are a free lock.
#[repr(C, align(64))]
pub(super) struct Lock {
    word: AtomicU64,
}

/// The lock, held until dropped.
pub(super) struct Held<'a> {
    lock: &'a Lock,
    /// The word of the lock meanwhile.
    word: u64,
}

/// A lock could not be taken: its holder lives, and keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockFault;

impl fmt::Display for LockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another process has held the group's lock for {} s", PATIENCE.as_secs())
    }
}

impl Lock {
    /// Takes the lock under a number below 2¹⁶ - 1 that no other process has. A lock whose holder
    /// is dead passes to the caller: the state below the lock has only words, each valid at every
    /// moment, so nothing has to be repaired.
    pub(super) fn take(&self, number: usize, is_dead: impl Fn(usize) -> bool) -> Result<Held<'_>, LockFault> {
        let begin = Instant::now();
        self.take_with(number, is_dead, || begin.elapsed(), rest)
    }

    /// Takes the lock with a clock and a sleep.
    fn take_with(
        &self,
        number: usize,
        is_dead: impl Fn(usize) -> bool,
        waited: impl Fn() -> Duration,
        rest: impl Fn(u32),
    ) -> Result<Held<'_>, LockFault> {
        let mut tries = 0;
        loop {
            let found = self.word.load(Ordering::Acquire);
            let holder = (found & HOLDER).checked_sub(1).map(|holder| holder as usize);
            // The system is asked about the holder only once the lock has stayed taken.
            let is_free = holder.is_none_or(|holder| tries > QUICK_TRIES && is_dead(holder));
            // The count makes each word of the lock another one: a process that has found a dead
            // holder cannot take the lock from a later holder with the same number.
            let word = (found & !HOLDER).wrapping_add(HOLDER + 1) | (number as u64 + 1);
            if is_free && self.word.compare_exchange(found, word, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                #[cfg(test)]
                if holder.is_some() {
                    super::faults::reach(super::faults::Point::Recovered);
                }
                return Ok(Held { lock: self, word });
            }
            if !is_free {
                if waited() >= PATIENCE {
                    return Err(LockFault);
                }
                rest(tries);
            }
            tries += 1;
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let free = self.word & !HOLDER;
        let freed = self.lock.word.compare_exchange(self.word, free, Ordering::Release, Ordering::Relaxed);
        debug_assert!(freed.is_ok(), "a lock was taken from a living holder: {freed:?}");
    }
}

/// Waits before the next try.
fn rest(tries: u32) {
    match tries.checked_sub(QUICK_TRIES) {
        None => std::thread::yield_now(),
        Some(sleeps) => std::thread::sleep((FIRST_REST * (1 << sleeps.min(10))).min(LONGEST_REST)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Lock, LockFault, PATIENCE, QUICK_TRIES};
    use std::cell::Cell;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    const fn free() -> Lock {
        Lock { word: AtomicU64::new(0) }
    }

    #[test]
    fn a_wait_for_the_lock_ends_by_a_clock_that_nobody_sets_back() {
        let lock = free();
        let held = lock.take(3, |_| false).unwrap();
        let (now, tries) = (Cell::new(Duration::ZERO), Cell::new(0));
        let rest = |_| {
            now.set(now.get() + PATIENCE / 8);
            tries.set(tries.get() + 1);
        };
        // The holder's other threads are refused like every other process.
        for number in [3, 4] {
            now.set(Duration::ZERO);
            let refused = lock.take_with(number, |_| false, || now.get(), rest).err();
            assert!(refused.unwrap().to_string().ends_with("has held the group's lock for 10 s"));
        }
        assert_eq!(tries.get(), 16);
        drop(held);
        assert!(lock.take_with(4, |_| false, || PATIENCE, |_| ()).is_ok(), "a free lock needs no patience");
    }

    #[test]
    fn the_lock_of_a_dead_holder_passes_to_one_of_those_who_wait() {
        let lock = free();
        core::mem::forget(lock.take(7, |_| false).unwrap());
        let asked = Cell::new(0);
        let is_dead = |holder| {
            asked.set(asked.get() + 1);
            // Another process is faster, and has the number of the dead one: the first answer is
            // about its predecessor.
            if asked.get() == 1 {
                core::mem::forget(lock.take_with(7, |_| true, || Duration::ZERO, |_| ()).unwrap());
            }
            holder == 7 && asked.get() == 1
        };
        let waited = || if asked.get() > 1 { PATIENCE } else { Duration::ZERO };
        let refused = lock.take_with(8, is_dead, waited, |_| ()).err();
        assert_eq!((refused, asked.get()), (Some(LockFault), 2));
        let tries = Cell::new(0);
        let passed = lock.take_with(8, |holder| holder == 7, || Duration::ZERO, |at| tries.set(at));
        assert!(passed.is_ok() && tries.get() == QUICK_TRIES);
    }
}
