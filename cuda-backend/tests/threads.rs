//! Tests of threads over one device, on a real driver or the emulated driver (see `driver.rs`): no
//! thread takes away a resource in use by another thread.

use crate::driver::{Gate, destroy, device, stream};
use cachalot_core::{Contents, Segments, StreamId, StreamOrder};
use cachalot_cuda::CudaDevice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of disturbing threads.
const OTHERS: usize = 2;

/// Runs `work` on the calling thread, while other threads run `disturb` again and again.
fn beside<T>(disturb: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..OTHERS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    disturb();
                    std::thread::yield_now();
                }
            });
        }
        // A failed assertion in `work` must not leave the threads running.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn parks_keep_their_host_memory_while_other_threads_give_host_memory_back() {
    let Some((device, _turn)) = device("parks beside threads on a driver") else { return };
    let page = 2 << 20;
    let segment = device.obtain(page).expect("memory");
    let park = |device: &CudaDevice, pages: u64| {
        device.prepare(pages * page, page).expect("prepared");
        std::thread::yield_now();
        let saved: Vec<_> = (0..pages).map(|_| device.save(segment, page).expect("saved")).collect();
        let mark = device.mark().expect("marked");
        device.finish(mark).expect("copied");
        device.end_saves();
        saved
    };
    let give_back = || device.retain_host_memory(0).expect("given back");
    beside(give_back, || {
        for round in 0..60 {
            let first = park(&device, 1);
            for saved in park(&device, 2 + round % 3).into_iter().chain(first) {
                device.restore(saved, segment, page).expect("copied back");
                let mark = device.mark().expect("marked");
                // Two threads may wait for one mark.
                std::thread::scope(|scope| {
                    scope.spawn(|| device.finish(mark).expect("copied back"));
                    device.finish(mark).expect("copied back");
                });
                device.forget(saved);
            }
        }
    });
    assert_eq!(device.host_memory_for_contents(), (0, 0));
    device.release(segment, page).expect("released");
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn the_end_of_a_stream_is_reported_while_another_thread_waits_for_its_work() {
    let Some((device, _turn)) = device("reports beside waits on a driver") else { return };
    let waits: [fn(&CudaDevice, StreamId); 2] = [
        |device, number| device.synchronize(number).expect("waited"),
        |device, number| {
            let event = device.create_event().expect("an event");
            device.record(event, number).expect("recorded");
            device.wait(event).expect("waited");
            device.destroy_event(event).expect("destroyed");
        },
    ];
    for wait in waits {
        let stream = stream(&device);
        let number = device.stream_id(stream).expect("a number");
        let gate = Gate::close(&device, stream);
        let opened = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait(&device, number);
                assert!(opened.load(Ordering::Acquire), "the stream's work was not waited for");
            });
            std::thread::sleep(Duration::from_millis(20));
            // The work waits for this thread. A report that waited for the work would never end.
            assert_eq!(device.stream_destroyed(stream), Ok(number));
            destroy(&device, stream);
            opened.store(true, Ordering::Release);
            gate.open();
        });
    }
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn streams_end_while_other_threads_use_their_numbers() {
    let Some((device, _turn)) = device("ends of streams beside threads on a driver") else { return };
    let first = stream(&device);
    let published = Mutex::new(device.stream_id(first).expect("a number"));
    let call = || {
        let number = *published.lock().expect("no panic");
        let event = device.create_order_event().expect("an event");
        device.record(event, number).expect("recorded");
        device.wait(event).expect("waited");
        device.order_behind(number, event).expect("ordered");
        device.synchronize(number).expect("waited");
        device.is_idle(number).expect("asked");
        assert_eq!(device.is_capturing(number), Ok(false));
        assert_eq!(device.mark_capture(number, None), Ok(None));
        device.destroy_event(event).expect("destroyed");
    };
    let last = beside(call, || {
        let mut ending = first;
        for _ in 0..300 {
            device.stream_destroyed(ending).expect("reported");
            destroy(&device, ending);
            ending = stream(&device);
            *published.lock().expect("no panic") = device.stream_id(ending).expect("a number");
            std::thread::yield_now();
        }
        ending
    });
    destroy(&device, last);
    assert_eq!(device.close(), Ok(()));
}
