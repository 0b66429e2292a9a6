//! Streams and events: order, gates, the default streams, reused handles, step mode.

use crate::common::{Emulated, PAGE, in_child, is_child, text};
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers written by host functions of a test, in the order of the calls.
type Notes = Mutex<Vec<u32>>;

/// A host function's argument: the list, and the number to add.
struct Note<'a> {
    notes: &'a Notes,
    number: u32,
}

unsafe extern "C" fn take_note(argument: *mut c_void) {
    // SAFETY: the tests pass a `Note` that lives until the test's streams are synchronized.
    let note = unsafe { &*argument.cast::<Note<'_>>() };
    note.notes.lock().expect("not poisoned").push(note.number);
}

/// Queues a note on a stream.
fn note(driver: &Emulated, stream: u64, note: &Note<'_>) {
    let argument = std::ptr::from_ref(note).cast_mut().cast();
    assert_eq!(driver.cuLaunchHostFunc(stream, take_note, argument), 0);
}

/// Four notes on a list.
fn four(notes: &Notes) -> [Note<'_>; 4] {
    [0, 1, 2, 3].map(|number| Note { notes, number })
}

#[test]
fn the_newer_question_for_a_streams_context_also_answers_the_green_context() {
    let driver = Emulated::new();
    let own = driver.enter(0).expect("a context");
    let stream = driver.stream(1).expect("a stream");
    let (mut context, mut green) = (0, 7);
    assert_eq!(driver.cuStreamGetCtx_v2(stream, &mut context, &raw mut green), 0);
    assert_eq!((context, green), (own, 0));
    assert_eq!(driver.cuStreamGetCtx_v2_ptsz(0, &mut context, std::ptr::null_mut()), 0);
    assert_eq!(context, own);
}

#[test]
fn work_of_a_stream_runs_in_order_and_a_gate_stops_it() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let notes = Notes::default();
    let all = four(&notes);
    driver.control.hold(stream).expect("a stream");
    for one in &all {
        note(&driver, stream, one);
    }
    assert_eq!((driver.cuStreamQuery(stream), driver.control.pending(stream)), (600, 4));
    assert_eq!(notes.lock().expect("not poisoned").len(), 0);
    driver.control.release(stream).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!((driver.cuStreamQuery(stream), driver.control.pending(stream)), (0, 0));
    assert_eq!(*notes.lock().expect("not poisoned"), [0, 1, 2, 3]);
}

#[test]
fn an_event_stands_for_what_was_queued_before_it() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let event = driver.event().expect("an event");
    assert_eq!((driver.cuEventQuery(event), driver.cuEventSynchronize(event)), (0, 0));
    driver.control.hold(stream).expect("a stream");
    assert_eq!((driver.cuEventRecord(event, stream), driver.cuEventQuery(event)), (0, 600));
    driver.control.release(stream).expect("a stream");
    assert_eq!((driver.cuEventSynchronize(event), driver.cuEventQuery(event)), (0, 0));
    driver.control.hold(stream).expect("a stream");
    assert_eq!(driver.cuLaunchHostFunc(stream, ignore, std::ptr::null_mut()), 0);
    assert_eq!(driver.cuEventQuery(event), 0);
    assert_eq!((driver.cuEventRecord(event, stream), driver.cuEventQuery(event)), (0, 600));
    driver.control.release(stream).expect("a stream");
    assert_eq!((driver.cuStreamSynchronize(stream), driver.cuEventDestroy_v2(event)), (0, 0));
    assert_eq!((driver.cuEventDestroy_v2(event), driver.cuEventQuery(event)), (400, 400));
}

unsafe extern "C" fn ignore(_argument: *mut c_void) {}

