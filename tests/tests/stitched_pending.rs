//! Pending memory under the stitched policy: a request that would exceed the budget is ordered
//! after the uses of freed blocks, the oldest first, and the host does not wait.

use cachalot_core::simulated::{Call, Failure};
use cachalot_core::{
    DeviceError, DevicePtr, Error, ErrorKind, Event, PoolOptions, Route, RoutePurpose, StreamId, StreamOrder,
};
use cachalot_tests::failures;
use cachalot_tests::host::{DEVICE, Host, MIB};
use cachalot_tests::working::Working;

const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);
const SIDE: StreamId = StreamId(11);

/// A device with room for every budget.
const CAPACITY: u64 = 1 << 30;

/// Allocates a block of `mib` for each of `uses`: on the first of two streams, while the second
/// uses the block. Then frees the blocks, in the same order.
fn pend(working: &mut Working, mib: u64, uses: &[(StreamId, StreamId)]) -> Vec<DevicePtr> {
    let first = working.held.len();
    for &(stream, side) in uses {
        assert_eq!(working.malloc(mib * MIB, stream), Ok(None));
        assert_eq!(working.share(working.held.len() - 1, side), Ok(None));
    }
    let blocks: Vec<_> = working.held[first..].iter().map(|held| held.ptr).collect();
    for &ptr in &blocks {
        let place = working.held.iter().position(|held| held.ptr == ptr);
        assert_eq!(working.free(place.expect("the block is held")), None);
    }
    blocks
}

fn with(options: &str) -> Working {
    Working::new(&format!("policy:stitched,slack:0{options}"), CAPACITY)
}

fn pending_mib(working: &Working) -> i64 {
    let of = |name: &str| working.host.stat(&format!("{name}.all.current"));
    (of("active_bytes") - of("allocated_bytes")) / MIB as i64
}

fn check(working: &Working) {
    assert_eq!(working.calls(Call::Wait) + working.calls(Call::Synchronize), 0);
    working.check_all().unwrap();
}

#[test]
fn a_request_is_ordered_behind_the_oldest_uses_and_behind_no_more_than_it_needs() {
    let mut working = with("");
    let blocks = pend(&mut working, 20, &[(ONE, SIDE); 3]);
    let before = working.calls(Call::OrderBehind);
    // `malloc` launches work, which the device checks for its order.
    assert_eq!(working.malloc(20 * MIB, ONE), Ok(None));
    assert_eq!((working.held[0].ptr, pending_mib(&working)), (blocks[0], 40));
    assert_eq!((working.calls(Call::OrderBehind) - before, working.used_mib()), (1, 60));
    assert_eq!(working.malloc(40 * MIB, ONE), Ok(None));
    assert_eq!((pending_mib(&working), working.used_mib()), (0, 60));
    check(&working);
}

#[test]
fn pages_of_a_pending_block_move_to_another_stream() {
    let mut working = with("");
    pend(&mut working, 20, &[(ONE, SIDE); 3]);
    assert_eq!(working.malloc(30 * MIB, TWO), Ok(None));
    // One event covers the second and the third block. One page is new: the room for pending
    // memory, 60 / 28 MiB.
    assert_eq!((pending_mib(&working), working.used_mib()), (0, 62));
    assert_eq!(working.pages().moved / MIB, 28);
    check(&working);
}

/// Memory pends for a moment, and the room for it stays.
#[test]
fn the_budget_has_room_for_pending_memory_up_to_a_part_of_the_peak() {
    let mut working = with("");
    assert_eq!(working.malloc(280 * MIB, ONE), Ok(None));
    assert_eq!(working.free(0), None);
    assert_eq!(working.malloc(260 * MIB, ONE), Ok(None));
    pend(&mut working, 20, &[(ONE, SIDE)]);
    assert_eq!((working.used_mib(), pending_mib(&working)), (280, 20));
    let before = working.calls(Call::OrderBehind);
    // 20 MiB pend, and there is room for 280 / 28 of them.
    for is_ordered in [false, true] {
        assert_eq!(working.malloc(10 * MIB, TWO), Ok(None));
        assert_eq!((working.used_mib(), working.calls(Call::OrderBehind) > before), (290, is_ordered));
    }
    check(&working);
    assert_eq!(pending_mib(&working), 0);
    working.host.allocator.pages(DEVICE).unwrap().maintain(1000).unwrap();
    assert_eq!(working.used_mib(), 290);
}

