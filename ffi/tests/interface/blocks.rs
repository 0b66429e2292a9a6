//! Blocks: had, described, foretold and given back.

use crate::common::subject::{MIB, Subject, ok, stream};
use cachalot::c::abi::{
    CACHALOT_BOUND_DEVICE, CACHALOT_BOUND_LIMIT, CACHALOT_BOUND_NONE, CACHALOT_NO_LIMIT, CACHALOT_WOULD_EXPAND,
    CACHALOT_WOULD_FAIL, CACHALOT_WOULD_HIT, CACHALOT_WOULD_OBTAIN, CACHALOT_WOULD_RELEASE, cachalot_fit,
    cachalot_forecast, cachalot_stream,
};
use cachalot::c::capi::{
    cachalot_check_invariants, cachalot_free_sized, cachalot_get_fit, cachalot_get_forecast, cachalot_set_limit,
};
use cachalot::c::status::CACHALOT_OK;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::thread;
use std::time::Duration;

fn forecast(subject: &Subject, bytes: usize, stream: cachalot_stream) -> cachalot_forecast {
    let mut out = cachalot_forecast {
        struct_size: size_of::<cachalot_forecast>(),
        address: null_mut(),
        bytes: 0,
        outcome: 0,
        reserved: 0,
    };
    // SAFETY: the structure outlives the call.
    ok(unsafe { cachalot_get_forecast(subject.0, 0, bytes, stream, &raw mut out) });
    out
}

#[test]
fn a_block_is_had_described_and_given_back() {
    let subject = Subject::plain();
    let block = subject.malloc(1000, stream(1));
    let found = subject.base_of(block.wrapping_byte_add(1023));
    assert_eq!((found.base, found.bytes, found.requested_bytes), (block, 1024, 1000));
    assert_eq!((found.stream_id, found.device, found.segment_bytes), (0x10000, 0, 2 * MIB));
    assert_eq!(found.segment_base, block);
    assert_eq!(forecast(&subject, 1000, stream(1)).outcome, CACHALOT_WOULD_HIT);
    assert_eq!(cachalot_free_sized(subject.0, block, 1000), CACHALOT_OK);
    let outlook = forecast(&subject, 1000, stream(1));
    assert_eq!((outlook.outcome, outlook.address), (CACHALOT_WOULD_HIT, block));
    assert_eq!(subject.malloc(0, stream(1)), null_mut());
    subject.free(null_mut());
}

#[test]
fn requests_that_would_fit_are_told_from_those_that_would_not() {
    let subject = Subject::new(|options| options.limit_bytes = 100 * MIB as u64);
    let ask = |sizes: &[usize]| {
        let mut out = cachalot_fit { struct_size: size_of::<cachalot_fit>(), ..cachalot_fit::default() };
        // SAFETY: the list and the structure outlive the call.
        ok(unsafe { cachalot_get_fit(subject.0, 0, sizes.as_ptr(), sizes.len(), null_mut(), &raw mut out) });
        (out.served, out.new_bytes, out.reserved_bytes, out.bound)
    };
    let mib = |count: u64| count * MIB as u64;
    assert_eq!(ask(&[]), (0, 0, 0, CACHALOT_BOUND_NONE));
    let mut out = cachalot_fit { struct_size: size_of::<cachalot_fit>(), served: 7, ..cachalot_fit::default() };
    // SAFETY: no sizes are read, and the structure outlives the call.
    ok(unsafe { cachalot_get_fit(subject.0, 0, null(), 0, null_mut(), &raw mut out) });
    assert_eq!(out.served, 0);
    assert_eq!(ask(&[1000, 30 * MIB, 60 * MIB]), (3, mib(92), mib(92), CACHALOT_BOUND_NONE));
    assert_eq!(ask(&[1000, 60 * MIB, 60 * MIB, 1]), (2, mib(62), mib(62), CACHALOT_BOUND_LIMIT));
    let block = subject.malloc(60 * MIB, null_mut());
    assert_eq!(ask(&[60 * MIB]), (0, 0, mib(60), CACHALOT_BOUND_LIMIT));
    subject.free(block);
    // The cached segment serves the first request, and a segment of its own the second.
    assert_eq!(ask(&[50 * MIB, 40 * MIB]), (2, mib(40), mib(100), CACHALOT_BOUND_NONE));
    assert_eq!(subject.stats().device_allocs, 1, "nothing was obtained for an answer");
    // The device's answer to the question about its memory is the bound, once the limit is gone.
    assert_eq!(cachalot_set_limit(subject.0, 0, CACHALOT_NO_LIMIT), CACHALOT_OK);
    let free = usize::try_from(subject.device_info(0).free_bytes).expect("an amount");
    assert_eq!(ask(&[free + 61 * MIB]).3, CACHALOT_BOUND_DEVICE);
    assert_eq!(ask(&[free + 60 * MIB]).3, CACHALOT_BOUND_NONE);
}

#[test]
fn forecasts_say_what_comes_first() {
    let subject = Subject::new(|options| options.limit_bytes = 64 * MIB as u64);
    let outlook = forecast(&subject, 30 * MIB, null_mut());
    assert_eq!((outlook.outcome, outlook.bytes), (CACHALOT_WOULD_OBTAIN, 30 * MIB));
    let block = subject.malloc(30 * MIB, null_mut());
    assert_eq!(forecast(&subject, 50 * MIB, null_mut()).outcome, CACHALOT_WOULD_FAIL);
    subject.free(block);
    let outlook = forecast(&subject, 50 * MIB, null_mut());
    assert_eq!((outlook.outcome, outlook.address), (CACHALOT_WOULD_RELEASE, block));
    ok(subject.configure(c"expandable_segments:True"));
    assert_eq!(forecast(&subject, MIB, stream(9)).outcome, CACHALOT_WOULD_EXPAND);
}

#[test]
fn a_request_waits_for_memory_that_another_thread_frees() {
    let subject = Subject::new(|options| {
        options.config = c"policy:bfc,retry_ms:3000".as_ptr();
        options.limit_bytes = 64 * MIB as u64;
    });
    let block = subject.malloc(40 * MIB, null_mut()).addr();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            subject.free(without_provenance_mut(block));
        });
        subject.free(subject.malloc(40 * MIB, null_mut()));
    });
}

#[test]
fn threads_of_one_allocator_get_blocks_of_their_own() {
    let subject = Subject::plain();
    let rounds = if cfg!(miri) { 60 } else { 3000_usize };
    let work = |thread: usize| {
        let mut held = Vec::new();
        for round in 0..rounds {
            let own = stream(1 + (thread + round) % 3);
            held.push((subject.malloc(512 << (round % 8), own), 512_usize << (round % 8)));
            if round % 3 == 0 {
                let (block, bytes) = held.swap_remove(round % held.len());
                ok(cachalot_free_sized(subject.0, block, bytes));
            }
        }
        held.into_iter().map(|(block, bytes)| (block.addr(), bytes)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|thread| scope.spawn(move || work(thread)));
        threads.into_iter().flat_map(|thread| thread.join().expect("it returns")).collect()
    });
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "two blocks overlap");
    assert_eq!(subject.stats().allocations.current, all.len() as i64);
    ok(cachalot_check_invariants(subject.0));
    for (block, bytes) in all {
        ok(cachalot_free_sized(subject.0, without_provenance_mut(block), bytes));
    }
}