#[test]
fn streams_run_side_by_side_and_wait_for_each_others_events() {
    let driver = Emulated::new();
    let (first, second) = (driver.stream(1).expect("a stream"), driver.stream(1).expect("a stream"));
    let event = driver.event().expect("an event");
    let notes = Notes::default();
    let all = four(&notes);
    driver.control.hold(first).expect("a stream");
    note(&driver, first, &all[0]);
    assert_eq!(driver.cuEventRecord(event, first), 0);
    note(&driver, second, &all[1]);
    assert_eq!(driver.cuStreamSynchronize(second), 0);
    assert_eq!(*notes.lock().expect("not poisoned"), [1]);
    assert_eq!(driver.cuStreamWaitEvent(second, event, 0), 0);
    note(&driver, second, &all[2]);
    assert_eq!(driver.cuStreamQuery(second), 600);
    // The wait is for the recorded point, not for a later record, and outlives the event.
    assert_eq!((driver.cuEventRecord(event, second), driver.cuEventDestroy_v2(event)), (0, 0));
    driver.control.release(first).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(second), 0);
    assert_eq!(*notes.lock().expect("not poisoned"), [1, 0, 2]);
    assert_eq!(driver.cuStreamWaitEvent(second, event, 0), 400);
}

#[test]
fn the_legacy_stream_is_a_barrier_for_blocking_streams_only() {
    let driver = Emulated::new();
    let (blocking, free) = (driver.stream(0).expect("a stream"), driver.stream(1).expect("a stream"));
    let notes = Notes::default();
    let all = four(&notes);
    driver.control.hold(blocking).expect("a stream");
    note(&driver, blocking, &all[0]);
    note(&driver, 0, &all[1]);
    note(&driver, free, &all[2]);
    assert_eq!(driver.cuStreamSynchronize(free), 0);
    assert_eq!((driver.cuStreamQuery(0), driver.cuStreamQuery(1)), (600, 600));
    // The per-thread stream is a blocking stream, so `all[3]` comes after the legacy stream's
    // work.
    note(&driver, 2, &all[3]);
    assert_eq!(driver.cuStreamQuery(2), 600);
    driver.control.release(blocking).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(2), 0);
    assert_eq!(*notes.lock().expect("not poisoned"), [2, 0, 1, 3]);
}

#[test]
fn an_event_on_the_legacy_stream_covers_other_threads_streams() {
    let driver = Emulated::new();
    let event = driver.event().expect("an event");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            driver.enter(0).expect("a context");
            driver.control.hold(2).expect("a stream");
            assert_eq!(driver.cuLaunchHostFunc(2, ignore, std::ptr::null_mut()), 0);
            let id = driver.stream_id(2);
            while driver.count("events") == 1 {
                std::thread::yield_now();
            }
            driver.control.release(2).expect("a stream");
            id
        });
        while driver.control.calls("cuLaunchHostFunc") == 0 {
            std::thread::yield_now();
        }
        assert_eq!((driver.cuEventRecord(event, 0), driver.cuEventQuery(event)), (0, 600));
        let signal = driver.event().expect("an event");
        assert_ne!(other.join().expect("joined"), driver.stream_id(2));
        assert_eq!((driver.cuEventSynchronize(event), driver.cuEventDestroy_v2(signal)), (0, 0));
    });
}

#[test]
fn a_destroyed_streams_handle_returns_with_another_identity() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let identity = driver.stream_id(stream);
    assert_eq!(driver.cuStreamDestroy_v2(stream), 0);
    assert_eq!((driver.cuStreamDestroy_v2(stream), driver.cuStreamQuery(stream)), (400, 400));
    assert_eq!(driver.stream(1), Ok(stream));
    assert_ne!(driver.stream_id(stream), identity);
    driver.control.set_quarantine(true);
    assert_eq!(driver.cuStreamDestroy_v2(stream), 0);
    assert_ne!(driver.stream(1), Ok(stream));
}

#[test]
fn a_destroyed_stream_does_its_work_first() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let notes = Notes::default();
    let all = four(&notes);
    let event = driver.event().expect("an event");
    driver.control.set_delay_us(2000);
    note(&driver, stream, &all[0]);
    assert_eq!((driver.cuEventRecord(event, stream), driver.cuStreamDestroy_v2(stream)), (0, 0));
    assert_eq!(driver.cuEventSynchronize(event), 0);
    assert_eq!(*notes.lock().expect("not poisoned"), [0]);
}

