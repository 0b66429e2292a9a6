//! Pages that move between heaps while work uses them: no byte is under two blocks, no block moves,
//! work that meets on physical memory is ordered, and no memory in use is unmapped.

use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use cachalot_core::simulated::{Call, Failure, Outstanding, SimulatedDevice};
use cachalot_core::{
    Action, Allocator, Config, DeviceError, DeviceResult, Error, ErrorKind, Forecast, Growable, PoolOptions, Route,
    RoutePurpose, Segments, StreamId,
};
use cachalot_tests::consistency;
use cachalot_tests::failures;
use cachalot_tests::hooked::Hooked;
use cachalot_tests::host::{DEVICE, MIB};
use cachalot_tests::policies::policies;
use cachalot_tests::strategies::proptest_config;
use cachalot_tests::working::{Step, Working};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Streams of the generated programs.
const STREAMS: u64 = 4;

/// Capacity of the device: small, so that programs run out of memory.
const CAPACITY: u64 = 256 * MIB;

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAMS;
    let bytes = prop_oneof![
        2 => 1..MIB,
        3 => MIB..6 * MIB,
        4 => 6 * MIB..40 * MIB,
        1 => 40 * MIB..200 * MIB,
    ];
    prop_oneof![
        30 => (bytes, stream()).prop_map(|(bytes, stream)| Step::Malloc { bytes, stream }),
        10 => any::<usize>().prop_map(|block| Step::Work { block }),
        5 => (any::<usize>(), stream()).prop_map(|(block, stream)| Step::Share { block, stream }),
        28 => any::<usize>().prop_map(|block| Step::Free { block }),
        3 => stream().prop_map(|stream| Step::Complete { stream }),
        5 => stream().prop_map(|stream| Step::CompleteOne { stream }),
        2 => (stream(), any::<bool>()).prop_map(|(stream, on)| Step::Capturing { stream, on }),
        1 => Just(Step::EmptyCache),
        1 => (0..200_u64).prop_map(|keep_mib| Step::Trim { keep_mib }),
        3 => (0..2000_u64).prop_map(|us| Step::Maintain { us }),
        1 => prop::option::of(0..100_u64).prop_map(|above_mib| Step::Limit { above_mib }),
        1 => stream().prop_map(|stream| Step::StreamDestroyed { stream }),
        2 => any::<usize>().prop_map(|block| Step::Export { block }),
    ]
}

fn hold(policy: &str, program: &[Step]) -> Result<(), String> {
    let mut working = Working::new(policy, CAPACITY);
    for (number, step) in program.iter().enumerate() {
        let taken = working.take(step);
        working.judge(taken).map_err(|why| format!("`{policy}`, step {number}, {step:?}: {why}"))?;
    }
    working.finish().map_err(|why| format!("`{policy}`: {why}"))
}

/// A program of three streams, in which pages move within a stream, between streams, and at a
/// limit, and in which all that was put off is done.
fn moving() -> Vec<Step> {
    let malloc = |mib: u64, stream| Step::Malloc { bytes: mib * MIB, stream };
    vec![
        malloc(20, 1),
        malloc(4, 1),
        malloc(20, 1),
        Step::Share { block: 0, stream: 2 },
        Step::Free { block: 2 },
        Step::Free { block: 0 },
        Step::CompleteOne { stream: 2 },
        malloc(36, 1),
        Step::Free { block: 1 },
        // The first takes new memory where only complete work lets pages move, and begins epochs.
        malloc(40, 2),
        Step::Complete { stream: 1 },
        malloc(40, 2),
        Step::Malloc { bytes: 3000, stream: 2 },
        Step::Maintain { us: 1000 },
        Step::Complete { stream: 1 },
        Step::Maintain { us: 40 },
        Step::Maintain { us: 10_000 },
        Step::Free { block: 1 },
        malloc(18, 3),
        Step::Limit { above_mib: Some(0) },
        malloc(16, 1),
        Step::Work { block: 0 },
        malloc(30, 3),
        Step::Export { block: 0 },
        Step::Limit { above_mib: None },
        Step::Free { block: 1 },
        Step::StreamDestroyed { stream: 3 },
        malloc(50, 2),
        Step::Complete { stream: 2 },
        Step::Maintain { us: 10_000 },
        Step::Trim { keep_mib: 60 },
        Step::EmptyCache,
        malloc(10, 1),
    ]
}