#[test]
fn growth_within_the_budget_comes_first() {
    let mut working = with("");
    assert_eq!(working.malloc(80 * MIB, ONE), Ok(None));
    assert_eq!(working.free(0), None);
    working.host.device().complete(ONE);
    working.host.empty_cache();
    pend(&mut working, 20, &[(ONE, SIDE)]);
    let before = working.calls(Call::OrderBehind);
    for (held, orders) in [(40, 0), (60, 0), (80, 0), (80, 1)] {
        assert_eq!(working.malloc(20 * MIB, ONE), Ok(None));
        assert_eq!((working.used_mib(), working.calls(Call::OrderBehind) - before), (held, orders));
    }
    working.check_all().unwrap();
}

#[test]
fn at_a_limit_the_host_does_not_wait() {
    let mut working = with("");
    pend(&mut working, 20, &[(ONE, SIDE); 3]);
    working.host.allocator.settings(DEVICE).unwrap().set_limit(Some(60 * MIB));
    assert_eq!(working.malloc(60 * MIB, TWO), Ok(None));
    assert_eq!((working.held.len(), working.used_mib()), (1, 60));
    check(&working);
}

#[test]
fn where_only_pages_of_complete_work_move_nothing_is_ordered() {
    let mut working = with(",completed_pages_only:True");
    pend(&mut working, 20, &[(ONE, SIDE); 3]);
    let before = working.calls(Call::OrderBehind);
    assert_eq!(working.malloc(20 * MIB, ONE), Ok(None));
    assert_eq!((working.calls(Call::OrderBehind), working.used_mib()), (before, 80));
    check(&working);
}

#[test]
fn nothing_is_ordered_under_a_capture() {
    let mut working = with("");
    pend(&mut working, 20, &[(ONE, SIDE); 3]);
    let before = working.calls(Call::OrderBehind);
    let allocator = &working.host.allocator;
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(StreamId(9)), RoutePurpose::Capture).unwrap();
    assert_eq!(working.malloc(20 * MIB, ONE), Ok(None));
    assert_eq!((working.calls(Call::OrderBehind), working.used_mib()), (before, 80));
    working.host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
    assert_eq!(working.malloc(20 * MIB, ONE), Ok(None));
    assert_eq!((working.calls(Call::OrderBehind), working.used_mib()), (before + 1, 80));
    check(&working);
}

/// One event covers the last two blocks, of two streams. The block of the stream that must not be
/// ordered stays pending.
#[test]
fn a_stream_that_captures_or_has_ended_keeps_its_pending_blocks() {
    for ends in [false, true] {
        let mut working = with("");
        pend(&mut working, 20, &[(TWO, SIDE), (ONE, SIDE), (TWO, SIDE)]);
        if ends {
            working.host.allocator.stream_destroyed(DEVICE, ONE).unwrap();
        } else {
            working.set_capturing(ONE, true);
        }
        for (pending, held) in [(40, 60), (20, 60), (20, 80)] {
            assert_eq!(working.malloc(20 * MIB, TWO), Ok(None));
            assert_eq!((pending_mib(&working), working.used_mib()), (pending, held), "{ends}");
        }
        check(&working);
        working.set_capturing(ONE, false);
        working.host.device().complete(SIDE);
        working.host.allocator.process_events(DEVICE).unwrap();
        assert_eq!(pending_mib(&working), 0);
        working.check().unwrap();
    }
}

