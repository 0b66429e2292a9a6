//! Finds two overlapping rectangles of time and address, by a sweep over time with the live
//! rectangles in address order. O(n log n).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The use of the bytes `low..high` during the steps `start..end`.
#[derive(Clone, Copy)]
pub(super) struct Rectangle {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) low: u64,
    pub(super) high: u64,
    /// The number of the buffer.
    pub(super) buffer: u32,
}

/// Two buffers that use a common byte, and the first step of the overlap.
pub(super) struct Clash {
    pub(super) first: u32,
    pub(super) second: u32,
    pub(super) step: u64,
}

/// Finds the earliest overlap, or `None` if all rectangles are disjoint.
pub(super) fn clash(rectangles: &[Rectangle]) -> Option<Clash> {
    let begins = rectangles.iter().map(|rectangle| (rectangle.start, true, rectangle));
    let ends = rectangles.iter().map(|rectangle| (rectangle.end, false, rectangle));
    let mut events: Vec<_> = begins
        .chain(ends)
        .filter(|(_, _, rectangle)| rectangle.start < rectangle.end && rectangle.low < rectangle.high)
        .collect();
    // Lives are half-open, so at one step ends come before starts.
    events.sort_by_key(|&(step, begins, rectangle)| (step, begins, rectangle.buffer));
    let mut live = BTreeMap::new();
    for (step, begins, rectangle) in events {
        if !begins {
            live.remove(&rectangle.low);
            continue;
        }
        // Live rectangles are disjoint. Of those that start below `high`, the last one also ends
        // highest, so one comparison is enough.
        let below = live.range(..rectangle.high).next_back();
        if let Some((_, &(high, other))) = below
            && high > rectangle.low
        {
            return Some(Clash { first: other, second: rectangle.buffer, step });
        }
        live.insert(rectangle.low, (rectangle.high, rectangle.buffer));
    }
    None
}
