//! A mutex in a shared file, which outlives the death of the holder.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a process waits for the lock. The holder computes for microseconds. A holder under a
/// debugger must not stop every program of the group.
const PATIENCE: Duration = Duration::from_secs(10);

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
        // SAFETY: the mutex lies in a mapping that can be written, and no other process knows the file.
        let made = check(unsafe { libc::pthread_mutex_init(self.mutex.get(), attributes) });
        // SAFETY: the attributes are initialised, and not used again.
        check(unsafe { libc::pthread_mutexattr_destroy(attributes) })?;
        made
    }

    /// Takes the lock. A lock whose holder died passes to the caller: the state below the lock has
    /// only words, each valid at every moment, so nothing has to be repaired.
    pub(super) fn take(&self) -> Result<Held<'_>, LockFault> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let until = since.saturating_add(PATIENCE);
        let until = libc::timespec { tv_sec: until.as_secs() as libc::time_t, tv_nsec: until.subsec_nanos().into() };
        // SAFETY: the mutex was initialised before its file had a name, and `until` outlives the call.
        let code = unsafe { libc::pthread_mutex_timedlock(self.mutex.get(), &raw const until) };
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

fn check(code: i32) -> Result<(), LockFault> {
    if code == 0 { Ok(()) } else { Err(LockFault(code)) }
}
