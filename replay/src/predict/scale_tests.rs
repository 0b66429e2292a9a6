//! What grows with the batch, for a training step whose sizes are known.

use super::*;
use crate::predict::Site;
use cachalot_core::StreamId;

const WEIGHT: u64 = 4096;

/// Weights, then steps of an activation and a gradient of the weights.
fn training(batch: u64) -> Program {
    let malloc = |bytes, slot| Operation::Malloc { bytes, stream: StreamId::DEFAULT, slot };
    let mut operations = vec![malloc(WEIGHT, 0), malloc(777, 1)];
    for _ in 0..3 {
        let free = [4, 3, 2].map(|slot| Operation::Free { slot });
        operations.extend([malloc(1000 * batch, 2), malloc(WEIGHT, 3), malloc(WEIGHT / 2, 4)]);
        operations.extend(free);
    }
    Program { operations, slots: 5, start: 0 }
}

/// Where a training program made its calls: weights, and in each of `steps` steps an activation, a
/// cast of the weights, an activation's gradient and a weight's, and a temporary of the optimizer.
fn placed(steps: usize, batch: u64) -> (Program, Calls) {
    let malloc = |bytes, slot| Operation::Malloc { bytes, stream: StreamId::DEFAULT, slot };
    let site = |stack, part, is_cast| Site { stack, part, is_cast };
    let (mut operations, mut calls) = (vec![malloc(WEIGHT, 0)], Calls::default());
    calls.requests.push(site(0, Phase::Forward, false));
    for step in 0..steps {
        // The gradient of the step before is freed by the next one.
        if step > 0 {
            operations.push(Operation::Free { slot: 4 });
            calls.frees.push(Phase::Forward);
        }
        // At a batch of 4, an activation is as large as the weight.
        operations.extend([
            malloc(1024 * batch, 1),
            malloc(WEIGHT / 2, 2),
            malloc(512 * batch, 5),
            malloc(1024 * batch, 3),
        ]);
        calls.requests.extend([
            site(1, Phase::Forward, false),
            site(2, Phase::Forward, true),
            site(2, Phase::Forward, true),
        ]);
        operations.extend([1, 2, 5].map(|slot| Operation::Free { slot }));
        operations.extend([
            malloc(WEIGHT, 4),
            Operation::Free { slot: 3 },
            malloc(WEIGHT, 1),
            Operation::Free { slot: 1 },
        ]);
        let backward = [(3, Phase::Backward), (4, Phase::Backward), (5, Phase::Optimizer)];
        calls.requests.extend(backward.map(|(stack, part)| site(stack, part, false)));
        calls.frees.extend([Phase::Backward, Phase::Backward, Phase::Backward, Phase::Backward, Phase::Optimizer]);
    }
    (Program { operations, slots: 6, start: 0 }, calls)
}

/// A forward pass: weights from before the record, and of each layer an activation that is kept and
/// one that is not.
fn forward(layers: u32, weights: u64) -> (Program, Calls) {
    let malloc = |bytes, slot| Operation::Malloc { bytes, stream: StreamId::DEFAULT, slot };
    let (mut operations, mut calls) = (vec![malloc(weights, 0)], Calls::default());
    for layer in 0..layers {
        operations.extend([malloc(2000, 2 + layer), malloc(1000, 1), Operation::Free { slot: 1 }]);
        calls.requests.extend([1, 2].map(|stack| Site { stack, part: Phase::Forward, is_cast: false }));
        calls.frees.push(Phase::Forward);
    }
    (Program { operations, slots: 2 + layers, start: 0 }, calls)
}

fn grown(program: &Program, calls: Option<&Calls>, scale: f64) -> (Program, Scaled) {
    Growth::of_record(program, calls).expect("a record that tells").scaled(program, scale)
}

#[test]
fn activations_grow_and_weights_and_their_gradients_stay() {
    let (twice, scaled) = grown(&training(3), None, 2.0);
    assert_eq!(twice.operations, training(6).operations);
    assert_eq!(scaled, Scaled { requests: 3, fixed: 8 });
    assert_eq!(grown(&training(3), None, 1.0).1, Scaled { requests: 0, fixed: 11 });
}

