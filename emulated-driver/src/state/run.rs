//! Runs the tasks of a piece of work on the calling thread.

use super::contexts;
use super::driver::driver;
use super::regions;
use crate::process::{thread, trap};
use crate::tables::work::{KernelCode, Shape, Task};
use crate::values::code::Code;
use std::ffi::c_void;
use std::time::Instant;

/// Runs the tasks on the calling thread, for a stream of `context`. The state must not be locked.
pub(crate) fn run(tasks: Vec<Task>, context: u64) {
    thread::running_for(context, || {
        for task in tasks {
            run_one(task);
            if let Some(seen) = trap::take() {
                deliver(seen);
            }
        }
    });
}

/// Runs a task.
fn run_one(task: Task) {
    match task {
        Task::Fill { at, bytes, value } => {
            // SAFETY: the range was device memory when queued, and is outside every Rust
            // object. If the program has freed the memory since, the following fault is the purpose
            // of the library.
            unsafe { fill(at as *mut u8, bytes, value) };
        }
        Task::Copy { to, from, bytes, kept } => {
            // SAFETY: as for a fill. The caller guarantees host ranges, as with the real
            // function.
            unsafe { libc::memmove(to as *mut c_void, from as *const c_void, bytes) };
            drop(kept);
        }
        Task::Stamp(stamp) => {
            stamp.get_or_init(Instant::now);
        }
        Task::Expose(span) => {
            let exposed = regions::expose(&mut driver().state.lock(), span);
            exposed.expect("the system maps what it gave");
        }
        Task::Withdraw(span) => regions::withdraw(&mut driver().state.lock(), span),
        Task::Call { function, argument } => {
            // SAFETY: the caller of cuLaunchHostFunc guarantees a function that takes the
            // argument.
            thread::as_host_function(|| unsafe { function(argument as *mut c_void) });
        }
        Task::Kernel { code, mut slots, starts, shape } => {
            let first = slots.as_mut_ptr();
            let mut pointers: Vec<*mut c_void> = starts.iter().map(|&start| first.wrapping_add(start).cast()).collect();
            let Shape { grid, block } = shape;
            match code {
                KernelCode::Plain(kernel) => {
                    let (blocks, threads) = (grid.iter().product(), block.iter().product());
                    // SAFETY: the object that defines the kernel has declared the number of
                    // 8-byte arguments.
                    unsafe { kernel(pointers.as_mut_ptr(), blocks, threads) };
                }
                KernelCode::Global(kernel) => {
                    let sizes = [grid, block].concat();
                    // SAFETY: the object that defines the kernel has declared the sizes of the
                    // arguments.
                    unsafe { kernel(pointers.as_mut_ptr(), sizes.as_ptr()) };
                }
            }
        }
        Task::Fail(code) => raise(code),
    }
}

/// Writes four bytes again and again.
///
/// # Safety
/// `at` has `bytes` writable bytes.
unsafe fn fill(at: *mut u8, bytes: usize, value: [u8; 4]) {
    if value == [value[0]; 4] {
        // SAFETY: the caller vouches for the range.
        unsafe { at.write_bytes(value[0], bytes) };
        return;
    }
    for start in (0..bytes).step_by(value.len()) {
        let length = value.len().min(bytes - start);
        // SAFETY: as above. No value of Rust's is in device memory.
        unsafe { value.as_ptr().copy_to_nonoverlapping(at.wrapping_add(start), length) };
    }
}

/// Notes a fault of work at an address as a device sees it, and breaks the context.
fn deliver(seen: u64) {
    let driver = driver();
    let mut state = driver.state.lock();
    state.fault = state.space().address_of(seen);
    drop(state);
    raise(Code::ILLEGAL_ADDRESS);
}

/// Breaks the context whose work the calling thread runs, as does a faulting kernel.
pub(crate) fn raise(code: Code) {
    let driver = driver();
    let mut state = driver.state.lock();
    contexts::break_down(&mut state, thread::running(), code);
    driver.progress.notify_all();
}
