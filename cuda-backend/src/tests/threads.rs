//! Tests of threads over one device: streams end while their numbers are used, several threads
//! announce uses, and memory is parked while memory is given back; without failures and with
//! failures of any call.

use super::*;
use crate::shared_fake::{self, SharedFake};
use cachalot_core::Contents;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::path::Path;
use std::sync::{Mutex, RwLock};

/// The number of streams at a time. A separate thread ends each stream.
const LINES: usize = 3;
/// The number of threads that make calls.
const CALLERS: usize = 3;
/// The number of calls of each thread. Miri takes a thousand times as long.
const CALLS: usize = if cfg!(miri) { 30 } else { 500 };

/// The number of streams on which work is announced. They are so many that events are given up.
const ANNOUNCED: usize = if cfg!(miri) { LINES } else { 200 };

/// A piece of work on the stream with the number.
type Work = (StreamId, (u64, u64));

/// Opens a device over the fake.
fn open(fake: &SharedFake, identity: StreamIdentity) -> CudaDevice {
    let options = DeviceOptions { identity, ..DeviceOptions::default() };
    CudaDevice::open_with(fake.driver, 0, options).expect("opens")
}

/// Creates a stream, and queues work.
fn begin_line(device: &CudaDevice) -> (CuStream, Work) {
    let stream = shared_fake::create();
    let number = device.streams().number(stream).expect("a number");
    (stream, (number, shared_fake::submit(stream)))
}

/// Makes a call for the stream with the number of `work`. Returns whether `work` must be complete
/// now.
fn call(device: &CudaDevice, kind: usize, event: Event, (number, _): Work) -> DeviceResult<bool> {
    match kind % 8 {
        0 | 1 => device.synchronize(number).map(|()| true),
        2 | 3 => device.record(event, number).and_then(|()| device.wait(event)).map(|()| true),
        4 => device.order_behind(number, event).map(|()| false),
        5 => device.is_idle(number).map(|idle| idle == Some(true)),
        6 => device.is_capturing(number).map(|_| false),
        _ => device.mark_capture(number, None).map(|_| false),
    }
}

/// Creates an event for each calling thread, and lets `percent` of the driver calls fail from then
/// on.
fn begin(device: &CudaDevice, percent: u64) -> [Event; CALLERS] {
    let events = [(); CALLERS].map(|()| device.create_event().expect("an event"));
    shared_fake::set_faults(percent);
    events
}

/// Ends the failures, destroys the events and closes the device. Returns the violations, and the
/// number of remaining events.
fn end(device: &CudaDevice, events: [Event; CALLERS]) -> (Vec<String>, usize) {
    shared_fake::set_faults(0);
    events.into_iter().for_each(|event| device.destroy_event(event).expect("destroyed"));
    assert_eq!(device.close(), Ok(()));
    let (violations, [events, ..]) = shared_fake::left();
    (violations, events)
}

/// Ends streams on some threads, each of which reports its own stream, and makes calls on other
/// threads. Returns the number of failed calls.
fn end_streams_beside_calls(device: &CudaDevice, events: [Event; CALLERS]) -> usize {
    let lines: Vec<_> = (0..LINES).map(|_| begin_line(device)).collect();
    let published: Vec<Mutex<Work>> = lines.iter().map(|line| Mutex::new(line.1)).collect();
    let (stop, failed) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (published, (mut stream, (mut number, _))) in published.iter().zip(lines) {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match device.stream_destroyed(stream) {
                        Ok(reported) => assert_eq!(reported, number, "no other thread ends the stream"),
                        Err(_) => continue,
                    }
                    shared_fake::destroy(stream);
                    let next = begin_line(device);
                    (stream, number) = (next.0, next.1.0);
                    *published.lock().expect("no panic") = next.1;
                }
            });
        }
        let callers: Vec<_> = events
            .into_iter()
            .enumerate()
            .map(|(caller, event)| {
                let (published, failed) = (&published, &failed);
                scope.spawn(move || {
                    for round in 0..CALLS {
                        if !shared_fake::is_clean() {
                            break;
                        }
                        let work = *published[(round / 3 + caller) % LINES].lock().expect("no panic");
                        match call(device, round + caller, event, work) {
                            Ok(true) => {
                                assert!(shared_fake::is_complete(work.1), "{round}: the work was not waited for");
                            }
                            Ok(false) => {}
                            Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                        }
                    }
                })
            })
            .collect();
        let done: Vec<_> = callers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(done.iter().all(Result::is_ok), "a call went wrong");
    });
    failed.into_inner()
}

#[test]
fn no_call_uses_a_stream_that_another_thread_has_reported_and_destroyed() {
    let fake = shared_fake::start();
    let device = open(&fake, StreamIdentity::Reported);
    let events = begin(&device, 0);
    assert_eq!(end_streams_beside_calls(&device, events), 0);
    assert_eq!(end(&device, events), (Vec::new(), 0));
}

#[test]
fn no_failure_of_a_call_lets_another_thread_use_a_destroyed_stream() {
    let fake = shared_fake::start();
    for percent in [2, 30] {
        let device = open(&fake, StreamIdentity::Reported);
        let events = begin(&device, percent);
        assert!(end_streams_beside_calls(&device, events) > 0);
        assert_eq!(end(&device, events), (Vec::new(), 0), "{percent} percent");
    }
}