#[test]
fn weights_that_are_freed_at_the_end_stay() {
    let (mut program, mut wanted) = (training(3), training(6));
    for program in [&mut program, &mut wanted] {
        program.operations.extend([0, 1].map(|slot| Operation::Free { slot }));
    }
    assert_eq!(grown(&program, None, 2.0).0.operations, wanted.operations);
}

#[test]
fn places_tell_activations_of_the_size_of_weights() {
    let ((program, calls), (wanted, _)) = (placed(3, 4), placed(3, 12));
    assert_eq!(program.operations[1], program.operations[11 + 1 - 2], "an activation has the size of its gradient");
    let growth = Growth::of_record(&program, Some(&calls)).expect("a record that tells");
    let (thrice, _) = growth.scaled(&program, 3.0);
    let differs = thrice.operations.iter().zip(&wanted.operations).find(|(one, other)| one != other);
    // The cast of an activation has half the size of a weight, as that of the weight has.
    assert!(
        differs.is_none_or(|(one, _)| *one == Operation::Malloc { bytes: 2048, stream: StreamId::DEFAULT, slot: 5 })
    );
    assert_eq!(growth.peak_bytes, 4096 + 4096 + 2048 + 2048 + 4096);
}

#[test]
fn a_record_that_does_not_tell_says_why() {
    let (program, calls) = placed(1, 4);
    assert_eq!(Growth::of_record(&program, Some(&calls)).err(), Some(Untold::Steps));
    let (program, mut calls) = placed(3, 4);
    for site in &mut calls.requests {
        site.part = Phase::Optimizer;
    }
    assert_eq!(Growth::of_record(&program, Some(&calls)).err(), Some(Untold::Growth(0)));
    // A block from before the record that is freed in it may be anything.
    let (mut program, calls) = placed(3, 4);
    program.slots += 1;
    let unknown = Operation::Malloc { bytes: 1 << 20, stream: StreamId::DEFAULT, slot: 6 };
    program.operations.insert(0, unknown);
    program.operations.insert(5, Operation::Free { slot: 6 });
    let mut told = calls.clone();
    told.frees.insert(0, Phase::Forward);
    assert_eq!(Growth::of_record(&program, Some(&told)).err(), Some(Untold::Start(98)));
    // Without places, blocks with the size of weights are more than gradients can be.
    let mut equal = training(3);
    for operation in &mut equal.operations {
        if let Operation::Malloc { bytes: bytes @ 3000, .. } = operation {
            *bytes = WEIGHT * 2;
        }
    }
    assert_eq!(Growth::of_record(&equal, None).err(), Some(Untold::Sizes(74)));
    // The layers of a forward pass alone are no steps of training.
    let (program, calls) = forward(6, WEIGHT);
    assert_eq!(Growth::of_record(&program, Some(&calls)).err(), Some(Untold::Kept(80)));
    // Nor if what they keep is little beside the weights.
    let (program, calls) = forward(6, 100 * WEIGHT);
    assert_eq!(Growth::of_record(&program, Some(&calls)).err(), Some(Untold::Kept(80)));
    let why = [Untold::Steps, Untold::Growth(0), Untold::Start(98), Untold::Sizes(74)].map(|why| why.to_string());
    assert_eq!(why[0], "it does not hold two equal steps");
    assert!(why[2].starts_with("98 % of its peak are blocks from before it"), "{}", why[2]);
}

#[test]
fn two_records_give_every_size() {
    let growth = Growth::of_records(&training(2), &training(3), 1.5).expect("one program");
    let (four, scaled) = growth.scaled(&training(2), 2.0);
    assert_eq!((four.operations, scaled.requests), (training(4).operations, 3));
    let mut other = training(3);
    other.operations.pop();
    other.operations.push(Operation::Refused { bytes: 7, stream: StreamId::DEFAULT });
    let error = Growth::of_records(&training(2), &other, 1.5).expect_err("two programs");
    assert_eq!(error, "the records are of two programs: one has 11 requests, the other 12");
    assert!(Growth::of_records(&training(2), &training(2), 1.0).is_err());
}
