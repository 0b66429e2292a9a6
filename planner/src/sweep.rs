//! Whether rectangles of time and address overlap: a sweep over time with those that live, in order of address.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The bytes `low..high`, for the steps `start..end`.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) low: u64,
    pub(super) high: u64,
    /// Whose they are.
    pub(super) buffer: u32,
}

/// Two buffers that hold the same byte, and the first step at which they do.
pub(super) struct Clash {
    pub(super) first: u32,
    pub(super) second: u32,
    pub(super) step: u64,
}

/// The earliest clash, if there is one.
pub(super) fn clash(held: &[Held]) -> Option<Clash> {
    let begins = held.iter().map(|held| (held.start, true, held));
    let ends = held.iter().map(|held| (held.end, false, held));
    let mut events: Vec<_> =
        begins.chain(ends).filter(|(_, _, held)| held.start < held.end && held.low < held.high).collect();
    // At one step, ends come before beginnings: lives are half-open.
    events.sort_by_key(|&(step, begins, held)| (step, begins, held.buffer));
    let mut live = BTreeMap::new();
    for (step, begins, held) in events {
        if !begins {
            live.remove(&held.low);
            continue;
        }
        let below = live.range(..held.high).next_back();
        if let Some((_, &(high, other))) = below
            && high > held.low
        {
            return Some(Clash { first: other, second: held.buffer, step });
        }
        live.insert(held.low, (held.high, held.buffer));
    }
    None
}
