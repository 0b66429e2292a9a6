//! Pools that change during a request or a release. A request is served by its own pool, and a
//! graph keeps its memory. The device acts as another thread, in the middle of the call.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Allocator, Config, DeviceIndex, DevicePtr, Growable, PoolId, PoolOptions, Route, RoutePurpose, StreamId,
};
use cachalot_tests::hooked::Hooked;
use parking_lot::RawMutex;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(7);
/// The stream of graph captures.
const CAPTURING: StreamId = StreamId(9);
const MIB: u64 = 1 << 20;

type Core = Allocator<Hooked, RawMutex, Growable>;

/// Creates an allocator with the life of the process, so that the device can call back.
fn core() -> &'static Core {
    let device = Hooked::new(SimulatedDevice::new(1 << 30));
    Box::leak(Box::new(Core::new([device], &Config::default()).unwrap()))
}

/// Creates a pool and begins a route for the stream.
fn open(core: &Core) -> PoolId {
    let pool = core.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    core.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(STREAM), RoutePurpose::Requests).unwrap();
    pool
}

/// Ends the route and removes both users of the pool.
fn close(core: &Core, pool: PoolId) {
    core.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    release(core, pool);
}

/// Removes both users of a pool: the creator and the route.
fn release(core: &Core, pool: PoolId) {
    core.pools(DEVICE).unwrap().release(pool).unwrap();
    core.pools(DEVICE).unwrap().release(pool).unwrap();
}

/// Captures a graph with one block, freed during the capture.
fn capture(core: &Core, bytes: u64) -> (PoolId, DevicePtr) {
    let pool = core.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    core.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(CAPTURING), RoutePurpose::Capture).unwrap();
    let ptr = core.malloc(DEVICE, bytes, CAPTURING).unwrap();
    core.free(ptr).unwrap();
    core.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    (pool, ptr)
}

/// Returns the pool with the memory at an address; `None` after a release.
fn holder(core: &Core, ptr: DevicePtr) -> Option<PoolId> {
    let holds = |address: DevicePtr, bytes| (0..bytes).contains(&ptr.0.wrapping_sub(address.0));
    core.snapshot().into_iter().find(|segment| holds(segment.address, segment.total_size)).map(|segment| segment.pool)
}

/// Requests a block on [`STREAM`] with a route into a pool that closes before the segment is
/// allocated. `then` runs after the close.
fn malloc_from_a_pool_that_closes(core: &'static Core, mut then: impl FnMut() + Send + 'static) -> (PoolId, DevicePtr) {
    let pool = open(core);
    let mut left = Some(pool);
    core.device(DEVICE).unwrap().on_shortage(move |_| {
        if let Some(pool) = left.take() {
            close(core, pool);
            then();
        }
        false
    });
    (pool, core.malloc(DEVICE, 512, STREAM).unwrap())
}

#[test]
fn a_request_is_served_by_the_pool_that_it_was_led_into() {
    let core = core();
    let (pool, ptr) = malloc_from_a_pool_that_closes(core, || {});
    let (graph, used) = capture(core, 512);
    assert_eq!(core.base_of(ptr).unwrap().stream, STREAM);
    assert_eq!((holder(core, ptr), holder(core, used)), (Some(pool), Some(graph)));
    core.free(ptr).unwrap();
    release(core, graph);
    core.empty_cache(DEVICE).unwrap();
    assert_eq!((core.snapshot(), core.check_invariants()), (Vec::new(), Ok(())));
}

#[test]
fn a_request_does_not_end_in_the_pool_of_a_graph_that_came_later() {
    let core = core();
    let (pool, ptr) = malloc_from_a_pool_that_closes(core, || {
        capture(core, 512);
    });
    assert_eq!(core.base_of(ptr).unwrap().stream, STREAM);
    assert_eq!(holder(core, ptr), Some(pool));
    core.free(ptr).unwrap();
    core.check_invariants().unwrap();
}

#[test]
fn a_release_does_not_go_on_in_the_pool_of_a_graph_that_came_later() {
    let core = core();
    let pool = open(core);
    let ptr = core.malloc(DEVICE, 3 * MIB, STREAM).unwrap();
    core.free(ptr).unwrap();
    close(core, pool);
    let graph = std::sync::Arc::new(std::sync::Mutex::new(None));
    let made = std::sync::Arc::clone(&graph);
    core.device(DEVICE).unwrap().on_release(move || {
        // The pool that is being released has nothing left, and the end of any pool has it
        // forgotten.
        close(core, open(core));
        *made.lock().unwrap() = Some(capture(core, 64 * MIB));
    });
    core.empty_cache(DEVICE).unwrap();
    let (pool, used) = graph.lock().unwrap().expect("the pool's memory was released");
    assert_eq!(holder(core, used), Some(pool), "a graph's memory was given back");
    release(core, pool);
    core.empty_cache(DEVICE).unwrap();
    assert_eq!((core.snapshot(), core.check_invariants()), (Vec::new(), Ok(())));
}
