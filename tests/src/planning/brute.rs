//! The lowest peak of a small problem, by trying every order.

use cachalot_core::plan::{Buffer, Problem};

/// The lowest peak of a problem without overwrites; of up to eight buffers, if it is to answer today.
///
/// Placed in the order of their offsets in a best plan, each at the lowest offset that is free, no buffer comes to lie higher than
/// there; so one of the orders leads to the lowest peak.
///
/// # Panics
/// If the problem has overwrites.
pub fn lowest_peak(problem: &Problem) -> u64 {
    assert!(problem.overwrites.is_empty(), "buffers that are written in place have no order of their own");
    let (fixed, movable): (Vec<Buffer>, Vec<Buffer>) =
        problem.buffers.iter().partition(|buffer| buffer.fixed.is_some());
    let mut placed = fixed.into_iter().map(|buffer| (buffer, buffer.fixed.expect("it is"))).collect();
    let mut lowest = u64::MAX;
    place(&mut placed, &mut movable.clone(), &mut lowest);
    lowest
}

fn place(placed: &mut Vec<(Buffer, u64)>, left: &mut Vec<Buffer>, lowest: &mut u64) {
    let top = |&(buffer, offset): &(Buffer, u64)| (offset + buffer.size).next_multiple_of(buffer.alignment);
    let peak = placed.iter().map(top).max().unwrap_or(0);
    if peak >= *lowest {
        return;
    }
    if left.is_empty() {
        *lowest = peak;
        return;
    }
    for index in 0..left.len() {
        let buffer = left.remove(index);
        let offset = first_fit(placed, &buffer);
        placed.push((buffer, offset));
        place(placed, left, lowest);
        placed.pop();
        left.insert(index, buffer);
    }
}

fn first_fit(placed: &[(Buffer, u64)], buffer: &Buffer) -> u64 {
    let mut offset: u64 = 0;
    while let Some((other, at)) = placed.iter().find(|&&(other, at)| {
        let meets = buffer.start < other.end && other.start < buffer.end;
        meets && offset < at + other.size && at < offset + buffer.size
    }) {
        offset = (at + other.size).next_multiple_of(buffer.alignment);
    }
    offset
}