/// Returns how often the program makes each call.
fn calls_of(policy: &str) -> BTreeMap<Call, u64> {
    let mut working = Working::new(policy, CAPACITY);
    for (number, step) in moving().iter().enumerate() {
        let taken = working.take(step);
        assert!(matches!(taken, Ok(None | Some(Error::OutOfMemory(_)))), "step {number}, {step:?}: {taken:?}");
    }
    assert!(working.pages().moved >= 20 * MIB, "`{policy}`: {} bytes moved", working.pages().moved);
    failures::calls(working.host.device())
}

/// Runs the program with a failure. Afterwards only what the device may still hold is lost.
fn survive(policy: &str, failure: Failure) -> Result<(), String> {
    let mut working = Working::new(policy, CAPACITY);
    working.host.device().fail(failure);
    for (number, step) in moving().iter().enumerate() {
        let taken = working.take(step);
        // Up to the failure, all is as in a run without failures.
        let reached = working.host.device().calls(failure.call) >= failure.nth;
        let held = taken.and_then(|_| if reached { working.check() } else { Ok(()) });
        held.map_err(|why| format!("step {number}, {step:?}: {why}"))?;
    }
    if failure.error.kind == ErrorKind::ContextLost {
        let more = working.host.device().calls_after_loss();
        let in_doubt = matches!(failure.call, Call::Unmap | Call::Destroy | Call::Unreserve);
        // The program itself orders streams.
        return if in_doubt || more <= 2 { working.check() } else { Err(format!("{more} calls of a lost device")) };
    }
    working.survive(&failure)
}

fn fail_everywhere(policy: &str, kind: ErrorKind, persistent: bool) {
    for failure in failures::each(&calls_of(policy), kind, persistent) {
        survive(policy, failure).unwrap_or_else(|why| panic!("`{policy}`, {failure:?}: {why}"));
    }
}

/// Pages move at once, after the work of their streams.
const ORDERED: &str = "policy:stitched,slack:0";

/// Pages move once the work that used them is complete.
const COMPLETED: &str = "policy:stitched,slack:0,completed_pages_only:True";

#[test]
fn any_call_fails_once() {
    for policy in [ORDERED, COMPLETED] {
        fail_everywhere(policy, ErrorKind::OutOfMemory, false);
        fail_everywhere(policy, ErrorKind::Other, false);
    }
}

#[test]
fn any_call_fails_from_then_on() {
    fail_everywhere(ORDERED, ErrorKind::OutOfMemory, true);
    fail_everywhere(ORDERED, ErrorKind::Other, true);
}

#[test]
fn any_call_loses_the_context() {
    fail_everywhere(ORDERED, ErrorKind::ContextLost, false);
}

proptest! {
    #![proptest_config(proptest_config("regressions/stitched.txt", 40))]

    #[test]
    fn work_is_ordered_and_blocks_stay(program in prop::collection::vec(step(), 1..150)) {
        for policy in policies().filter(|policy| policy.contains("stitched") || policy.contains("expandable")) {
            hold(policy, &program).map_err(TestCaseError::fail)?;
        }
    }
}

const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);

/// A program without slack, of which stream 1 holds 4 MiB and has freed 40 MiB around it, used by
/// work that is not complete.
fn with_free_pages(options: &str) -> Working {
    let mut working = Working::new(&format!("policy:stitched,slack:0{options}"), 1 << 30);
    for bytes in [20 * MIB, 4 * MIB, 20 * MIB] {
        assert_eq!(working.malloc(bytes, ONE), Ok(None));
    }
    assert_eq!(working.free(2), None);
    assert_eq!(working.free(0), None);
    working
}

