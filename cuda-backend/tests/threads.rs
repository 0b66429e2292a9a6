//! Threads over one device, on a real driver or the emulated driver: what one thread works with, no other thread takes
//! away. Which driver, as in `driver.rs`.

use crate::driver::device;
use cachalot_core::{Contents, Segments};
use cachalot_cuda::CudaDevice;
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads that disturb.
const OTHERS: usize = 2;

/// Runs `work` on this thread, while other threads run `disturb` again and again.
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
