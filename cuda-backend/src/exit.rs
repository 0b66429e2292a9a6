//! The end of the process: after exit has started, no thread of the library calls the driver.
//!
//! A driver shuts itself down in a handler for `atexit`, and a call afterwards may crash. Handlers
//! run in the opposite order of their registration, so one that is registered after the driver's
//! start runs before the driver's own.

use crate::fork;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest time that exit waits for the work under way. Work that takes longer is a search
/// without calls to the driver, or a driver that hangs.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Work {
    has_begun: bool,
    /// The number of threads at work.
    at_work: u32,
}

static STATE: Mutex<Work> = Mutex::new(Work { has_begun: false, at_work: 0 });
static CHANGED: Condvar = Condvar::new();

fn locked() -> MutexGuard<'static, Work> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work by a thread of the library, for which the end of the process waits. The work ends when the
/// value is dropped.
#[derive(Debug)]
#[must_use]
pub struct BackgroundWork(());

impl BackgroundWork {
    /// Starts work that may call the driver. Returns `None` after exit has started. In this case
    /// the thread must no longer call the driver.
    pub fn begin() -> Option<Self> {
        let mut state = locked();
        if state.has_begun {
            return None;
        }
        state.at_work += 1;
        Some(Self(()))
    }
}

impl Drop for BackgroundWork {
    fn drop(&mut self) {
        locked().at_work -= 1;
        CHANGED.notify_all();
    }
}

/// Lets the work of all threads end before a driver ends that was started before this call.
pub(crate) fn stop_work_at_exit() {
    if cfg!(miri) {
        // Miri has no handlers of the exit, and its tests end their threads.
        return;
    }
    // SAFETY: the handler takes nothing, calls no driver, and does not unwind. If the library is
    // unloaded, it runs then.
    unsafe { libc::atexit(stop_work) };
}

/// Prevents other work from starting, and waits for the work under way.
extern "C" fn stop_work() {
    // In a child the threads are those of the parent, and one of them may have held the lock.
    if fork::in_child() {
        return;
    }
    let mut state = locked();
    state.has_begun = true;
    let _in_time = CHANGED.wait_timeout_while(state, PATIENCE, |state| state.at_work > 0);
}
