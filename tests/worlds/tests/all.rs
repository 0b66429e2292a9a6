//! Worlds repeat by their seeds, find planted mistakes, and find none in the core.

use cachalot_core::{Config, DevicePtr, Holder, PoolOptions, Route, RoutePurpose, StreamId};
use cachalot_worlds::campaign::{CONFIGS, campaign};
use cachalot_worlds::device::{Device, Mistake};
use cachalot_worlds::turns::{self, Body};
use cachalot_worlds::world::{Core, DEVICE, Rules, run};
use std::rc::Rc;
use std::time::Duration;

/// The stream that uses blocks of other streams.
const COMMON: StreamId = StreamId(9);

fn rules(config: &str) -> Rules {
    Rules { config: config.into(), threads: 3, rounds: 4, faults: false, mistake: None }
}

#[test]
fn a_seed_repeats_every_call() {
    for (seed, config) in (70..).zip(CONFIGS) {
        for faults in [false, true] {
            let rules = Rules { faults, ..rules(config) };
            let (one, other) = (run(seed, &rules), run(seed, &rules));
            assert_eq!(one.expect("no finding"), other.expect("no finding"), "{config}");
        }
    }
}

#[test]
fn planted_mistakes_are_found() {
    for (mistake, config) in [
        (Mistake::EarlyEvent, "decisions:improved"),
        (Mistake::EarlyEvent, ""),
        (Mistake::NoOrder, "policy:stitched"),
        (Mistake::NoWait, "expandable_segments:True"),
    ] {
        let rules = Rules { mistake: Some(mistake), ..rules(config) };
        let finding = (0..64).find_map(|seed| run(seed, &rules).err());
        let finding = finding.unwrap_or_else(|| panic!("{mistake:?} under `{config}` is not found"));
        assert!(finding.to_string().contains(&format!("--seed {}", finding.seed)), "{finding}");
    }
}

/// The seeds at which a departure ended between a look at a page and the order behind it, and at
/// which a park unmapped memory under work, in the worlds of that time: a change of the steps gives
/// a seed another world.
#[test]
fn earlier_findings_stay_cured() {
    for (seed, config) in [(1, "decisions:improved"), (6, ""), (19, "policy:stitched"), (1156, "policy:stitched")] {
        let rules = Rules { threads: 4, rounds: 10, ..rules(config) };
        if let Err(finding) = run(seed, &rules) {
            panic!("{finding}");
        }
    }
}

#[test]
fn a_hundred_worlds_have_no_finding() {
    let configs = CONFIGS.map(String::from);
    for faults in [false, true] {
        let rules = Rules { faults, ..rules("") };
        let (sum, finding) = campaign(1, 50, Duration::MAX, &rules, &configs);
        if let Some(finding) = finding {
            panic!("{finding}");
        }
        assert_eq!(sum.worlds, 50);
        assert!(sum.of.operations > 50_000 && sum.of.checks > 20_000, "{sum:?}");
        assert_eq!(sum.of.faults > 0, faults);
    }
}

/// Two threads free blocks that a common stream uses, and one records events while the other waits
/// for them.
#[test]
fn an_emptied_cache_has_waited_for_each_earlier_free() {
    let config = Config::parse("decisions:improved").expect("settings");
    for seed in 0..2000 {
        let core = Rc::new(Core::new([Device::new(1 << 30, None)], &config).expect("one device fits"));
        let free_behind = |core: &Core, own: StreamId| {
            let block = core.malloc(DEVICE, 1000, own).expect("memory");
            let device = core.device(DEVICE).expect("there is one device");
            device.inner.order(COMMON, own).expect("a healthy device");
            core.record_stream(block, COMMON).expect("a live block");
            device.inner.launch(COMMON, block, 1000).expect("ordered work");
            core.free(block).expect("a live block");
            block
        };
        let (waits, records) = (Rc::clone(&core), core);
        let threads: Vec<Body> = vec![
            Box::new(move || {
                for _ in 0..4 {
                    let freed = free_behind(&waits, StreamId(1));
                    waits.empty_cache(DEVICE).expect("a healthy device");
                    // A segment of the other thread's stream may have the addresses by now.
                    let found = waits.explain(freed).ok().filter(|block| block.stream == StreamId(1));
                    assert_ne!(found.map(|block| block.holder), Some(Holder::Work), "seed {seed}: {freed}");
                }
            }),
            Box::new(move || {
                for _ in 0..12 {
                    free_behind(&records, StreamId(2));
                    records.process_events(DEVICE).expect("a healthy device");
                }
            }),
        ];
        turns::run(seed, 2, threads, Vec::new()).unwrap_or_else(|halt| panic!("{halt}"));
    }
}

