//! Control functions, `emu_*`: a test controls the driver and inspects the state. The functions are
//! no driver calls: the fault plan and the call log ignore them. In a forked child they do nothing
//! and answer -1.
//!
//! Texts are copied to the caller: a function takes a buffer and a size, writes as much as fits
//! with a final NUL, and returns the length of the whole text.

use crate::call::Call;
use crate::calls::stream;
use crate::calls::submit::submit;
use crate::process::latch;
use crate::state::driver::State;
use crate::state::{contexts, devices, queues, regions, report, threads};
use crate::tables::work::Work;
use crate::values::code::Code;
use crate::values::config::Manner;
use crate::values::functions::Function;
use crate::values::random::Random;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Answer of a control function to an invalid request.
const REFUSED: c_int = -1;

/// Runs `action` on the state, or returns `refused` in a forked child.
fn control<T>(refused: T, action: impl FnOnce(&mut Call) -> T) -> T {
    if latch::is_forked() { refused } else { action(&mut Call::open()) }
}

/// Converts an outcome to a number for C.
fn number(outcome: Result<(), Code>) -> c_int {
    outcome.map_or_else(|code| code.0 as c_int, |()| 0)
}

/// Marks the library as the emulated driver. Always 1.
#[unsafe(no_mangle)]
extern "C" fn cachalot_emulated_driver() -> c_int {
    1
}

/// Adds the rules of a JSON text to the fault plan. Malformed text gives -1 and a line on stderr.
///
/// # Safety
/// `json` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_plan(json: *const c_char) -> c_int {
    // SAFETY: guaranteed by the caller.
    let json = unsafe { CStr::from_ptr(json) }.to_string_lossy();
    control(REFUSED, |call| match call.state.plan.add(&json) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("emu_plan: {why}");
            REFUSED
        }
    })
}

/// Empties the fault plan.
#[unsafe(no_mangle)]
extern "C" fn emu_plan_clear() {
    control((), |call| call.state.plan.clear());
}

/// Returns the number of calls hit by the fault plan.
#[unsafe(no_mangle)]
extern "C" fn emu_faults() -> u64 {
    control(0, |call| call.state.plan.fired())
}

/// Returns the number of calls of a function, or of all calls if `name` is null. `u64::MAX` for an
/// unknown name.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_calls(name: *const c_char) -> u64 {
    if name.is_null() {
        return control(0, |call| call.state.log.calls());
    }
    // SAFETY: not null, the rest is guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let Some(function) = Function::named(&name) else { return u64::MAX };
    control(0, |call| call.state.log.count(function))
}

/// Copies the remembered calls, one JSON object a line.
///
/// # Safety
/// `buffer` is null or has `size` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_log(buffer: *mut c_char, size: u64) -> u64 {
    let text = control(String::new(), |call| call.state.log.to_lines());
    // SAFETY: guaranteed by the caller.
    unsafe { hand_out(&text, buffer, size) }
}

/// Forgets the remembered calls.
#[unsafe(no_mangle)]
extern "C" fn emu_log_clear() {
    control((), |call| call.state.log.clear());
}

/// Copies a JSON object of all live objects.
///
/// # Safety
/// `buffer` is null or has `size` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_report(buffer: *mut c_char, size: u64) -> u64 {
    let text = control(String::new(), |call| report::to_json(&mut call.state).to_string());
    // SAFETY: guaranteed by the caller.
    unsafe { hand_out(&text, buffer, size) }
}

/// Closes a gate on a stream of the current context. No work starts until as many releases as
/// holds.
#[unsafe(no_mangle)]
extern "C" fn emu_hold_stream(handle: u64) -> c_int {
    control(REFUSED, |call| number(stream::hold(call, handle, true)))
}

/// Opens a gate on a stream.
#[unsafe(no_mangle)]
extern "C" fn emu_release_stream(handle: u64) -> c_int {
    control(REFUSED, |call| number(stream::hold(call, handle, false)))
}

/// Returns the number of unfinished pieces of work on a stream, or `u64::MAX` for an unknown
/// stream.
#[unsafe(no_mangle)]
extern "C" fn emu_pending(handle: u64) -> u64 {
    control(u64::MAX, |call| {
        let queue = queues::find(&mut call.state, handle, call.context);
        queue.map_or(u64::MAX, |queue| call.state.streams.pending(queue))
    })
}

/// In step mode, runs up to `count` pieces of work and returns the number of pieces run.
#[unsafe(no_mangle)]
extern "C" fn emu_step(count: u64) -> u64 {
    control(0, |call| {
        let stepping = call.state.config.step;
        if stepping { (0..count).take_while(|_| threads::step(&mut call.state)).count() as u64 } else { 0 }
    })
}

/// Turns step mode on (1) or off (0). Only before the first work is queued: -1 afterwards.
#[unsafe(no_mangle)]
extern "C" fn emu_set_step(on: c_int) -> c_int {
    control(REFUSED, |call| {
        if !call.state.streams.queues.is_empty() {
            return REFUSED;
        }
        call.state.config.step = on != 0;
        0
    })
}

/// Sets the number of address bytes of the devices. Only before `cuInit`: -1 afterwards.
#[unsafe(no_mangle)]
extern "C" fn emu_set_address_space(bytes: u64) -> c_int {
    control(REFUSED, |call| {
        if call.state.space.is_some() {
            return REFUSED;
        }
        call.state.config.address_space_bytes = bytes;
        0
    })
}

