//! Tests of a plan's sequence against a naive model that compares live blocks byte by byte.

use super::sequence::{Placement, Sequence, SequenceStep};
use crate::units::UNIT;
use cachalot_planner::{Buffer, Problem};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::vec::Vec;

const BASE: u64 = 1 << 30;

/// Plans by first fit: places each buffer at the lowest offset that is free during its lifetime.
pub(crate) fn first_fit(problem: &Problem) -> cachalot_planner::Plan {
    let buffers = &problem.buffers;
    let mut offsets: Vec<u64> = Vec::new();
    for (number, buffer) in buffers.iter().enumerate() {
        let clash = |at: u64| {
            let lives = |other: &Buffer| other.start < buffer.end && buffer.start < other.end;
            (0..number).find(|&other| {
                let (low, high) = (offsets[other], offsets[other] + buffers[other].size);
                lives(&buffers[other]) && low < at + buffer.size && at < high
            })
        };
        let mut at = 0;
        while let Some(other) = clash(at) {
            at = offsets[other] + buffers[other].size;
        }
        offsets.push(at);
    }
    let peak = buffers.iter().zip(&offsets).map(|(buffer, offset)| buffer.size + offset).max().unwrap_or(0);
    cachalot_planner::Plan { offsets, peak }
}

/// An operation of an iteration: a request for a number of units, or the free of the n-th live
/// block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Malloc(u64),
    Free(usize),
}

/// Returns the steps observed for the operations.
fn observe(ops: &[Op]) -> Vec<SequenceStep> {
    let mut steps: Vec<SequenceStep> = Vec::new();
    let mut held: Vec<usize> = Vec::new();
    for &op in ops {
        match op {
            Op::Malloc(units) => {
                held.push(steps.len());
                steps.push(SequenceStep { size: units * UNIT, until: 0, offset: None });
            }
            Op::Free(which) if !held.is_empty() => {
                let step = held.remove(which % held.len());
                steps[step].until = steps.len() as u32;
            }
            Op::Free(_) => {}
        }
    }
    let mut problem = Problem::default();
    for (start, step) in (0..).zip(&steps).filter(|(_, step)| step.until > 0) {
        let (end, size) = (u64::from(step.until), step.size);
        problem.buffers.push(Buffer { start, end, size, alignment: UNIT, fixed: None });
    }
    let plan = first_fit(&problem);
    cachalot_planner::verify(&problem, &plan).expect("first fit plans");
    let mut offsets = plan.offsets.into_iter();
    for step in steps.iter_mut().filter(|step| step.until > 0) {
        step.offset = offsets.next();
    }
    steps
}

/// A program under a plan.
struct Run {
    sequence: Sequence,
    /// The blocks that the program holds, in the order of allocation; `None` for those from the
    /// fallback.
    held: Vec<Option<Placement>>,
    fallback: u64,
}

impl Run {
    fn new(steps: &[SequenceStep]) -> Self {
        Self { sequence: Sequence::new(BASE, steps), held: Vec::new(), fallback: 0 }
    }

    fn perform(&mut self, op: Op) {
        match op {
            Op::Malloc(units) => {
                let bytes = units * UNIT - units % 7;
                let handed = self.sequence.next(bytes).or_else(|| self.sequence.next_deviating(bytes));
                if let Some(handed) = handed {
                    assert_eq!(handed.size, units * UNIT);
                    for other in self.held.iter().flatten() {
                        let apart = handed.addr + handed.size <= other.addr || other.addr + other.size <= handed.addr;
                        assert!(apart, "{handed:?} shares bytes with {other:?}");
                    }
                }
                self.fallback += u64::from(handed.is_none());
                self.held.push(handed);
            }
            Op::Free(which) if !self.held.is_empty() => {
                let which = which % self.held.len();
                if let Some(handed) = self.held.remove(which) {
                    assert_eq!(self.sequence.free(handed.addr, None).map(|(block, _)| block), Some(handed));
                    assert_eq!(self.sequence.unlisted_at(handed.addr), None);
                    assert_eq!(self.sequence.free(handed.addr, None), None);
                }
            }
            Op::Free(_) => {}
        }
        self.sequence.check().unwrap();
    }

