//! Two tenants and the default pool of one allocator at their limits: a campaign, run by
//! `tests/groups.sh`.
//!
//! ```text
//! stream ─ route ─▶ pool ─ tag ─▶ limits, which together with the limit of the process are too little for all
//! ```
//!
//! At first the three take turns at random, and both bounds of both tags are checked after each
//! operation: no charge is above `max`, and no operation of another leaves a charge below `low`
//! that was not below before. Then a thread for each runs the other half, and checks its own tag.
//! From time to time the charges are compared with a snapshot's segments.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::simulated::SimulatedDevice;
use crate::error::Error;
use crate::pool::{PoolId, PoolOptions, Route, RoutePurpose, Tag, TagLimits, TagUse};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use fastrand::Rng;
use std::time::Instant;
use std::vec::Vec;

type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const LIMIT: u64 = 1000 * MIB;
const TAGS: [Tag; 2] = [Tag(NonZeroU64::new(1).unwrap()), Tag(NonZeroU64::new(2).unwrap())];
const LIMITS: [TagLimits; 2] = [
    TagLimits { max: Some(700 * MIB), low: 300 * MIB, weight: 300, clear: true },
    TagLimits { max: Some(600 * MIB), low: 200 * MIB, weight: 100, clear: false },
];
/// The one without a tag, beside the two tenants.
const UNTAGGED: usize = 2;
/// The longest request.
const LONGEST: u64 = 48 * MIB;
/// Operations between two comparisons with a snapshot.
const INTERVAL: u64 = 10_000;

/// What the campaign has seen of a tag or of the memory without one.
#[derive(Default, Debug)]
struct Seen {
    greatest: AtomicU64,
    /// The least charge that an operation of another has left, once the charge was at least `low`.
    least_left: AtomicU64,
    /// Operations of others that took memory of the tag.
    taken: AtomicU64,
    held_to_max: AtomicU64,
    without_memory: AtomicU64,
}

/// One of the three, with its live blocks.
struct Actor {
    number: usize,
    rng: Rng,
    blocks: Vec<DevicePtr>,
}

struct Campaign {
    allocator: Simulated,
    pools: [PoolId; 2],
    seen: [Seen; 3],
    checks: AtomicU64,
    failed: AtomicU64,
}

