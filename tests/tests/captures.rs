//! Captures that begin while other threads free blocks.

use cachalot_core::pool::{PoolOptions, Route};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::storage::Growable;
use cachalot_core::units::{DeviceIndex, StreamId};
use cachalot_core::{Allocator, Config};
use cachalot_tests::hooked::Hooked;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// Long enough for a capture that does not wait to have begun.
const A_WHILE: Duration = Duration::from_millis(50);

/// A free that has found that no graph is being captured, and records an event, is over before a capture begins.
#[test]
fn a_capture_begins_when_no_event_is_being_recorded_any_more() {
    let device = Hooked::new(SimulatedDevice::new(1 << 30));
    let allocator = Allocator::<_, parking_lot::RawMutex, Growable>::new([device], &Config::new()).unwrap();
    let pool = allocator.create_pool(DEVICE, PoolOptions::default()).unwrap();
    let block = allocator.malloc(DEVICE, 1000, StreamId(1)).unwrap();
    allocator.record_stream(block, StreamId(2)).unwrap();
    let recorded = Arc::new(AtomicBool::new(false));
    let (about_to_record, told) = channel();
    allocator.device(DEVICE).unwrap().on_record({
        let recorded = Arc::clone(&recorded);
        move || {
            about_to_record.send(()).unwrap();
            std::thread::sleep(A_WHILE);
            recorded.store(true, Ordering::SeqCst);
        }
    });
    std::thread::scope(|scope| {
        let freeing = scope.spawn(|| allocator.free(block));
        told.recv().unwrap();
        allocator.begin_capture(DEVICE, pool, Route::All).unwrap();
        assert!(recorded.load(Ordering::SeqCst), "the capture began while an event was being recorded");
        freeing.join().unwrap().unwrap();
    });
    // What is freed from here on waits for the end of the capture.
    let block = allocator.malloc(DEVICE, 1000, StreamId(1)).unwrap();
    allocator.record_stream(block, StreamId(2)).unwrap();
    allocator.free(block).unwrap();
    allocator.end_capture(DEVICE, pool).unwrap();
    allocator.check_invariants().unwrap();
}
