//! Finds the lowest peak of a small problem by trying every order.

use super::naive;
use cachalot_planner::{Buffer, Problem};

/// Buffers at a common offset.
type Group = Vec<Buffer>;

/// Computes the lowest peak of a problem without overwrites. Practical for up to eight buffers.
///
/// Correct because some order leads to the lowest peak. Take a best plan and place its groups by
/// first fit in the order of their offsets: no group comes to lie higher than in the plan.
///
/// # Panics
/// If the problem has overwrites.
pub fn lowest_peak(problem: &Problem) -> u64 {
    assert!(problem.overwrites.is_empty(), "buffers that are written in place have no order of their own");
    let settled = |group: &Group| group.iter().find_map(|buffer| buffer.fixed);
    let (fixed, mut movable): (Vec<Group>, Vec<Group>) =
        groups(problem).into_iter().partition(|group| settled(group).is_some());
    let mut placed = fixed.into_iter().map(|group| (settled(&group).expect("it is"), group)).collect();
    let mut lowest = u64::MAX;
    place(&mut placed, &mut movable, &mut lowest);
    lowest
}

/// Lists the groups of colocated buffers, each with the strictest alignment of its members.
fn groups(problem: &Problem) -> Vec<Group> {
    let alignments = naive::alignments(problem);
    let aligned = problem.buffers.iter().zip(&alignments).map(|(&buffer, &alignment)| Buffer { alignment, ..buffer });
    let mut groups: Vec<Group> = aligned.map(|buffer| vec![buffer]).collect();
    let mut group_of: Vec<usize> = (0..groups.len()).collect();
    for pair in &problem.colocations {
        let [one, other] = [pair.first, pair.second].map(|buffer| group_of[buffer as usize]);
        if one != other {
            let joined = std::mem::take(&mut groups[other]);
            groups[one].extend(joined);
            group_of.iter_mut().filter(|group| **group == other).for_each(|group| *group = one);
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

fn place(placed: &mut Vec<(u64, Group)>, left: &mut Vec<Group>, lowest: &mut u64) {
    let ends = placed.iter().flat_map(|(offset, group)| group.iter().map(move |buffer| offset + buffer.size));
    let peak = ends.max().unwrap_or(0);
    if peak >= *lowest {
        return;
    }
    if left.is_empty() {
        *lowest = peak;
        return;
    }
    for index in 0..left.len() {
        let group = left.remove(index);
        let offset = first_fit(placed, &group);
        placed.push((offset, group));
        place(placed, left, lowest);
        left.insert(index, placed.pop().expect("it was placed").1);
    }
}

fn first_fit(placed: &[(u64, Group)], group: &Group) -> u64 {
    let mut offset: u64 = 0;
    let in_the_way = |offset: u64| {
        let all = placed.iter().flat_map(|(at, others)| others.iter().map(move |other| (at, other)));
        all.flat_map(|placed| group.iter().map(move |own| (placed, own))).find(|&((at, other), own)| {
            let meets = own.start < other.end && other.start < own.end;
            meets && offset < at + other.size && *at < offset + own.size
        })
    };
    while let Some(((at, other), own)) = in_the_way(offset) {
        offset = (at + other.size).next_multiple_of(own.alignment);
    }
    offset
}
