//! Pools that lend the pages of their free blocks.

use super::*;
use crate::arena::request::Forecast;
use crate::device::Holder;

/// The policies under which any private pool lends. Under the caching policy, only one with a tag
/// does.
const PAGED: [&str; 2] = ["expandable_segments:True", "policy:stitched"];

/// The stream of the eager phase.
const EAGER: StreamId = StreamId(3);
/// The stream on which graphs run.
const REPLAYS: StreamId = StreamId(4);

/// A captured graph's pool: its name, a block in use, and addresses of freed blocks, which the
/// graph writes to.
struct Graph {
    pool: PoolId,
    output: DevicePtr,
    scratch: Vec<(DevicePtr, u64)>,
}

impl Graph {
    /// Makes a pool for the requests of a capture on stream 1.
    fn capture(allocator: &Simulated, scratch_mib: &[u64]) -> Self {
        let pools = allocator.pools(DEVICE).unwrap();
        let pool = pools.create(PoolOptions::default()).unwrap();
        pools.begin_route(pool, Route::Stream(ONE), RoutePurpose::Capture).unwrap();
        let blocks: Vec<_> =
            scratch_mib.iter().map(|&mib| (allocator.malloc(DEVICE, mib * MIB, ONE).unwrap(), mib * MIB)).collect();
        let output = allocator.malloc(DEVICE, 20 * MIB, ONE).unwrap();
        blocks.iter().for_each(|&(block, _)| allocator.free(block).unwrap());
        pools.end_route(pool, RoutePurpose::Capture).unwrap();
        pools.release(pool).unwrap();
        Self { pool, output, scratch: blocks }
    }

    fn target(&self) -> ParkTarget {
        ParkTarget::Pool(self.pool)
    }

    /// Replays the graph: writes to all its blocks.
    fn replay(&self, allocator: &Simulated, stream: StreamId) {
        reclaim(allocator, self.target(), stream).unwrap();
        self.run(allocator, stream);
    }

    /// Runs the graph without a reclaim.
    fn run(&self, allocator: &Simulated, stream: StreamId) {
        for &(block, bytes) in &self.scratch {
            device(allocator).launch(stream, block, bytes).unwrap();
        }
        device(allocator).launch(stream, self.output, 20 * MIB).unwrap();
    }
}

fn lend(allocator: &Simulated, target: ParkTarget) -> Result<(), Error> {
    let lent = allocator.parking(DEVICE).unwrap().lend(target);
    check(allocator);
    lent
}

fn reclaim(allocator: &Simulated, target: ParkTarget, stream: StreamId) -> Result<(), Error> {
    let reclaimed = allocator.parking(DEVICE).unwrap().reclaim(target, stream);
    check(allocator);
    reclaimed
}

fn report_of(allocator: &Simulated, target: ParkTarget) -> super::super::ParkReport {
    allocator.parking(DEVICE).unwrap().report(target).unwrap()
}

/// Requests a block of the default pool, and queues work on it.
fn eager(allocator: &Simulated, mib: u64) -> DevicePtr {
    let block = allocator.malloc(DEVICE, mib * MIB, EAGER).unwrap();
    check(allocator);
    device(allocator).launch(EAGER, block, mib * MIB).unwrap();
    block
}

#[test]
fn a_lent_pool_serves_others_and_has_its_pages_back_before_the_replay() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let graph = Graph::capture(&allocator, &[60, 40]);
        device(&allocator).write(graph.output, 7);
        let held = device(&allocator).used();
        for round in 0..3 {
            graph.replay(&allocator, REPLAYS);
            lend(&allocator, graph.target()).unwrap();
            assert_eq!(report_of(&allocator, graph.target()).state, ParkState::Lent);
            let block = eager(&allocator, 100);
            assert_eq!(device(&allocator).peak_used(), held, "`{policy}`, round {round}: nothing new is created");
            assert_eq!(report_of(&allocator, graph.target()).parked, 100 * MIB, "`{policy}`");
            assert!(device(&allocator).is_accessible(graph.output, 20 * MIB));
            assert_eq!(device(&allocator).read(graph.output), Some(7), "`{policy}`: a live block stays");
            allocator.free(block).unwrap();
        }
        graph.replay(&allocator, REPLAYS);
        assert_eq!(report_of(&allocator, graph.target()).state, ParkState::Awake);
        assert_eq!(device(&allocator).peak_used(), held, "`{policy}`");
        assert_eq!(allocator.stats(DEVICE).unwrap().leaked_bytes(), 0);
    }
}

