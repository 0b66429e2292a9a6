//! Every kind of invalid problem and of invalid plan is reported with its own error.

use cachalot_planner::{Buffer, Colocation, Fault, Overwrite, Plan, Problem, Unusable, verify};

fn buffer(start: u64, end: u64, size: u64) -> Buffer {
    Buffer { start, end, size, alignment: 1, fixed: None }
}

/// Returns a problem in which 0 and 1 live at once, and 2 overwrites 0 at distance 4.
fn problem() -> Problem {
    Problem {
        buffers: vec![buffer(0, 3, 8), buffer(1, 9, 16), buffer(2, 9, 4), buffer(3, 9, 4)],
        overwrites: vec![Overwrite { writer: 2, target: 0, offset: 4 }],
        ..Problem::default()
    }
}

/// Verifies the plan with the offsets 0, 8, 4 and 0, after a change of the plan or the problem.
fn fault(change: impl FnOnce(&mut Problem, &mut Plan)) -> Result<(), Fault> {
    let (mut problem, mut plan) = (problem(), Plan { offsets: vec![0, 8, 4, 0], peak: 24 });
    change(&mut problem, &mut plan);
    problem.check().expect("the problem is none of the faults");
    verify(&problem, &plan)
}

#[test]
fn every_fault_of_a_plan() {
    assert_eq!(fault(|_, _| ()), Ok(()));
    assert_eq!(fault(|_, plan| plan.peak = 25), Err(Fault::Peak { said: 25, is: 24 }));
    assert_eq!(fault(|_, plan| plan.peak = 23), Err(Fault::Peak { said: 23, is: 24 }));
    let count = fault(|_, plan| plan.offsets.truncate(3));
    assert_eq!(count, Err(Fault::Count { buffers: 4, offsets: 3 }));
    assert_eq!(fault(|_, plan| plan.offsets[1] = u64::MAX), Err(Fault::Beyond { buffer: 1 }));
    assert_eq!(fault(|_, plan| plan.offsets[1] = 7), Err(Fault::Overlap { first: 0, second: 1, step: 1 }));
    // 0 has ended when 3 begins, so only 2, which was written over it, is in the way.
    assert_eq!(fault(|_, plan| plan.offsets[3] = 1), Err(Fault::Overlap { first: 2, second: 3, step: 3 }));
    let elsewhere = Fault::NotInPlace { writer: 2, target: 0, offset: 24, place: 4 };
    assert_eq!(fault(|_, plan| plan.offsets[2] = 24), Err(elsewhere));
    let fixed = fault(|problem, _| problem.buffers[3].fixed = Some(24));
    assert_eq!(fixed, Err(Fault::Moved { buffer: 3, offset: 0, fixed: 24 }));
    let misaligned = fault(|problem, _| problem.buffers[1].alignment = 16);
    assert_eq!(misaligned, Err(Fault::Misaligned { buffer: 1, offset: 8, alignment: 16 }));
    // A writer that may not be in place is like any other buffer.
    let refused = fault(|problem, _| problem.overwrites.clear());
    assert_eq!(refused, Err(Fault::Overlap { first: 0, second: 2, step: 2 }));
}

/// Returns a problem with 0 and 3 colocated.
fn share(problem: &mut Problem) {
    problem.colocations.push(Colocation { first: 3, second: 0 });
}

#[test]
fn every_fault_of_a_place_that_is_shared() {
    assert_eq!(fault(|problem, _| share(problem)), Ok(()));
    let apart = fault(|problem, plan| {
        share(problem);
        *plan = Plan { offsets: vec![0, 8, 4, 24], peak: 28 };
    });
    assert_eq!(apart, Err(Fault::Apart { first: 0, second: 3, place: 0, offset: 24 }));
    // All of a place have the strictest alignment for where it lies, and the peak is the largest
    // end.
    let aligned = |offsets: [u64; 4], peak| {
        fault(|problem, plan| {
            share(problem);
            problem.buffers[3].alignment = 16;
            *plan = Plan { offsets: offsets.to_vec(), peak };
        })
    };
    assert_eq!(aligned([24, 0, 28, 24], 32), Err(Fault::Misaligned { buffer: 0, offset: 24, alignment: 16 }));
    assert_eq!(aligned([16, 0, 20, 16], 24), Ok(()));
    assert_eq!(aligned([16, 0, 20, 16], 32), Err(Fault::Peak { said: 32, is: 24 }));
}

#[test]
fn the_peak_is_the_largest_end_not_rounded_up() {
    let aligned = |peak| {
        let mut problem = problem();
        problem.buffers[1].alignment = 32;
        verify(&problem, &Plan { offsets: vec![0, 32, 4, 0], peak })
    };
    assert_eq!(aligned(48), Ok(()));
    assert_eq!(aligned(64), Err(Fault::Peak { said: 64, is: 48 }));
}

/// Checks a problem after a change.
fn unusable(change: impl FnOnce(&mut Problem)) -> Result<(), Unusable> {
    let mut problem = problem();
    change(&mut problem);
    problem.check()
}

