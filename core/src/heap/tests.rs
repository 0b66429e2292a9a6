//! Tests of a heap alone, without a device: its marks, which block it chooses, rises above leases,
//! looks, and uses.

use super::*;
use crate::heap::age::{Found, Idle, Moment};
use crate::heap::block::FRONTIER_BIT;
use crate::heap::growth::HeldRoom;
use crate::heap::home_pages::{HomePage, Stays};
use crate::heap::restore::Restoring;
use crate::heap::split_rules::Source;
use crate::planned::sequence::{Sequence, SequenceStep};
use crate::pool::PoolId;
use crate::snapshot::{BlockState, SnapshotBlock};
use crate::tables::Growable;
use crate::tests::own::parse;
use crate::units::MIB;
use std::vec::Vec;

/// The length of every page.
const STEP: u64 = 2 * MIB;
/// The address of the first segment or range.
const BASE: u64 = 1 << 40;
const STREAM: StreamId = StreamId(7);

struct Fixture {
    heap: Heap<Growable>,
    counters: HeapCounters,
}

impl Fixture {
    /// Creates a heap for large blocks.
    fn new(config: &str, source: Source) -> Self {
        let config = parse(config);
        let mut heap = Heap::default();
        let rules = Rules::new(&config, PoolKind::Large, false, source);
        heap.begin(STREAM, 0, rules, AnySubAllocator::of(config.policy()));
        Self { heap, counters: HeapCounters::default() }
    }

    /// Creates a heap with a range of `length` pages. The first `mapped` of them are mapped and
    /// free.
    fn with_pages(length: u64, mapped: u64) -> Self {
        let mut fixture = Self::new("expandable_segments:True", Source::Pages);
        fixture.heap.make_room().unwrap();
        assert!(fixture.heap.make_room_for_range());
        fixture.heap.add_range(DevicePtr(BASE), length * STEP, STEP);
        if mapped > 0 {
            let run = fixture.detach(mapped);
            fixture.heap.extend(run, &fixture.counters);
        }
        fixture
    }

    /// Holds room for `pages` pages, and maps them.
    fn detach(&mut self, pages: u64) -> HeldRoom {
        let heap = &mut self.heap;
        heap.make_room().unwrap();
        assert!(heap.make_room_for_range());
        let held = heap.hold_room(pages * STEP, 0).unwrap();
        let mut from = 0;
        while let Some(part) = heap.part_from(held, from) {
            from = part.at.0 + part.bytes;
            heap.sets.pages.make_room((part.bytes / STEP) as u32).unwrap();
            for at in (part.at.0..from).step_by(STEP as usize) {
                heap.sets.pages.insert(HomePage::new(at, STEP, 0));
            }
        }
        held
    }

    fn add_segment(&mut self, base: u64, bytes: u64) {
        self.heap.make_room_for_segment(bytes, bytes).unwrap();
        self.heap.add_segment(DevicePtr(base), bytes, bytes, &self.counters);
    }

    fn malloc(&mut self, bytes: u64) -> Option<u64> {
        self.heap.malloc(bytes, bytes, &self.counters).unwrap().map(|served| served.value.0)
    }

    /// Allocates blocks with these numbers of pages, one after the other.
    fn fill(&mut self, blocks: &[u64]) {
        let mut at = BASE;
        for pages in blocks {
            assert_eq!(self.malloc(pages * STEP), Some(at));
            at += pages * STEP;
        }
    }

    fn taken_off(&mut self, at: u64) -> u32 {
        match self.heap.detach(DevicePtr(at), None, &self.counters) {
            FreeOutcome::Unused(block) => block,
            _ => panic!("{at:#x} is not live, or is used"),
        }
    }

    fn free(&mut self, at: u64) -> bool {
        let block = self.taken_off(at);
        self.heap.finish_free(block, &self.counters)
    }
}

