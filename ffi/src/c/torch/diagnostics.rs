//! Reports failures of functions without a return value: each kind once, on the standard error.

use crate::c::abi::cachalot_status;
use crate::c::status::{CACHALOT_ERROR_FORKED, CACHALOT_ERROR_SHUTDOWN, CACHALOT_OK};
use crate::c::{handle, last_error};
use cachalot_cuda::log;
use core::ffi::CStr;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The kinds of failures already reported: operation and status.
static REPORTED: Mutex<BTreeSet<(&str, cachalot_status)>> = Mutex::new(BTreeSet::new());

/// Reports that the operation `what` failed, with the calling thread's last error. Reports each
/// pair of operation and status once.
///
/// Stays silent in a forked child and after the driver has shut down, where every call fails.
#[inline(always)]
pub(super) fn report_once(what: &'static str, status: cachalot_status) {
    // Every free comes by here.
    if status != CACHALOT_OK {
        report_failure(what, status);
    }
}

/// Reports a failure, as [`report_once`] says.
#[cold]
fn report_failure(what: &'static str, status: cachalot_status) {
    // In a forked child the lock may be locked by a thread that no longer exists.
    if matches!(status, CACHALOT_ERROR_FORKED | CACHALOT_ERROR_SHUTDOWN) || handle::in_child() {
        return;
    }
    if REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert((what, status)) {
        // SAFETY: the thread's own text, NUL-terminated and valid until the thread's next failure.
        let text = unsafe { CStr::from_ptr(last_error::text()) };
        log::warning(format_args!("{what}: {}", text.to_string_lossy()));
    }
}

/// Forgets all reported failures: each kind may be reported again.
pub(super) fn forget() {
    REPORTED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
