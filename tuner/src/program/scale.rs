//! Changes the sizes of a program.

use super::{Operation, Program};

impl Program {
    /// Returns the program with every size multiplied by `factor` and rounded down, to at least one
    /// byte.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        for operation in &mut self.operations {
            if let Operation::Malloc { bytes, .. } | Operation::Refused { bytes, .. } = operation {
                *bytes = ((*bytes as f64 * factor) as u64).max(1);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::StreamId;

    #[test]
    fn every_size_is_multiplied() {
        let stream = StreamId(1);
        let operations = vec![
            Operation::Malloc { bytes: 1000, stream, slot: 0 },
            Operation::Refused { bytes: 333, stream },
            Operation::Free { slot: 0 },
            Operation::Malloc { bytes: 1, stream, slot: 0 },
        ];
        let program = Program { operations, slots: 1, start: 0 };
        assert_eq!(program.clone().scaled(1.0).operations, program.operations);
        let scaled = program.scaled(0.5);
        assert_eq!(scaled.live_bytes().collect::<Vec<_>>(), [500, 500, 0, 1]);
        assert_eq!(scaled.operations[1], Operation::Refused { bytes: 166, stream });
    }
}
