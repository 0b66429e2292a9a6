//! Host-decided routes: accepted requests, concurrency with the host's filter, and the inferred
//! purpose.

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{
    Allocator, Config, DeviceIndex, DevicePtr, Error, Growable, PoolId, PoolOptions, Route, RoutePurpose, StreamId,
};
use cachalot_tests::hooked::{Hooked, thread_id};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DEVICE: DeviceIndex = DeviceIndex(0);
const OWN: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);
/// Timeout of the tests: longer than any step takes without a deadlock.
const PATIENCE: Duration = Duration::from_secs(20);

type Host = Allocator<Hooked, parking_lot::RawMutex, Growable>;

fn allocator() -> Host {
    Host::new([Hooked::new(SimulatedDevice::new(1 << 30))], &Config::new()).unwrap()
}

fn device(host: &Host) -> &Hooked {
    host.device(DEVICE).unwrap()
}

fn pool(host: &Host) -> PoolId {
    host.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap()
}

/// Returns the pool of a block.
fn pool_of(host: &Host, block: DevicePtr) -> PoolId {
    let segment = host.base_of(block).unwrap().segment;
    host.snapshot().into_iter().find(|found| found.address == segment).expect("it has a segment").pool
}

/// Records the use of a block on a second stream, then frees the block.
fn free_a_used_block(host: &Host, block: DevicePtr) {
    host.record_stream(block, OTHER).unwrap();
    host.free(block).unwrap();
}

fn recorded(host: &Host) -> u64 {
    device(host).inner.calls(Call::Record)
}

#[test]
fn exactly_the_requests_that_the_host_names_are_led() {
    let host = allocator();
    let (first, second) = (pool(&host), pool(&host));
    device(&host).inner.set_led(1, [OWN]);
    device(&host).inner.set_led(2, [OWN, OTHER]);
    let where_from = |stream| pool_of(&host, host.malloc(DEVICE, 1000, stream).unwrap());
    host.pools(DEVICE).unwrap().begin_route(second, Route::Host(2), RoutePurpose::Undeclared).unwrap();
    assert_eq!((where_from(OWN), where_from(OTHER), where_from(StreamId(3))), (second, second, PoolId::DEFAULT));
    // The later one comes first, and what it leaves is the earlier one's.
    host.pools(DEVICE).unwrap().begin_route(first, Route::Host(1), RoutePurpose::Undeclared).unwrap();
    assert_eq!((where_from(OWN), where_from(OTHER), where_from(StreamId(3))), (first, second, PoolId::DEFAULT));
    assert_eq!(host.pools(DEVICE).unwrap().end_route(second, RoutePurpose::Undeclared), Ok(Route::Host(2)));
    assert_eq!((where_from(OWN), where_from(OTHER)), (first, PoolId::DEFAULT));
    assert_eq!(host.pools(DEVICE).unwrap().end_route(first, RoutePurpose::Undeclared), Ok(Route::Host(1)));
    assert_eq!(host.pools(DEVICE).unwrap().end_route(first, RoutePurpose::Undeclared), Err(Error::NotRouted(first)));
    assert_eq!(where_from(OWN), PoolId::DEFAULT);
}

/// Other requests, and the start and end of routes, proceed while the host decides.
#[test]
fn nobody_waits_for_a_host_that_is_deciding() {
    let host = allocator();
    let (held, other) = (pool(&host), pool(&host));
    let ((asked, is_asked), (go_on, may_go_on)) = (channel(), channel());
    let may_go_on = Mutex::new(may_go_on);
    let slow_thread = Arc::new(AtomicU32::new(0));
    device(&host).on_leads({
        let slow_thread = Arc::clone(&slow_thread);
        move |route, _| {
            if route == 1 && thread_id() as u32 == slow_thread.load(Ordering::Relaxed) {
                asked.send(()).unwrap();
                may_go_on.lock().unwrap().recv_timeout(PATIENCE).expect("the others are not held up");
            }
            route == 1
        }
    });
    host.pools(DEVICE).unwrap().begin_route(held, Route::Host(1), RoutePurpose::Undeclared).unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| {
            slow_thread.store(thread_id() as u32, Ordering::Relaxed);
            pool_of(&host, host.malloc(DEVICE, 1000, OWN).unwrap())
        });
        is_asked.recv_timeout(PATIENCE).expect("the host is asked");
        assert_eq!(pool_of(&host, host.malloc(DEVICE, 1000, OWN).unwrap()), held);
        host.pools(DEVICE)
            .unwrap()
            .begin_route(other, Route::Stream(OTHER), RoutePurpose::Undeclared)
            .unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(pool_of(&host, host.malloc(DEVICE, 1000, OTHER).unwrap()), other);
        host.free(host.malloc(DEVICE, 5000, OWN).unwrap()).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), held);
    });
}

