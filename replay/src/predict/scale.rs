//! A recorded program at another batch size.
//!
//! The sizes of some requests grow with the batch, and the rest stays. With records at two batch
//! sizes, each size is on the line through the two recorded sizes. A single record of two steps or
//! more tells if it has the places of its requests:
//!
//! * A block that is there at the ends of several backward passes stays: weights, optimizer state,
//!   workspaces.
//! * What an optimizer requests in its step stays.
//! * A block of the backward pass that is there after it stays, with all blocks of the same size
//!   from the same place: gradients of weights.
//! * A tensor in another type that has the size of a weight in that type stays.
//! * Everything else grows: activations, their gradients, inputs, workspaces of convolutions. Until
//!   the first backward pass ends, only what is requested again later grows.
//!
//! Without places, and without backward passes, the equal steps at the end of the record tell what
//! outlives a step. A block in a step with the size of an outliving block, or half or twice that
//! size, then stays.

use super::steps::{Request, Steps};
use super::{Calls, Phase, Site};
use crate::program::{Operation, Program};
use std::collections::HashSet;
use std::fmt;

/// The change of a program's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scaled {
    /// Requests whose sizes changed.
    pub requests: u64,
    /// Requests whose sizes stayed.
    pub fixed: u64,
}

/// Why a record does not tell what grows with the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untold {
    /// It does not hold two equal steps.
    Steps,
    /// So few of the bytes at the peak grow, in percent, that it is not a step of training at this
    /// batch, or not the step alone.
    Growth(u64),
    /// Blocks from before the record hold this many percent of the peak, and were freed in it.
    Start(u64),
    /// The record has no stacks, and this many percent of the peak are blocks of a step with the
    /// size of a lasting block.
    Sizes(u64),
    /// The record has no backward pass, and of the blocks at the peak that may grow, this many
    /// percent are blocks that its equal parts requested and kept, as the layers of a forward pass
    /// do.
    Kept(u64),
}

impl fmt::Display for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps => f.write_str("it does not hold two equal steps"),
            Self::Growth(percent) => write!(f, "only {percent} % of the bytes at its peak seem to grow"),
            Self::Start(percent) => {
                write!(f, "{percent} % of its peak are blocks from before it that were freed in it")
            }
            Self::Sizes(percent) => {
                write!(f, "it has no stacks, and {percent} % of its peak have the sizes of weights but live for a step")
            }
            Self::Kept(percent) => {
                let what = "it has no backward pass, and kept to its end";
                write!(f, "{what} {percent} % of what may grow at its peak, as one forward pass does")
            }
        }
    }
}

/// What grows with the batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Growth {
    /// For each request, the bytes that it grows by if the batch is doubled.
    slopes: Vec<f64>,
    /// The bytes of all blocks at the peak.
    pub peak_bytes: u64,
    /// The part of them that grows.
    pub growing_bytes: u64,
}

/// Less than this part of the peak in percent is no growth: a step has activations.
const LEAST_GROWTH: u64 = 2;

/// A block that is there at the ends of this many backward passes outlives a step: two networks may
/// take turns.
const MOST_PASSES: usize = 3;

/// At most this part of the peak in percent may be of an unknown kind.
const MOST_UNKNOWN: u64 = 10;

impl Growth {
    /// Returns what grows, as a single record tells.
    ///
    /// # Errors
    /// Why it does not.
    pub fn of_record(program: &Program, calls: Option<&Calls>) -> Result<Self, Untold> {
        let requests = requests(program, calls);
        let kinds = Kinds::of(&requests)?;
        // The first steps request the same as later ones, beside what is requested once.
        let kind = |request: &Request| (request.site.map(|site| site.stack), request.bytes);
        let in_steps = requests.iter().enumerate().skip(kinds.first);
        let growing: HashSet<_> =
            in_steps.filter(|(at, one)| kinds.grows(*at, one)).map(|(_, one)| kind(one)).collect();
        let is_met_again = |at: usize, one: &Request| at >= kinds.first || growing.contains(&kind(one));
        let slope = |(at, one): (usize, &Request)| {
            if is_met_again(at, one) && kinds.grows(at, one) { one.bytes as f64 } else { 0.0 }
        };
        let slopes = requests.iter().enumerate().map(slope).collect();
        let growth = Self::with(program, slopes);
        let percent = |bytes: u64| bytes.saturating_mul(100) / growth.peak_bytes.max(1);
        if calls.is_none() {
            let lasts = |at: usize| kinds.lasts(at, &requests[at]);
            let is_equal = |at: usize| at >= kinds.first && !lasts(at) && kinds.is_lasting_size(requests[at].bytes);
            let (lasting, equal) = at_peak(program, lasts, is_equal);
            // Gradients have the sizes of weights, and casts half of them.
            if equal > lasting + lasting / 2 + lasting / 8 {
                return Err(Untold::Sizes(percent(equal)));
            }
        }
        if let Some(calls) = calls {
            let from_before = requests.len().saturating_sub(calls.requests.len());
            let (freed, _) = at_peak(program, |at| at < from_before && requests[at].freed_at.is_some(), |_| false);
            if percent(freed) > MOST_UNKNOWN {
                return Err(Untold::Start(percent(freed)));
            }
        }
        if calls.is_some() && matches!(kinds.outlives, Outlives::Length(..)) {
            // The layers of a forward pass are taken for steps, and what they keep for the backward
            // pass, for what stays.
            let is_kept = |at: usize| at >= kinds.first && requests[at].freed_at.is_none();
            let (kept, _) = at_peak(program, is_kept, |_| false);
            // Beside the weights they may be little, and still most of another batch.
            let percent = kept.saturating_mul(100) / (kept + growth.growing_bytes).max(1);
            if percent > MOST_UNKNOWN {
                return Err(Untold::Kept(percent));
            }
        }
        // Places and passes tell for certain, so a small part is one.
        let least = if matches!(kinds.outlives, Outlives::Passes(_)) { 0 } else { LEAST_GROWTH };
        if growth.growing_bytes == 0 || percent(growth.growing_bytes) < least {
            return Err(Untold::Growth(percent(growth.growing_bytes)));
        }
        Ok(growth)
    }

