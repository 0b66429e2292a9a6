//! Invented small problems, with everything that a problem can have.

use cachalot_core::plan::greedy::Greedy;
use cachalot_core::plan::{Algorithm, Buffer, Overwrite, Problem};
use proptest::collection::vec;
use proptest::prelude::*;

/// What alignments the buffers of a problem have.
#[derive(Clone, Copy, Debug)]
pub enum Alignments {
    /// None.
    Bytes,
    /// All the same.
    One,
    /// Every buffer its own.
    Mixed,
}

/// A problem of up to `most` buffers that passes its check: alignments, chains of overwrites, fixed offsets that leave room for a plan.
pub fn problem(most: usize) -> impl Strategy<Value = Problem> {
    let alignments = prop_oneof![Just(Alignments::Bytes), Just(Alignments::One), Just(Alignments::Mixed)];
    (alignments, vec(buffer(), 1..=most), vec(any::<(u16, u16, u16)>(), 0..most), vec(0..8_u8, most))
        .prop_map(|(alignments, buffers, pairs, fixed)| assemble(alignments, buffers, &pairs, &fixed))
}

/// The same without fixed offsets.
pub fn movable(most: usize) -> impl Strategy<Value = Problem> {
    problem(most).prop_map(|mut problem| {
        problem.buffers.iter_mut().for_each(|buffer| buffer.fixed = None);
        problem
    })
}

fn buffer() -> impl Strategy<Value = (u64, u64, u64, u32)> {
    (0..20_u64, prop_oneof![3 => 1..5_u64, 1 => 5..30_u64], prop_oneof![1..9_u64, 1..100_u64], 0..5_u32)
}

fn assemble(
    alignments: Alignments,
    buffers: Vec<(u64, u64, u64, u32)>,
    pairs: &[(u16, u16, u16)],
    fixed: &[u8],
) -> Problem {
    let one = buffers[0].3;
    let buffer = |(start, length, size, log2)| {
        let alignment = match alignments {
            Alignments::Bytes => 1,
            Alignments::One => 1 << one,
            Alignments::Mixed => 1_u64 << log2,
        };
        Buffer { start, end: start + length, size, alignment, fixed: None }
    };
    let mut problem = Problem { buffers: buffers.into_iter().map(buffer).collect(), overwrites: Vec::new() };
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
    fix(&mut problem, fixed);
    problem
}

/// Fixes a few buffers where a plan of theirs has them, in some problems.
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
