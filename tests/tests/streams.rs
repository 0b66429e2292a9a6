//! Short-lived streams, pools and threads: they leave nothing behind, and do not disturb long-lived
//! ones.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DeviceIndex, Error, Fixed, Growable, PoolOptions, Route, RoutePurpose, StreamId,
};
use cachalot_tests::hooked::{Hooked, thread_id};
use cachalot_tests::host::Host;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

const DEVICE: DeviceIndex = DeviceIndex(0);
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Number of streams: so many that a leak of 1 KiB per stream shows.
const MANY: u64 = 20_000;

/// A stream on which blocks of other streams are used.
const SIDE: StreamId = StreamId(u64::MAX / 2);

/// Returns the stream with a number. No stream is special.
fn stream(number: u64) -> StreamId {
    StreamId(0x10_000 + number * 64)
}

/// Returns the resident host memory of the process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("the second number") * 4096
}

/// Serializes the tests that measure the host memory of the process.
static RESIDENT: Mutex<()> = Mutex::new(());

/// Runs an action for each of many streams. Host memory must not grow after the first tenth.
fn come_and_go(host: &Host, each: impl Fn(u64, StreamId)) {
    let _alone = RESIDENT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut before = 0;
    for number in 0..MANY {
        each(number, stream(number));
        if number == MANY / 10 {
            before = resident();
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 12 * MIB, "{grown} bytes of host memory were added");
    host.allocator.check_invariants().unwrap();
}

#[test]
fn a_stream_reported_while_the_program_holds_its_block_leaves_nothing() {
    let host = Host::new("", 64 * GIB);
    come_and_go(&host, |_, stream| {
        let held = host.malloc_on(5000, stream);
        host.allocator.stream_destroyed(DEVICE, stream).unwrap();
        host.free(held);
    });
    assert_eq!(
        host.stat("reserved_bytes.all.current"),
        2 << 20,
        "the last stream's segment goes with the next request"
    );
    host.allocator.free(host.malloc(1)).unwrap();
    assert_eq!(host.stat("segment.all.current"), 1);
}

#[test]
fn a_stream_reported_while_its_block_is_pending_leaves_nothing() {
    let host = Host::new("", 64 * GIB);
    come_and_go(&host, |_, stream| {
        let used = host.malloc_on(5000, stream);
        host.allocator.record_stream(used, SIDE).unwrap();
        host.free(used);
        host.allocator.stream_destroyed(DEVICE, stream).unwrap();
        host.device().complete(SIDE);
        host.allocator.process_events(DEVICE).unwrap();
    });
    assert!(host.stat("segment.all.current") <= 1);
}

#[test]
fn streams_that_nobody_reports_leave_nothing_once_the_cache_is_released() {
    let host = Host::new("", 64 * GIB);
    come_and_go(&host, |number, stream| {
        host.free(host.malloc_on(5000, stream));
        if number.is_multiple_of(100) {
            host.empty_cache();
        }
    });
}

#[test]
fn streams_that_nobody_reports_are_found_by_their_age() {
    let host = Host::new("", 64 * GIB);
    let living = host.malloc_on(5000, SIDE);
    come_and_go(&host, |_, stream| host.free(host.malloc_on(5000, stream)));
    assert!(host.stat("segment.all.current") <= 96, "idle streams' caches are released");
    host.free(living);
}

/// An allocator with all tables inside, created on the stack.
const STACK_BYTES: usize = 64 << 20;

#[test]
fn a_table_of_heaps_full_of_idle_streams_makes_room() {
    let run = thread::Builder::new().stack_size(STACK_BYTES).spawn(fill_the_table_of_heaps).unwrap();
    run.join().unwrap();
}

fn fill_the_table_of_heaps() {
    type Few = Allocator<Hooked, parking_lot::RawMutex, Fixed<1, 8, 64, 64>>;
    let allocator = Few::new([Hooked::new(SimulatedDevice::new(GIB))], &Config::default()).unwrap();
    let held = allocator.malloc(DEVICE, 5000, SIDE).unwrap();
    for number in 0..100 {
        let block = allocator.malloc(DEVICE, 5000, stream(number)).unwrap();
        allocator.free(block).unwrap();
    }
    let all: Vec<_> = (0..100).map_while(|number| allocator.malloc(DEVICE, 5000, stream(number)).ok()).collect();
    assert_eq!(all.len(), 3, "of four pairs one is the living stream's");
    assert_eq!(allocator.malloc(DEVICE, 5000, stream(100)), Err(Error::TableFull("heaps")));
    for block in all.into_iter().chain([held]) {
        allocator.free(block).unwrap();
    }
    allocator.check_invariants().unwrap();
}

#[test]
fn a_request_on_a_stream_that_was_reported_shows_that_it_lives() {
    let host = Host::new("", GIB);
    let (held, stream) = (host.malloc_on(5000, stream(0)), stream(0));
    host.allocator.stream_destroyed(DEVICE, stream).unwrap();
    let again = host.malloc_on(5000, stream);
    host.free(held);
    host.free(again);
    // Its free segment is cached like any other: another stream's request does not release it.
    host.free(host.malloc_on(5000, SIDE));
    assert_eq!(host.stat("segment.all.current"), 2);
    assert_eq!(host.malloc_on(5000, stream), held);
}

#[test]
fn pools_without_users_leave_nothing() {
    let host = Host::new("", 64 * GIB);
    come_and_go(&host, |number, _| {
        let pool = host.allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
        let block = host.malloc(5000);
        host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
        host.free(block);
        for _user in 0..2 {
            host.allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        }
        if number.is_multiple_of(100) {
            host.empty_cache();
        }
    });
    host.empty_cache();
    assert_eq!(host.device().used(), 0);
}

/// Threads with private streams and pools: no action of one thread fails a request of another.
#[test]
fn streams_that_live_are_served_while_others_end() {
    let config = Config::default();
    let allocator =
        Allocator::<_, parking_lot::RawMutex, Growable>::new([Hooked::new(SimulatedDevice::new(64 * GIB))], &config)
            .unwrap();
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..4_u64 {
            let (allocator, failed) = (&allocator, &failed);
            scope.spawn(move || {
                for round in 0..20_000 {
                    if let Err(error) = visit(allocator, number, round) {
                        failed.store(true, Ordering::Relaxed);
                        panic!("thread {number}, round {round}: {error}");
                    }
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
    });
    allocator.check_invariants().unwrap();
}

/// Runs one round of a thread: a request, sometimes a request in a pool, and the end of the stream.
fn visit(allocator: &Allocator<Hooked, parking_lot::RawMutex, Growable>, thread: u64, round: u64) -> Result<(), Error> {
    let stream = stream(thread * 1000 + round % 4);
    let block = allocator.malloc(DEVICE, 4096, stream)?;
    if round.is_multiple_of(8) {
        let pool = allocator.pools(DEVICE)?.create(PoolOptions::default())?;
        allocator.pools(DEVICE)?.begin_route(pool, Route::Thread(thread_id()), RoutePurpose::Requests)?;
        let inside = allocator.malloc(DEVICE, 4096, stream)?;
        allocator.pools(DEVICE)?.end_route(pool, RoutePurpose::Requests)?;
        allocator.free(inside)?;
        allocator.pools(DEVICE)?.release(pool)?;
        allocator.pools(DEVICE)?.release(pool)?;
    }
    allocator.free(block)?;
    allocator.stream_destroyed(DEVICE, stream)?;
    if round.is_multiple_of(16) {
        allocator.empty_cache(DEVICE)?;
    }
    Ok(())
}
