//! The steps of a program: where it repeats itself.

use super::{Phase, Site};

/// A request of a program with the time of its free.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The size in bytes.
    pub(super) bytes: u64,
    /// The number of requests before the free. `None` if the block is never freed.
    pub(super) freed_at: Option<usize>,
    /// The part of a step that freed the block, if the record says.
    pub(super) freed_by: Option<Phase>,
    /// The number of backward passes that had ended at the request, and at the free or the end of
    /// the program.
    pub(super) passes: (usize, usize),
    /// Where the request was made, if the record says.
    pub(super) site: Option<Site>,
}

/// The equal steps at the end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    /// The number of the first request in them.
    pub(super) first: usize,
    /// The requests of a step.
    pub(super) length: usize,
    /// The number of steps, at least 2.
    pub(super) count: usize,
}

/// A step is taken for equal to another if this part of its requests is.
const ALIKE: (usize, usize) = (4, 5);

/// Steps are at least this part of a program.
const LEAST_PART: usize = 4;

/// Requests of a kind that is met more often tell nothing about the length of a step.
const RARE: usize = 64;

impl Steps {
    /// Returns the steps of a program, by where it made its requests; without that by their
    /// sizes, and for programs of changing sizes by their lifetimes. `None` if the end of
    /// the program does not repeat what is before it.
    pub(super) fn of(requests: &[Request]) -> Option<Self> {
        if requests.iter().any(|request| request.site.is_some()) {
            return Self::by(requests, |_, request| (request.site.map_or(u64::MAX, |site| site.stack.into()), 0));
        }
        let lifetime = |at: usize, request: &Request| request.freed_at.map_or(u64::MAX, |freed| (freed - at) as u64);
        Self::by(requests, |_, request| (request.bytes, 0))
            .or_else(|| Self::by(requests, |at, request| (0, lifetime(at, request))))
    }

    fn by(requests: &[Request], kind: impl Fn(usize, &Request) -> (u64, u64)) -> Option<Self> {
        let kinds: Vec<(u64, u64)> = requests.iter().enumerate().map(|(at, request)| kind(at, request)).collect();
        let repeats =
            |length: usize, last: usize| is_alike(&kinds[kinds.len() - last..], &kinds[kinds.len() - last - length..]);
        let mut lengths = distances(&kinds);
        lengths.retain(|&length| 2 * length <= kinds.len() && repeats(length, length));
        let longest = *lengths.last()?;
        // Parts of a step repeat themselves as well, but not all over the step.
        let length = lengths.into_iter().find(|&length| repeats(length, longest.min(kinds.len() - length)))?;
        let is_step = |number: &usize| {
            let at = |number: usize| &kinds[kinds.len() - number * length..][..length];
            number * length <= kinds.len() && is_alike(at(*number), at(1))
        };
        let count = 1 + (2..=kinds.len() / length).take_while(is_step).count();
        // At the end of a step, an optimizer repeats itself for each weight.
        (length * count * LEAST_PART >= kinds.len()).then_some(Self {
            first: kinds.len() - count * length,
            length,
            count,
        })
    }
}

/// Returns whether two lists are alike, up to the length of the shorter.
fn is_alike(one: &[(u64, u64)], other: &[(u64, u64)]) -> bool {
    let length = one.len().min(other.len());
    let equal = one.iter().zip(other).filter(|(one, other)| one == other).count();
    equal * ALIKE.1 >= length * ALIKE.0
}

/// Returns the distances from the last request of each rare kind to those before it, in order.
fn distances(kinds: &[(u64, u64)]) -> Vec<usize> {
    let mut places: std::collections::HashMap<_, Vec<usize>> = std::collections::HashMap::new();
    for (at, kind) in kinds.iter().enumerate() {
        let places = places.entry(kind).or_default();
        if places.len() <= RARE {
            places.push(at);
        }
    }
    let rare = places.values().filter(|places| places.len() <= RARE);
    let between = rare.flat_map(|places| places.iter().rev().skip(1).map(|at| places[places.len() - 1] - at));
    let mut lengths: Vec<usize> = between.collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of the given stacks.
    fn requests(stacks: &[u32]) -> Vec<Request> {
        let site = |&stack| Some(Site { stack, part: Phase::Forward, is_cast: false });
        stacks
            .iter()
            .map(|stack| Request { bytes: 1, freed_at: None, freed_by: None, passes: (0, 0), site: site(stack) })
            .collect()
    }

    #[test]
    fn a_step_is_longer_than_its_equal_layers() {
        let step = [5, 1, 2, 1, 2, 1, 2, 6, 7, 7, 7];
        let program: Vec<u32> = [9; 7].into_iter().chain([5, 6]).chain(step.repeat(3)).collect();
        assert_eq!(Steps::of(&requests(&program)), Some(Steps { first: 9, length: 11, count: 3 }));
    }

    #[test]
    fn one_step_is_none() {
        assert_eq!(Steps::of(&requests(&[9, 9, 9, 5, 1, 2, 1, 2, 6, 3, 4, 8])), None);
        assert_eq!(Steps::of(&[]), None);
    }

    #[test]
    fn steps_of_changing_sizes_are_found_by_lifetimes() {
        let mut program = Vec::new();
        for step in 0..4 {
            for (number, lifetime) in [5, 3, 1, 1].into_iter().enumerate() {
                let at = program.len();
                let bytes = 1000 * (step + 1) + number as u64;
                program.push(Request {
                    bytes,
                    freed_at: Some(at + lifetime),
                    freed_by: None,
                    passes: (0, 0),
                    site: None,
                });
            }
        }
        assert_eq!(Steps::of(&program), Some(Steps { first: 0, length: 4, count: 4 }));
    }
}