impl Campaign {
    fn new(config: &str) -> Self {
        let device = SimulatedDevice::new(4 * LIMIT).with_work_done_at_once();
        let allocator = Simulated::new([device], &Config::parse(config).unwrap()).unwrap();
        allocator.settings(DEVICE).unwrap().set_limit(Some(LIMIT));
        let pools = [0, 1].map(|number| {
            let pool = allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
            allocator.parking(DEVICE).unwrap().tag_pool(pool, Some(TAGS[number])).unwrap();
            allocator.tags(DEVICE).unwrap().limit(TAGS[number], Some(LIMITS[number])).unwrap();
            for stream in streams(number) {
                allocator
                    .pools(DEVICE)
                    .unwrap()
                    .begin_route(pool, Route::Stream(stream), RoutePurpose::Requests)
                    .unwrap();
            }
            pool
        });
        let least = || Seen { least_left: AtomicU64::new(u64::MAX), ..Seen::default() };
        Self {
            allocator,
            pools,
            seen: [least(), least(), least()],
            checks: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    fn expect(&self, is_right: bool) {
        self.checks.fetch_add(1, Relaxed);
        self.failed.fetch_add(u64::from(!is_right), Relaxed);
    }

    fn charge(&self, number: usize) -> u64 {
        self.allocator.tags(DEVICE).unwrap().held(TAGS[number]).unwrap().charge
    }

    /// Requests or frees a block. The phases of an actor, in which it grows or shrinks, last for
    /// hundreds of operations.
    fn act(&self, actor: &mut Actor, at: u64) {
        let grows = (at / 300 + actor.number as u64).is_multiple_of(2);
        let wants = actor.rng.u32(..100) < if grows { 60 } else { 40 };
        if !wants && !actor.blocks.is_empty() {
            let block = actor.blocks.swap_remove(actor.rng.usize(..actor.blocks.len()));
            self.allocator.free(block).unwrap();
            return;
        }
        let most = [4 << 10, MIB, 8 * MIB, LONGEST][actor.rng.usize(..4)];
        let stream = streams(actor.number)[actor.rng.usize(..2)];
        match self.allocator.malloc(DEVICE, actor.rng.u64(1..=most), stream) {
            Ok(block) => actor.blocks.push(block),
            Err(Error::OutOfMemory(report)) => {
                let seen = &self.seen[actor.number];
                if report.held_to_max { &seen.held_to_max } else { &seen.without_memory }.fetch_add(1, Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks the bounds of a tag, after an operation before which the tag had `before` bytes.
    /// `by_other`: the operation was not the tag's own.
    fn check(&self, number: usize, before: u64, by_other: bool) {
        let (charge, seen) = (self.charge(number), &self.seen[number]);
        seen.greatest.fetch_max(charge, Relaxed);
        self.expect(LIMITS[number].max.is_some_and(|max| charge <= max));
        if by_other {
            self.expect(charge >= before.min(LIMITS[number].low));
            if charge < before {
                seen.taken.fetch_add(1, Relaxed);
                seen.least_left.fetch_min(charge, Relaxed);
            }
        }
    }

    /// Compares the charges with the segments of a snapshot, and checks every invariant.
    fn compare(&self) {
        self.expect(self.allocator.check_invariants().is_ok());
        let segments = self.allocator.snapshot();
        for number in [0, 1] {
            let of_pool = segments.iter().filter(|segment| segment.pool == self.pools[number]);
            self.expect(of_pool.map(|segment| segment.total_size).sum::<u64>() == self.charge(number));
        }
    }

    fn in_turn(&self, actors: &mut [Actor; 3], operations: u64) {
        let mut rng = actors[0].rng.fork();
        for at in 0..operations {
            let acting = rng.usize(..3);
            let before = [0, 1].map(|number| self.charge(number));
            self.act(&mut actors[acting], at);
            [0, 1].into_iter().for_each(|number| self.check(number, before[number], number != acting));
            if at % INTERVAL == 0 {
                self.compare();
            }
        }
    }

    /// Runs an actor on its own thread. A tag that has reached its `low` never falls below it:
    /// others do not push it there, and it gives back of its own accord only close to `max`.
    fn alone(&self, actor: &mut Actor, operations: u64) {
        let mut reached = 0;
        for at in 0..operations {
            self.act(actor, at);
            if actor.number != UNTAGGED {
                self.check(actor.number, reached, true);
                reached = reached.max(self.charge(actor.number).min(LIMITS[actor.number].low));
            }
        }
    }
}

/// The streams of an actor.
fn streams(number: usize) -> [StreamId; 2] {
    [StreamId(number as u64 * 2 + 1), StreamId(number as u64 * 2 + 2)]
}

/// Returns a number from the environment.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
#[ignore = "takes a minute: run by `tests/groups.sh`"]
fn ten_million_operations_of_two_tags() {
    let operations = setting("CACHALOT_GROUP_OPERATIONS", 10_000_000);
    let seed = setting("CACHALOT_GROUP_SEED", fastrand::u64(..));
    run(seed, operations, "");
}

#[test]
fn two_tags_keep_to_both_bounds() {
    for config in ["", "policy:stitched"] {
        let campaign = run(7, 3000, config);
        assert_eq!(campaign.failed.into_inner(), 0, "`{config}`");
        assert!(campaign.seen[..2].iter().all(|seen| seen.taken.load(Relaxed) > 0), "`{config}`: memory was not short");
    }
}

/// Runs the campaign and prints its figures.
fn run(seed: u64, operations: u64, config: &str) -> Campaign {
    let began = Instant::now();
    let campaign = Campaign::new(config);
    let mut rng = Rng::with_seed(seed);
    let mut actors = [0, 1, 2].map(|number| Actor { number, rng: rng.fork(), blocks: Vec::new() });
    let each = operations / 6;
    campaign.in_turn(&mut actors, operations - 3 * each);
    std::thread::scope(|scope| {
        for actor in &mut actors {
            scope.spawn(|| campaign.alone(actor, each));
        }
    });
    campaign.compare();
    let of_all = actors.iter().flat_map(|actor| &actor.blocks);
    of_all.for_each(|&block| campaign.allocator.free(block).unwrap());
    campaign.compare();
    let (checks, failed) = (campaign.checks.load(Relaxed), campaign.failed.load(Relaxed));
    let seconds = began.elapsed().as_secs_f64();
    std::println!("seed {seed}, operations {operations}, checks {checks}, failed {failed}, seconds {seconds:.1}");
    for (number, seen) in campaign.seen.iter().enumerate() {
        let given = if number == UNTAGGED {
            TagUse::default()
        } else {
            campaign.allocator.tags(DEVICE).unwrap().held(TAGS[number]).unwrap()
        };
        std::println!("{number}: {seen:?}, given {} bytes, {} refusals", given.given, given.refusals);
    }
    assert_eq!(failed, 0);
    campaign
}