#[test]
fn only_an_awake_heap_of_the_default_pool_and_a_running_stream_serves_the_fast_path() {
    let mut heap = Heap::<Growable>::default();
    let rules = Rules::unset(PoolKind::Small);
    heap.begin(STREAM, 3, rules, None);
    assert_eq!(heap.serves, NO_STREAM);
    heap.begin(STREAM, 0, rules, None);
    assert_eq!(heap.serves, STREAM);
    for (ended, asleep) in [(true, false), (false, true), (true, true)] {
        heap.mark(ended, asleep);
        assert_eq!(heap.serves, NO_STREAM);
    }
    heap.mark(false, false);
    assert_eq!(heap.serves, STREAM);
}

#[test]
fn a_heap_is_plain_until_anything_of_it_is_not() {
    let mut fixture = Fixture::new("", Source::Device);
    fixture.add_segment(BASE, 20 * MIB);
    assert!(fixture.heap.plain);
    let rules = fixture.heap.rules;
    let mut ages = rules;
    ages.ages = true;
    fixture.heap.set_rules(ages);
    assert!(!fixture.heap.plain);
    fixture.heap.set_rules(rules);
    assert!(fixture.heap.plain);
    assert!(fixture.heap.make_room_for_range());
    fixture.heap.add_range(DevicePtr(BASE << 1), STEP, STEP);
    assert!(!fixture.heap.plain, "a range makes the heap so, also where new memory comes from the device");
    assert!(!Fixture::new("policy:first_fit", Source::Device).heap.plain);
}

#[test]
fn the_straight_path_serves_while_a_block_and_a_table_have_room() {
    let mut fixture = Fixture::new("", Source::Device);
    let straight = |fixture: &mut Fixture| {
        let served = fixture.heap.malloc_plainly(2 * MIB, 2 * MIB, &fixture.counters);
        served.map(|served| served.value.0)
    };
    assert_eq!(straight(&mut fixture), None, "no table is there yet");
    fixture.add_segment(BASE, 20 * MIB);
    fixture.heap.make_room().unwrap();
    assert_eq!(straight(&mut fixture), Some(BASE));
}

#[test]
fn a_heap_tells_of_a_segment_without_live_blocks_if_clean_or_ended() {
    let mut fixture = Fixture::new("", Source::Device);
    fixture.add_segment(BASE, 20 * MIB);
    for (clean, ended, tells) in [(true, false, true), (false, false, false), (false, true, true), (true, true, true)] {
        fixture.heap.mark(ended, false);
        fixture.heap.set_clean(clean);
        assert_eq!(fixture.heap.straight_frees, !tells, "clean: {clean}, ended: {ended}");
        assert_eq!(fixture.malloc(20 * MIB), Some(BASE));
        assert_eq!(fixture.free(BASE), tells, "clean: {clean}, ended: {ended}");
    }
}

#[test]
fn a_request_passes_a_whole_segment_for_a_larger_block_of_a_cut_one() {
    let mut fixture = Fixture::new("compact:0.1", Source::Device);
    fixture.add_segment(BASE, 24 * MIB);
    assert_eq!(fixture.malloc(8 * MIB), None, "cut for a third, the segment could not go back");
    fixture.add_segment(BASE << 1, 60 * MIB);
    let second = fixture.heap.containing(DevicePtr(BASE << 1)).unwrap();
    fixture.heap.make_room().unwrap();
    fixture.heap.allocate_from(second, 20 * MIB, 20 * MIB, &fixture.counters);
    assert_eq!(fixture.malloc(8 * MIB), Some((BASE << 1) + 20 * MIB), "the smaller block is whole");
    fixture.heap.rules.compact = Compacting::No;
    assert_eq!(fixture.malloc(8 * MIB), Some(BASE));
}

#[test]
fn of_equal_gaps_in_a_range_the_lowest_is_filled() {
    // The range ends where its pages end, so no addresses are left after the last block.
    let mut fixture = Fixture::with_pages(4, 4);
    fixture.fill(&[1, 1, 1, 1]);
    fixture.free(BASE + STEP);
    fixture.free(BASE + 3 * STEP);
    assert_eq!(fixture.malloc(STEP), Some(BASE + STEP));
    assert_eq!(fixture.malloc(STEP), Some(BASE + 3 * STEP));
    assert_eq!(fixture.malloc(STEP), None);
}

