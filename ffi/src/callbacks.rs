//! Calls from the library into the program.

use crate::abi::{cachalot_oom_callback, cachalot_oom_report, cachalot_shortage_callback};
use crate::filters::Filters;
use crate::last_error;
use crate::marshal::Userdata;
use crate::status::Host;
use cachalot_core::OutOfMemory;
use core::cell::Cell;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU32, Ordering};
use std::io::Write;
use std::sync::{Mutex, PoisonError};

thread_local! {
    /// Whether this thread is inside a callback: requests made there lead to no further ones.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The callbacks of one allocator.
#[derive(Default)]
pub(crate) struct Callbacks {
    shortage: Mutex<Option<(ShortageFunction, Userdata)>>,
    out_of_memory: Mutex<Option<(OomFunction, Userdata)>>,
    /// Whose words a report uses.
    host: Host,
    /// Which requests are led into pools.
    pub(crate) filters: Filters,
    /// How many calls into the program are under way, on all threads.
    running: AtomicU32,
}

type ShortageFunction = unsafe extern "C" fn(*mut core::ffi::c_void, c_int, usize) -> c_int;
type OomFunction = unsafe extern "C" fn(*mut core::ffi::c_void, *const cachalot_oom_report);

/// A call into the program. Ends when it is dropped.
pub(crate) struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// As [`Running`], with the thread marked.
pub(crate) struct Inside<'a> {
    _running: Running<'a>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(false));
    }
}

impl Callbacks {
    /// No callbacks, for an allocator of `host`.
    pub(crate) fn new(host: Host) -> Self {
        Self { host, ..Self::default() }
    }

    /// Sets who is asked to free memory.
    pub(crate) fn set_shortage(&self, callback: cachalot_shortage_callback, userdata: Userdata) {
        *self.shortage.lock().unwrap_or_else(PoisonError::into_inner) = callback.map(|callback| (callback, userdata));
    }

    /// Sets who is told of failures.
    pub(crate) fn set_out_of_memory(&self, callback: cachalot_oom_callback, userdata: Userdata) {
        *self.out_of_memory.lock().unwrap_or_else(PoisonError::into_inner) =
            callback.map(|callback| (callback, userdata));
    }

    /// Whether a callback of this allocator is running anywhere.
    pub(crate) fn are_running(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Begins a call into the program, during which the allocator cannot be destroyed.
    pub(crate) fn enter(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Acquire);
        Running(&self.running)
    }

    /// The same for a callback that a request led to. `None` if the request was itself made by one.
    pub(crate) fn enter_once(&self) -> Option<Inside<'_>> {
        INSIDE.with(|inside| (!inside.replace(true)).then(|| Inside { _running: self.enter() }))
    }

    /// Asks the program to free memory. True if it says that it did.
    pub(crate) fn ask(&self, device: c_int, bytes: u64) -> bool {
        let set = *self.shortage.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((callback, userdata)) = set else { return false };
        let Some(_inside) = self.enter_once() else { return false };
        // SAFETY: the program gave both, to be called so from any thread; no lock is held.
        unsafe { callback(userdata.0, device, bytes as usize) != 0 }
    }

    /// Tells the program that a request is about to fail.
    pub(crate) fn tell(&self, report: &OutOfMemory) {
        let set = *self.out_of_memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((callback, userdata)) = set else { return };
        let Some(_inside) = self.enter_once() else { return };
        let mut text = [0; last_error::CAPACITY];
        // What does not fit is left off; the last byte stays NUL.
        let mut room = &mut text[..last_error::CAPACITY - 1];
        let _ = match self.host {
            Host::Program => write!(room, "{report}"),
            Host::PyTorch => write!(room, "{}", report.in_words_of_pytorch()),
        };
        let report = describe(report, text.as_ptr().cast());
        // SAFETY: the program gave both, to be called so from any thread; the report and its text outlive the call; no
        // lock is held.
        unsafe { callback(userdata.0, &raw const report) };
    }
}

/// A report for C.
fn describe(report: &OutOfMemory, text: *const c_char) -> cachalot_oom_report {
    cachalot_oom_report {
        struct_size: size_of::<cachalot_oom_report>(),
        text,
        requested_bytes: report.requested as usize,
        block_bytes: report.block as usize,
        segment_bytes: report.segment as usize,
        device_total_bytes: report.memory.total,
        device_free_bytes: report.memory.free,
        process_bytes: report.process.unwrap_or(0),
        limit_bytes: report.limit.unwrap_or(crate::abi::CACHALOT_NO_LIMIT),
        allocated_bytes: report.allocated,
        reserved_bytes: report.reserved,
        pending_bytes: report.pending,
        private_free_bytes: report.private_free,
        largest_free_bytes: report.largest_free,
        largest_free_elsewhere_bytes: report.largest_free_elsewhere,
        device: report.device.0 as c_int,
        capturing: c_int::from(report.capturing),
    }
}