#[test]
fn a_threads_own_stream_ends_with_the_thread_once_its_work_is_done() {
    let driver = Emulated::new();
    let notes = Notes::default();
    let all = four(&notes);
    let event = driver.event().expect("an event");
    driver.control.set_delay_us(2000);
    for part in &all {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                driver.enter(0).expect("a context");
                note(&driver, 2, part);
                assert_eq!(driver.cuEventRecord(event, 2), 0);
            });
        });
        assert_eq!(driver.cuEventSynchronize(event), 0);
    }
    assert_eq!(*notes.lock().expect("not poisoned"), [0, 1, 2, 3]);
    // The end of a scope waits for the work of the threads, but not for destructors of
    // thread-local values.
    while driver.count("own_streams") > 0 {
        std::thread::yield_now();
    }
}

unsafe extern "C" fn call_driver(argument: *mut c_void) {
    // SAFETY: the test passes a `Try` that lives until the stream is synchronized.
    let attempt = unsafe { &*argument.cast::<Try<'_>>() };
    attempt.answer.store(attempt.driver.cuMemAlloc_v2(&mut 0, 1), Ordering::SeqCst);
}

/// A driver call to be made from a host function.
struct Try<'a> {
    driver: &'a Emulated,
    answer: AtomicU32,
}

#[test]
fn host_functions_may_not_call_the_driver() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let attempt = Try { driver: &driver, answer: AtomicU32::new(0) };
    let argument = std::ptr::from_ref(&attempt).cast_mut().cast();
    assert_eq!(driver.cuLaunchHostFunc(stream, call_driver, argument), 0);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(attempt.answer.load(Ordering::SeqCst), 800);
}

/// Returns the order in which step mode runs notes of four streams, three each.
fn stepped(seed: u64) -> Vec<u32> {
    let driver = Emulated::new();
    driver.control.set_step(true).expect("nothing queued");
    driver.control.set_seed(seed);
    let streams = [(); 4].map(|()| driver.stream(1).expect("a stream"));
    let notes = Notes::default();
    let all: Vec<Note<'_>> = (0..12).map(|number| Note { notes: &notes, number }).collect();
    all.iter().enumerate().for_each(|(index, one)| note(&driver, streams[index % 4], one));
    assert_eq!(driver.cuCtxSynchronize(), 0);
    assert_eq!(driver.control.step(1), 0);
    notes.into_inner().expect("not poisoned")
}

#[test]
fn step_mode_repeats_itself_for_equal_seeds_and_keeps_each_streams_order() {
    let orders: Vec<Vec<u32>> = (0..8).map(stepped).collect();
    assert_eq!(orders[3], stepped(3));
    assert!(orders.iter().any(|order| *order != orders[0]));
    for order in &orders {
        for stream in 0..4 {
            let own: Vec<u32> = order.iter().copied().filter(|number| number % 4 == stream).collect();
            assert_eq!(own, [stream, stream + 4, stream + 8]);
        }
    }
}

#[test]
fn step_mode_repeats_the_whole_log() {
    let test = "step_mode_repeats_the_whole_log";
    if is_child(test) {
        let driver = Emulated::new();
        let streams = [(); 3].map(|()| driver.stream(1).expect("a stream"));
        let event = driver.event().expect("an event");
        for round in 0..30 {
            let address = driver.alloc(512 << (round % 14)).expect("memory");
            let stream = streams[round % 3];
            assert_eq!(driver.cuMemsetD8Async(address, 1, 512, stream), 0);
            assert_eq!(driver.cuEventRecord(event, stream), 0);
            // The seed decides how often the event is not ready.
            while driver.cuEventQuery(event) == 600 {}
            assert_eq!(driver.cuMemFree_v2(address), 0);
        }
        for entry in driver.control.log() {
            println!("call {} {} {}", entry["fn"], entry["out"], entry["result"]);
        }
        return;
    }
    let run = |seed| {
        let output = in_child(test, &[("CACHALOT_EMU_STEP", "1"), ("CACHALOT_EMU_SEED", seed)]);
        assert!(output.status.success(), "{}", text(&output));
        let calls: Vec<String> =
            text(&output).lines().filter(|line| line.starts_with("call")).map(str::to_owned).collect();
        assert!(calls.len() > 120);
        calls
    };
    let first = run("5");
    assert_eq!(first, run("5"));
    assert_ne!(first, run("6"));
}