#[test]
fn a_gap_is_filled_before_the_end_of_the_mapped_pages_unless_that_can_grow_less() {
    // A live block after a gap is no room to grow into, however long it is.
    let mut fixture = Fixture::with_pages(64, 44);
    fixture.fill(&[1, 2, 40, 1]);
    fixture.free(BASE + STEP);
    fixture.free(BASE + 43 * STEP);
    assert_eq!(fixture.malloc(STEP), Some(BASE + STEP));
    // The last block can grow to two pages, but the gap has three.
    let mut fixture = Fixture::with_pages(6, 5);
    fixture.fill(&[3, 1, 1]);
    fixture.free(BASE);
    fixture.free(BASE + 4 * STEP);
    assert_eq!(fixture.malloc(STEP), Some(BASE + 4 * STEP));
}

#[test]
fn the_bytes_to_map_are_whole_pages_beyond_the_free_block() {
    let mut fixture = Fixture::with_pages(8, 3);
    fixture.fill(&[2]);
    let heap = &mut fixture.heap;
    let needed = |size| heap.lacking(size).map(|lacking| lacking.needed);
    assert_eq!(needed(3 * STEP), Some(2 * STEP));
    assert_eq!(needed(3 * STEP - 512), Some(2 * STEP));
    assert_eq!(needed(6 * STEP), Some(5 * STEP));
    assert_eq!(needed(6 * STEP + 512), None);
    heap.make_room().unwrap();
    let held = heap.hold_room(3 * STEP, 0).unwrap();
    assert_eq!((held.needed, held.room), (2 * STEP, 2 * STEP));
}

/// Every statistic.
const STATS: [Stat; 11] = [
    Stat::Allocation,
    Stat::AllocatedBytes,
    Stat::Active,
    Stat::ActiveBytes,
    Stat::InactiveSplit,
    Stat::InactiveSplitBytes,
    Stat::RequestedBytes,
    Stat::Segment,
    Stat::ReservedBytes,
    Stat::OversizeAllocations,
    Stat::OversizeSegments,
];

/// Runs `act` with counters in which some of `stats`, and no others, have no lease left. `act` must
/// return that the peaks have to be reconciled iff there are any such.
fn tells_of_each_rise(what: &str, stats: &[Stat], act: impl Fn(&HeapCounters) -> bool) {
    for lacking in 0..1_u32 << stats.len() {
        let counters = HeapCounters::default();
        for stat in STATS {
            let place = stats.iter().position(|&other| other == stat);
            if place.is_none_or(|place| lacking >> place & 1 == 0) {
                // What is removed here can be added again.
                counters.down(stat, 1 << 50);
            }
        }
        assert_eq!(act(&counters), lacking != 0, "{what}: {lacking:b}");
    }
}

const OVERSIZE: &str = "max_split_size_mb:32";

/// Returns blocks that tile the bytes from [`BASE`] on, alternately free and allocated.
fn alternating(sizes: &[u64]) -> Vec<SnapshotBlock> {
    let mut at = BASE;
    let states = [BlockState::Inactive, BlockState::ActiveAllocated].into_iter().cycle();
    let block = |(&size, state): (&u64, BlockState)| {
        at += size;
        SnapshotBlock { address: DevicePtr(at - size), size, spilled: 0, requested_size: size, state, site: 0 }
    };
    sizes.iter().zip(states).map(block).collect()
}

