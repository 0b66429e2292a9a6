//! Threads inside another program.

use core::mem::MaybeUninit;

/// Makes a call with all signals blocked, which starts a thread: the program's signals are for the
/// program's own threads.
pub(crate) fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the function fills in the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` is filled in, and the function writes the thread's set to `before`.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) } == 0;
    let answer = call();
    if blocked {
        // SAFETY: the first call has filled in `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    }
    answer
}