/// A free of a block that [`COMMON`] uses.
type Free = fn(&Core, DevicePtr);

/// Each way in which a freed block waits, with settings: for an event of the free, of the use, or,
/// once a capture has ended, for an event recorded then.
fn frees() -> [(&'static str, Free); 4] {
    let of_stream: Free = |core, block| {
        core.record_stream(block, COMMON).expect("a live block");
        core.free(block).expect("a live block");
    };
    let of_use: Free = |core, block| {
        core.record_use(block, COMMON).expect("a live block");
        core.free(block).expect("a live block");
    };
    let in_capture: Free = |core, block| {
        let pools = core.pools(DEVICE).expect("there is one device");
        let pool = pools.create(PoolOptions::default()).expect("a pool");
        pools.begin_route(pool, Route::Stream(COMMON), RoutePurpose::Capture).expect("a route");
        core.record_stream(block, COMMON).expect("a live block");
        core.free(block).expect("a live block");
        pools.end_route(pool, RoutePurpose::Capture).expect("a route");
    };
    [("", of_stream), ("decisions:improved", of_stream), ("", of_use), ("", in_capture)]
}

/// Lets one thread end the waits of freed blocks while another does `beside`, for each way in which
/// the blocks wait.
fn while_waits_end(beside: fn(&Core)) {
    for (config, free) in frees() {
        let config = Config::parse(config).expect("settings");
        for seed in 0..1000 {
            let core = Rc::new(Core::new([Device::new(1 << 30, None)], &config).expect("one device fits"));
            let blocks = [(); 4].map(|()| core.malloc(DEVICE, 1000, StreamId(1)).expect("memory"));
            // The allocator knows the memory of the device then.
            core.malloc(DEVICE, 1 << 40, StreamId(1)).expect_err("more than the device has");
            blocks.into_iter().for_each(|block| free(&core, block));
            core.device(DEVICE).expect("there is one device").inner.complete(COMMON);
            let (other, ends) = (Rc::clone(&core), core);
            let threads: Vec<Body> = vec![
                Box::new(move || beside(&other)),
                Box::new(move || ends.process_events(DEVICE).expect("a healthy device")),
            ];
            turns::run(seed, 8, threads, Vec::new()).unwrap_or_else(|halt| panic!("seed {seed}: {halt}"));
        }
    }
}

#[test]
fn a_wait_for_all_frees_includes_those_that_another_thread_is_ending() {
    while_waits_end(|core| {
        core.empty_cache(DEVICE).expect("a healthy device");
        let stats = core.stats(DEVICE).expect("there is one device").totals();
        assert_eq!(stats.reserved_bytes().current, 0);
    });
}

/// The copy on which a forecast tries its requests must not end a wait that has already ended: it
/// would free the block a second time.
#[test]
fn a_forecast_beside_a_thread_that_ends_waits_frees_no_block_twice() {
    while_waits_end(|core| {
        // More than the device has, so that the copy waits for all frees.
        let fit = core.forecast(DEVICE).and_then(|forecast| forecast.would_fit(&[1 << 40], StreamId(1)));
        assert_eq!(fit.expect("a healthy device").served, 0);
    });
}
