//! Strategies for small generated problems with every feature.

use cachalot_planner::greedy::Greedy;
use cachalot_planner::{Algorithm, Buffer, Colocation, Overwrite, Problem};
use proptest::collection::vec;
use proptest::prelude::*;

/// Alignments of the buffers in a problem.
#[derive(Clone, Copy, Debug)]
pub enum Alignments {
    /// No alignment.
    Bytes,
    /// A common alignment.
    One,
    /// A separate alignment for every buffer.
    Mixed,
}

/// Generates a valid problem of up to `most` buffers, with alignments, chains of overwrites,
/// colocations, and fixed offsets that leave room for a plan.
pub fn problem(most: usize) -> impl Strategy<Value = Problem> {
    let alignments = prop_oneof![Just(Alignments::Bytes), Just(Alignments::One), Just(Alignments::Mixed)];
    let shared = prop_oneof![Just(Vec::new()), vec(any::<(u16, u16, u8)>(), 0..most)];
    (alignments, vec(buffer(), 1..=most), vec(any::<(u16, u16, u16)>(), 0..most), shared, vec(0..8_u8, most)).prop_map(
        |(alignments, buffers, pairs, shared, fixed)| {
            let mut problem = assemble(alignments, buffers, &pairs);
            shared.into_iter().for_each(|pair| colocate(&mut problem, pair));
            fix(&mut problem, &fixed);
            problem
        },
    )
}

/// Generates a valid problem without fixed offsets.
pub fn movable(most: usize) -> impl Strategy<Value = Problem> {
    problem(most).prop_map(|mut problem| {
        problem.buffers.iter_mut().for_each(|buffer| buffer.fixed = None);
        problem
    })
}

fn buffer() -> impl Strategy<Value = (u64, u64, u64, u32)> {
    (0..20_u64, prop_oneof![3 => 1..5_u64, 1 => 5..30_u64], prop_oneof![1..9_u64, 1..100_u64], 0..5_u32)
}

fn assemble(alignments: Alignments, buffers: Vec<(u64, u64, u64, u32)>, pairs: &[(u16, u16, u16)]) -> Problem {
    let one = buffers[0].3;
    let buffer = |(start, length, size, log2)| {
        let alignment = match alignments {
            Alignments::Bytes => 1,
            Alignments::One => 1 << one,
            Alignments::Mixed => 1_u64 << log2,
        };
        Buffer { start, end: start + length, size, alignment, fixed: None }
    };
    let mut problem = Problem { buffers: buffers.into_iter().map(buffer).collect(), ..Problem::default() };
    for &(writer, target, offset) in pairs {
        let pick = |number: u16| u32::from(number) % problem.buffers.len() as u32;
        let (writer, target) = (pick(writer), pick(target));
        if writer == target {
            continue;
        }
        // Most are made to be possible; a few begin too early or too late.
        let dest = problem.buffers[target as usize];
        let source = &mut problem.buffers[writer as usize];
        let length = source.end - source.start;
        if offset % 4 != 0 {
            source.start = dest.end - 1;
            source.end = source.start + length;
        }
        source.size = source.size.min(dest.size);
        let room = dest.size - source.size;
        problem.overwrites.push(Overwrite { writer, target, offset: u64::from(offset) % (room + 1) });
    }
    // A writer that was made smaller later may be a target too: what no longer fits goes.
    let fits = |pair: &Overwrite| {
        let [writer, target] = [pair.writer, pair.target].map(|buffer| problem.buffers[buffer as usize].size);
        pair.offset + writer <= target
    };
    problem.overwrites = problem.overwrites.iter().copied().filter(fits).collect();
    problem
}

/// Colocates two buffers, mostly after moving the second behind the first. Skips a pair that would
/// make the problem invalid.
fn colocate(problem: &mut Problem, (first, second, later): (u16, u16, u8)) {
    let pick = |number: u16| u32::from(number) % problem.buffers.len() as u32;
    let (first, second) = (pick(first), pick(second));
    let mut with = problem.clone();
    with.colocations.push(Colocation { first, second });
    if later < 192 {
        let end = with.buffers[first as usize].end;
        let buffer = &mut with.buffers[second as usize];
        let start = end + u64::from(later % 4);
        (buffer.start, buffer.end) = (start, start + buffer.end - buffer.start);
    }
    if with.check().is_ok() {
        *problem = with;
    }
}

/// Fixes a few buffers at their offsets in some plan, in some problems.
fn fix(problem: &mut Problem, fixed: &[u8]) {
    if fixed[0].is_multiple_of(2) {
        return;
    }
    let plan = Greedy::Birth.plan(problem, &mut ()).expect("nobody stops it");
    let targets = super::naive::targets(problem);
    for (number, buffer) in problem.buffers.iter_mut().enumerate() {
        if fixed[number] > 5 && targets[number].is_none() {
            buffer.fixed = Some(plan.offsets[number]);
        }
    }
}
