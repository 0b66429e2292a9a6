//! Verifies a plan against its problem, without using any algorithm.

use super::colocations::Colocations;
use super::overwrites::{NONE, Overwrites};
use super::sweep::{Rectangle, clash};
use super::{Plan, Problem};
use alloc::vec::Vec;
use core::fmt;

/// A violation that was found in a plan. Buffers are named by their numbers in the problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The number of offsets differs from the number of buffers.
    Count {
        /// The number of buffers in the problem.
        buffers: usize,
        /// The number of offsets in the plan.
        offsets: usize,
    },
    /// The end of a buffer exceeds 64 bits.
    Beyond {
        /// The number of the buffer in the problem.
        buffer: u32,
    },
    /// The offset of a buffer is not a multiple of the alignment.
    Misaligned {
        /// The number of the buffer in the problem.
        buffer: u32,
        /// The offset of the buffer in the plan, in bytes.
        offset: u64,
        /// The required alignment in bytes, a power of two.
        alignment: u64,
    },
    /// A buffer is not at its fixed offset.
    Moved {
        /// The number of the buffer in the problem.
        buffer: u32,
        /// The offset of the buffer in the plan, in bytes.
        offset: u64,
        /// The offset that the problem requires.
        fixed: u64,
    },
    /// A writer is not at its place inside its target.
    NotInPlace {
        /// The number of the writer in the problem.
        writer: u32,
        /// The number of the target in the problem.
        target: u32,
        /// The offset of the writer in the plan.
        offset: u64,
        /// The offset that the target requires.
        place: u64,
    },
    /// Two colocated buffers are at different offsets.
    Apart {
        /// The number of the first buffer of the pair.
        first: u32,
        /// The number of the second buffer of the pair.
        second: u32,
        /// The offset of `first` in the plan.
        place: u64,
        /// The offset of `second` in the plan.
        offset: u64,
    },
    /// Two buffers with overlapping lives share bytes.
    Overlap {
        /// The number of the first buffer of the pair.
        first: u32,
        /// The number of the second buffer of the pair.
        second: u32,
        /// The first step at which the lives and the bytes overlap.
        step: u64,
    },
    /// The peak in the plan differs from the peak of the offsets.
    Peak {
        /// The peak in bytes according to the plan.
        said: u64,
        /// The peak in bytes that follows from the offsets.
        is: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count { buffers, offsets } => write!(f, "{buffers} buffers have {offsets} offsets"),
            Self::Beyond { buffer } => write!(f, "buffer {buffer} ends beyond 64 bits"),
            Self::Misaligned { buffer, offset, alignment } => {
                write!(f, "buffer {buffer} is at {offset}, which is no multiple of its alignment {alignment}")
            }
            Self::Moved { buffer, offset, fixed } => {
                write!(f, "buffer {buffer} is at {offset}, but it must be at {fixed}")
            }
            Self::NotInPlace { writer, target, offset, place } => {
                write!(f, "buffer {writer} is written over {target}, at {place}, but it is at {offset}")
            }
            Self::Apart { first, second, place, offset } => {
                write!(f, "buffers {first} and {second} are colocated, but they lie at {place} and {offset}")
            }
            Self::Overlap { first, second, step } => {
                write!(f, "buffers {first} and {second} share bytes at step {step}")
            }
            Self::Peak { said, is } => write!(f, "the peak is {is}, not {said}"),
        }
    }
}

impl core::error::Error for Fault {}

/// Verifies a plan of a problem that passes [`Problem::check`].
///
/// # Errors
/// The first violation in this order: the number of offsets, the place of each buffer, overlaps,
/// the peak.
pub fn verify(problem: &Problem, plan: &Plan) -> Result<(), Fault> {
    if plan.offsets.len() != problem.buffers.len() {
        return Err(Fault::Count { buffers: problem.buffers.len(), offsets: plan.offsets.len() });
    }
    let (overwrites, colocations) = (Overwrites::of(problem), Colocations::of(problem));
    let mut rectangles = Vec::with_capacity(problem.buffers.len());
    let mut peak = 0;
    for (number, (buffer, &low)) in problem.buffers.iter().zip(&plan.offsets).enumerate() {
        let high = low.checked_add(buffer.size).ok_or(Fault::Beyond { buffer: number as u32 })?;
        let start = check_place(problem, &overwrites, &colocations, plan, number as u32)?;
        rectangles.push(Rectangle { start, end: buffer.end, low, high, buffer: number as u32 });
        if overwrites.target[number] == NONE {
            peak = peak.max(high);
        }
    }
    if let Some(clash) = clash(&rectangles) {
        return Err(Fault::Overlap { first: clash.first, second: clash.second, step: clash.step });
    }
    if peak != plan.peak {
        return Err(Fault::Peak { said: plan.peak, is: peak });
    }
    Ok(())
}

/// Checks the place of a buffer. Returns the step from which on the bytes belong only to it.
fn check_place(
    problem: &Problem,
    overwrites: &Overwrites,
    colocations: &Colocations,
    plan: &Plan,
    number: u32,
) -> Result<u64, Fault> {
    let buffer = &problem.buffers[number as usize];
    let offset = plan.offsets[number as usize];
    let target = overwrites.target[number as usize];
    if target != NONE {
        // Until the target ends, the target's own rectangle keeps other buffers out of these bytes.
        let place = plan.offsets[target as usize].saturating_add(overwrites.offset[number as usize]);
        if offset != place {
            return Err(Fault::NotInPlace { writer: number, target, offset, place });
        }
        return Ok(problem.buffers[target as usize].end);
    }
    let alignment = colocations.alignment[number as usize];
    if !offset.is_multiple_of(alignment) {
        return Err(Fault::Misaligned { buffer: number, offset, alignment });
    }
    let first = colocations.leader[number as usize];
    let place = plan.offsets[first as usize];
    if offset != place {
        return Err(Fault::Apart { first, second: number, place, offset });
    }
    match buffer.fixed {
        Some(fixed) if fixed != offset => Err(Fault::Moved { buffer: number, offset, fixed }),
        _ => Ok(buffer.start),
    }
}
