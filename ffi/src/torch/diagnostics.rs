//! Failures of functions that answer nothing: each kind is told once, on the standard error.

use crate::abi::cachalot_status;
use crate::status::{CACHALOT_ERROR_FORKED, CACHALOT_ERROR_SHUTDOWN, CACHALOT_OK};
use crate::{handle, last_error};
use core::ffi::CStr;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// The kinds that were told: what was done, and its status.
static TOLD: Mutex<BTreeSet<(&str, cachalot_status)>> = Mutex::new(BTreeSet::new());

/// Tells that `what` failed with the calling thread's last error, unless that is no failure, was told before, or is of no use
/// to tell: in a forked child, and when the driver is gone at exit, everything fails.
pub(super) fn tell_once(what: &'static str, status: cachalot_status) {
    // In a child nobody may be left to release the lock.
    if matches!(status, CACHALOT_OK | CACHALOT_ERROR_FORKED | CACHALOT_ERROR_SHUTDOWN) || handle::in_child() {
        return;
    }
    if TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert((what, status)) {
        // SAFETY: the thread's own text, which ends with NUL and stays until its next failure.
        let text = unsafe { CStr::from_ptr(last_error::text()) };
        // Nobody is left to tell that this failed.
        let _ = writeln!(std::io::stderr(), "cachalot: {what}: {}", text.to_string_lossy());
    }
}

/// Whoever failed so far begins anew: what fails again is told again.
pub(super) fn forget() {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
