//! The control functions, `emu_*`: how a test steers the driver and looks inside. They are no driver calls: the fault
//! plan does not know them and the call log does not show them. In a forked child they do nothing and answer -1.
//!
//! Texts are handed out by copying: a function takes a buffer and its size, fills what fits and always ends it with
//! NUL, and returns how many bytes the whole text has.

use crate::call::Call;
use crate::code::Code;
use crate::config::Manner;
use crate::context;
use crate::driver::State;
use crate::functions::Function;
use crate::random::Random;
use crate::work::Work;
use crate::{capture, latch, memory, report, stream};
use std::ffi::{CStr, c_char, c_int, c_void};

/// What a control function answers that cannot do what it is asked.
const REFUSED: c_int = -1;

/// Runs `action` on the state, unless this is a forked child.
fn control<T>(refused: T, action: impl FnOnce(&mut Call) -> T) -> T {
    if latch::is_forked() { refused } else { action(&mut Call::open()) }
}

/// The number for C of an outcome.
fn number(outcome: Result<(), Code>) -> c_int {
    outcome.map_or_else(|code| code.0 as c_int, |()| 0)
}

/// Marks this library for programs that want to know: always 1.
#[unsafe(no_mangle)]
extern "C" fn cachalot_emulated_driver() -> c_int {
    1
}

/// Adds the rules of a JSON text to the fault plan; -1 and a line on stderr if it cannot be understood.
///
/// # Safety
/// `json` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_plan(json: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
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

/// How many calls the fault plan has hit.
#[unsafe(no_mangle)]
extern "C" fn emu_faults() -> u64 {
    control(0, |call| call.state.plan.fired())
}

/// How often a function was called, or how many calls there were in all if `name` is null; `u64::MAX` for an unknown
/// name.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_calls(name: *const c_char) -> u64 {
    if name.is_null() {
        return control(0, |call| call.state.log.calls());
    }
    // SAFETY: not null, and the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let Some(function) = Function::named(&name) else { return u64::MAX };
    control(0, |call| call.state.log.count(function))
}

/// The remembered calls, one JSON object a line.
///
/// # Safety
/// `buffer` is null or has `size` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_log(buffer: *mut c_char, size: u64) -> u64 {
    let text = control(String::new(), |call| call.state.log.to_lines());
    // SAFETY: the caller's promise.
    unsafe { hand_out(&text, buffer, size) }
}

/// Forgets the remembered calls.
#[unsafe(no_mangle)]
extern "C" fn emu_log_clear() {
    control((), |call| call.state.log.clear());
}

/// What is alive, a JSON object.
///
/// # Safety
/// `buffer` is null or has `size` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_report(buffer: *mut c_char, size: u64) -> u64 {
    let text = control(String::new(), |call| report::to_json(&call.state).to_string());
    // SAFETY: the caller's promise.
    unsafe { hand_out(&text, buffer, size) }
}

/// Closes a gate on a stream of the current context: no work begins there until it is released as often as held.
#[unsafe(no_mangle)]
extern "C" fn emu_hold_stream(handle: u64) -> c_int {
    control(REFUSED, |call| number(stream::hold(call, handle, true)))
}

/// Opens a gate on a stream.
#[unsafe(no_mangle)]
extern "C" fn emu_release_stream(handle: u64) -> c_int {
    control(REFUSED, |call| number(stream::hold(call, handle, false)))
}

/// How many pieces of work on a stream are not done; `u64::MAX` if there is no such stream.
#[unsafe(no_mangle)]
extern "C" fn emu_pending(handle: u64) -> u64 {
    control(u64::MAX, |call| {
        let queue = stream::find(&mut call.state, handle, call.context);
        queue.map_or(u64::MAX, |queue| call.state.streams.pending(queue))
    })
}

