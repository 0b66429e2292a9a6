//! The free memory of a part: what can go back to the device, and what is in holes.

use cachalot_core::MIB;
use serde::Serialize;

/// The free memory of a part, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FreeMemory {
    /// Free memory that can go back to the device: a wholly free part, or wholly free pages.
    pub idle: u64,
    /// Free memory next to blocks, which cannot go back.
    pub holes: u64,
    /// The largest piece of `holes`.
    pub largest_hole: u64,
    /// The largest free piece, idle or not.
    pub largest: u64,
}

/// The memory of a device at some time. Memory in use, in holes, idle and kept add up to reserved
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stuck {
    /// Bytes reserved from the device.
    pub reserved_bytes: u64,
    /// Bytes of allocated and pending blocks.
    pub in_use_bytes: u64,
    /// Free bytes that cannot go back to the device.
    pub hole_bytes: u64,
    /// Number of segments with holes.
    pub hole_segments: u64,
    /// Bytes of wholly free segments, and of wholly free pages of expandable segments, outside of
    /// private pools.
    pub idle_bytes: u64,
    /// Number of wholly free segments outside of private pools.
    pub idle_segments: u64,
    /// Bytes of the same in private pools, which keep them as long as their graphs live.
    pub kept_bytes: u64,
}

impl Stuck {
    /// Adds a segment of `bytes` bytes, of a private pool or not.
    pub(crate) fn add(&mut self, bytes: u64, free: FreeMemory, is_private: bool) {
        let FreeMemory { idle, holes, .. } = free;
        self.reserved_bytes = self.reserved_bytes.saturating_add(bytes);
        self.in_use_bytes = self.in_use_bytes.saturating_add(bytes.saturating_sub(idle).saturating_sub(holes));
        if is_private {
            self.kept_bytes = self.kept_bytes.saturating_add(idle);
        } else {
            self.idle_bytes = self.idle_bytes.saturating_add(idle);
            self.idle_segments += u64::from(idle == bytes && bytes > 0);
        }
        self.hole_bytes = self.hole_bytes.saturating_add(holes);
        self.hole_segments += u64::from(holes > 0);
    }
}

/// Size of the pages of small blocks in an expandable segment.
pub const SMALL_PAGE: u64 = 2 * MIB;

/// Returns the size of the pages that an event maps or unmaps: a number of large pages, or small
/// pages.
pub fn page_of(bytes: u64, large_page: u64) -> u64 {
    if bytes.is_multiple_of(large_page.max(1)) { large_page } else { SMALL_PAGE }
}

/// Adds up the free memory of a part from the places of the blocks, by address.
pub fn free_between(start: u64, end: u64, page: u64, blocks: impl Iterator<Item = (u64, u64)>) -> FreeMemory {
    let mut free = FreeMemory::default();
    let mut at = start;
    let mut gap = |from: u64, to: u64| {
        if from >= to {
            return;
        }
        free.largest = free.largest.max(to - from);
        // The gap without its wholly free pages is a piece on the left and a piece on the right.
        let (first, last) = match page {
            _ if from == start && to == end => (from, to),
            0 => (to, to),
            _ => {
                let first = start.saturating_add((from - start).div_ceil(page).saturating_mul(page));
                (first, start + (to - start) / page * page)
            }
        };
        let pieces = if first < last { [first - from, to - last] } else { [to - from, 0] };
        free.idle = free.idle.saturating_add(last.saturating_sub(first));
        for piece in pieces {
            free.holes = free.holes.saturating_add(piece);
            free.largest_hole = free.largest_hole.max(piece);
        }
    };
    for (address, bytes) in blocks {
        gap(at, address.min(end));
        at = at.max(address.saturating_add(bytes));
    }
    gap(at, end);
    free
}

#[cfg(test)]
mod tests {
    use super::{FreeMemory, SMALL_PAGE, free_between, page_of};
    use cachalot_core::MIB;

    #[test]
    fn free_pages_are_idle_and_the_rest_of_a_gap_is_in_holes() {
        // Pages of 100 from 1000 to 1600; blocks at 1050..1120 and 1450..1500.
        let free = free_between(1000, 1600, 100, [(1050, 70), (1450, 50)].into_iter());
        assert_eq!(free, FreeMemory { idle: 200 + 100, holes: 50 + 80 + 50, largest_hole: 80, largest: 330 });
        // A gap within a page is a hole, and a gap over a page's edge too.
        assert_eq!(free_between(0, 200, 100, [(0, 60), (140, 60)].into_iter()).holes, 80);
        assert_eq!(free_between(0, 200, 100, std::iter::empty()).idle, 200);
        assert_eq!(
            [20 * MIB, 40 * MIB, 2 * MIB, 22 * MIB].map(|bytes| page_of(bytes, 20 * MIB)),
            [20 * MIB, 20 * MIB, SMALL_PAGE, SMALL_PAGE]
        );
    }
}
