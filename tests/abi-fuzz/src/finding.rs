//! Findings: the first of a process is printed, and ends the process.

use crate::contents::Job;
use crate::history;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit status of a process with a finding.
pub(crate) const FOUND: i32 = 9;

thread_local! {
    /// The job of a stream on the calling thread.
    static JOB: Cell<*const Job> = const { Cell::new(std::ptr::null()) };
    /// The number of the calling thread and its present operation.
    static ORIGIN: Cell<Origin> = const { Cell::new(Origin { thread: u32::MAX, op: 0 }) };
}

/// A thread of the program, and an operation of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) thread: u32,
    pub(crate) op: u64,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.thread, self.op)
    }
}

/// Sets the operation of the calling thread.
pub(crate) fn set_origin(origin: Origin) {
    ORIGIN.set(origin);
}

/// Returns the operation of the calling thread.
pub(crate) fn origin() -> Origin {
    ORIGIN.get()
}

/// Runs `work` as the job of the calling thread.
pub(crate) fn in_job(job: &Job, work: impl FnOnce()) {
    let before = JOB.replace(job);
    work();
    JOB.set(before);
}

/// Whether a thread reports a finding already.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Prints a finding, and ends the process.
pub(crate) fn report(kind: &str, text: &str) -> ! {
    if TAKEN.swap(true, Ordering::SeqCst) {
        // Another thread prints, and ends the process.
        loop {
            std::thread::park();
        }
    }
    let line = format!("FINDING {kind} at {}: {}\n", origin(), text.replace('\n', " | "));
    // Ignored: the exit status reports the finding as well.
    let _written = std::io::stdout().lock().write_all(line.as_bytes());
    end();
}

/// Prints the history of a part of memory and a finding there, and ends the process.
pub(crate) fn report_at(kind: &str, address: u64, bytes: u64, text: &str) -> ! {
    history::print(address, bytes);
    report(kind, text);
}

/// Ends the process without exit handlers, which would wait for work.
fn end() -> ! {
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(FOUND) }
}

/// Reports an access to unmapped memory, from the handler of the signal.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    if TAKEN.swap(true, Ordering::SeqCst) {
        return end_in_handler();
    }
    // SAFETY: the system passes the details of the signal.
    let info = unsafe { &*info };
    // SAFETY: the signals caught are those with an address, or an abort, which has a number there.
    let address = unsafe { info.si_addr() }.addr();
    let mut buffer = [0_u8; 512];
    let mut rest: &mut [u8] = &mut buffer;
    let job = JOB.get();
    let origin = ORIGIN.get();
    let _cut = if job.is_null() {
        writeln!(rest, "FINDING signal {signal} at {origin}: address {address:#x}, in no job")
    } else {
        // SAFETY: the thread is in the job, which so exists.
        let job = unsafe { &*job };
        writeln!(rest, "FINDING fault {signal} at {origin}: {job} finds no memory at {:#x}", job.seen_at(address))
    };
    let length = 512 - rest.len();
    if !job.is_null() {
        // SAFETY: as above.
        let job = unsafe { &*job };
        history::print(job.address, job.bytes as u64);
    }
    // SAFETY: the buffer has the length.
    unsafe { libc::write(1, buffer.as_ptr().cast(), length) };
    end_in_handler();
}

/// Ends the process from a handler.
fn end_in_handler() {
    // SAFETY: the call takes a number, and may be made in a handler.
    unsafe { libc::_exit(FOUND) }
}

/// Lets accesses to unmapped memory, and aborts, end the process with a finding.
pub(crate) fn catch_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        // SAFETY: all bytes zero is a valid value of the structure.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the structure is complete, and the handler makes only calls that are allowed in a
        // handler.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}