#[test]
fn a_loan_that_nobody_needs_calls_nothing_that_maps() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let graph = Graph::capture(&allocator, &[60]);
        graph.replay(&allocator, REPLAYS);
        lend(&allocator, graph.target()).unwrap();
        let calls = |call| device(&allocator).calls(call);
        let before = [Call::Unmap, Call::Map, Call::Create, Call::Synchronize, Call::SynchronizeAll].map(calls);
        graph.replay(&allocator, REPLAYS);
        lend(&allocator, graph.target()).unwrap();
        lend(&allocator, graph.target()).unwrap();
        graph.replay(&allocator, REPLAYS);
        let after = [Call::Unmap, Call::Map, Call::Create, Call::Synchronize, Call::SynchronizeAll].map(calls);
        assert_eq!(before, after, "`{policy}`");
    }
}

#[test]
fn work_of_the_graph_is_complete_before_its_pages_serve_others() {
    // The device refuses to unmap memory that queued work uses, and work that uses memory of other
    // work without an order.
    for policy in PAGED {
        for streams in [[REPLAYS, REPLAYS], [REPLAYS, ONE], [ONE, REPLAYS], [TWO, REPLAYS]] {
            let allocator = allocator(policy);
            let graph = Graph::capture(&allocator, &[60, 40]);
            for _ in 0..2 {
                streams.iter().for_each(|&stream| graph.replay(&allocator, stream));
                lend(&allocator, graph.target()).unwrap();
                let block = eager(&allocator, 80);
                allocator.free(block).unwrap();
            }
            graph.replay(&allocator, streams[0]);
        }
    }
}

#[test]
fn the_first_loan_follows_replays_that_no_reclaim_announced() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let graph = Graph::capture(&allocator, &[60]);
        graph.run(&allocator, REPLAYS);
        lend(&allocator, graph.target()).unwrap();
        let _block = eager(&allocator, 60);
        assert!(report_of(&allocator, graph.target()).parked > 0, "`{policy}`");
    }
}

#[test]
fn a_tag_lends_all_of_its_pools_under_every_policy_that_parks() {
    for policy in POLICIES {
        let allocator = allocator(policy);
        let [first, second] = [(); 2].map(|()| tagged(&allocator));
        let blocks: Vec<_> =
            [first, second].iter().map(|&pool| malloc_in(&allocator, pool, 40, ONE).unwrap()).collect();
        let kept = malloc_in(&allocator, second, 20, ONE).unwrap();
        device(&allocator).write(kept, 5);
        blocks.iter().for_each(|&block| allocator.free(block).unwrap());
        let held = device(&allocator).used();
        lend(&allocator, TARGET).unwrap();
        assert_eq!(malloc_in(&allocator, first, 1, ONE), Err(Error::Parked));
        let big = allocator.malloc(DEVICE, 80 * MIB, TWO).unwrap();
        assert_eq!(device(&allocator).peak_used(), held, "`{policy}`");
        assert_eq!(park(&allocator, ParkMode::Keep).unwrap_err(), Error::ParkingRefused(REFUSED));
        wake(&allocator).unwrap();
        assert_eq!(report(&allocator).state, ParkState::Lent, "a wake leaves it");
        allocator.free(big).unwrap();
        reclaim(&allocator, TARGET, ONE).unwrap();
        assert_eq!((report(&allocator).state, report(&allocator).parked), (ParkState::Awake, 0));
        assert_eq!(device(&allocator).read(kept), Some(5));
        malloc_in(&allocator, first, 1, ONE).unwrap();
        park(&allocator, ParkMode::Keep).unwrap();
        assert_eq!(lend(&allocator, TARGET), Err(Error::Parked));
        assert_eq!(reclaim(&allocator, TARGET, ONE), Err(Error::Parked));
    }
}

/// Why lent memory is not parked.
const REFUSED: &str = "the memory is lent, and must be reclaimed first";

