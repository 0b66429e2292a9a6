//! Leaves calls out of programs, and computes the live bytes of a program.

use super::{Operation, Program};

/// The calls of a recorded program to leave out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Calls that release cached memory.
    pub empty_cache: bool,
    /// Uses on other streams. Without them, a freed block is free at once.
    pub record_stream: bool,
    /// Captures of graphs, and private pools. Without them, all requests come from the default
    /// pool.
    pub captures: bool,
}

impl LeftOut {
    fn is(self, operation: Operation) -> bool {
        match operation {
            Operation::EmptyCache => self.empty_cache,
            Operation::RecordStream { .. } | Operation::Complete { .. } => self.record_stream,
            Operation::BeginCapture
            | Operation::Capture { .. }
            | Operation::EndCapture
            | Operation::Route { .. }
            | Operation::Destroy { .. } => self.captures,
            Operation::Malloc { .. } | Operation::Refused { .. } | Operation::Free { .. } | Operation::Announce => {
                false
            }
        }
    }
}

impl Program {
    /// Returns the program without the calls to leave out.
    #[must_use]
    pub fn without(mut self, left_out: LeftOut) -> Self {
        let in_start = &self.operations[..self.start.min(self.operations.len())];
        self.start -= in_start.iter().filter(|&&operation| left_out.is(operation)).count();
        self.operations.retain(|&operation| !left_out.is(operation));
        self
    }

    /// Iterates over the requested bytes of all live blocks after each call.
    pub fn live_bytes(&self) -> impl Iterator<Item = u64> {
        let mut held = vec![0; self.slots as usize];
        self.operations.iter().scan(0, move |live, &operation| {
            match operation {
                Operation::Malloc { bytes, slot, .. } => {
                    held[slot as usize] = bytes;
                    *live += bytes;
                }
                Operation::Free { slot } => *live -= std::mem::take(&mut held[slot as usize]),
                _ => {}
            }
            Some(*live)
        })
    }

    /// Returns `factor` times the peak of [`live_bytes`](Self::live_bytes).
    pub fn limit_of(&self, factor: f64) -> u64 {
        (self.live_bytes().max().unwrap_or(0) as f64 * factor) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::StreamId;

    fn program() -> Program {
        let (stream, slot) = (StreamId(1), 0);
        let operations = vec![
            Operation::BeginCapture,
            Operation::Malloc { bytes: 1000, stream, slot },
            Operation::RecordStream { slot, stream },
            Operation::Free { slot },
            Operation::EmptyCache,
            Operation::Complete { stream },
            Operation::Refused { bytes: 5000, stream },
            Operation::Malloc { bytes: 300, stream, slot },
            Operation::EndCapture,
        ];
        Program { operations, slots: 1, start: 0 }
    }

    #[test]
    fn only_the_calls_of_the_kinds_named_are_left_out() {
        let all = program().operations;
        let numbers = |left_out: LeftOut| {
            let left = program().without(left_out).operations;
            let gone: Vec<usize> = (0..all.len()).filter(|&at| !left.contains(&all[at])).collect();
            assert_eq!(left.len() + gone.len(), all.len());
            gone
        };
        assert_eq!(numbers(LeftOut::default()), [0_usize; 0]);
        assert_eq!(numbers(LeftOut { empty_cache: true, ..LeftOut::default() }), [4]);
        assert_eq!(numbers(LeftOut { record_stream: true, ..LeftOut::default() }), [2, 5]);
        assert_eq!(numbers(LeftOut { captures: true, ..LeftOut::default() }), [0, 8]);
    }

    #[test]
    fn a_limit_is_a_multiple_of_what_is_live() {
        assert_eq!(program().live_bytes().collect::<Vec<_>>(), [0, 1000, 1000, 0, 0, 0, 0, 300, 300]);
        assert_eq!((program().limit_of(1.0), program().limit_of(1.05)), (1000, 1050));
        assert_eq!(Program::default().limit_of(2.0), 0);
    }
}
