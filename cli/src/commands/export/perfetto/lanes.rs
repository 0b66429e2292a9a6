//! Lanes for intervals: slices of a track have to be in each other or apart.

/// An interval of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interval {
    pub(super) start: i64,
    /// Not before the start.
    pub(super) end: i64,
}

/// Returns the lane of each interval, in the order of the input: the first lane with room. If
/// `nests`, an interval may be inside of another interval of the lane.
pub(super) fn lanes(intervals: &[Interval], nests: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&at| (intervals[at].start, std::cmp::Reverse(intervals[at].end)));
    let mut found = vec![0; intervals.len()];
    // The ends of the open intervals of each lane, the innermost last.
    let mut open: Vec<Vec<i64>> = Vec::new();
    for at in order {
        let Interval { start, end } = intervals[at];
        let has_room = |ends: &mut Vec<i64>| {
            while ends.last().is_some_and(|&last| last <= start) {
                ends.pop();
            }
            ends.last().is_none_or(|&last| nests && end <= last)
        };
        let lane = open.iter_mut().position(has_room).unwrap_or(open.len());
        if lane == open.len() {
            open.push(Vec::new());
        }
        open[lane].push(end);
        found[at] = lane;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Interval, lanes};

    #[test]
    fn intervals_of_a_lane_are_apart_or_inside_of_each_other() {
        let intervals = [(0, 10), (2, 4), (4, 12), (10, 20), (11, 12), (0, 10)];
        let intervals = intervals.map(|(start, end)| Interval { start, end });
        assert_eq!(lanes(&intervals, true), [0, 0, 1, 0, 0, 0]);
        assert_eq!(lanes(&intervals, false), [0, 2, 2, 0, 1, 1]);
        assert_eq!(lanes(&[], true), Vec::<usize>::new());
    }
}