#[test]
fn pools_without_pages_and_the_default_pool_lend_nothing() {
    let allocator = allocator("");
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    let block = malloc_in(&allocator, pool, 40, ONE).unwrap();
    let refused = lend(&allocator, ParkTarget::Pool(pool)).unwrap_err();
    assert_eq!(refused, Error::ParkingRefused("its blocks lie in ordinary segments, not on pages"));
    for target in [ParkTarget::Streams, ParkTarget::LargeOfStreams, ParkTarget::Stream(ONE)] {
        assert_eq!(lend(&allocator, target), Err(Error::ParkingRefused("only private pools lend memory")));
    }
    let unknown = PoolId(9, 9);
    assert_eq!(lend(&allocator, ParkTarget::Pool(unknown)), Err(Error::UnknownPool(unknown)));
    assert!(malloc_in(&allocator, pool, 1, ONE).is_ok(), "a refused pool serves requests");
    allocator.free(block).unwrap();
}

#[test]
fn blocks_freed_during_a_loan_stay_until_the_next_one() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let graph = Graph::capture(&allocator, &[60]);
        lend(&allocator, graph.target()).unwrap();
        // Eager work uses the output after the loan, and the program frees it then.
        device(&allocator).launch(ONE, graph.output, 20 * MIB).unwrap();
        allocator.free(graph.output).unwrap();
        let taken = |mib| {
            let block = eager(&allocator, mib);
            (report_of(&allocator, graph.target()).parked, block)
        };
        let (parked, block) = taken(100);
        assert!(parked <= 60 * MIB, "`{policy}`: {parked}");
        allocator.free(block).unwrap();
        reclaim(&allocator, graph.target(), REPLAYS).unwrap();
        allocator.empty_cache(DEVICE).unwrap();
        lend(&allocator, graph.target()).unwrap();
        assert_eq!(taken(100).0, 80 * MIB, "`{policy}`");
    }
}

#[test]
fn a_reclaim_without_memory_changes_nothing_and_succeeds_later() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let graph = Graph::capture(&allocator, &[100]);
        device(&allocator).write(graph.output, 7);
        graph.replay(&allocator, REPLAYS);
        lend(&allocator, graph.target()).unwrap();
        let [first, second] = [380, 100].map(|mib| eager(&allocator, mib));
        let before = report_of(&allocator, graph.target());
        assert_eq!(before.parked, 100 * MIB, "`{policy}`");
        let failed = reclaim(&allocator, graph.target(), REPLAYS).unwrap_err();
        assert!(matches!(failed, Error::OutOfMemory(_)), "`{policy}`: {failed}");
        assert_eq!(report_of(&allocator, graph.target()), before, "`{policy}`");
        allocator.free(second).unwrap();
        graph.replay(&allocator, REPLAYS);
        assert_eq!(device(&allocator).read(graph.output), Some(7), "`{policy}`");
        allocator.free(first).unwrap();
    }
}

#[test]
fn eight_graphs_fit_where_only_one_does() {
    for policy in PAGED {
        let allocator = allocator(policy);
        // 8 · (100 + 20) MiB do not fit into 512 MiB.
        let mut graphs = Vec::new();
        for _ in 0..8 {
            let graph = Graph::capture(&allocator, &[60, 40]);
            graph.replay(&allocator, REPLAYS);
            lend(&allocator, graph.target()).unwrap();
            // Before a capture, PyTorch gives back what nobody uses. During one, nothing can be
            // waited for.
            allocator.empty_cache(DEVICE).unwrap();
            graphs.push(graph);
        }
        for (number, graph) in (0..).zip(&graphs) {
            device(&allocator).write(graph.output, number);
        }
        for round in 0..16 {
            let graph = &graphs[round * 3 % 8];
            graph.replay(&allocator, REPLAYS);
            lend(&allocator, graph.target()).unwrap();
            allocator.free(eager(&allocator, 60)).unwrap();
        }
        for (number, graph) in (0..).zip(&graphs) {
            assert_eq!(device(&allocator).read(graph.output), Some(number), "`{policy}`");
        }
        let peak = device(&allocator).peak_used() / MIB;
        assert!(peak <= 8 * 20 + 100 + 60 + 40, "`{policy}`: {peak} MiB");
    }
}