#[test]
fn a_page_of_another_stream_moves_behind_its_work_and_the_host_does_not_wait() {
    let mut working = with_free_pages("");
    assert_eq!(working.malloc(40 * MIB, TWO), Ok(None));
    let device = working.host.device();
    assert!(working.pages().moved >= 32 * MIB && device.calls(Call::OrderBehind) > 0);
    assert_eq!(device.calls(Call::Wait) + device.calls(Call::Synchronize), 0);
    working.check_all().unwrap();
    // The addresses that the pages have left go once the work there is complete.
    for (complete, left) in [(false, true), (true, false)] {
        if complete {
            working.host.device().complete(ONE);
        }
        assert_eq!(working.host.allocator.pages(DEVICE).unwrap().maintain(10_000), Ok(left));
        assert_eq!(working.pages().stale > 0, left);
        working.check_all().unwrap();
    }
}

#[test]
fn only_pages_of_complete_work_move_if_the_program_says_so() {
    for complete in [false, true] {
        let mut working = with_free_pages(",completed_pages_only:True");
        // Takes new memory, and begins the epochs of stream 1.
        assert_eq!(working.malloc(40 * MIB, TWO), Ok(None));
        assert_eq!(working.pages().moved, 0);
        if complete {
            working.host.device().complete(ONE);
        }
        assert_eq!(working.malloc(30 * MIB, TWO), Ok(None));
        assert_eq!(working.pages().moved > 0, complete);
        assert_eq!(working.host.device().calls(Call::OrderBehind), 0);
        working.check_all().unwrap();
    }
}

/// A private pool in use gives no page back to the device, so its requests must wait for its pages.
#[test]
fn a_request_short_of_memory_waits_for_the_pages_of_its_pool() {
    // During a capture no event may be recorded, so no stream can be ordered after another.
    for (config, captures) in [(COMPLETED, false), (ORDERED, true)] {
        let mut working = Working::new(config, 1 << 30);
        let pools = working.host.allocator.pools(DEVICE).unwrap();
        let [pool, graph] = [(); 2].map(|()| pools.create(PoolOptions::default()).unwrap());
        pools.begin_route(pool, Route::All, RoutePurpose::Requests).unwrap();
        if captures {
            pools.begin_route(graph, Route::Stream(StreamId(3)), RoutePurpose::Capture).unwrap();
        }
        for (bytes, stream) in [(20 * MIB, ONE), (4 * MIB, TWO), (20 * MIB, ONE)] {
            assert_eq!(working.malloc(bytes, stream), Ok(None));
        }
        assert_eq!((working.free(2), working.free(0)), (None, None));
        working.host.allocator.settings(DEVICE).unwrap().set_limit(Some(0));
        let told = working.host.allocator.forecast(DEVICE).unwrap().malloc(40 * MIB, TWO);
        assert_eq!((told, working.malloc(40 * MIB, TWO)), (Ok(Forecast::Expand), Ok(None)), "{config}");
        assert!(working.calls(Call::Synchronize) > 0 && working.calls(Call::OrderBehind) == 0);
        working.check_all().unwrap();
    }
}

#[test]
fn a_stream_that_captures_unannounced_keeps_its_pages() {
    let mut working = with_free_pages("");
    working.set_capturing(ONE, true);
    assert_eq!(working.malloc(40 * MIB, TWO), Ok(None));
    assert_eq!((working.held.len(), working.pages().moved), (2, 0));
    working.check_all().unwrap();
    working.set_capturing(ONE, false);
    assert_eq!(working.malloc(40 * MIB, StreamId(3)), Ok(None));
    assert!(working.pages().moved > 0);
}

