//! An amount of memory over the passes of a program, coarse enough to be drawn.

use crate::program::Program;

/// Upper bound of the steps of a curve.
const MOST_STEPS: usize = 600;

/// The highest amount in each of up to 600 equal parts of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    operations: usize,
    highest: Vec<u64>,
}

impl Curve {
    /// Creates a curve of zero bytes over `operations`.
    pub(super) fn new(operations: usize) -> Self {
        Self { operations, highest: vec![0; operations.min(MOST_STEPS)] }
    }

    /// Returns the curve of the requested bytes of all live blocks, over the passes of a program.
    pub(super) fn live(program: &Program, passes: u32) -> Self {
        let operations = program.operations.len();
        let mut curve = Self::new(operations * passes as usize);
        for pass in 0..passes as usize {
            for (at, live) in program.live_bytes().enumerate() {
                curve.reach(pass * operations + at, live);
            }
        }
        curve
    }

    /// Enters `bytes` as the amount after operation number `at`.
    pub(super) fn reach(&mut self, at: usize, bytes: u64) {
        let step = at * self.highest.len() / self.operations;
        self.highest[step] = self.highest[step].max(bytes);
    }

    /// Returns the number of operations.
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Returns the highest amount in bytes.
    pub fn peak(&self) -> u64 {
        self.highest.iter().copied().max().unwrap_or(0)
    }

    /// Returns the amount at the end in bytes: the highest amount of the last part.
    pub fn last(&self) -> u64 {
        self.highest.last().copied().unwrap_or(0)
    }

    /// Returns the corners of the curve: number of the operation, and bytes. Every step is flat.
    pub fn corners(&self) -> impl Iterator<Item = (usize, u64)> {
        let end = move |step: usize| step * self.operations / self.highest.len();
        self.highest.iter().enumerate().flat_map(move |(step, &bytes)| [(end(step), bytes), (end(step + 1), bytes)])
    }
}

#[cfg(test)]
mod tests {
    use super::{Curve, MOST_STEPS};

    #[test]
    fn every_step_shows_its_highest_amount() {
        let mut curve = Curve::new(2 * MOST_STEPS);
        for (at, bytes) in [(0, 5), (1, 3), (2, 0), (3, 7), (2 * MOST_STEPS - 1, 1)] {
            curve.reach(at, bytes);
        }
        let corners: Vec<_> = curve.corners().collect();
        assert_eq!(corners[..4], [(0, 5), (2, 5), (2, 7), (4, 7)]);
        assert_eq!(corners.last(), Some(&(2 * MOST_STEPS, 1)));
        assert_eq!((curve.peak(), curve.operations(), corners.len()), (7, 2 * MOST_STEPS, 2 * MOST_STEPS));
        assert_eq!(curve.last(), 1);
    }

    #[test]
    fn a_short_program_has_a_step_for_each_operation() {
        let mut curve = Curve::new(2);
        curve.reach(0, 4);
        curve.reach(1, 9);
        assert_eq!(curve.corners().collect::<Vec<_>>(), [(0, 4), (1, 4), (1, 9), (2, 9)]);
        assert_eq!(Curve::new(0).corners().count(), 0);
    }
}