/// Step mode: does up to `count` pieces of work and returns how many there were.
#[unsafe(no_mangle)]
extern "C" fn emu_step(count: u64) -> u64 {
    control(0, |call| {
        let stepping = call.state.config.step;
        if stepping { (0..count).take_while(|_| stream::step(call)).count() as u64 } else { 0 }
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

/// Sets how many bytes of addresses the devices have. Only before `cuInit`: -1 afterwards.
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

/// Lets each piece of work wait a random time up to this before it runs, from now on.
#[unsafe(no_mangle)]
extern "C" fn emu_set_delay_us(delay_us: u64) {
    control((), |call| call.state.config.delay_us = delay_us);
}

/// Keeps freed addresses and handles from being used again (1), or hands them out again first (0).
#[unsafe(no_mangle)]
extern "C" fn emu_set_quarantine(on: c_int) {
    control((), |call| call.state.set_quarantine(on != 0));
}

/// Aborts at calls with the handle of a destroyed stream or event from now on (1), or answers a code (0).
#[unsafe(no_mangle)]
extern "C" fn emu_set_strict(on: c_int) {
    control((), |call| call.state.set_strict(on != 0));
}

/// Lets `cuMemFree` wait for the context's work (1, as the real one does) or not (0).
#[unsafe(no_mangle)]
extern "C" fn emu_set_free_waits(on: c_int) {
    control((), |call| call.state.config.free_waits = on != 0);
}

/// Changes an entry of the table of answers; -1 if there is none of this name.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_answer(name: *const c_char, code: u32) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    control(REFUSED, |call| if call.state.answers.set(&name, code) { 0 } else { REFUSED })
}

/// Breaks a context (0: the current one) with a sticky error at once.
#[unsafe(no_mangle)]
extern "C" fn emu_break_context(context: u64, code: u32) -> c_int {
    control(REFUSED, |call| {
        let handle = if context == 0 { call.context } else { context };
        context::break_down(&mut call.state, handle, Code(code));
        call.changed();
        number(context::device_of(&call.state, handle).map(drop))
    })
}

/// Queues work that breaks its context with a sticky error when it runs.
#[unsafe(no_mangle)]
extern "C" fn emu_fail_later(handle: u64, code: u32) -> c_int {
    control(REFUSED, |call| number(capture::submit(call, handle, Work::Fail(Code(code)))))
}

/// Loses a device: its contexts break with `code` and no new one can be had.
#[unsafe(no_mangle)]
extern "C" fn emu_lose_device(device: c_int, code: u32) -> c_int {
    control(REFUSED, |call| {
        let index = crate::device::index(&call.state, device);
        let lost = index.map(|index| context::lose_device(&mut call.state, index, Code(code)));
        call.changed();
        number(lost)
    })
}

/// Tears the driver down now: calls answer `DEINITIALIZED`, or abort the process if `crash` is not 0.
#[unsafe(no_mangle)]
extern "C" fn emu_tear_down(crash: c_int) {
    latch::tear_down(if crash == 0 { Manner::Polite } else { Manner::Crash });
}

/// Pretends that other processes use `bytes` of a device's memory.
#[unsafe(no_mangle)]
extern "C" fn emu_set_others_bytes(device: c_int, bytes: u64) -> c_int {
    control(REFUSED, |call| {
        let index = crate::device::index(&call.state, device);
        number(index.map(|index| call.state.devices[index].others_bytes = bytes))
    })
}

/// Copies device memory as it is at this moment, without waiting for anything.
///
/// # Safety
/// `buffer` has `bytes` writable bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn emu_peek(address: u64, buffer: *mut u8, bytes: u64) -> c_int {
    // SAFETY: the caller's promise.
    let into = unsafe { std::slice::from_raw_parts_mut(buffer, bytes as usize) };
    control(REFUSED, |call| number(memory::peek(&call.state, address, into)))
}

/// Where work of a device finds a device address: for host functions that play a kernel. Null before `cuInit`.
#[unsafe(no_mangle)]
extern "C" fn emu_seen_by(device: c_int, address: u64) -> *mut c_void {
    let seen = control(0, |call| {
        let state: &State = &call.state;
        let index = crate::device::index(state, device);
        match (index, &state.space) {
            (Ok(index), Some(space)) => space.seen_by(index, address),
            _ => 0,
        }
    });
    seen as *mut c_void
}

/// Copies a text and its NUL into a buffer, cut to fit, and returns its whole length.
///
/// # Safety
/// `buffer` is null or has `size` writable bytes.
unsafe fn hand_out(text: &str, buffer: *mut c_char, size: u64) -> u64 {
    if !buffer.is_null() && size > 0 {
        let kept = &text.as_bytes()[..text.len().min(size as usize - 1)];
        // SAFETY: the caller's promise; the kept part is shorter than the buffer.
        unsafe { std::ptr::copy_nonoverlapping(kept.as_ptr(), buffer.cast(), kept.len()) };
        // SAFETY: as above, the NUL has its room.
        unsafe { buffer.wrapping_add(kept.len()).write(0) };
    }
    text.len() as u64
}