#[test]
fn step_mode_runs_nothing_outside_driver_calls() {
    let driver = Emulated::new();
    driver.control.set_step(true).expect("nothing queued");
    let stream = driver.stream(1).expect("a stream");
    driver.control.hold(stream).expect("a stream");
    let notes = Notes::default();
    let all = four(&notes);
    for one in &all {
        note(&driver, stream, one);
    }
    assert_eq!(driver.control.set_step(false).map_err(|why| why.0), Err(-1));
    driver.control.release(stream).expect("a stream");
    assert_eq!(driver.control.pending(stream), 4);
    assert_eq!((driver.control.step(3), driver.control.pending(stream)), (3, 1));
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(*notes.lock().expect("not poisoned"), [0, 1, 2, 3]);
}

#[test]
fn many_threads_and_streams_keep_their_bytes() {
    let driver = Emulated::new();
    driver.control.set_delay_us(50);
    std::thread::scope(|scope| {
        for value in 1..=8_u8 {
            let driver = &driver;
            scope.spawn(move || {
                driver.enter(0).expect("a context");
                let stream = driver.stream(u32::from(value % 2)).expect("a stream");
                for _ in 0..20 {
                    let address = driver.alloc(PAGE / 64).expect("memory");
                    assert_eq!(driver.cuMemsetD8Async(address, value, PAGE / 64, stream), 0);
                    let mut last = [0_u8; 16];
                    let from = address + PAGE as u64 / 64 - 16;
                    assert_eq!(driver.cuMemcpyDtoHAsync_v2(last.as_mut_ptr().cast(), from, 16, stream), 0);
                    assert_eq!(last, [value; 16]);
                    assert_eq!(driver.cuMemFree_v2(address), 0);
                }
                assert_eq!(driver.cuStreamDestroy_v2(stream), 0);
            });
        }
    });
    assert_eq!((driver.count("allocations"), driver.count("streams")), (0, 0));
}

#[test]
fn an_event_for_other_processes_is_not_captured() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let mut events = [0; 2];
    for (event, flags) in events.iter_mut().zip([2, 6]) {
        assert_eq!(driver.cuEventCreate(event, flags), 0);
    }
    assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
    assert_eq!(events.map(|event| driver.cuEventRecord(event, stream)), [0, 900]);
    let mut graph = 0;
    assert_eq!(driver.cuStreamEndCapture(stream, &mut graph), 0, "the capture went on");
    assert_eq!(events.map(|event| driver.cuEventQuery(event)), [1, 0], "the second was not recorded");
    assert_eq!(events.map(|event| driver.cuEventRecord(event, stream)), [0, 0]);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(events.map(|event| driver.cuEventQuery(event)), [0, 0]);
}

#[test]
fn events_with_timing_tell_the_time_between_them() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let event = |flags| {
        let mut event = 0;
        assert_eq!(driver.cuEventCreate(&mut event, flags), 0);
        event
    };
    let (from, to, without) = (event(0), event(0), event(2));
    let mut milliseconds = -1.0;
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, from, to), 400);
    assert_eq!(driver.cuEventRecord(from, stream), 0);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    driver.control.hold(stream).expect("a stream");
    assert_eq!((driver.cuEventRecord(to, stream), driver.cuEventRecord(without, stream)), (0, 0));
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, from, to), 600);
    std::thread::sleep(std::time::Duration::from_millis(20));
    driver.control.release(stream).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, from, to), 0);
    assert!((20.0..20_000.0).contains(&milliseconds), "{milliseconds}");
    let there = milliseconds;
    assert_eq!((driver.cuEventElapsedTime(&mut milliseconds, to, from), milliseconds), (0, -there));
    assert_eq!(driver.cuEventElapsedTime(&mut milliseconds, from, without), 400);
}