#[test]
fn an_ended_stream_keeps_no_addresses_of_pages_that_moved_away() {
    let mut working = with_free_pages("");
    assert_eq!(working.malloc(40 * MIB, TWO), Ok(None));
    assert_eq!(working.free(0), None);
    assert!(working.pages().moved > 0);
    assert!(working.pages().stale > 0);
    working.host.allocator.stream_destroyed(DEVICE, ONE).unwrap();
    assert_eq!(working.pages().stale, 0);
    working.check_all().unwrap();
}

/// A graph replays on any stream, not on the stream of its capture alone.
#[test]
fn memory_of_a_destroyed_graph_stays_while_the_last_replay_runs() {
    let mut working = Working::new("policy:stitched,slack:0", 1 << 30);
    let allocator = &working.host.allocator;
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(ONE), RoutePurpose::Capture).unwrap();
    let ptr = allocator.malloc(DEVICE, 40 * MIB, ONE).unwrap();
    allocator.free(ptr).unwrap();
    allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    working.host.device().launch(StreamId(3), ptr, 40 * MIB).unwrap();
    // Both users: the creator and the graph.
    for users in [1, 0] {
        allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        assert_eq!(allocator.pools(DEVICE).unwrap().users(pool), Ok(users));
    }
    assert_eq!(working.malloc(40 * MIB, TWO), Ok(None));
    working.check_all().unwrap();
}

/// What becomes stale during a wait may have work that began after it.
#[test]
fn what_becomes_stale_while_the_host_waits_stays_until_its_own_work_is_complete() {
    type Interrupted = Allocator<Hooked, parking_lot::RawMutex, Growable>;
    let config = Config::parse(ORDERED).unwrap();
    let allocator = Arc::new(Interrupted::new([Hooked::new(SimulatedDevice::new(1 << 30))], &config).unwrap());
    let blocks = [20, 4, 20, 4, 20].map(|mib| allocator.malloc(DEVICE, mib * MIB, ONE).unwrap());
    for block in [0, 2, 4] {
        allocator.free(blocks[block]).unwrap();
    }
    // No single free block of the other stream could be lent.
    allocator.malloc(DEVICE, 38 * MIB, TWO).unwrap();
    let moved = |allocator: &Interrupted| allocator.pages(DEVICE).unwrap().stats().moved;
    assert_eq!(moved(&allocator), 38 * MIB);
    let meanwhile = Arc::downgrade(&allocator);
    allocator.device(DEVICE).unwrap().on_synchronize(move || {
        let allocator = meanwhile.upgrade().unwrap();
        let used = allocator.malloc(DEVICE, 16 * MIB, ONE).unwrap();
        allocator.device(DEVICE).unwrap().inner.launch(ONE, used, 16 * MIB).unwrap();
        allocator.free(used).unwrap();
        allocator.malloc(DEVICE, 22 * MIB, TWO).unwrap();
        assert_eq!(moved(&allocator), 60 * MIB);
    });
    allocator.empty_cache(DEVICE).unwrap();
    assert_eq!((moved(&allocator), allocator.stats(DEVICE).map(|stats| stats.leaked_bytes())), (60 * MIB, Ok(0)));
    consistency::check(&allocator, DEVICE, None).unwrap();
}