#[test]
fn every_fault_of_a_problem() {
    const EIB: u64 = 1 << 60;
    assert_eq!(unusable(|_| ()), Ok(()));
    assert_eq!(Problem::default().check(), Err(Unusable::Empty));
    let life = Unusable::Lifetime { buffer: 1, start: 1, end: 1 };
    assert_eq!(unusable(|problem| problem.buffers[1].end = 1), Err(life));
    assert_eq!(unusable(|problem| problem.buffers[3].size = 0), Err(Unusable::NoBytes { buffer: 3 }));
    let large = Unusable::TooLarge { buffer: 3, size: EIB };
    assert_eq!(unusable(|problem| problem.buffers[3].size = EIB), Err(large));
    for alignment in [0, 3, EIB] {
        let wrong = Unusable::Alignment { buffer: 0, alignment };
        assert_eq!(unusable(|problem| problem.buffers[0].alignment = alignment), Err(wrong));
    }
    let misaligned = unusable(|problem| {
        problem.buffers[1] = Buffer { alignment: 8, fixed: Some(12), ..problem.buffers[1] };
    });
    assert_eq!(misaligned, Err(Unusable::FixedMisaligned { buffer: 1, fixed: 12, alignment: 8 }));
    let beyond = unusable(|problem| problem.buffers[1].fixed = Some(u64::MAX));
    assert_eq!(beyond, Err(Unusable::Total { buffer: 1 }));
    let total = unusable(|problem| problem.buffers.iter_mut().for_each(|buffer| buffer.size = EIB - 1));
    assert_eq!(total, Err(Unusable::Total { buffer: 3 }));
    let overlap = unusable(|problem| problem.buffers[..2].iter_mut().for_each(|buffer| buffer.fixed = Some(4)));
    assert_eq!(overlap, Err(Unusable::FixedOverlap { first: 0, second: 1, step: 1 }));
}

#[test]
fn every_fault_of_an_overwrite() {
    let with = |pair: Overwrite| unusable(|problem| problem.overwrites.push(pair));
    let none = Unusable::NoSuchBuffer { overwrite: 1, buffer: 4 };
    assert_eq!(with(Overwrite { writer: 4, target: 0, offset: 0 }), Err(none));
    assert_eq!(with(Overwrite { writer: 0, target: 4, offset: 0 }), Err(none));
    let itself = Unusable::Itself { overwrite: 1, buffer: 3 };
    assert_eq!(with(Overwrite { writer: 3, target: 3, offset: 0 }), Err(itself));
    let outside = Unusable::Outside { overwrite: 1, writer: 3, target: 0 };
    assert_eq!(with(Overwrite { writer: 3, target: 0, offset: 5 }), Err(outside));
    assert_eq!(with(Overwrite { writer: 3, target: 0, offset: u64::MAX }), Err(outside));
    assert_eq!(with(Overwrite { writer: 3, target: 0, offset: 4 }), Ok(()));
}

#[test]
fn every_fault_of_a_colocation() {
    let with = |first, second| unusable(|problem| problem.colocations.push(Colocation { first, second }));
    assert_eq!(with(0, 3), Ok(()));
    assert_eq!(with(4, 0), Err(Unusable::ColocatedUnknown { colocation: 0, buffer: 4 }));
    assert_eq!(with(0, 4), Err(Unusable::ColocatedUnknown { colocation: 0, buffer: 4 }));
    assert_eq!(with(3, 3), Err(Unusable::ColocatedItself { colocation: 0, buffer: 3 }));
    assert_eq!(with(0, 1), Err(Unusable::ColocatedOverlap { first: 0, second: 1, step: 1 }));
    // What is written over one of them at 4 is above another of 4 bytes, but not above a longer
    // one.
    let longer = |size| {
        unusable(|problem| {
            share(problem);
            problem.buffers[3].size = size;
        })
    };
    assert_eq!(longer(4), Ok(()));
    assert_eq!(longer(5), Err(Unusable::ColocatedOverlap { first: 2, second: 3, step: 3 }));
    // A colocated buffer overwrites no other buffer.
    let writer = fault(|problem, plan| {
        problem.buffers.push(buffer(9, 10, 1));
        problem.colocations.push(Colocation { first: 2, second: 4 });
        plan.offsets.push(4);
    });
    assert_eq!(writer, Err(Fault::Overlap { first: 0, second: 2, step: 2 }));
}

#[test]
fn colocated_buffers_are_fixed_at_one_offset() {
    let fixed = |first, second, alignment| {
        unusable(|problem| {
            share(problem);
            (problem.buffers[0].fixed, problem.buffers[3].fixed) = (first, second);
            problem.buffers[0].alignment = alignment;
        })
    };
    assert_eq!(fixed(Some(8), Some(8), 8), Ok(()));
    assert_eq!(fixed(None, Some(8), 8), Ok(()));
    assert_eq!(fixed(Some(8), Some(16), 8), Err(Unusable::ColocatedApart { first: 0, second: 3 }));
    assert_eq!(fixed(None, Some(4), 8), Err(Unusable::FixedMisaligned { buffer: 3, fixed: 4, alignment: 8 }));
}