#[test]
fn new_memory_tells_of_each_rise_above_a_lease() {
    tells_of_each_rise("segment", &[Stat::Segment, Stat::ReservedBytes, Stat::OversizeSegments], |counters| {
        let Fixture { mut heap, .. } = Fixture::new(OVERSIZE, Source::Device);
        heap.make_room_for_segment(40 * MIB, 40 * MIB).unwrap();
        heap.add_segment(DevicePtr(BASE), 40 * MIB, 40 * MIB, counters).peaks_stale
    });
    tells_of_each_rise("two parts of a run", &[Stat::ReservedBytes], |counters| {
        let mut fixture = Fixture::with_pages(8, 4);
        fixture.fill(&[1, 2, 1]);
        fixture.free(BASE + STEP);
        // Two pages between live blocks are unmapped. Of the three that come back, one is after all
        // of them.
        let heap = &mut fixture.heap;
        let block = heap.containing(DevicePtr(BASE + STEP)).unwrap();
        heap.make_room().unwrap();
        let range = heap.whole_pages(block, |page| page.at == BASE + STEP).unwrap();
        let part = heap.detach_range(block, range);
        heap.sets.pages.remove(BASE + STEP);
        heap.finish_unmap(part, &fixture.counters);
        fixture.free(BASE + 3 * STEP);
        let run = fixture.detach(4);
        fixture.heap.extend(run, counters).peaks_stale
    });
}

#[test]
fn a_sub_block_tells_of_each_rise_above_a_lease() {
    let fixture = || {
        let mut fixture = Fixture::new("policy:first_fit", Source::Device);
        fixture.add_segment(BASE, 16 * MIB);
        fixture
    };
    let first =
        [Stat::InactiveSplit, Stat::InactiveSplitBytes, Stat::Allocation, Stat::AllocatedBytes, Stat::RequestedBytes];
    tells_of_each_rise("the first of a segment", &first, |counters| {
        let Fixture { mut heap, .. } = fixture();
        heap.malloc(4 * MIB, 3 * MIB, counters).unwrap().unwrap().peaks_stale
    });
    tells_of_each_rise("a free", &[Stat::InactiveSplit, Stat::InactiveSplitBytes], |counters| {
        let mut fixture = fixture();
        let first = fixture.malloc(4 * MIB).unwrap();
        fixture.malloc(4 * MIB).unwrap();
        let block = fixture.taken_off(first);
        fixture.heap.finish_free(block, counters)
    });
}

#[test]
fn a_block_of_a_plan_tells_of_each_rise_and_is_oversize_from_the_threshold_on() {
    let step = SequenceStep { size: 32 * MIB, until: 1, offset: Some(0) };
    let stats = [Stat::Allocation, Stat::AllocatedBytes, Stat::RequestedBytes, Stat::OversizeAllocations];
    for is_next in [true, false] {
        tells_of_each_rise("a block of a plan", &stats, |counters| {
            let mut heap = Heap::<Growable>::default();
            heap.begin(STREAM, 1, Fixture::new(OVERSIZE, Source::Device).heap.rules, None);
            heap.make_room_for_plan().unwrap();
            let (plan, of_segment) = (Sequence::new(BASE, &[step]), HeapCounters::default());
            heap.begin_plan((DevicePtr(BASE), 64 * MIB), plan, PoolId(1, 0), &of_segment);
            let before = counters.current(Stat::OversizeAllocations);
            let served = if is_next {
                heap.malloc_planned(32 * MIB - 5, STREAM, counters)
            } else {
                heap.malloc_deviating(32 * MIB - 5, STREAM, counters)
            };
            assert_eq!(counters.current(Stat::OversizeAllocations) - before, 1);
            served.unwrap().peaks_stale
        });
    }
}