/// Another thread unpins the memory and empties the cache while the device exports the page.
#[test]
fn a_page_stays_while_it_is_exported() {
    type Interrupted = Allocator<Hooked, parking_lot::RawMutex, Growable>;
    for policy in [ORDERED, "expandable_segments:True"] {
        let device = Hooked::new(SimulatedDevice::new(CAPACITY).with_exports());
        let allocator = Arc::new(Interrupted::new([device], &Config::parse(policy).unwrap()).unwrap());
        let block = allocator.malloc(DEVICE, 20 * MIB, ONE).unwrap();
        let used = |allocator: &Interrupted| allocator.device(DEVICE).unwrap().inner.used();
        allocator.pages(DEVICE).unwrap().pin(block).unwrap();
        allocator.free(block).unwrap();
        let meanwhile = Arc::downgrade(&allocator);
        allocator.device(DEVICE).unwrap().on_export(move || {
            let allocator = meanwhile.upgrade().unwrap();
            allocator.pages(DEVICE).unwrap().unpin(block).unwrap();
            allocator.empty_cache(DEVICE).unwrap();
            assert!(used(&allocator) > 0, "the page is still held");
        });
        let exported = allocator.pages(DEVICE).unwrap().export(block);
        assert!(exported.is_ok(), "`{policy}`: {exported:?}");
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(used(&allocator), 0, "`{policy}`: and let go");
        consistency::check(&allocator, DEVICE, None).unwrap();
    }
}

#[test]
fn calls_of_virtual_memory_are_counted_with_their_time() {
    for policy in [ORDERED, COMPLETED, "expandable_segments:True"] {
        let mut working = Working::new(policy, CAPACITY);
        let failure = |call| Failure { call, nth: 1, persistent: false, error: DeviceError::new(ErrorKind::Other, 77) };
        working.host.device().fail(failure(Call::SetAccess));
        for step in moving() {
            working.take(&step).unwrap();
        }
        let (calls, device) = (working.pages().calls, working.host.device());
        for (call, count) in [
            (Call::Reserve, calls.reserve),
            (Call::Unreserve, calls.unreserve),
            (Call::Create, calls.create),
            (Call::Destroy, calls.destroy),
            (Call::Map, calls.map),
            (Call::SetAccess, calls.set_access),
            (Call::Unmap, calls.unmap),
            (Call::Export, calls.export),
        ] {
            // The failed call counts, too.
            assert_eq!(count.calls, device.calls(call), "`{policy}`: {call:?}");
            assert!(count.calls > 0, "`{policy}`: {call:?}");
            // Every reading of the clock advances it by 2 ns.
            let spent = (device.driver_ns_of(call), device.driver_ns_of(call) + 2 * count.calls);
            let allowed = spent.0 / 1000..=spent.1.div_ceil(1000);
            assert!(allowed.contains(&count.us), "`{policy}`: {call:?} took {} of {allowed:?}", count.us);
        }
    }
}

#[test]
fn a_request_that_maps_for_longer_than_allowed_is_a_stall() {
    for (options, stalls) in [("", 0), (",max_stall_us:400", 1), (",max_stall_us:400,strict_stall:True", 0)] {
        let working = with_free_pages(options);
        let before = working.pages();
        assert_eq!(before.stalls, 0, "`{options}`: {before:?}");
        let spent = || {
            let device = working.host.device();
            [Call::Create, Call::Map, Call::SetAccess].iter().map(|&call| device.driver_ns_of(call)).sum::<u64>()
        };
        let begun = spent();
        working.host.allocator.malloc(DEVICE, 40 * MIB, TWO).unwrap();
        let (took, after) = ((spent() - begun) / 1000, working.pages());
        assert_eq!(
            (after.stalls, took > 400),
            (stalls, options.is_empty() || stalls > 0),
            "`{options}`: {took} {after:?}"
        );
        let longest = before.longest_stall_us.max(took);
        assert!((longest..=longest + 10).contains(&after.longest_stall_us), "`{options}`: {longest} {after:?}");
        // Upkeep is no request. It begins epochs at first, and removes mappings at the next call.
        let pages = working.host.allocator.pages(DEVICE).unwrap();
        for _ in 0..2 {
            pages.maintain(10_000).unwrap();
            working.host.device().complete(ONE);
        }
        let maintained = working.pages();
        assert!(maintained.calls.unmap.calls > after.calls.unmap.calls, "`{options}`: {maintained:?}");
        assert_eq!((maintained.stalls, maintained.longest_stall_us), (after.stalls, after.longest_stall_us));
    }
}