/// Starts the sequence of choices anew.
#[unsafe(no_mangle)]
extern "C" fn emu_set_seed(seed: u64) {
    control((), |call| call.state.random = Random::new(seed));
}

/// Delays each later piece of work by a random time up to `delay_us`.
#[unsafe(no_mangle)]
extern "C" fn emu_set_delay_us(delay_us: u64) {
    control((), |call| call.state.config.delay_us = delay_us);
}

/// Keeps freed addresses and handles from being used again (1), or hands them out again first (0).
#[unsafe(no_mangle)]
extern "C" fn emu_set_quarantine(on: c_int) {
    control((), |call| call.state.set_quarantine(on != 0));
}

/// Sets strict mode (1): a call with the handle of a destroyed stream or event aborts instead of
/// answering a code (0).
#[unsafe(no_mangle)]
extern "C" fn emu_set_strict(on: c_int) {
    control((), |call| call.state.set_strict(on != 0));
}

/// Lets `cuMemFree` wait for the context's work (1, as in a real driver) or not (0).
#[unsafe(no_mangle)]
extern "C" fn emu_set_free_waits(on: c_int) {
    control((), |call| call.state.config.free_waits = on != 0);
}

/// Lets work that touches forbidden memory break its context (1, as on a device), or kill the
/// process (0).
#[unsafe(no_mangle)]
extern "C" fn emu_set_delivers_faults(on: c_int) {
    control((), |call| call.state.set_delivers_faults(on != 0));
}

/// Returns the device address of the last fault that was delivered, or 0.
#[unsafe(no_mangle)]
extern "C" fn emu_fault_address() -> u64 {
    control(0, |call| call.state.fault)
}

/// Changes an entry of the table of answers. -1 if no entry has the name.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_answer(name: *const c_char, code: u32) -> c_int {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    control(REFUSED, |call| if call.state.answers.set(&name, code) { 0 } else { REFUSED })
}

/// Breaks a context with a sticky error at once. 0 means the current context.
#[unsafe(no_mangle)]
extern "C" fn emu_break_context(context: u64, code: u32) -> c_int {
    control(REFUSED, |call| {
        let handle = if context == 0 { call.context } else { context };
        contexts::break_down(&mut call.state, handle, Code(code));
        call.changed();
        number(contexts::device_of(&call.state, handle).map(drop))
    })
}

/// Queues work that breaks the stream's context with a sticky error on execution.
#[unsafe(no_mangle)]
extern "C" fn emu_fail_later(handle: u64, code: u32) -> c_int {
    control(REFUSED, |call| number(submit(call, handle, Work::Fail(Code(code)))))
}

/// Loses a device: the contexts of the device break with `code`, and no new context can be created.
#[unsafe(no_mangle)]
extern "C" fn emu_lose_device(device: c_int, code: u32) -> c_int {
    control(REFUSED, |call| {
        let index = devices::index(&call.state, device);
        let lost = index.map(|index| contexts::lose_device(&mut call.state, index, Code(code)));
        call.changed();
        number(lost)
    })
}

/// Tears the driver down: calls answer `DEINITIALIZED`, or abort the process if `crash` is not 0.
#[unsafe(no_mangle)]
extern "C" fn emu_tear_down(crash: c_int) {
    latch::tear_down(if crash == 0 { Manner::Polite } else { Manner::Crash });
}

/// Pretends that other processes use `bytes` of a device's memory.
#[unsafe(no_mangle)]
extern "C" fn emu_set_others_bytes(device: c_int, bytes: u64) -> c_int {
    control(REFUSED, |call| {
        let index = devices::index(&call.state, device);
        number(index.map(|index| call.state.devices[index].others_bytes = bytes))
    })
}

/// Copies the present contents of device memory, without waiting for work.
///
/// # Safety
/// `buffer` has `bytes` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_peek(address: u64, buffer: *mut u8, bytes: u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    let into = unsafe { std::slice::from_raw_parts_mut(buffer, bytes as usize) };
    control(REFUSED, |call| number(regions::peek(&call.state, address, into)))
}

/// Returns the address under which work of a device finds a device address, for host functions in
/// the role of a kernel. Null before `cuInit`.
#[unsafe(no_mangle)]
extern "C" fn emu_seen_by(device: c_int, address: u64) -> *mut c_void {
    let seen = control(0, |call| {
        let state: &State = &call.state;
        let index = devices::index(state, device);
        match (index, &state.space) {
            (Ok(index), Some(space)) => space.seen_by(index, address),
            _ => 0,
        }
    });
    seen as *mut c_void
}

/// Copies as much of a text as fits into a buffer, with a final NUL, and returns the whole length.
///
/// # Safety
/// `buffer` is null or has `size` writable bytes.
unsafe fn hand_out(text: &str, buffer: *mut c_char, size: u64) -> u64 {
    if !buffer.is_null() && size > 0 {
        let kept = &text.as_bytes()[..text.len().min(size as usize - 1)];
        // SAFETY: guaranteed by the caller. The copied part is shorter than the buffer.
        unsafe { std::ptr::copy_nonoverlapping(kept.as_ptr(), buffer.cast(), kept.len()) };
        // SAFETY: as above, and the buffer has room for the NUL.
        unsafe { buffer.wrapping_add(kept.len()).write(0) };
    }
    text.len() as u64
}
