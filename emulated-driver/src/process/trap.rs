//! Memory faults of work, delivered to the program as a device does: the context breaks, the
//! process goes on.
//!
//! A handler of SIGSEGV gives work that touches forbidden memory a scratch page, so that the work
//! ends, and notes the first address. The thread that ran the work then breaks the context. Faults
//! of host code, and faults outside the watched addresses, go to the handler before.

use super::thread;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a scratch page, on a multiple of itself: no mapping of a device is smaller.
const SCRATCH: u64 = 2 << 20;
/// Number of scratch pages for one piece of work. Work that strays further is killed.
const MOST: usize = 64;

/// The addresses at which faults are delivered.
static BEGIN: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);
/// The handler before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

thread_local! {
    static STRAYED: Cell<Strayed> = const { Cell::new(Strayed { first: 0, pages: [0; MOST], count: 0 }) };
}

/// Forbidden memory touched by the work that the thread runs.
#[derive(Clone, Copy)]
pub(crate) struct Strayed {
    /// The first address touched; 0 if there is none.
    pub(crate) first: u64,
    pages: [u64; MOST],
    count: usize,
}

/// Delivers faults of work at the addresses from `begin` to `end` from now on, and elsewhere no
/// longer.
pub(crate) fn watch(begin: u64, end: u64) {
    BEGIN.store(begin, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a null action changes nothing, and `before` has room for the answer.
        unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), before.as_mut_ptr()) };
        // SAFETY: the call has filled the structure.
        let before = unsafe { before.assume_init() };
        let mut action = before;
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        // SAFETY: `on_fault` has the signature that SA_SIGINFO asks for, and calls only what a
        // handler may call.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
        before
    });
}

/// Delivers no faults any longer.
pub(crate) fn watch_nothing() {
    END.store(0, Ordering::Relaxed);
}

/// Takes what the work that has just ended on the calling thread has touched, and forbids the
/// scratch pages again. Returns the first address, if any.
pub(crate) fn take() -> Option<u64> {
    let Strayed { first, pages, count } = STRAYED.get();
    if first == 0 {
        return None;
    }
    STRAYED.set(Strayed { first: 0, pages: [0; MOST], count: 0 });
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    for &page in &pages[..count] {
        // SAFETY: the handler has mapped the page, inside the reservation of the driver.
        unsafe { libc::mmap(page as *mut libc::c_void, SCRATCH as usize, libc::PROT_NONE, flags, -1, 0) };
    }
    Some(first)
}

/// Maps a scratch page at the fault of work, or passes the signal on.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a description of the fault.
    let described = unsafe { &*info };
    // SAFETY: the description of a memory fault has an address.
    let address = unsafe { described.si_addr() } as u64;
    let is_watched = (BEGIN.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&address);
    if is_watched && thread::running() != 0 && !thread::in_host_function() && map_scratch(address) {
        return;
    }
    pass_on(signal, info, context);
}

/// Maps a scratch page around `address`. Returns false if the system refuses, or if the work has
/// many already.
fn map_scratch(address: u64) -> bool {
    let mut strayed = STRAYED.get();
    if strayed.count == MOST {
        return false;
    }
    let page = address / SCRATCH * SCRATCH;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the fault shows that nothing accessible is there, and the page is inside the driver's
    // reservation.
    let mapped = unsafe { libc::mmap(page as *mut libc::c_void, SCRATCH as usize, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    strayed.pages[strayed.count] = page;
    strayed.count += 1;
    if strayed.first == 0 {
        strayed.first = address;
    }
    STRAYED.set(strayed);
    true
}

/// Passes a fault on to the handler before.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    if before.sa_sigaction != libc::SIG_DFL
        && before.sa_sigaction != libc::SIG_IGN
        && before.sa_flags & libc::SA_SIGINFO != 0
    {
        // SAFETY: a handler with SA_SIGINFO has this signature.
        let handle: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(before.sa_sigaction) };
        handle(signal, info, context);
    } else {
        // SAFETY: the action came from the system. The instruction faults again, and the process
        // dies.
        unsafe { libc::sigaction(signal, &raw const *before, std::ptr::null_mut()) };
    }
}