/// Announces work on streams from several threads, while new streams take the handles without a
/// report. Returns the number of failed calls.
fn announce_beside_ends(device: &CudaDevice, events: [Event; CALLERS]) -> usize {
    let lines: Vec<_> = (0..ANNOUNCED).map(|_| RwLock::new(shared_fake::create())).collect();
    let failed = AtomicUsize::new(0);
    let announce = |caller: usize, event: Event, round: usize| -> DeviceResult<()> {
        let line = &lines[(round + caller) % if round.is_multiple_of(2) { LINES } else { ANNOUNCED }];
        if round % 7 == caller {
            // No other thread names the stream.
            let mut stream = line.write().expect("no panic");
            shared_fake::destroy(*stream);
            *stream = shared_fake::create();
        }
        let (number, piece) = {
            let stream = line.read().expect("no panic");
            let piece = shared_fake::submit(*stream);
            (device.stream_in_use(*stream)?, piece)
        };
        device.record_announced(event, number)?;
        if !(round.is_multiple_of(3) && device.is_complete(event)?) {
            device.wait(event)?;
        }
        assert!(shared_fake::is_complete(piece), "{round}: announced work was not waited for");
        Ok(())
    };
    std::thread::scope(|scope| {
        for (caller, event) in events.into_iter().enumerate() {
            let (announce, failed) = (&announce, &failed);
            scope.spawn(move || {
                for round in 0..CALLS {
                    if !shared_fake::is_clean() {
                        break;
                    }
                    failed.fetch_add(usize::from(announce(caller, event, round).is_err()), Ordering::Relaxed);
                }
            });
        }
    });
    failed.into_inner()
}

#[test]
fn announced_work_is_waited_for_whichever_thread_announced_it_first() {
    let fake = shared_fake::start();
    let device = open(&fake, StreamIdentity::Asked);
    let events = begin(&device, 0);
    assert_eq!(announce_beside_ends(&device, events), 0);
    assert_eq!(end(&device, events), (Vec::new(), 0));
}

#[test]
fn announced_work_is_waited_for_also_beside_failures() {
    let fake = shared_fake::start();
    for percent in [2, 30] {
        let device = open(&fake, StreamIdentity::Asked);
        let events = begin(&device, percent);
        assert!(announce_beside_ends(&device, events) > 0);
        assert_eq!(end(&device, events), (Vec::new(), 0), "{percent} percent");
    }
}

/// Parks and wakes a page, and gives up the contents. After a failure, ends the park as the
/// allocator does.
fn park(device: &CudaDevice, pages: u64) -> DeviceResult<()> {
    const PAGE: u64 = 64 << 10;
    let at = DevicePtr(1 << 40);
    let finish = || device.mark().and_then(|mark| device.finish(mark));
    device.prepare(pages * PAGE, PAGE)?;
    let mut saved = Vec::new();
    let result = (0..pages)
        .try_for_each(|_| device.save(at, PAGE).map(|page| saved.push(page)))
        .and_then(|()| finish())
        .and_then(|()| saved.iter().try_for_each(|page| device.restore(*page, at, PAGE)))
        .and_then(|()| finish());
    if result.is_err() {
        // This may fail too, and copies may be in progress.
        let _ = finish();
    }
    saved.into_iter().for_each(|page| device.forget(page));
    device.end_saves();
    result
}

/// Parks on a thread, while others give memory back and wait for copies. `folder` is the folder of
/// the contents.
fn park_beside_give_backs(folder: Option<&Path>) {
    let fake = shared_fake::start();
    for percent in [0, 2, 20] {
        let device = open(&fake, StreamIdentity::Reported);
        device.keep_contents_in(folder.map(Path::to_owned));
        let (stop, failed) = (AtomicBool::new(false), AtomicUsize::new(0));
        shared_fake::set_faults(percent);
        std::thread::scope(|scope| {
            for limit in [0, 1 << 20] {
                let (device, stop) = (&device, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // Memory that cannot be given back is lost.
                        let _ = device.retain_host_memory(limit);
                        if let Ok(mark) = device.mark() {
                            let _ = device.finish(mark);
                        }
                    }
                });
            }
            for round in 0..CALLS as u64 / 3 {
                failed.fetch_add(usize::from(park(&device, 1 + round % 3).is_err()), Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        shared_fake::set_faults(0);
        assert_eq!(failed.into_inner() > 0, percent > 0);
        let closed = device.close();
        // `close` reports a registration that could not be ended.
        assert!(closed.is_ok() || percent > 0, "{closed:?}");
        let (violations, [events, pinned, _]) = shared_fake::left();
        assert_eq!(violations, Vec::<String>::new(), "{percent} percent");
        assert!(percent > 0 || (events, pinned) == (0, 0), "{events} events, {pinned} registrations");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn parks_beside_give_backs_and_failures_use_only_memory_that_is_theirs() {
    park_beside_give_backs(None);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot advise the kernel")]
fn parks_to_files_beside_waits_and_failures_use_only_memory_that_is_theirs() {
    let folder = super::files::folder();
    park_beside_give_backs(Some(folder.path()));
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
}
