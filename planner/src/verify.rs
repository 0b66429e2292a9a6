//! Whether a plan is one: checked from the problem alone, without anything that an algorithm worked out.

use super::colocations::Colocations;
use super::overwrites::{NONE, Overwrites};
use super::problem::align_up;
use super::sweep::{Held, clash};
use super::{Plan, Problem};
use alloc::vec::Vec;
use core::fmt;

/// What is wrong with a plan. Buffers are named by their number in the problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// There is not one offset for each buffer.
    Count {
        /// How many buffers there are.
        buffers: usize,
        /// How many offsets.
        offsets: usize,
    },
    /// A buffer's end is beyond 64 bits.
    Beyond {
        /// Which.
        buffer: u32,
    },
    /// A buffer lies at no multiple of its alignment.
    Misaligned {
        /// Which.
        buffer: u32,
        /// Where it lies.
        offset: u64,
        /// Its alignment.
        alignment: u64,
    },
    /// A buffer does not lie where it must.
    Moved {
        /// Which.
        buffer: u32,
        /// Where it lies.
        offset: u64,
        /// Where it must.
        fixed: u64,
    },
    /// A buffer that is written in place lies elsewhere.
    NotInPlace {
        /// Which.
        writer: u32,
        /// The buffer that it is written over.
        target: u32,
        /// Where it lies.
        offset: u64,
        /// Where its place is.
        place: u64,
    },
    /// Two buffers that are to share a place do not.
    Apart {
        /// One.
        first: u32,
        /// The other.
        second: u32,
        /// Where the first lies.
        place: u64,
        /// Where the second lies.
        offset: u64,
    },
    /// Two buffers that live at once share bytes.
    Overlap {
        /// One.
        first: u32,
        /// The other.
        second: u32,
        /// The first step at which they do.
        step: u64,
    },
    /// The peak is not what the plan says.
    Peak {
        /// What it says.
        said: u64,
        /// What it is.
        is: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count { buffers, offsets } => write!(f, "{buffers} buffers have {offsets} offsets"),
            Self::Beyond { buffer } => write!(f, "buffer {buffer} ends beyond 64 bits"),
            Self::Misaligned { buffer, offset, alignment } => {
                write!(f, "buffer {buffer} lies at {offset}, which is no multiple of its alignment {alignment}")
            }
            Self::Moved { buffer, offset, fixed } => {
                write!(f, "buffer {buffer} lies at {offset}, but it must lie at {fixed}")
            }
            Self::NotInPlace { writer, target, offset, place } => {
                write!(f, "buffer {writer} is written over {target}, at {place}, but it lies at {offset}")
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

/// Checks a plan against a problem that has been [checked](Problem::check) itself.
///
/// # Errors
/// The first thing that is wrong: in the number of offsets, where a buffer lies, what overlaps, the peak.
pub fn verify(problem: &Problem, plan: &Plan) -> Result<(), Fault> {
    if plan.offsets.len() != problem.buffers.len() {
        return Err(Fault::Count { buffers: problem.buffers.len(), offsets: plan.offsets.len() });
    }
    let (overwrites, colocations) = (Overwrites::of(problem), Colocations::of(problem));
    let mut held = Vec::with_capacity(problem.buffers.len());
    let mut peak = 0;
    for (number, (buffer, &low)) in problem.buffers.iter().zip(&plan.offsets).enumerate() {
        let high = low.checked_add(buffer.size).ok_or(Fault::Beyond { buffer: number as u32 })?;
        let start = check_place(problem, &overwrites, &colocations, plan, number as u32)?;
        held.push(Held { start, end: buffer.end, low, high, buffer: number as u32 });
        if overwrites.target[number] == NONE {
            peak = peak.max(align_up(high, colocations.alignment[number]));
        }
    }
    if let Some(clash) = clash(&held) {
        return Err(Fault::Overlap { first: clash.first, second: clash.second, step: clash.step });
    }
    if peak != plan.peak {
        return Err(Fault::Peak { said: plan.peak, is: peak });
    }
    Ok(())
}

/// Whether a buffer lies where it may, and the step from which on its bytes are its alone.
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
        // Until its target has ended it lies inside it, which keeps everybody else out.
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
