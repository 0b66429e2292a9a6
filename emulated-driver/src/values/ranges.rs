//! Free ranges of numbers: device addresses, pages of a device's memory, parts of a shared page.
//!
//! Reuse is eager by default: the range freed last is taken first if large enough, which exposes
//! faults of stale addresses. In quarantine a freed range is never reused.

use std::collections::BTreeMap;

/// Number of freed ranges remembered for eager reuse.
const REMEMBERED: usize = 64;

/// The free parts of `[start, end)`. Adjacent free ranges are always merged.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Length of each free range, by start.
    free: BTreeMap<u64, u64>,
    /// Starts of freed ranges, newest last. A range may have been taken again since.
    recent: Vec<u64>,
    /// Whether freed ranges are set aside.
    quarantine: bool,
}

impl Ranges {
    /// `bytes` free from `start` on.
    pub(crate) fn new(start: u64, bytes: u64) -> Self {
        let free = if bytes == 0 { BTreeMap::new() } else { BTreeMap::from([(start, bytes)]) };
        Self { free, recent: Vec::new(), quarantine: false }
    }

    /// Sets quarantine: freed ranges are set aside for good.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.quarantine = on;
    }

    /// Takes `bytes` at a multiple of `alignment` (a power of two): the newest large enough freed
    /// range, otherwise the lowest large enough range.
    pub(crate) fn take(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let recent =
            self.recent.iter().rev().copied().find(|&start| {
                start.is_multiple_of(alignment) && self.room_at(start).is_some_and(|room| room >= bytes)
            });
        let start = recent.or_else(|| {
            self.free.iter().find_map(|(&start, &length)| {
                let aligned = start.checked_next_multiple_of(alignment)?;
                (aligned.checked_add(bytes)? <= start + length).then_some(aligned)
            })
        })?;
        self.recent.retain(|&other| other != start);
        self.take_at(start, bytes).then_some(start)
    }

    /// Takes exactly `[start, start + bytes)`. Returns false if part of the range is not free.
    pub(crate) fn take_at(&mut self, start: u64, bytes: u64) -> bool {
        if self.room_at(start).is_none_or(|room| room < bytes) {
            return false;
        }
        let Some((&from, &length)) = self.free.range(..=start).next_back() else { return false };
        self.free.remove(&from);
        if start > from {
            self.free.insert(from, start - from);
        }
        if from + length > start + bytes {
            self.free.insert(start + bytes, from + length - start - bytes);
        }
        true
    }

    /// Frees `[start, start + bytes)`.
    pub(crate) fn give(&mut self, start: u64, bytes: u64) {
        if self.quarantine {
            return;
        }
        if self.recent.len() == REMEMBERED {
            self.recent.remove(0);
        }
        self.recent.push(start);
        let (mut from, mut length) = (start, bytes);
        if let Some((&before, &its)) = self.free.range(..start).next_back()
            && before + its == start
        {
            self.free.remove(&before);
            (from, length) = (before, length + its);
        }
        if let Some(its) = self.free.remove(&(start + bytes)) {
            length += its;
        }
        self.free.insert(from, length);
    }

    /// Takes at most `bytes` of the lowest free range. Returns start and length.
    pub(crate) fn take_some(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let (&start, &length) = self.free.iter().next()?;
        let taken = length.min(bytes);
        self.take_at(start, taken).then_some((start, taken))
    }

    /// Returns the number of free bytes.
    pub(crate) fn free_total(&self) -> u64 {
        self.free.values().sum()
    }

    /// Returns the free length from `start` on, or `None` if `start` is not free.
    fn room_at(&self, start: u64) -> Option<u64> {
        let (&from, &length) = self.free.range(..=start).next_back()?;
        (start < from + length).then(|| from + length - start)
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn the_newest_fitting_range_is_reused_first() {
        let mut ranges = Ranges::new(0, 100);
        let first = ranges.take(10, 1);
        let second = ranges.take(10, 1);
        assert_eq!((first, second), (Some(0), Some(10)));
        ranges.give(0, 10);
        ranges.give(10, 10);
        assert_eq!(ranges.take(10, 1), Some(10));
        assert_eq!(ranges.take(10, 1), Some(0));
        assert_eq!(ranges.free_total(), 80);
    }

    #[test]
    fn neighbours_merge_and_exact_ranges_can_be_taken() {
        let mut ranges = Ranges::new(0, 100);
        assert!(ranges.take_at(40, 20));
        assert!(!ranges.take_at(59, 2));
        assert_eq!(ranges.take(60, 1), None);
        ranges.give(40, 20);
        assert_eq!(ranges.take(100, 1), Some(0));
    }

    #[test]
    fn alignment_holds_and_quarantine_never_returns_a_range() {
        let mut ranges = Ranges::new(3, 61);
        assert_eq!(ranges.take(8, 16), Some(16));
        ranges.set_quarantine(true);
        ranges.give(16, 8);
        assert_eq!(ranges.take(8, 16), Some(32));
        assert_eq!(ranges.take_some(100), Some((3, 13)));
    }
}
