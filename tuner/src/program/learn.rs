//! Announces iterations for the planned policy, which observes a part of the first half of a record
//! and serves the second half from a plan.

use super::{Operation, Program};
use crate::section::{Repetition, repetition};

impl Program {
    /// Returns the program with announcements of iterations. If the requests repeat, each
    /// repetition is an iteration. The first one that is announced is the last one that ends in the
    /// first half. It is observed, and all later iterations are served from a plan. If the requests
    /// do not repeat, the two halves are announced.
    #[must_use]
    pub fn announced(&self) -> Self {
        let mut boundaries = self.boundaries().into_iter().peekable();
        let mut operations = Vec::with_capacity(self.operations.len() + 2);
        for (at, &operation) in self.operations.iter().enumerate() {
            if boundaries.next_if_eq(&at).is_some() {
                operations.push(Operation::Announce);
            }
            operations.push(operation);
        }
        Self { operations, slots: self.slots, start: self.start }
    }

    /// Returns the numbers of the operations at which iterations start.
    fn boundaries(&self) -> Vec<usize> {
        let request = |(at, operation): (usize, &Operation)| match *operation {
            Operation::Malloc { bytes, stream, .. } => Some((at, (bytes, stream))),
            _ => None,
        };
        let (places, requests): (Vec<usize>, Vec<_>) = self.operations.iter().enumerate().filter_map(request).unzip();
        let Some(Repetition { run, period }) = repetition(&requests) else {
            return vec![0, self.operations.len() / 2];
        };
        let before_middle = (requests.len() / 2).saturating_sub(run.start) / period;
        let first = run.start + before_middle.saturating_sub(1).min(run.len() / period - 2) * period;
        let begins = (first..=run.end).step_by(period);
        begins.map(|request| places.get(request).copied().unwrap_or(self.operations.len())).collect()
    }

    /// Splits the operations after the second announcement, at which a plan takes effect. If there
    /// is no second announcement, all operations are in the second part.
    pub(super) fn at_plan(&self) -> (&[Operation], &[Operation]) {
        let mut announcements =
            self.operations.iter().enumerate().filter(|(_, operation)| **operation == Operation::Announce);
        self.operations.split_at(announcements.nth(1).map_or(0, |(at, _)| at + 1))
    }

    /// Returns the number of the operation after which a plan takes effect.
    pub fn plan_begins(&self) -> Option<usize> {
        self.at_plan().0.len().checked_sub(1)
    }
}