#[test]
fn a_capture_neither_lends_nor_waits() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let graph = Graph::capture(&allocator, &[60]);
        graph.replay(&allocator, REPLAYS);
        lend(&allocator, graph.target()).unwrap();
        let pools = allocator.pools(DEVICE).unwrap();
        let other = pools.create(PoolOptions::default()).unwrap();
        pools.begin_route(other, Route::Stream(TWO), RoutePurpose::Capture).unwrap();
        device(&allocator).set_capturing(TWO, true);
        let waits = [Call::Synchronize, Call::SynchronizeAll].map(|call| device(&allocator).calls(call));
        let block = allocator.malloc(DEVICE, 60 * MIB, TWO).unwrap();
        let refused = lend(&allocator, ParkTarget::Pool(other)).unwrap_err();
        assert!(matches!(refused, Error::Device(error) if error.kind == ErrorKind::NotPermittedInCapture));
        assert_eq!([Call::Synchronize, Call::SynchronizeAll].map(|call| device(&allocator).calls(call)), waits);
        assert_eq!(report_of(&allocator, graph.target()).parked, 0, "`{policy}`");
        device(&allocator).set_capturing(TWO, false);
        pools.end_route(other, RoutePurpose::Capture).unwrap();
        allocator.free(block).unwrap();
    }
}

#[test]
fn a_pool_that_ends_while_it_is_lent_leaves_nothing() {
    for policy in PAGED {
        for takes in [false, true] {
            let allocator = allocator(policy);
            let graph = Graph::capture(&allocator, &[60]);
            lend(&allocator, graph.target()).unwrap();
            if takes {
                let block = eager(&allocator, 40);
                allocator.free(block).unwrap();
            }
            allocator.free(graph.output).unwrap();
            allocator.pools(DEVICE).unwrap().release(graph.pool).unwrap();
            allocator.empty_cache(DEVICE).unwrap();
            check(&allocator);
            assert_eq!(device(&allocator).used(), 0, "`{policy}`, {takes}");
            assert!(lend(&allocator, graph.target()).is_err(), "`{policy}`: the pool is gone");
        }
    }
}

#[test]
fn released_caches_include_lent_pages_and_a_range_takes_them() {
    for policy in PAGED {
        let allocator = allocator(policy);
        let graph = Graph::capture(&allocator, &[60]);
        lend(&allocator, graph.target()).unwrap();
        let held = device(&allocator).used();
        let ranges = allocator.ranges(DEVICE).unwrap();
        let range = ranges.reserve(64 * MIB).unwrap();
        ranges.commit(range.range, 0, 20 * MIB, EAGER).unwrap();
        assert!(device(&allocator).peak_used() <= held, "`{policy}`");
        allocator.empty_cache(DEVICE).unwrap();
        check(&allocator);
        assert_eq!(device(&allocator).used(), 40 * MIB, "`{policy}`: the range and the output");
        graph.replay(&allocator, REPLAYS);
        assert_eq!(device(&allocator).used(), held + 20 * MIB, "`{policy}`");
    }
}

#[test]
fn an_address_that_a_forgotten_reclaim_missed_is_explained() {
    let allocator = allocator("expandable_segments:True");
    let graph = Graph::capture(&allocator, &[60]);
    let at = graph.scratch[0].0;
    let holder = |at| allocator.explain(at).map(|explained| explained.holder);
    lend(&allocator, graph.target()).unwrap();
    let _taken = eager(&allocator, 60);
    assert_eq!((holder(at), holder(graph.output)), (Ok(Holder::Borrowers), Ok(Holder::Program)));
    let text = std::format!("{}", allocator.explain(at).unwrap());
    assert!(text.ends_with("memory that its pool has lent and not reclaimed: a graph has run in between."), "{text}");
    assert_eq!(device(&allocator).launch(REPLAYS, at, MIB), Err("work uses memory that is not accessible"));
    graph.replay(&allocator, REPLAYS);
    assert_ne!(holder(at), Ok(Holder::Borrowers));
}

/// The calls to the device that lending and reclaiming make.
const CALLS: [Call; 10] = [
    Call::SynchronizeAll,
    Call::Synchronize,
    Call::IsCapturing,
    Call::CreateEvent,
    Call::Record,
    Call::Unmap,
    Call::Destroy,
    Call::Create,
    Call::Map,
    Call::SetAccess,
];

