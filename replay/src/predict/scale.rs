//! A recorded program at another batch size.
//!
//! The sizes of some requests grow with the batch, and the rest stays. With records at two batch
//! sizes, each size is on the line through the two recorded sizes. With a single record, a rule
//! decides:
//!
//! * A block that is alive at the end of the record, or for half of the record, stays: weights,
//!   optimizer state, workspaces.
//! * A block with the size of a staying block, or with half or twice the size, stays as well:
//!   gradients, temporaries of the optimizer, casts of weights.
//! * Every remaining block grows: activations, their gradients, inputs. Blocks of at most 512 bytes
//!   grow as well, without an effect below the rounding.
//!
//! The rule needs a record of several whole steps. The record ends between two steps, where only
//! staying blocks are alive, or at the end of the program.

use crate::program::{Operation, Program};
use std::collections::HashSet;

/// The change of a program's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scaled {
    /// Requests whose sizes changed.
    pub requests: u64,
    /// Requests whose sizes stayed.
    pub fixed: u64,
}

/// Returns the program with the batch multiplied by `scale`, by the rule for a single record.
pub fn by_rule(program: &Program, scale: f64) -> (Program, Scaled) {
    let lasting = lasting_sizes(program);
    let stays = |bytes: u64| {
        let is_even = bytes.is_multiple_of(2);
        lasting.contains(&bytes) || lasting.contains(&(bytes * 2)) || (is_even && lasting.contains(&(bytes / 2)))
    };
    rescaled(program, |_, bytes| if stays(bytes) { bytes } else { (bytes as f64 * scale).round() as u64 })
}

/// Returns the program with the batch multiplied by `scale`. `other` is a record of the same
/// program with the batch multiplied by `other_scale`.
///
/// # Errors
/// The records differ in the number of requests, or have the same batches.
pub fn by_records(
    program: &Program,
    other: &Program,
    other_scale: f64,
    scale: f64,
) -> Result<(Program, Scaled), String> {
    if (other_scale - 1.0).abs() < 1e-9 {
        return Err("the other record must have another batch size".to_owned());
    }
    let (own, others) = (sizes(program), sizes(other));
    if own.len() != others.len() {
        let (own, others) = (own.len(), others.len());
        return Err(format!("the records are of two programs: one has {own} requests, the other {others}"));
    }
    let steps = (scale - 1.0) / (other_scale - 1.0);
    Ok(rescaled(program, |number, bytes| {
        let difference = others[number] as f64 - bytes as f64;
        (bytes as f64 + difference * steps).round().max(0.0) as u64
    }))
}

/// Returns the sizes of the blocks that are alive at the end, or for half of the program.
fn lasting_sizes(program: &Program) -> HashSet<u64> {
    let mut held = vec![None; program.slots as usize];
    let mut sizes = HashSet::new();
    for (at, operation) in program.operations.iter().enumerate() {
        match *operation {
            Operation::Malloc { bytes, slot, .. } => held[slot as usize] = Some((at, bytes)),
            Operation::Free { slot } => {
                let block = held[slot as usize].take();
                sizes.extend(
                    block.filter(|(from, _)| (at - from) * 2 >= program.operations.len()).map(|(_, bytes)| bytes),
                );
            }
            _ => {}
        }
    }
    sizes.extend(held.into_iter().flatten().map(|(_, bytes)| bytes));
    sizes
}

/// Returns the sizes of all requests in order.
fn sizes(program: &Program) -> Vec<u64> {
    let size = |operation: &Operation| match *operation {
        Operation::Malloc { bytes, .. } | Operation::Refused { bytes, .. } => Some(bytes),
        _ => None,
    };
    program.operations.iter().filter_map(size).collect()
}

/// Returns the program with the sizes that `size` gives for the number and the size of a request.
fn rescaled(program: &Program, size: impl Fn(usize, u64) -> u64) -> (Program, Scaled) {
    let mut program = program.clone();
    let (mut number, mut scaled) = (0, Scaled::default());
    for operation in &mut program.operations {
        if let Operation::Malloc { bytes, .. } | Operation::Refused { bytes, .. } = operation {
            let new = size(number, *bytes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use cachalot_core::StreamId;

    const WEIGHT: u64 = 4096;

    /// Weights, then steps of an activation and a gradient of the weights.
    fn training(batch: u64) -> Program {
        let malloc = |bytes, slot| Operation::Malloc { bytes, stream: StreamId::DEFAULT, slot };
        let mut operations = vec![malloc(WEIGHT, 0), malloc(777, 1)];
        for _ in 0..3 {
            let free = [2, 3, 4].map(|slot| Operation::Free { slot });
            operations.extend([malloc(1000 * batch, 2), malloc(WEIGHT, 3), malloc(WEIGHT / 2, 4)]);
            operations.extend(free);
        }
        Program { operations, slots: 5, start: 0 }
    }

    #[test]
    fn activations_grow_and_weights_and_their_gradients_stay() {
        let (twice, scaled) = by_rule(&training(3), 2.0);
        assert_eq!(twice.operations, training(6).operations);
        assert_eq!(scaled, Scaled { requests: 3, fixed: 8 });
        assert_eq!(by_rule(&training(3), 1.0).1, Scaled { requests: 0, fixed: 11 });
    }

    #[test]
    fn weights_that_are_freed_at_the_end_stay() {
        let (mut program, mut wanted) = (training(3), training(6));
        for program in [&mut program, &mut wanted] {
            program.operations.extend([0, 1].map(|slot| Operation::Free { slot }));
        }
        assert_eq!(by_rule(&program, 2.0).0.operations, wanted.operations);
    }

    #[test]
    fn two_records_give_every_size() {
        let (four, scaled) = by_records(&training(2), &training(3), 1.5, 2.0).expect("one program");
        assert_eq!((four.operations, scaled.requests), (training(4).operations, 3));
        let mut other = training(3);
        other.operations.pop();
        other.operations.push(Operation::Refused { bytes: 7, stream: StreamId::DEFAULT });
        let error = by_records(&training(2), &other, 1.5, 2.0).expect_err("two programs");
        assert_eq!(error, "the records are of two programs: one has 11 requests, the other 12");
        assert!(by_records(&training(2), &training(2), 1.0, 2.0).is_err());
    }
}