    /// Returns what grows, from another record of the same program with the batch multiplied by
    /// `other_scale`.
    ///
    /// # Errors
    /// The records differ in the number of requests, or have the same batches.
    pub fn of_records(program: &Program, other: &Program, other_scale: f64) -> Result<Self, String> {
        if (other_scale - 1.0).abs() < 1e-9 {
            return Err("the other record must have another batch size".to_owned());
        }
        let (own, others) = (sizes(program), sizes(other));
        if own.len() != others.len() {
            let (own, others) = (own.len(), others.len());
            return Err(format!("the records are of two programs: one has {own} requests, the other {others}"));
        }
        let slope = |(&own, &other): (&u64, &u64)| (other as f64 - own as f64) / (other_scale - 1.0);
        Ok(Self::with(program, own.iter().zip(&others).map(slope).collect()))
    }

    fn with(program: &Program, slopes: Vec<f64>) -> Self {
        let mut growth = Self { slopes, peak_bytes: 0, growing_bytes: 0 };
        let (growing, rest) = at_peak(program, |at| growth.slopes[at] != 0.0, |at| growth.slopes[at] == 0.0);
        (growth.peak_bytes, growth.growing_bytes) = (growing + rest, growing);
        growth
    }

    /// Returns the program with the batch multiplied by `scale`.
    pub fn scaled(&self, program: &Program, scale: f64) -> (Program, Scaled) {
        let mut program = program.clone();
        let (mut number, mut scaled) = (0, Scaled::default());
        for operation in &mut program.operations {
            if let Operation::Malloc { bytes, .. } | Operation::Refused { bytes, .. } = operation {
                let new = (*bytes as f64 + self.slopes[number] * (scale - 1.0)).round().max(0.0) as u64;
                number += 1;
                if new == *bytes {
                    scaled.fixed += 1;
                } else {
                    scaled.requests += 1;
                }
                *bytes = new;
            }
        }
        (program, scaled)
    }
}

/// Returns the bytes of two kinds of requests when the most is alive.
fn at_peak(program: &Program, one: impl Fn(usize) -> bool, other: impl Fn(usize) -> bool) -> (u64, u64) {
    let mut held = vec![(0, false, false); program.slots as usize];
    let (mut number, mut live, mut now) = (0, 0, (0, 0));
    let (mut most, mut at_most) = (0, (0, 0));
    for operation in &program.operations {
        match *operation {
            Operation::Malloc { bytes, slot, .. } => {
                let kinds = (bytes, one(number), other(number));
                held[slot as usize] = kinds;
                live += bytes;
                now = (now.0 + bytes * u64::from(kinds.1), now.1 + bytes * u64::from(kinds.2));
                number += 1;
                if live > most {
                    (most, at_most) = (live, now);
                }
            }
            Operation::Refused { .. } => number += 1,
            Operation::Free { slot } => {
                let (bytes, one, other) = std::mem::take(&mut held[slot as usize]);
                live -= bytes;
                now = (now.0 - bytes * u64::from(one), now.1 - bytes * u64::from(other));
            }
            _ => {}
        }
    }
    at_most
}

impl Scaled {
    /// Returns that nothing changed.
    pub fn none(program: &Program) -> Self {
        Self { requests: 0, fixed: sizes(program).len() as u64 }
    }
}

/// How a record tells that a block outlives a step.
#[derive(Clone, Copy)]
enum Outlives {
    /// By the ends of this many backward passes in its life.
    Passes(usize),
    /// By the length of its life, of this many requests in all.
    Length(Steps, usize),
}

/// The kinds of a program's requests.
struct Kinds {
    outlives: Outlives,
    /// The number of the first request from which on the steps are equal.
    first: usize,
    /// Sizes of blocks that outlive a step.
    lasting: HashSet<u64>,
    /// Stacks and sizes of gradients of weights.
    gradients: HashSet<(u32, u64)>,
}

