//! A lock and a condition over pthreads. Thread checkers (helgrind, `ThreadSanitizer`) know pthreads; they cannot see
//! the standard library's own locks, and would report every guarded access of this library as a race.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A value that one thread at a time may use.
pub(crate) struct Mutex<T> {
    /// Boxed: a pthread mutex must not move once it was used.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

/// The right to use the value, until dropped. Stays on the thread that locked.
pub(crate) struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    not_send: PhantomData<*const ()>,
}

/// Something that threads wait for while they hold a [`Guard`].
pub(crate) struct Condition {
    /// Boxed: a pthread condition must not move once it was used.
    raw: Box<UnsafeCell<libc::pthread_cond_t>>,
}

// SAFETY: `value` is reached through a `Guard` only, and the pthread mutex lets one `Guard` exist at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: nothing in a mutex belongs to one thread while no `Guard` exists.
unsafe impl<T: Send> Send for Mutex<T> {}
// SAFETY: pthread conditions are made to be used by several threads at once.
unsafe impl Sync for Condition {}
// SAFETY: an unwaited condition belongs to no thread.
unsafe impl Send for Condition {}

impl<T> Mutex<T> {
    /// A lock around `value`.
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
        // SAFETY: `&mut self` proves that no guard exists, so the mutex is unlocked and unused.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

impl<T> Guard<'_, T> {
    /// Gives the lock up while `action` runs.
    pub(crate) fn unlocked<R>(&mut self, action: impl FnOnce() -> R) -> R {
        // SAFETY: this guard's thread holds the lock; `&mut self` keeps the value unused until it is locked again.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
        let result = action();
        // The new guard is this one from now on.
        std::mem::forget(self.mutex.lock());
        result
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and `&mut self` makes this the only reference through it.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this guard's thread locked the mutex and has not unlocked it.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

impl Condition {
    /// A condition that nobody waits for.
    pub(crate) fn new() -> Self {
        Self { raw: Box::new(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER)) }
    }

    /// Gives the lock up until notified (or woken for no reason), then holds it again.
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
        // SAFETY: `&mut self` proves that nobody waits any more.
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