#[test]
fn a_failure_at_any_call_loses_nothing() {
    for policy in PAGED {
        for kind in [ErrorKind::Other, ErrorKind::OutOfMemory] {
            let mut failures = 0;
            for call in CALLS {
                for nth in 1.. {
                    let allocator = allocator(policy);
                    let graph = Graph::capture(&allocator, &[60, 40]);
                    device(&allocator).write(graph.output, 7);
                    graph.replay(&allocator, TWO);
                    let at = device(&allocator).calls(call) + nth;
                    let error = DeviceError::new(kind, 99);
                    device(&allocator).fail(Failure { call, nth: at, persistent: false, error });
                    let lent = lend(&allocator, graph.target());
                    let state = if lent.is_ok() { ParkState::Lent } else { ParkState::Awake };
                    assert_eq!(report_of(&allocator, graph.target()).state, state, "`{policy}`, {call:?} {nth}");
                    let taken = allocator.malloc(DEVICE, 80 * MIB, EAGER);
                    check(&allocator);
                    if let Ok(block) = taken {
                        device(&allocator).launch(EAGER, block, 80 * MIB).unwrap();
                        allocator.free(block).unwrap();
                    }
                    let reclaimed = reclaim(&allocator, graph.target(), REPLAYS);
                    device(&allocator).clear_failures();
                    let failed = lent.is_err() || taken.is_err() || reclaimed.is_err();
                    failures += u32::from(failed);
                    graph.replay(&allocator, REPLAYS);
                    assert_eq!(device(&allocator).read(graph.output), Some(7), "`{policy}`, {call:?} {nth}");
                    [ONE, TWO, EAGER, REPLAYS].iter().for_each(|&stream| device(&allocator).complete(stream));
                    allocator.free(graph.output).unwrap();
                    allocator.pools(DEVICE).unwrap().release(graph.pool).unwrap();
                    allocator.trim(DEVICE, 0).unwrap();
                    check(&allocator);
                    let leaked = allocator.stats(DEVICE).unwrap().leaked_bytes();
                    assert_eq!(device(&allocator).used(), leaked, "`{policy}`, {call:?} {nth}");
                    if !failed {
                        break;
                    }
                }
            }
            assert!(failures > 8, "`{policy}`: {failures}");
        }
    }
}

#[test]
fn a_forecast_knows_what_a_request_takes_of_lent_memory() {
    for policy in POLICIES {
        for capturing in [false, true] {
            let allocator = allocator(policy);
            // Blocks above 20 MiB have segments of their own, where there are no pages.
            let pool = tagged(&allocator);
            let pools = allocator.pools(DEVICE).unwrap();
            pools.begin_route(pool, Route::Stream(ONE), RoutePurpose::Requests).unwrap();
            let block = allocator.malloc(DEVICE, 60 * MIB, ONE).unwrap();
            device(&allocator).launch(ONE, block, 60 * MIB).unwrap();
            allocator.free(block).unwrap();
            pools.end_route(pool, RoutePurpose::Requests).unwrap();
            allocator.settings(DEVICE).unwrap().set_limit(Some(80 * MIB));
            let forecast = || allocator.forecast(DEVICE).unwrap().malloc(60 * MIB, EAGER).unwrap();
            assert_eq!(forecast(), Forecast::OutOfMemory, "`{policy}`");
            lend(&allocator, TARGET).unwrap();
            device(&allocator).set_capturing(ONE, capturing);
            let forecast = forecast();
            let served = allocator.malloc(DEVICE, 60 * MIB, EAGER);
            assert_eq!(served.is_err(), forecast == Forecast::OutOfMemory, "`{policy}`: {forecast:?}, {served:?}");
            assert_eq!(served.is_err(), capturing, "`{policy}`: nothing waits for a stream that captures");
        }
    }
}

#[test]
fn a_block_of_another_stream_serves_before_lent_pages() {
    let allocator = allocator("policy:stitched,slack:0");
    let graph = Graph::capture(&allocator, &[60]);
    let held = eager(&allocator, 62);
    let kept = allocator.malloc(DEVICE, 2 * MIB, EAGER).unwrap();
    allocator.free(held).unwrap();
    lend(&allocator, graph.target()).unwrap();
    let forecast = allocator.forecast(DEVICE).unwrap().malloc(62 * MIB, TWO).unwrap();
    let block = allocator.malloc(DEVICE, 62 * MIB, TWO).unwrap();
    assert_eq!(forecast, Forecast::Hit(block));
    assert_eq!(report_of(&allocator, graph.target()).parked, 0);
    allocator.free(kept).unwrap();
}