/// A graph replays on any stream, which nothing orders behind the uses.
#[test]
fn pending_memory_of_a_private_pool_stays_pending() {
    let mut working = with("");
    let allocator = &working.host.allocator;
    let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(ONE), RoutePurpose::Requests).unwrap();
    pend(&mut working, 20, &[(ONE, SIDE)]);
    // The second use has an event of its own.
    let allocator = &working.host.allocator;
    let used = allocator.malloc(DEVICE, 20 * MIB, ONE).unwrap();
    allocator.record_use(used, SIDE).unwrap();
    allocator.free(used).unwrap();
    working.host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Requests).unwrap();
    let before = working.calls(Call::OrderBehind);
    assert_eq!(working.malloc(20 * MIB, TWO), Ok(None));
    let ordered = working.calls(Call::OrderBehind) - before;
    assert_eq!((ordered, pending_mib(&working), working.used_mib()), (0, 40, 60));
    check(&working);
}

#[test]
fn the_oldest_uses_with_events_of_their_own_come_first() {
    let working = with("");
    let allocator = &working.host.allocator;
    let ptr = allocator.malloc(DEVICE, 20 * MIB, ONE).unwrap();
    allocator.record_use(ptr, SIDE).unwrap();
    allocator.free(ptr).unwrap();
    allocator.malloc(DEVICE, 20 * MIB, TWO).unwrap();
    assert_eq!((pending_mib(&working), working.used_mib()), (0, 20));
    check(&working);
}

/// Orders later work of `stream` behind the present work of `behind`, as the program does.
fn wait_stream(host: &Host, stream: StreamId, behind: StreamId) {
    let event = mark(host, behind);
    host.device().order_behind(stream, event).unwrap();
    host.device().destroy_event(event).unwrap();
}

/// Records an event on a stream.
fn mark(host: &Host, stream: StreamId) -> Event {
    let event = host.device().create_order_event().unwrap();
    host.device().record(event, stream).unwrap();
    event
}

/// Input batches are copied on a stream of their own while the batch before is worked on, and the
/// host is many steps ahead of the device.
#[test]
fn a_prefetcher_holds_little_more_than_it_uses_and_copies_while_it_computes() {
    let (main, feeding) = (ONE, TWO);
    let host = Host::new("policy:stitched", 1 << 40);
    let malloc = |mib: u64, stream| {
        let ptr = host.malloc_on(mib * MIB, stream);
        host.device().launch(stream, ptr, mib * MIB).unwrap();
        (ptr, mib)
    };
    let fetch = |step: u64| malloc(20 + step * 7 % 3 * 10, feeding);
    let mut coming = fetch(0);
    for step in 0..40 {
        wait_stream(&host, main, feeding);
        let images = coming;
        host.allocator.record_stream(images.0, main).unwrap();
        coming = fetch(step + 1);
        let copied = mark(&host, feeding);
        host.device().launch(main, images.0, images.1 * MIB).unwrap();
        let began = mark(&host, main);
        let layers: Vec<_> = (0..8).map(|layer| malloc(images.1 * 2 + layer, main)).collect();
        for (ptr, mib) in layers.into_iter().chain([images]).rev() {
            host.device().launch(main, ptr, mib * MIB).unwrap();
            host.free(ptr);
        }
        if step == 39 {
            // The copy waits for no work of this step.
            host.device().wait(copied).unwrap();
            assert_eq!(host.device().is_complete(began), Ok(false));
        }
    }
    let (held, live) = (host.stat("reserved_bytes.all.peak"), host.stat("allocated_bytes.all.peak"));
    assert!(held * 100 <= live * 105, "{held} bytes for {live}");
    assert_eq!(host.device().calls(Call::Wait), 1, "the host of the test has waited");
}