    fn iterate(&mut self, ops: &[Op]) {
        ops.iter().for_each(|&op| self.perform(op));
        self.sequence.restart();
        self.sequence.check().unwrap();
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![(1..40_u64).prop_map(Op::Malloc), (0..12_usize).prop_map(Op::Free)]
}

/// A deviation: at a place in the program, leaves out a number of operations and inserts new ones.
type Deviation = (prop::sample::Index, usize, Vec<Op>);

fn deviate(ops: &[Op], (at, out, others): &Deviation) -> Vec<Op> {
    let mut ops = ops.to_vec();
    let at = at.index(ops.len());
    let end = ops.len().min(at + out);
    ops.splice(at..end, others.iter().copied());
    ops
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(std::boxed::Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_program_that_repeats_is_served_to_the_last_request(ops in prop::collection::vec(op(), 1..120)) {
        // Everything is freed at the end, so that all iterations are the same.
        let frees = core::iter::repeat_n(Op::Free(0), ops.len());
        let ops: Vec<Op> = ops.iter().copied().chain(frees).collect();
        let steps = observe(&ops);
        let mut run = Run::new(&steps);
        for _ in 0..3 {
            run.iterate(&ops);
        }
        prop_assert_eq!(run.fallback, 0);
        prop_assert_eq!(run.sequence.served(), 3 * steps.len() as u64);
        prop_assert_eq!(run.sequence.deviations.counts, super::deviations::Counts::default());
    }

    #[test]
    fn whatever_the_program_does_no_two_blocks_share_bytes(
        ops in prop::collection::vec(op(), 1..120),
        deviations in prop::collection::vec((any::<prop::sample::Index>(), 0..20_usize, prop::collection::vec(op(), 0..12)), 0..8),
    ) {
        let mut run = Run::new(&observe(&ops));
        for deviation in &deviations {
            run.iterate(&deviate(&ops, deviation));
        }
        let requests = run.sequence.served() + run.fallback;
        let counts = run.sequence.deviations.counts;
        prop_assert_eq!(run.fallback, counts.lasting + counts.extra + counts.occupied);
        let made: u64 = deviations.iter().map(|deviation| {
            deviate(&ops, deviation).iter().filter(|op| matches!(op, Op::Malloc(_))).count() as u64
        }).sum();
        prop_assert_eq!(requests, made);
    }

    #[test]
    fn a_program_of_parts_of_the_sequence_in_any_order_is_served_rightly(
        ops in prop::collection::vec(op(), 20..120),
        parts in prop::collection::vec((any::<prop::sample::Index>(), 1..40_usize), 1..12),
    ) {
        let mut run = Run::new(&observe(&ops));
        for (at, length) in parts {
            let at = at.index(ops.len());
            ops[at..ops.len().min(at + length)].iter().for_each(|&op| run.perform(op));
        }
    }

    #[test]
    fn a_listed_block_keeps_its_bytes_until_the_heap_frees_it(
        ops in prop::collection::vec(op(), 1..80),
        cared in prop::collection::vec(any::<bool>(), 80),
    ) {
        let mut run = Run::new(&observe(&ops));
        let mut away: Vec<Placement> = Vec::new();
        for _ in 0..3 {
            for (&op, &care) in ops.iter().zip(&cared) {
                // A listed block does not end before the heap has freed it.
                let free = match op { Op::Free(which) if !run.held.is_empty() => run.held[which % run.held.len()], _ => None };
                if let Some(handed) = free.filter(|_| care) {
                    prop_assert_eq!(run.sequence.list(handed.addr).map(|(gone, _)| gone), Some(handed));
                    prop_assert_eq!(run.sequence.unlisted_at(handed.addr), None);
                    prop_assert_eq!(run.sequence.free(handed.addr, None), None);
                    run.held.retain(|held| *held != Some(handed));
                    away.push(handed);
                } else {
                    run.perform(op);
                }
                for handed in run.held.iter().flatten() {
                    let apart = |gone: &Placement| gone.addr + gone.size <= handed.addr || handed.addr + handed.size <= gone.addr;
                    prop_assert!(away.iter().all(apart), "{:?} is listed", handed);
                }
                run.sequence.check().unwrap();
            }
            run.sequence.restart();
            for gone in away.drain(..away.len() / 2) {
                run.sequence.end_listed(gone.addr);
            }
            run.sequence.check().unwrap();
        }
    }
}

/// Returns requests of 1, 2, 3 … units. Each block is freed before the request after the next one.
fn chain(length: u64) -> Vec<Op> {
    let mut ops = Vec::new();
    for units in 1..=length {
        ops.push(Op::Malloc(units));
        if units > 1 {
            ops.push(Op::Free(0));
        }
    }
    ops.push(Op::Free(0));
    ops
}

#[test]
fn one_request_too_many_or_too_few_leaves_the_rest_as_planned() {
    let ops = chain(40);
    let mut run = Run::new(&observe(&ops));
    let mut more = ops.clone();
    more.splice(20..20, [Op::Malloc(100), Op::Free(2)]);
    run.iterate(&more);
    assert_eq!(run.sequence.deviations.counts.extra, 1);
    assert_eq!(run.fallback, 1, "{:?}", run.sequence.deviations.counts);
    let before = run.fallback;
    let mut less = ops.clone();
    less.retain(|op| *op != Op::Malloc(10));
    run.iterate(&less);
    assert_eq!(run.sequence.deviations.counts.missing, 1);
    assert_eq!(run.fallback, before, "{:?}", run.sequence.deviations.counts);
    let before = run.fallback;
    run.iterate(&ops);
    assert_eq!(run.fallback, before, "{:?}", run.sequence.deviations.counts);
}

#[test]
fn two_requests_that_change_places_are_both_served() {
    let ops: Vec<Op> = (1..=10).map(Op::Malloc).chain(core::iter::repeat_n(Op::Free(0), 10)).collect();
    let mut run = Run::new(&observe(&ops));
    let mut swapped = ops;
    swapped.swap(4, 5);
    run.iterate(&swapped);
    assert_eq!(run.fallback, 0);
    assert_eq!(run.sequence.deviations.counts.reordered, 1);
    assert_eq!(run.sequence.served(), 10);
}

#[test]
fn a_late_free_costs_only_the_requests_on_its_bytes() {
    // Two buffers take turns at one address, and a third one is at another address.
    let ops = [
        Op::Malloc(8),
        Op::Malloc(1),
        Op::Free(0),
        Op::Malloc(8),
        Op::Malloc(2),
        Op::Free(1),
        Op::Free(0),
        Op::Free(0),
    ];
    let mut run = Run::new(&observe(&ops));
    let late = [
        Op::Malloc(8),
        Op::Malloc(1),
        Op::Malloc(8),
        Op::Malloc(2),
        Op::Free(0),
        Op::Free(0),
        Op::Free(0),
        Op::Free(0),
    ];
    run.iterate(&late);
    assert_eq!(run.sequence.deviations.counts.occupied, 1);
    assert_eq!(run.fallback, 1);
    run.iterate(&ops);
    assert_eq!(run.fallback, 1);
}

#[test]
fn what_outlives_its_iteration_occupies_its_bytes_in_the_next() {
    let ops = [Op::Malloc(8), Op::Free(0), Op::Malloc(3), Op::Free(0)];
    let mut run = Run::new(&observe(&ops));
    run.iterate(&ops[..1]);
    assert_eq!(run.held.len(), 1);
    run.perform(Op::Malloc(8));
    assert_eq!(run.sequence.deviations.counts.occupied, 1);
    run.perform(Op::Free(0));
    run.perform(Op::Free(0));
    run.perform(Op::Malloc(3));
    assert_eq!(run.fallback, 1);
}

#[test]
fn two_consecutive_requests_locate_the_program_a_little_further_on() {
    let program = |sizes: &mut dyn Iterator<Item = u64>| {
        let mut ops: Vec<Op> = sizes.map(Op::Malloc).collect();
        ops.extend(core::iter::repeat_n(Op::Free(0), ops.len()));
        ops
    };
    let mut run = Run::new(&observe(&program(&mut (1..=60))));
    // A single match that far ahead may be a coincidence, so the cursor does not move.
    run.iterate(&program(&mut (1..=10).chain([21]).chain(11..=60)));
    assert_eq!((run.fallback, run.sequence.deviations.counts.missing), (1, 0));
    // Ten requests are missing. The fallback serves the first request after them; the second one
    // shows where the program is.
    run.iterate(&program(&mut (1..=10).chain(21..=60)));
    assert_eq!((run.fallback, run.sequence.deviations.counts.missing), (2, 11));
}

#[test]
fn eight_consecutive_requests_locate_the_program_anywhere() {
    let ops: Vec<Op> = (1..=200).flat_map(|units| [Op::Malloc(units), Op::Free(0)]).collect();
    let mut run = Run::new(&observe(&ops));
    // The program starts in the middle of the sequence, and continues from there.
    ops[240..].iter().for_each(|&op| run.perform(op));
    assert_eq!(run.fallback, 7, "{:?}", run.sequence.deviations.counts);
    // The program starts the sequence again without an announcement.
    ops[100..].iter().for_each(|&op| run.perform(op));
    assert_eq!(run.fallback, 14, "{:?}", run.sequence.deviations.counts);
    assert_eq!(run.sequence.served(), 80 + 150 - 14);
    run.sequence.restart();
    assert_eq!(run.sequence.served(), 80 + 150 - 14);
}

#[test]
fn a_program_that_jumps_is_found_at_its_eighth_request() {
    // The number of requests in the sequence, those made before the jump, the first one after it,
    // and the number that are missing.
    for (length, made, to, missing) in [(1000, 0, 500, 507), (200, 20, 60, 47), (200, 100, 0, 100)] {
        let ops: Vec<Op> = (1..=length).flat_map(|units| [Op::Malloc(units), Op::Free(0)]).collect();
        let mut run = Run::new(&observe(&ops));
        ops[..2 * made].iter().for_each(|&op| run.perform(op));
        ops[2 * to..2 * to + 40].iter().for_each(|&op| run.perform(op));
        let counts = run.sequence.deviations.counts;
        assert_eq!((run.fallback, counts.extra, counts.missing), (7, 7, missing), "{made} of {length}, then {to}");
    }
}

#[test]
fn a_wrong_size_changes_nothing() {
    let ops = [Op::Malloc(6), Op::Free(0)];
    let mut run = Run::new(&observe(&ops));
    run.perform(Op::Malloc(6));
    let block = run.held[0].unwrap();
    assert_eq!(run.sequence.free(block.addr, Some(1)), None);
    assert!(run.sequence.unlisted().eq([(block, 6 * UNIT - 6)]));
    assert_eq!(run.sequence.free(block.addr + UNIT, None), None);
    run.sequence.check().unwrap();
    run.perform(Op::Free(0));
}

/// What follows the sequence needs no search. A block that is still in use stops the fast path.
#[test]
fn the_fast_path_serves_what_follows_the_sequence() {
    let ops = [
        Op::Malloc(1),
        Op::Malloc(3),
        Op::Free(0),
        Op::Malloc(2),
        Op::Free(0),
        Op::Free(0),
        Op::Malloc(4),
        Op::Free(0),
    ];
    let steps = observe(&ops);
    let mut sequence = Sequence::new(BASE, &steps);
    for round in 0..3 {
        let mut held = Vec::new();
        for op in ops {
            match op {
                Op::Malloc(units) => {
                    let step = steps[sequence.cursor as usize];
                    let (bytes, addr) = (units * UNIT - round, BASE + step.offset.unwrap());
                    assert_eq!(sequence.peek(bytes), Some(addr));
                    assert_eq!(sequence.next(bytes + UNIT), None, "another size");
                    assert_eq!(sequence.next((units - 1) * UNIT), None, "a unit less");
                    let served = sequence.next(bytes).unwrap();
                    assert_eq!((served.addr, served.size), (addr, units * UNIT));
                    assert_eq!(sequence.unlisted_at(addr + 1), Some((served, bytes)));
                    held.push(addr);
                }
                Op::Free(which) => {
                    sequence.free(held.remove(which), None).unwrap();
                }
            }
            sequence.check().unwrap();
        }
        sequence.restart();
    }
    assert!(sequence.next(UNIT).is_some());
    sequence.restart();
    assert_eq!(sequence.next(UNIT), None, "the block of the last iteration is in use");
}
