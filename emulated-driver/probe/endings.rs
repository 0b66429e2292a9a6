//! What ends a context or a process: broken contexts, forks, the exit.

use crate::calls::{CALLS, Things};
use crate::sheet::{Sheet, code};
use std::io::Write;
use std::sync::OnceLock;

/// Kernels that break their context, for a real driver.
const KERNELS: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry trap() { trap; ret; }
.visible .entry address() {
    .reg .u64 %place;
    .reg .u32 %value;
    mov.u64 %place, 16;
    mov.u32 %value, 1;
    st.global.u32 [%place], %value;
    ret;
}
\0";

/// Breaks the current context by a kernel, or by the emulated driver's control with the code a device is known to give.
fn break_context(sheet: &Sheet, stream: u64, kernel: &std::ffi::CStr, emulated: u32) {
    if let Some(control) = &sheet.control {
        control.fail_later(stream, emulated).expect("a stream");
        return;
    }
    let (mut module, mut function) = (0, 0);
    assert_eq!(sheet.cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()), 0, "cuModuleLoadData");
    assert_eq!(sheet.cuModuleGetFunction(&mut function, module, kernel.as_ptr()), 0, "cuModuleGetFunction");
    let (params, extra) = (std::ptr::null(), std::ptr::null());
    assert_eq!(sheet.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, extra), 0, "cuLaunchKernel");
}

/// Every call in a broken context.
fn broken(sheet: &Sheet, kernel: &std::ffi::CStr, emulated: u32) {
    let context = sheet.begin();
    let things = Things::new(sheet, context, false);
    break_context(sheet, things.other, kernel, emulated);
    sheet.line("the wait that tells of it", sheet.cuStreamSynchronize(things.other));
    for (name, call) in CALLS {
        sheet.line(name, call(sheet, &things));
    }
    sheet.line("cuCtxSynchronize at the end", sheet.cuCtxSynchronize());
}

/// After an instruction that traps.
pub(crate) fn trap(sheet: &Sheet) {
    broken(sheet, c"trap", 719);
}

/// After a store to an address that is not memory.
pub(crate) fn bad_address(sheet: &Sheet) {
    broken(sheet, c"address", 700);
}

/// Every call in a forked child of its own: some drivers crash there.
pub(crate) fn fork(sheet: &Sheet) {
    let context = sheet.begin();
    let things = Things::new(sheet, context, false);
    in_child(sheet, "cuInit", || sheet.cuInit(0));
    for (name, call) in CALLS {
        in_child(sheet, name, || call(sheet, &things));
    }
    sheet.line("cuMemAlloc_v2 in the parent", code(sheet.alloc(1)));
}

/// Makes a call in a forked child, which hands the code over as its exit code; all codes that matter here are small.
fn in_child(sheet: &Sheet, name: &str, call: impl FnOnce() -> u32) {
    flush();
    // SAFETY: the child makes the call in question and ends without cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends a child that is stuck in a call.
        unsafe { libc::alarm(10) };
        let answer = call().min(255) as libc::c_int;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(answer) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if libc::WIFEXITED(status) {
        sheet.line(name, libc::WEXITSTATUS(status));
    } else {
        sheet.line(name, format!("signal {}", libc::WTERMSIG(status)));
    }
}

/// Writes out what is printed so far.
fn flush() {
    std::io::stdout().flush().expect("standard output");
}

/// What the exit handler asks.
static LAST: OnceLock<(Sheet, u64, u64)> = OnceLock::new();

extern "C" fn ask_at_exit() {
    if let Some((sheet, address, event)) = LAST.get() {
        sheet.line("cuEventQuery", sheet.cuEventQuery(*event));
        sheet.line("cuMemFree_v2", sheet.cuMemFree_v2(*address));
        sheet.line("cuMemAlloc_v2", code(sheet.alloc(1)));
        sheet.line("cuCtxSynchronize", sheet.cuCtxSynchronize());
        flush();
    }
}

/// Registers the handler.
fn register() {
    // SAFETY: the handler takes nothing and lives as long as the process.
    assert_eq!(unsafe { libc::atexit(ask_at_exit) }, 0);
}

/// Keeps what the handler needs. It gets a sheet of its own: the caller's lives on the stack.
fn prepare(sheet: &Sheet) {
    sheet.begin();
    let own = Sheet::new(&sheet.library, &sheet.group).expect("loaded already");
    let kept = (own, sheet.alloc(1 << 21).expect("memory"), sheet.event().expect("an event"));
    assert!(LAST.set(kept).is_ok(), "prepared once");
}

/// Calls from an exit handler registered after `cuInit`: it runs before the driver's own.
pub(crate) fn exit_before_driver(sheet: &Sheet) {
    prepare(sheet);
    register();
}

/// Calls from an exit handler registered before `cuInit`: it runs after the driver's own.
pub(crate) fn exit_after_driver(sheet: &Sheet) {
    register();
    prepare(sheet);
}