/// Steps of a convolutional network whose input is copied and converted on a stream of its own. The
/// host is ahead of the device within a step, and waits at the end of each. Returns the pages
/// mapped in the latter half, and the bytes held for the bytes live.
fn train_with_prefetcher() -> (u64, f64) {
    let (main, feeding) = (ONE, TWO);
    let host = Host::new("policy:stitched", 1 << 40);
    let malloc = |kib: u64, stream| {
        let ptr = host.malloc_on(kib << 10, stream);
        host.device().launch(stream, ptr, kib << 10).unwrap();
        ptr
    };
    let batches = [48, 96, 64, 96, 48];
    // A sample has 588 KiB in single precision.
    let fetch = |step: usize| {
        let batch = batches[step % 5];
        let copied = malloc(batch * 588, feeding);
        let half = malloc(batch * 294, feeding);
        host.free(copied);
        let images = malloc(batch * 588, feeding);
        host.free(half);
        images
    };
    let mut coming = fetch(0);
    let mut mapped = 0;
    for step in 0..60 {
        if step == 30 {
            mapped = host.device().calls(Call::Map);
        }
        wait_stream(&host, main, feeding);
        let images = std::mem::replace(&mut coming, fetch(step + 1));
        host.allocator.record_stream(images, main).unwrap();
        let batch = batches[step % 5];
        // Outputs of a layer for a sample: 3136 KiB, and half of those of the layer before.
        let sizes: Vec<_> = (0..16).map(|layer| (batch * 3136) >> (layer / 4)).collect();
        let outputs: Vec<_> = sizes.iter().map(|&kib| malloc(kib, main)).collect();
        let mut gradient = malloc(4, main);
        for (&kib, output) in sizes.iter().zip(outputs).rev() {
            let next = malloc(kib, main);
            host.free(output);
            host.free(std::mem::replace(&mut gradient, next));
        }
        host.free(gradient);
        host.free(images);
        [main, feeding].into_iter().for_each(|stream| host.device().complete(stream));
    }
    let (held, live) = (host.stat("reserved_bytes.all.peak"), host.stat("allocated_bytes.all.peak"));
    (host.device().calls(Call::Map) - mapped, held as f64 / live as f64)
}

/// Three pages in each round of five steps go to where the last ones end. Without the room for
/// pending memory in the budget, 87 are.
#[test]
fn a_prefetcher_that_repeats_itself_comes_to_map_little() {
    let (mapped, held) = train_with_prefetcher();
    assert!(mapped <= 18 && held <= 1.025, "{mapped} pages, {held:.3}");
}

/// A program in which requests are ordered after the uses of pending blocks of their own heap and
/// of others.
fn ordering(working: &mut Working) -> Result<(), String> {
    let malloc = |working: &mut Working, mib: u64, stream| working.malloc(mib * MIB, stream).map(|_| ());
    for (stream, side) in [(ONE, SIDE), (TWO, SIDE), (ONE, StreamId(12))] {
        malloc(working, 10, stream)?;
        working.share(working.held.len().saturating_sub(1), side)?;
    }
    while !working.held.is_empty() && working.free(0).is_none() {}
    malloc(working, 10, ONE)?;
    malloc(working, 18, StreamId(3))?;
    malloc(working, 4, TWO)?;
    working.host.allocator.process_events(DEVICE).ok();
    malloc(working, 2, TWO)
}

#[test]
fn a_failure_of_any_call_loses_nothing() {
    let run = |failure: Option<Failure>| {
        let mut working = with("");
        failure.into_iter().for_each(|failure| working.host.device().fail(failure));
        let ran = ordering(&mut working).and_then(|()| working.check());
        ran.unwrap_or_else(|why| panic!("{failure:?}: {why}"));
        working
    };
    let made = failures::calls(run(None).host.device());
    assert!(made[&Call::OrderBehind] >= 3 + 4, "{made:?}");
    for failure in failures::of_every_kind(&made) {
        run(Some(failure)).survive(&failure).unwrap_or_else(|why| panic!("{failure:?}: {why}"));
    }
}

#[test]
fn a_request_tells_of_an_order_that_fails_and_the_block_stays_pending() {
    let mut working = with("");
    let blocks = pend(&mut working, 20, &[(ONE, SIDE)]);
    let error = DeviceError::new(ErrorKind::Other, failures::INJECTED);
    failures::fail_after(working.host.device(), Call::OrderBehind, 0, ErrorKind::Other);
    assert_eq!(working.malloc(20 * MIB, ONE), Ok(Some(Error::Device(error))));
    assert_eq!(pending_mib(&working), 20);
    assert_eq!(working.malloc(20 * MIB, ONE), Ok(None));
    assert_eq!((working.held[0].ptr, working.used_mib()), (blocks[0], 20));
    check(&working);
}