#[test]
fn a_restored_block_tells_of_each_rise_above_a_lease() {
    let allocated = [Stat::Allocation, Stat::AllocatedBytes, Stat::RequestedBytes, Stat::OversizeAllocations];
    let split = [Stat::InactiveSplit, Stat::InactiveSplitBytes];
    let segment = [Stat::Segment, Stat::ReservedBytes, Stat::OversizeSegments];
    let room = |heap: &mut Heap<Growable>, counters: &HeapCounters| {
        Restoring { heap, counters }.make_room_for_blocks(8).unwrap();
    };
    let all = [&allocated[..], &split, &segment].concat();
    for sizes in [&[8 * MIB, 40 * MIB][..], &[8 * MIB, 40 * MIB, 8 * MIB, 40 * MIB]] {
        tells_of_each_rise("a segment", &all, |counters| {
            let Fixture { mut heap, .. } = Fixture::new(OVERSIZE, Source::Device);
            room(&mut heap, counters);
            let mut restoring = Restoring { heap: &mut heap, counters };
            restoring.restore_segment(DevicePtr(BASE), sizes.iter().sum(), &alternating(sizes))
        });
    }
    tells_of_each_rise("a part", &[&allocated[..3], &segment[1..2]].concat(), |counters| {
        let Fixture { mut heap, .. } = Fixture::with_pages(8, 0);
        room(&mut heap, counters);
        let block = heap.containing(DevicePtr(BASE)).unwrap();
        let part = heap.detach_part(block, DevicePtr(BASE), 2 * STEP);
        Restoring { heap: &mut heap, counters }.restore_part(part, &alternating(&[STEP, STEP]))
    });
    tells_of_each_rise("a block at an address", &[&allocated[..3], &split].concat(), |counters| {
        let mut fixture = Fixture::new("", Source::Device);
        fixture.add_segment(BASE, 20 * MIB);
        room(&mut fixture.heap, counters);
        let mut restoring = Restoring { heap: &mut fixture.heap, counters };
        restoring.allocate_at(DevicePtr(BASE + 4 * MIB), 4 * MIB, 3 * MIB).unwrap()
    });
}

/// Looks at the heap at a given moment, after its clock has advanced.
fn look(fixture: &mut Fixture, now: u32) -> Vec<Found> {
    let mut found = Vec::new();
    fixture.heap.clock += 1;
    fixture.heap.look(Moment(now), |finding| found.push(finding));
    found
}

#[test]
fn a_look_tells_what_is_new_idle_and_used_again() {
    let bytes = STEP;
    let (new, idle) = (Found::New { bytes }, Found::Idle { bytes });
    let used_again = |since| Found::UsedAgain { bytes, idle: Idle::since(Moment(since)) };
    let mut fixture = Fixture::with_pages(16, 6);
    fixture.fill(&[1, 1, 1, 1, 2]);
    let page = |fixture: &Fixture, number: u64| fixture.heap.sets.pages.from(BASE + number * STEP).unwrap();
    assert_eq!(look(&mut fixture, 1000), [new; 6]);
    assert_eq!(look(&mut fixture, 2000), []);
    fixture.free(BASE + STEP);
    fixture.free(BASE + 2 * STEP);
    let first = fixture.heap.clock;
    assert_eq!(look(&mut fixture, 3000), [idle; 2]);
    assert_eq!(look(&mut fixture, 4000), [idle; 2]);
    assert_eq!([1, 2].map(|number| page(&fixture, number).freed_at), [first; 2]);
    // The front is used. What is after it remains idle, although the merged block counts as free
    // since now.
    assert_eq!(fixture.malloc(STEP), Some(BASE + STEP));
    fixture.free(BASE + STEP);
    let second = fixture.heap.clock;
    assert_eq!(look(&mut fixture, 5000), [used_again(3000), idle, idle]);
    assert_eq!([1, 2].map(|number| page(&fixture, number).freed_at), [second, first]);
    let ages = [1, 2].map(|number| page(&fixture, number).idle.age(Moment(8000)));
    assert_eq!(ages, [Some(3000), Some(5000)]);
}

#[test]
fn free_pages_below_a_later_request_stay_idle() {
    let mut fixture = Fixture::with_pages(16, 6);
    fixture.fill(&[1, 1, 1, 3]);
    fixture.free(BASE + STEP);
    look(&mut fixture, 1000);
    fixture.free(BASE + 3 * STEP);
    assert_eq!(fixture.malloc(3 * STEP), Some(BASE + 3 * STEP), "the free page is too short");
    assert_eq!(look(&mut fixture, 2000).len(), 1);
    let page = fixture.heap.sets.pages.from(BASE + STEP).unwrap();
    assert_eq!(page.idle.age(Moment(3000)), Some(2000));
}