/// A device without a clock.
struct Clockless(SimulatedDevice);

impl Forwarder for Clockless {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.0)
    }
}

impl ForwardSegments for Clockless {}
impl ForwardStreamOrder for Clockless {}

impl ForwardHost for Clockless {
    fn ticks(&self) -> u64 {
        0
    }

    fn time_us(&self, _: u64) -> u64 {
        0
    }
}

#[test]
fn a_device_without_a_clock_counts_calls_alone() {
    let config = Config::parse("policy:stitched,max_stall_us:0").unwrap();
    let allocator: Allocator<_, spin::mutex::SpinMutex<()>, Growable> =
        Allocator::new([Clockless(SimulatedDevice::new(CAPACITY))], &config).unwrap();
    allocator.malloc(DEVICE, 20 * MIB, ONE).unwrap();
    let stats = allocator.pages(DEVICE).unwrap().stats();
    assert!(stats.calls.map.calls > 0, "{stats:?}");
    assert_eq!((stats.calls.map.us, stats.stalls, stats.longest_stall_us), (0, 0, 0), "{stats:?}");
}

#[test]
fn a_device_without_virtual_memory_is_reported_once_and_caches() {
    let bare = || SimulatedDevice::new(CAPACITY).without_virtual_memory();
    for (device, policy, fallbacks) in [
        (bare(), "policy:stitched", 1),
        (bare(), "policy:planned,fallback:stitched", 1),
        (bare(), "policy:caching", 0),
        (SimulatedDevice::new(CAPACITY), "policy:stitched", 0),
    ] {
        let has_pages = device.virtual_memory().is_some();
        let allocator: Allocator<_, spin::mutex::SpinMutex<()>, Growable> =
            Allocator::new([Hooked::new(device)], &Config::parse(policy).unwrap()).unwrap();
        let pages = allocator.pages(DEVICE).unwrap();
        assert_eq!(pages.are_supported(), has_pages, "`{policy}`");
        let reported = || allocator.device(DEVICE).unwrap().fallbacks();
        assert_eq!(reported(), 0, "`{policy}`: no request needed memory yet");
        for mib in [20, 30, 40] {
            allocator.malloc(DEVICE, mib * MIB, ONE).unwrap();
            assert_eq!(reported(), fallbacks, "`{policy}`");
        }
        assert_eq!(pages.stats().mapped > 0, has_pages, "`{policy}`");
        consistency::check(&allocator, DEVICE, None).unwrap();
    }
}

#[test]
fn a_request_is_rejected_for_the_memory_that_it_lacks() {
    // 48 MiB, of which 44 MiB are held.
    let mut working = with_free_pages(",throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.046875");
    // 36 MiB move, and the other stream lends 3 MiB and 1 MiB of the rest.
    for (mib, error) in [(40, None), (3, None), (3, Some(Error::Rejected(4 * MIB))), (1, None)] {
        assert_eq!(working.malloc(mib * MIB, TWO), Ok(error), "{mib} MiB");
    }
    assert_eq!((working.pages().moved, working.host.device().calls(Call::Unmap)), (36 * MIB, 0));
    working.check_all().unwrap();
}