impl Kinds {
    fn of(requests: &[Request]) -> Result<Self, Untold> {
        let passes = requests.iter().map(|request| request.passes.1).max().unwrap_or(0);
        let (outlives, first) = match passes {
            0 => {
                let steps = Steps::of(requests).ok_or(Untold::Steps)?;
                (Outlives::Length(steps, requests.len()), steps.first)
            }
            1 => return Err(Untold::Steps),
            _ => {
                let first = requests.iter().position(|request| request.passes.0 > 0).ok_or(Untold::Steps)?;
                (Outlives::Passes(passes.min(MOST_PASSES)), first)
            }
        };
        let mut kinds = Self { outlives, first, lasting: HashSet::new(), gradients: HashSet::new() };
        for (at, request) in requests.iter().enumerate() {
            if kinds.lasts(at, request) {
                kinds.lasting.insert(request.bytes);
            } else if let Some(Site { stack, part: Phase::Backward, .. }) = request.site
                && request.freed_by != Some(Phase::Backward)
            {
                kinds.gradients.insert((stack, request.bytes));
            }
        }
        Ok(kinds)
    }

    /// Returns whether a block outlives a step. One of the last step does not tell.
    fn lasts(&self, at: usize, request: &Request) -> bool {
        match self.outlives {
            Outlives::Passes(least) => request.passes.1 - request.passes.0 >= least,
            Outlives::Length(steps, count) => {
                let is_old = request.freed_at.is_none() && at + steps.length < count;
                is_old || 2 * (request.freed_at.unwrap_or(count) - at) >= 3 * steps.length
            }
        }
    }

    /// Returns whether a size is that of a block that outlives a step, or half or twice that.
    fn is_lasting_size(&self, bytes: u64) -> bool {
        let sizes = [Some(bytes), bytes.checked_mul(2), bytes.is_multiple_of(2).then_some(bytes / 2)];
        sizes.iter().flatten().any(|size| self.lasting.contains(size))
    }

    /// Returns whether a request of a step grows with the batch.
    fn grows(&self, at: usize, request: &Request) -> bool {
        if self.lasts(at, request) {
            return false;
        }
        match request.site {
            None => !self.is_lasting_size(request.bytes),
            Some(site) if site.part == Phase::Optimizer => false,
            Some(site) if self.gradients.contains(&(site.stack, request.bytes)) => false,
            Some(site) => !(site.is_cast && self.is_lasting_size(request.bytes)),
        }
    }
}

/// Returns all requests of a program, with the times of their frees and where they were made.
fn requests(program: &Program, calls: Option<&Calls>) -> Vec<Request> {
    let mut held = vec![None; program.slots as usize];
    let mut requests: Vec<Request> = Vec::new();
    // The requests for blocks from before the record, and their frees, have no place in it.
    let frees = program.operations.iter().filter(|operation| matches!(operation, Operation::Free { .. })).count();
    let (mut sites, mut parts) = (vec![None; sizes(program).len()], vec![None; frees]);
    if let Some(Calls { requests, frees }) = calls {
        sites.iter_mut().rev().zip(requests.iter().rev()).for_each(|(place, site)| *place = Some(*site));
        parts.iter_mut().rev().zip(frees.iter().rev()).for_each(|(place, part)| *place = Some(*part));
    }
    let mut parts = parts.into_iter();
    let (mut passes, mut is_backward) = (0, false);
    for operation in &program.operations {
        let part = match operation {
            Operation::Malloc { .. } | Operation::Refused { .. } => sites[requests.len()].map(|site: Site| site.part),
            Operation::Free { .. } => parts.next().flatten(),
            _ => continue,
        };
        let was_backward = std::mem::replace(&mut is_backward, part == Some(Phase::Backward));
        passes += usize::from(was_backward && !is_backward);
        match *operation {
            Operation::Malloc { bytes, .. } | Operation::Refused { bytes, .. } => {
                let at = requests.len();
                // A refused request is over at once.
                let freed_at = matches!(operation, Operation::Refused { .. }).then_some(at);
                if let Operation::Malloc { slot, .. } = *operation {
                    held[slot as usize] = Some(at);
                }
                requests.push(Request { bytes, freed_at, freed_by: None, passes: (passes, passes), site: sites[at] });
            }
            Operation::Free { slot } => {
                if let Some(at) = held[slot as usize].take() {
                    let made = requests.len();
                    let request: &mut Request = &mut requests[at];
                    (request.freed_at, request.freed_by, request.passes.1) = (Some(made), part, passes);
                }
            }
            _ => {}
        }
    }
    for at in held.into_iter().flatten() {
        requests[at].passes.1 = passes + usize::from(is_backward);
    }
    requests
}

/// Returns the sizes of all requests in order.
fn sizes(program: &Program) -> Vec<u64> {
    let size = |operation: &Operation| match *operation {
        Operation::Malloc { bytes, .. } | Operation::Refused { bytes, .. } => Some(bytes),
        _ => None,
    };
    program.operations.iter().filter_map(size).collect()
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
