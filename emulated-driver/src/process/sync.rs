//! A lock and a condition over pthreads. Thread checkers (helgrind, `ThreadSanitizer`) know
//! pthreads but not the standard library's own locks, and would report every guarded access of the
//! library as a race.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A value usable by one thread at a time.
pub(crate) struct Mutex<T> {
    /// Boxed, because a pthread mutex must not move after the first use.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

/// The right to use the value, until dropped. Stays on the locking thread.
pub(crate) struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    not_send: PhantomData<*const ()>,
}

/// A condition on which threads wait while holding a [`Guard`].
pub(crate) struct Condition {
    /// Boxed, because a pthread condition must not move after the first use.
    raw: Box<UnsafeCell<libc::pthread_cond_t>>,
}

// SAFETY: `value` is reachable only through a `Guard`, and the pthread mutex allows one `Guard`
// at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: without a `Guard` no part of a mutex belongs to a thread.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: pthread conditions are made to be used by several threads at once.
unsafe impl Sync for Condition {}
// SAFETY: an unwaited condition belongs to no thread.
unsafe impl Send for Condition {}

impl<T> Mutex<T> {
    /// Creates a lock around `value`.
    pub(crate) fn new(value: T) -> Self {
        Self { raw: Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. Not re-entrant.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // SAFETY: `raw` is initialised, boxed and alive as long as `self`.
        let code = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        assert_eq!(code, 0, "pthread_mutex_lock");
        Guard { mutex: self, not_send: PhantomData }
    }
}

impl<T> Drop for Mutex<T> {
    fn drop(&mut self) {
        // SAFETY: `&mut self` proves the absence of guards, so the mutex is unlocked and unused.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

impl<T> Guard<'_, T> {
    /// Releases the lock while `action` runs.
    pub(crate) fn unlocked<R>(&mut self, action: impl FnOnce() -> R) -> R {
        // SAFETY: the calling thread holds the lock. `&mut self` keeps the value unused until
        // the next lock.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
        let result = action();
        // `self` takes the place of the new guard.
        std::mem::forget(self.mutex.lock());
        result
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and `&mut self` excludes a second reference through
        // the guard.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the calling thread locked the mutex and has not unlocked the mutex since.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

impl Condition {
    /// Creates a condition without waiting threads.
    pub(crate) fn new() -> Self {
        Self { raw: Box::new(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER)) }
    }

    /// Releases the lock until notified (or woken for no reason), then locks again.
    pub(crate) fn wait<T>(&self, guard: &mut Guard<'_, T>) {
        // SAFETY: both objects are initialised and boxed, and the calling thread holds the mutex.
        unsafe { libc::pthread_cond_wait(self.raw.get(), guard.mutex.raw.get()) };
    }

    /// Wakes every waiting thread.
    pub(crate) fn notify_all(&self) {
        // SAFETY: the condition is initialised and alive.
        unsafe { libc::pthread_cond_broadcast(self.raw.get()) };
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        // SAFETY: `&mut self` proves the absence of waiting threads.
        unsafe { libc::pthread_cond_destroy(self.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::{Condition, Mutex};
    use std::sync::Arc;

    #[test]
    fn a_condition_passes_a_value_between_threads() {
        let shared = Arc::new((Mutex::new(0_u32), Condition::new()));
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut guard = theirs.0.lock();
            while *guard != 1 {
                theirs.1.wait(&mut guard);
            }
            *guard = 2;
            theirs.1.notify_all();
        });
        let mut guard = shared.0.lock();
        *guard = 1;
        shared.1.notify_all();
        while *guard != 2 {
            shared.1.wait(&mut guard);
        }
        drop(guard);
        assert!(thread.join().is_ok());
    }
}
