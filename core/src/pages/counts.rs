//! Counts of pages by size, and how to choose the fewest pages with a given sum of bytes.

/// The number of sizes that are counted separately. They are multiples of a step. Larger pages are
/// not counted.
const SIZES: usize = 128;

/// The number of pages of each size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageCounts {
    /// Sizes are multiples of `step` bytes.
    step: u64,
    /// `of[n]` pages have `(n + 1) * step` bytes.
    of: [u32; SIZES],
}

impl PageCounts {
    /// Returns counts of no pages.
    pub(crate) const fn new(step: u64) -> Self {
        Self { step, of: [0; SIZES] }
    }

    /// Returns the length of the largest counted page, in bytes.
    pub(crate) const fn largest(step: u64) -> u64 {
        step * SIZES as u64
    }

    /// Counts a page of `bytes`. Pages larger than the largest size are not counted.
    pub(crate) fn add(&mut self, bytes: u64) {
        if let Some(size) = self.size(bytes) {
            self.of[size] += 1;
        }
    }

    /// Returns whether a page of `bytes` is counted.
    #[inline]
    pub(crate) fn has(&self, bytes: u64) -> bool {
        self.size(bytes).is_some_and(|size| self.of[size] > 0)
    }

    /// Takes a page of `bytes` out of the counts. It must have been counted.
    pub(crate) fn take(&mut self, bytes: u64) {
        if let Some(size) = self.size(bytes) {
            self.of[size] -= 1;
        }
    }

    /// Returns the sum of all pages, in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        (1..).zip(self.of).map(|(size, count)| size * self.step * u64::from(count)).sum()
    }

    /// Returns the number of pages.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.of.iter().sum()
    }

    /// Chooses the fewest pages that have at least `wanted` bytes together, but at most `room`
    /// bytes, and not more than `most` pages. Each step takes the smallest page that is enough for
    /// the rest, or the largest page if none is enough. If the limits do not allow it, the choice
    /// has fewer bytes than `wanted`.
    pub(crate) fn choose(&self, wanted: u64, room: u64, most: u32) -> Self {
        let (mut left, mut chosen) = (self.of, Self::new(self.step));
        let (mut rest, mut room, mut allowed) = (wanted.div_ceil(self.step), room / self.step, most);
        while rest > 0 && allowed > 0 {
            let least = (rest - 1).min(SIZES as u64) as usize;
            let longest = room.min(SIZES as u64) as usize;
            let suffices = (least..longest).find(|&size| left[size] > 0);
            let largest = || (0..least.min(longest)).rev().find(|&size| left[size] > 0);
            let Some(size) = suffices.or_else(largest) else { break };
            left[size] -= 1;
            chosen.of[size] += 1;
            rest = rest.saturating_sub(size as u64 + 1);
            room -= size as u64 + 1;
            allowed -= 1;
        }
        chosen
    }

    /// Returns the index of the count of pages of `bytes`, if this size is counted.
    fn size(&self, bytes: u64) -> Option<usize> {
        usize::try_from(bytes / self.step).ok()?.checked_sub(1).filter(|&size| size < SIZES)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::PageCounts;

    const STEP: u64 = 2 << 20;

    fn counts(sizes: &[u64]) -> PageCounts {
        let mut counts = PageCounts::new(STEP);
        for &size in sizes {
            counts.add(size * STEP);
        }
        counts
    }

    #[test]
    fn the_fewest_pages_are_chosen() {
        let all = counts(&[1, 1, 2, 4, 8]);
        for (wanted, chosen) in
            [(1, &[1][..]), (2, &[2]), (3, &[4]), (5, &[8]), (9, &[8, 1]), (11, &[8, 4]), (16, &[8, 4, 2, 1, 1])]
        {
            assert_eq!(all.choose(wanted * STEP, u64::MAX, 99), counts(chosen), "{wanted} steps");
        }
        assert_eq!(all.choose(17 * STEP, u64::MAX, 99), all, "all pages together do not suffice");
        assert_eq!(all.choose(16 * STEP, u64::MAX, 2), counts(&[8, 4]), "two pages, the largest");
        assert_eq!(all.choose(1, u64::MAX, 99), counts(&[1]), "part of a page takes a page");
        assert_eq!(all.choose(0, u64::MAX, 99).count(), 0);
        assert_eq!((all.bytes(), counts(&[]).bytes()), (16 * STEP, 0));
        assert_eq!(all.choose(3 * STEP, 3 * STEP, 99), counts(&[2, 1]), "a page of 4 has no room");
        assert_eq!(all.choose(8 * STEP, 7 * STEP, 99), counts(&[4, 2, 1]), "the room ends the choice");
    }

    #[test]
    fn pages_beyond_the_largest_size_do_not_count() {
        let mut all = counts(&[128, 129]);
        assert_eq!((all.count(), PageCounts::largest(STEP)), (1, 128 * STEP));
        assert!(!all.has(129 * STEP) && all.has(128 * STEP));
        all.take(128 * STEP);
        assert!(!all.has(128 * STEP));
        assert_eq!(counts(&[128]).choose(1000 * STEP, u64::MAX, 99).count(), 1);
    }
}
