//! A mutex in a shared file, which outlives the death of the holder.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// How long a process waits for the lock. The holder computes for microseconds. A holder under a
/// debugger must not stop every program of the group.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a waiting process tries again at once, before it sleeps between two tries.
const QUICK_TRIES: u32 = 20;

/// The first sleep between two tries, which doubles up to the longest.
const FIRST_REST: Duration = Duration::from_micros(20);
const LONGEST_REST: Duration = Duration::from_millis(1);

/// A robust mutex between processes.
#[repr(C, align(64))]
pub(super) struct Lock {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: the mutex is changed by the functions of POSIX threads only, from any thread.
unsafe impl Sync for Lock {}

/// The lock, held until dropped.
pub(super) struct Held<'a>(&'a Lock);

/// Why a lock could not be taken: a code of `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockFault(i32);

impl fmt::Display for LockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            libc::ETIMEDOUT => write!(f, "another process has held the group's lock for {} s", PATIENCE.as_secs()),
            code => write!(f, "the group's lock is damaged ({})", std::io::Error::from_raw_os_error(code)),
        }
    }
}

impl Lock {
    /// Makes the mutex of a file before any process can open the file.
    pub(super) fn initialise(&self) -> Result<(), LockFault> {
        let mut attributes = MaybeUninit::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the function initialises the attributes.
        check(unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: the attributes are initialised.
        check(unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) })?;
        // SAFETY: as above.
        check(unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) })?;
        // SAFETY: the mutex is in a mapping that can be written, and no other process knows the
        // file.
        let made = check(unsafe { libc::pthread_mutex_init(self.mutex.get(), attributes) });
        // SAFETY: the attributes are initialised, and not used again.
        check(unsafe { libc::pthread_mutexattr_destroy(attributes) })?;
        made
    }

    /// Takes the lock. A lock whose holder died passes to the caller: the state below the lock has
    /// only words, each valid at every moment, so nothing has to be repaired.
    pub(super) fn take(&self) -> Result<Held<'_>, LockFault> {
        let begin = Instant::now();
        self.take_with(|| begin.elapsed(), rest)
    }

    /// Takes the lock with a clock and a sleep. The system's own wait with an end goes by the wall
    /// clock in old versions of the C library: a clock set back by an hour meanwhile made a process
    /// wait for the hour.
    fn take_with(&self, waited: impl Fn() -> Duration, rest: impl Fn(u32)) -> Result<Held<'_>, LockFault> {
        let mut tries = 0;
        let code = loop {
            // SAFETY: the mutex was initialised before its file had a name.
            match unsafe { libc::pthread_mutex_trylock(self.mutex.get()) } {
                libc::EBUSY if waited() < PATIENCE => rest(tries),
                libc::EBUSY => break libc::ETIMEDOUT,
                code => break code,
            }
            tries += 1;
        };
        if code == libc::EOWNERDEAD {
            // SAFETY: the caller holds the mutex, whose owner died.
            let code = unsafe { libc::pthread_mutex_consistent(self.mutex.get()) };
            debug_assert_eq!(code, 0, "only a mutex that is not robust refuses");
            #[cfg(test)]
            super::faults::reach(super::faults::Point::Recovered);
        } else {
            check(code)?;
        }
        Ok(Held(self))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: the calling thread holds the mutex, and unlocks the mutex once.
        let code = unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
        debug_assert_eq!(code, 0, "the holder may unlock");
    }
}

/// Waits before the next try.
fn rest(tries: u32) {
    match tries.checked_sub(QUICK_TRIES) {
        None => std::thread::yield_now(),
        Some(sleeps) => std::thread::sleep((FIRST_REST * (1 << sleeps.min(10))).min(LONGEST_REST)),
    }
}

fn check(code: i32) -> Result<(), LockFault> {
    if code == 0 { Ok(()) } else { Err(LockFault(code)) }
}

#[cfg(test)]
mod tests {
    use super::{Lock, PATIENCE};
    use std::cell::{Cell, UnsafeCell};
    use std::time::Duration;

    #[test]
    fn a_wait_for_the_lock_ends_by_a_clock_that_nobody_sets_back() {
        // SAFETY: the mutex is words, and is initialised before its first use.
        let lock = Lock { mutex: UnsafeCell::new(unsafe { core::mem::zeroed() }) };
        lock.initialise().unwrap();
        let held = lock.take().unwrap();
        let (now, tries) = (Cell::new(Duration::ZERO), Cell::new(0));
        let rest = |_| {
            now.set(now.get() + PATIENCE / 8);
            tries.set(tries.get() + 1);
        };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock.take_with(|| PATIENCE, |_| ()).err().map(|fault| fault.to_string()));
            assert!(waits.join().unwrap().unwrap().ends_with("has held the group's lock for 10 s"));
        });
        // The holder is refused like every other thread: the mutex counts nobody twice.
        assert!(lock.take_with(|| now.get(), rest).is_err());
        assert_eq!(tries.get(), 8);
        drop(held);
        assert!(lock.take_with(|| PATIENCE, |_| ()).is_ok(), "a free lock needs no patience");
    }
}
