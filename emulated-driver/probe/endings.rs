//! Events that end a context or a process: broken contexts, forks, the exit.

use crate::calls::{CALLS, Things};
use crate::sheet::{Sheet, code};
use std::io::Write;
use std::sync::OnceLock;

/// Kernels for a real driver. Each breaks the context.
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

/// Breaks the current context by a kernel, or by the emulated driver's control with the known code
/// of a device.
fn break_context(sheet: &Sheet, stream: u64, kernel: &std::ffi::CStr, emulated: u32) {
    if let Some(control) = &sheet.control {
        control.fail_later(stream, emulated).expect("a stream");
        return;
    }
    let (mut module, mut function) = (0, 0);
    assert_eq!(sheet.cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()), 0, "cuModuleLoadData");
    assert_eq!(sheet.cuModuleGetFunction(&mut function, module, kernel.as_ptr()), 0, "cuModuleGetFunction");
    let (params, extra) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(sheet.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, extra), 0, "cuLaunchKernel");
}

/// Makes every call in a broken context.
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

/// Makes every call after an instruction that traps.
pub(crate) fn trap(sheet: &Sheet) {
    broken(sheet, c"trap", 719);
}

/// Makes every call after a store to an address without memory.
pub(crate) fn bad_address(sheet: &Sheet) {
    broken(sheet, c"address", 700);
}

/// Makes every call in a separate forked child, because some drivers crash there.
pub(crate) fn fork(sheet: &Sheet) {
    let context = sheet.begin();
    let things = Things::new(sheet, context, false);
    in_child(sheet, "cuInit", || sheet.cuInit(0));
    for (name, call) in CALLS {
        in_child(sheet, name, || call(sheet, &things));
    }
    sheet.line("cuMemAlloc_v2 in the parent", code(sheet.alloc(1)));
}

/// Makes a call in a forked child. The exit code of the child carries the answer. All expected
/// codes fit.
fn in_child(sheet: &Sheet, name: &str, call: impl FnOnce() -> u32) {
    flush();
    // SAFETY: the child makes the call in question and ends without cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if a call hangs.
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

/// Flushes the standard output.
fn flush() {
    std::io::stdout().flush().expect("standard output");
}

/// The objects for the calls of the exit handler.
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

/// Registers the exit handler.
fn register() {
    // SAFETY: the handler takes nothing and lives as long as the process.
    assert_eq!(unsafe { libc::atexit(ask_at_exit) }, 0);
}

/// Stores the objects for the exit handler, with a separate sheet, because the caller's sheet is on
/// the stack.
fn prepare(sheet: &Sheet) {
    sheet.begin();
    let own = Sheet::new(&sheet.library, &sheet.group).expect("loaded already");
    let kept = (own, sheet.alloc(1 << 21).expect("memory"), sheet.event().expect("an event"));
    assert!(LAST.set(kept).is_ok(), "prepared once");
}

/// Makes calls from an exit handler registered after `cuInit`, which runs before the driver's own
/// handler.
pub(crate) fn exit_before_driver(sheet: &Sheet) {
    prepare(sheet);
    register();
}

/// Makes calls from an exit handler registered before `cuInit`, which runs after the driver's own
/// handler.
pub(crate) fn exit_after_driver(sheet: &Sheet) {
    register();
    prepare(sheet);
}