/// A route that ends while its host decides does not affect the request, whatever the answer.
/// Earlier routes still do.
#[test]
fn a_route_that_has_ended_leads_nothing() {
    let host = Arc::new(allocator());
    let (early, late) = (pool(&host), pool(&host));
    let ended = AtomicBool::new(false);
    device(&host).on_leads({
        let host = Arc::downgrade(&host);
        move |route, _| {
            // What another thread might do meanwhile.
            if route == 2 && !ended.swap(true, Ordering::Relaxed) {
                host.upgrade().unwrap().pools(DEVICE).unwrap().end_route(late, RoutePurpose::Undeclared).unwrap();
            }
            true
        }
    });
    host.pools(DEVICE).unwrap().begin_route(early, Route::Host(1), RoutePurpose::Undeclared).unwrap();
    host.pools(DEVICE).unwrap().begin_route(late, Route::Host(2), RoutePurpose::Undeclared).unwrap();
    assert_eq!(pool_of(&host, host.malloc(DEVICE, 1000, OWN).unwrap()), early);
    host.check_invariants().unwrap();
}

/// No event is recorded until a request reveals the purpose of a route, and never if the purpose is
/// a capture.
#[test]
fn a_route_passes_for_a_capture_until_it_leads_what_is_not_captured() {
    let host = allocator();
    let [before, during, after] = [0; 3].map(|_| host.malloc(DEVICE, 1000, OWN).unwrap());
    let led = pool(&host);
    let inner = &device(&host).inner;
    inner.set_led(1, [OWN]);
    host.pools(DEVICE).unwrap().begin_route(led, Route::Host(1), RoutePurpose::Undeclared).unwrap();
    free_a_used_block(&host, before);
    assert_eq!(recorded(&host), 0);
    // A request that is not led says nothing of the route, nor does the question what one would do.
    host.malloc(DEVICE, 1000, OTHER).unwrap();
    host.forecast(DEVICE).unwrap().malloc(1000, OWN).unwrap();
    free_a_used_block(&host, during);
    assert_eq!(recorded(&host), 0);
    inner.set_capturing(OWN, true);
    host.malloc(DEVICE, 1000, OWN).unwrap();
    free_a_used_block(&host, after);
    assert_eq!(recorded(&host), 0, "events are recorded while a graph is captured");
    inner.set_capturing(OWN, false);
    host.pools(DEVICE).unwrap().end_route(led, RoutePurpose::Undeclared).unwrap();
    host.process_events(DEVICE).unwrap();
    assert_eq!(recorded(&host), 3, "what was deferred is made up for");
}

#[test]
fn a_route_that_captures_nothing_defers_nothing() {
    let host = allocator();
    let [early, late] = [0; 2].map(|_| host.malloc(DEVICE, 1000, OWN).unwrap());
    let led = pool(&host);
    device(&host).inner.set_led(1, [OWN]);
    host.pools(DEVICE).unwrap().begin_route(led, Route::Host(1), RoutePurpose::Undeclared).unwrap();
    free_a_used_block(&host, early);
    let asked = || device(&host).inner.calls(Call::IsCapturing);
    host.malloc(DEVICE, 1000, OWN).unwrap();
    assert_eq!(recorded(&host), 1, "the first request that is led shows that no graph is captured");
    let before = asked();
    free_a_used_block(&host, late);
    host.malloc(DEVICE, 1000, OWN).unwrap();
    assert_eq!((recorded(&host), asked()), (2, before));
    // A capture beside it is one still.
    let graph = pool(&host);
    host.pools(DEVICE).unwrap().begin_route(graph, Route::Stream(OTHER), RoutePurpose::Capture).unwrap();
    let block = host.malloc(DEVICE, 1000, OWN).unwrap();
    free_a_used_block(&host, block);
    assert_eq!(recorded(&host), 2);
    host.pools(DEVICE).unwrap().end_route(graph, RoutePurpose::Capture).unwrap();
    host.pools(DEVICE).unwrap().end_route(led, RoutePurpose::Undeclared).unwrap();
}