#[test]
fn a_look_tells_nothing_of_a_heap_that_a_sub_allocator_divides() {
    for (config, told) in [("", 2), ("policy:first_fit", 0)] {
        let mut fixture = Fixture::new(config, Source::Device);
        assert_eq!(look(&mut fixture, 1000), []);
        fixture.add_segment(BASE, 16 * MIB);
        assert_eq!(look(&mut fixture, 1000).len(), told, "`{config}`");
    }
}

#[test]
fn a_park_keeps_the_pages_under_blocks_that_wait_for_the_frontier() {
    let mut fixture = Fixture::with_pages(8, 4);
    fixture.fill(&[1, 1, 1, 1]);
    for (at, waits_for) in [(1, FRONTIER_BIT), (2, 1)] {
        let block = fixture.taken_off(BASE + at * STEP);
        fixture.heap.pend(block, &fixture.counters);
        fixture.heap.blocks[block].events = waits_for;
    }
    let stays =
        |heap: &Heap<Growable>| [0, 1, 2, 3].map(|page| heap.sets.pages.from(BASE + page * STEP).unwrap().stays);
    fixture.heap.keep_pages_of_numbered_work();
    assert_eq!(stays(&fixture.heap), [Stays::No; 4], "no park is in progress");
    fixture.heap.mark(false, true);
    fixture.heap.keep_pages_of_numbered_work();
    assert_eq!(stays(&fixture.heap), [Stays::No, Stays::Parking, Stays::No, Stays::No]);
    fixture.heap.end_stay();
    assert_eq!(stays(&fixture.heap), [Stays::No; 4]);
}

#[test]
fn the_uses_of_blocks_are_listed_by_stream_and_leave_nothing_when_cleared() {
    let mut fixture = Fixture::new("", Source::Device);
    fixture.add_segment(BASE, 20 * MIB);
    let blocks = [4 * MIB, 4 * MIB].map(|bytes| fixture.malloc(bytes).unwrap());
    let [one, two] = blocks.map(|at| fixture.heap.lookup(DevicePtr(at)).unwrap());
    for (block, stream) in [(one, 9), (two, 3), (one, 5)] {
        assert_eq!(fixture.heap.uses().add(block, StreamId(stream), false), Ok(None));
    }
    let mut streams = Vec::new();
    while let Some(next) = fixture.heap.uses().next_stream(streams.last().copied()) {
        assert!(streams.last().is_none_or(|&last| next > last), "{next:?} after {streams:?}");
        streams.push(next);
    }
    assert_eq!(streams, [3, 5, 9].map(StreamId));
    fixture.heap.uses().clear(one);
    assert_eq!(fixture.heap.sets.uses.len(), 1);
    fixture.heap.uses().clear(two);
    assert_eq!(fixture.heap.sets.uses.len(), 0);
    fixture.heap.uses().make_room().unwrap();
    fixture.heap.uses().lend(one, StreamId(9));
    assert_eq!(fixture.heap.uses().borrower(one), Some(StreamId(9)));
    fixture.heap.take_back(DevicePtr(blocks[0]));
    assert_eq!(fixture.heap.uses().borrower(one), None);
    fixture.free(blocks[0]);
}

#[test]
fn a_policy_has_a_sub_allocator_iff_its_traits_name_the_heaps() {
    for name in ["caching", "bfc", "first_fit", "small_first_fit", "stitched", "direct"] {
        let policy = parse(&std::format!("policy:{name}")).policy();
        let made = AnySubAllocator::<Growable>::of(policy);
        assert_eq!(made.is_some(), policy.traits().suballocated.is_some(), "{name}");
    }
    let of = |name| parse(name).policy().traits().suballocated;
    let heaps = ["policy:first_fit", "policy:small_first_fit"].map(of);
    assert_eq!(heaps, [PoolKind::Large, PoolKind::Small].map(Some));
}