#[test]
fn a_report_tells_what_was_to_be_mapped_and_which_pages_could_not_serve() {
    let report = |working: &mut Working, bytes| match working.malloc(bytes, TWO) {
        Ok(Some(Error::OutOfMemory(report))) => report,
        other => panic!("{other:?}"),
    };
    let mut working = Working::new(ORDERED, 64 * MIB);
    assert_eq!(working.malloc(62 * MIB, ONE), Ok(None));
    let full = report(&mut working, 3 * MIB);
    assert_eq!((full.segment, full.spare, full.pinned), (4 * MIB, 0, 0));
    assert!(full.to_string().ends_with(" The device would not give 4 MiB more."), "{full}");

    // Stream 1 captures, so the addresses that pages have left there stay mapped.
    let mut working = with_free_pages("");
    assert_eq!(working.malloc(40 * MIB, TWO), Ok(None));
    working.set_capturing(ONE, true);
    assert_eq!(working.free(1), None);
    working.host.allocator.empty_cache(DEVICE).unwrap();
    let held = working.host.device().used();
    assert_eq!((working.pages().spare, held), (40 * MIB, 44 * MIB));
    let refused = report(&mut working, 1 << 30);
    assert_eq!((refused.spare, refused.reserved + refused.spare), (40 * MIB, held));
    assert!(refused.to_string().contains("40 MiB lie in pages whose old addresses are still in use"), "{refused}");
}

/// The granules of 2 MiB of a range.
fn granules(from: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (from..from + bytes).step_by(2 << 20)
}

/// PyTorch's viewer adds the range of each `segment_map` to the segments, and takes the range of
/// each `segment_unmap` out of them.
#[test]
fn a_trace_maps_and_unmaps_what_the_snapshot_has() {
    for policy in [ORDERED, COMPLETED, "expandable_segments:True"] {
        let mut working = Working::new(policy, CAPACITY);
        working.host.allocator.trace(DEVICE).unwrap().record(10_000).unwrap();
        let mut unmapped = 0;
        for (number, step) in moving().iter().enumerate() {
            working.take(step).unwrap();
            let mut mapped = BTreeSet::new();
            working.host.allocator.trace(DEVICE).unwrap().for_each(|entry| match entry.action {
                Action::SegmentMap => {
                    let new = granules(entry.addr.0, entry.size).all(|granule| mapped.insert(granule));
                    assert!(new, "`{policy}`, step {number}: {entry:?} is mapped already");
                }
                Action::SegmentUnmap => {
                    let known = granules(entry.addr.0, entry.size).all(|granule| mapped.remove(&granule));
                    assert!(known, "`{policy}`, step {number}: {entry:?} is not mapped");
                    unmapped += 1;
                }
                Action::SegmentAlloc | Action::SegmentFree => panic!("`{policy}`: {entry:?}"),
                _ => {}
            });
            let snapshot = working.host.allocator.snapshot();
            assert!(snapshot.iter().all(|segment| segment.is_expandable), "`{policy}`");
            let shown = snapshot.iter().flat_map(|segment| granules(segment.address.0, segment.total_size));
            assert_eq!(shown.collect::<BTreeSet<_>>(), mapped, "`{policy}`, step {number}: {step:?}");
        }
        assert!(unmapped > 0, "`{policy}`");
    }
}

#[test]
fn memory_of_an_ended_pool_goes_back_to_the_device() {
    for (policy, alone) in [(ORDERED, false), (ORDERED, true), (COMPLETED, false)] {
        let working = Working::new(policy, CAPACITY);
        let (allocator, device) = (&working.host.allocator, working.host.device());
        let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
        allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(ONE), RoutePurpose::Capture).unwrap();
        for bytes in [40 * MIB, 3000, 3 * MIB] {
            let ptr = allocator.malloc(DEVICE, bytes, ONE).unwrap();
            allocator.free(ptr).unwrap();
        }
        allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
        let empty = || if alone { allocator.pools(DEVICE).unwrap().empty(pool) } else { allocator.empty_cache(DEVICE) };
        // The graph keeps the memory, and the creator of the pool.
        for _user in 0..2 {
            assert_eq!(empty(), if alone { Err(Error::GraphMemory(pool)) } else { Ok(()) });
            assert!(device.used() >= 40 * MIB, "`{policy}`: {} bytes are held", device.used());
            allocator.pools(DEVICE).unwrap().release(pool).unwrap();
        }
        empty().unwrap();
        assert_eq!((device.used(), device.outstanding()), (0, Outstanding::default()), "`{policy}`");
        working.check().unwrap();
    }
}