#[test]
fn a_streams_flags_and_priority_are_told() {
    let driver = Emulated::new();
    let (mut least, mut greatest) = (7, 7);
    assert_eq!(driver.cuCtxGetStreamPriorityRange(&mut least, &mut greatest), 0);
    assert!(greatest < least && least == 0);
    for (wanted, kept) in [(least, least), (greatest, greatest), (greatest - 9, greatest), (least + 9, least)] {
        let (mut stream, mut priority, mut flags) = (0, 7, 7);
        assert_eq!(driver.cuStreamCreateWithPriority(&mut stream, 1, wanted), 0);
        assert_eq!((driver.cuStreamGetPriority(stream, &mut priority), priority), (0, kept));
        assert_eq!((driver.cuStreamGetFlags(stream, &mut flags), flags), (0, 1));
    }
    let mut flags = 7;
    assert_eq!((driver.cuStreamGetFlags(0, &mut flags), flags), (0, 0));
}

#[test]
fn a_copy_finds_its_direction_by_the_addresses() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let (left, right) = (driver.alloc(4).expect("memory"), driver.alloc(4).expect("memory"));
    let (from, mut to, mut copy) = ([1_u8, 2, 3, 4], [0_u8; 4], [0_u8; 4]);
    let (host, back, last) = (from.as_ptr() as u64, to.as_mut_ptr() as u64, copy.as_mut_ptr() as u64);
    assert_eq!(driver.cuMemcpyAsync(left, host, 4, stream), 0);
    assert_eq!(driver.cuMemcpyAsync(right, left, 4, stream), 0);
    assert_eq!(driver.cuMemcpyAsync(back, right, 4, stream), 0);
    assert_eq!(driver.cuMemcpyAsync(last, back, 4, stream), 0);
    assert_eq!((to, copy), (from, from));
    assert_eq!(driver.cuMemcpyAsync(left, 0, 4, stream), 1);
    assert_eq!(driver.cuMemcpyAsync(0, 0, 0, stream), 0);
}

/// Calls with the handle of a destroyed object in a child, in strict mode or not. Returns the
/// output of the child.
#[track_caller]
fn with_destroyed(test: &str, strict: bool, call: impl FnOnce(&Emulated, u64, u64) -> u32) -> String {
    if is_child(test) {
        let driver = Emulated::new();
        let (stream, event) = (driver.stream(1).expect("a stream"), driver.event().expect("an event"));
        driver.control.set_strict(strict);
        assert_eq!((driver.cuEventDestroy_v2(event), driver.cuStreamDestroy_v2(stream)), (0, 0));
        if strict {
            assert_ne!((driver.stream(1), driver.event()), (Ok(stream), Ok(event)));
        }
        println!("answered {}", call(&driver, stream, event));
        std::process::exit(0);
    }
    text(&in_child(test, &[]))
}

#[test]
fn a_destroyed_streams_handle_ends_the_process_in_strict_mode() {
    let test = "a_destroyed_streams_handle_ends_the_process_in_strict_mode";
    let said = with_destroyed(test, true, |driver, stream, _| driver.cuStreamIsCapturing(stream, &mut 0));
    let line = "emulated driver: cuStreamIsCapturing was given the destroyed stream 0x";
    assert!(said.contains(line) && !said.contains("answered"), "{said}");
}

#[test]
fn a_destroyed_events_handle_ends_the_process_in_strict_mode() {
    let test = "a_destroyed_events_handle_ends_the_process_in_strict_mode";
    let said = with_destroyed(test, true, |driver, _, event| driver.cuEventQuery(event));
    let line = "emulated driver: cuEventQuery was given the destroyed event 0x";
    assert!(said.contains(line) && !said.contains("answered"), "{said}");
}

#[test]
fn handles_that_never_were_have_a_code_in_strict_mode() {
    let test = "handles_that_never_were_have_a_code_in_strict_mode";
    let said = with_destroyed(test, true, |driver, _, _| driver.cuEventQuery(4096));
    assert!(said.contains("answered 400"), "{said}");
}

#[test]
fn a_destroyed_handle_has_a_code_without_strict_mode() {
    let test = "a_destroyed_handle_has_a_code_without_strict_mode";
    let said = with_destroyed(test, false, |driver, stream, _| driver.cuStreamQuery(stream));
    assert!(said.contains("answered 400"), "{said}");
}
