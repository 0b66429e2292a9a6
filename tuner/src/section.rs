//! Finds the repeated part of a sequence, such as a training step in the record of a training run.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

/// A part of a sequence that repeats after `period` elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repetition {
    /// The part, which has at least two periods.
    pub run: Range<usize>,
    /// The number of elements in a repetition.
    pub period: usize,
}

/// The number of consecutive elements that must be the same for a distance to be tried.
const ANCHOR: usize = 8;
/// The number of places in the sequence that have an anchor.
const ANCHORS: usize = 16;
/// The repeated part must be at least `1 / LEAST` of the sequence.
const LEAST: usize = 8;
/// The greatest number of distances that are tried for each anchor.
const DISTANCES: usize = 64;

/// Returns the repetition that covers most of a sequence. Of repetitions that cover nearly as much,
/// the one with the shortest period wins. Returns `None` if less than an eighth of the sequence
/// repeats.
///
/// The distances at which an anchor appears again are tried as the period. Each of them takes O(n)
/// steps for n elements.
pub fn repetition<T: Eq + Hash>(sequence: &[T]) -> Option<Repetition> {
    let found: Vec<Repetition> =
        distances(sequence).into_iter().filter_map(|period| longest_run(sequence, period)).collect();
    let widest = found.iter().map(|found| found.run.len()).max()?;
    if widest < sequence.len().div_ceil(LEAST) {
        return None;
    }
    // Two steps together also repeat, and may cover a little more than a single step.
    found.into_iter().filter(|found| found.run.len() * 10 >= widest * 9).min_by_key(|found| found.period)
}

/// Returns the distances at which an anchor appears again, the shortest first.
fn distances<T: Eq + Hash>(sequence: &[T]) -> Vec<usize> {
    let anchor = ANCHOR.min(sequence.len() / 2);
    if anchor == 0 {
        return Vec::new();
    }
    let mut places: HashMap<&[T], Vec<usize>> = HashMap::new();
    for (place, window) in sequence.windows(anchor).enumerate() {
        places.entry(window).or_default().push(place);
    }
    let last = sequence.len() - anchor;
    let mut distances = Vec::new();
    for number in 0..ANCHORS {
        let place = last * number / ANCHORS;
        let later = &places[&sequence[place..place + anchor]];
        let from = later.partition_point(|&other| other <= place);
        distances.extend(later[from..].iter().take(DISTANCES).map(|other| other - place));
    }
    distances.sort_unstable();
    distances.dedup();
    distances
}

/// Returns the longest part with the given period.
fn longest_run<T: Eq>(sequence: &[T], period: usize) -> Option<Repetition> {
    let (mut best, mut start) = (0..0, 0);
    for at in 0..=sequence.len() - period {
        let same = sequence.get(at + period).is_some_and(|later| *later == sequence[at]);
        if !same {
            if at - start > best.len() {
                best = start..at;
            }
            start = at + 1;
        }
    }
    let run = best.start..best.end + period;
    (best.len() >= period).then_some(Repetition { run, period })
}

#[cfg(test)]
mod tests {
    use super::{Repetition, repetition};

    #[test]
    fn the_shortest_period_that_covers_the_run() {
        let step = [1, 2, 3, 1, 2, 4, 1, 2, 5, 9];
        let mut sequence = vec![7, 7, 8];
        (0..6).for_each(|_| sequence.extend(step));
        sequence.extend([1, 2, 3, 6, 6]);
        assert_eq!(repetition(&sequence), Some(Repetition { run: 3..66, period: 10 }));
    }

    #[test]
    fn repetition_inside_a_step_is_none_of_the_whole() {
        // Each step has twelve layers that are the same, and then a different end.
        let layers = [[1, 2, 3, 4].repeat(12), vec![9, 8]].concat();
        let sequence = layers.repeat(5);
        assert_eq!(repetition(&sequence), Some(Repetition { run: 0..250, period: 50 }));
    }

    #[test]
    fn what_repeats_in_a_small_part_does_not_count() {
        let sequence: Vec<u32> = (0..1000).chain([1, 2, 3].repeat(20)).collect();
        assert_eq!(repetition(&sequence), None);
        assert_eq!(repetition(&sequence[800..]), Some(Repetition { run: 200..260, period: 3 }));
        assert_eq!(repetition::<u32>(&[]), None);
        assert_eq!(repetition(&[1]), None);
        assert_eq!(repetition(&[1, 2]), None);
    }

    #[test]
    fn twice_is_enough() {
        assert_eq!(repetition(&[4, 5, 6, 4, 5, 6]), Some(Repetition { run: 0..6, period: 3 }));
        assert_eq!(repetition(&[1, 1]), Some(Repetition { run: 0..2, period: 1 }));
    }
}
