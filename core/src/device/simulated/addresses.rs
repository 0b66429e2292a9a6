//! Addresses for simulated devices: a space that any number of them share, in ranges that no two have.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Range;
use spin::Mutex;

/// A space of addresses. Devices take ranges of it as they need them, and give them back when they are dropped: no two that are
/// there at the same time have an address in common.
#[derive(Debug)]
pub struct AddressSpace(Mutex<Ranges>);

/// A space of one's own, or one that others share for good.
#[derive(Clone, Debug)]
pub enum Space {
    /// Shared by the devices that have a reference to it.
    Counted(Arc<AddressSpace>),
    /// There as long as the program is.
    Static(&'static AddressSpace),
}

impl core::ops::Deref for Space {
    type Target = AddressSpace;

    fn deref(&self) -> &AddressSpace {
        match self {
            Self::Counted(space) => space,
            Self::Static(space) => space,
        }
    }
}

impl From<Arc<AddressSpace>> for Space {
    fn from(space: Arc<AddressSpace>) -> Self {
        Self::Counted(space)
    }
}

impl From<&'static AddressSpace> for Space {
    fn from(space: &'static AddressSpace) -> Self {
        Self::Static(space)
    }
}

#[derive(Debug)]
struct Ranges {
    bounds: Range<u64>,
    /// Where the search for the next range begins: those that came back last are taken again last.
    next: u64,
    /// The ranges that devices have: start → end.
    taken: BTreeMap<u64, u64>,
}

impl AddressSpace {
    /// A space of all addresses from `bounds.start` up to `bounds.end`.
    pub const fn new(bounds: Range<u64>) -> Self {
        let next = bounds.start;
        Self(Mutex::new(Ranges { bounds, next, taken: BTreeMap::new() }))
    }

    /// Takes a range of so many addresses, at least one. `None` if there is none.
    pub(super) fn take(&self, length: u64) -> Option<Range<u64>> {
        let mut ranges = self.0.lock();
        let Range { start, end } = ranges.bounds;
        let next = ranges.next;
        let at = ranges.gap(next..end, length).or_else(|| ranges.gap(start..end, length))?;
        ranges.taken.insert(at, at + length);
        ranges.next = at + length;
        Some(at..at + length)
    }

    /// Gives a range back that was taken.
    pub(super) fn give_back(&self, range: Range<u64>) {
        let mut ranges = self.0.lock();
        ranges.taken.remove(&range.start);
        if ranges.taken.is_empty() {
            // A map keeps the memory of its last entry. A space that a library holds until it is unloaded would lose it.
            ranges.taken = BTreeMap::new();
        }
    }
}

impl Ranges {
    /// The first `length` addresses in a row within `bounds` that nobody has.
    fn gap(&self, bounds: Range<u64>, length: u64) -> Option<u64> {
        let before = self.taken.range(..bounds.start).next_back().map_or(0, |(_, &end)| end);
        let mut at = bounds.start.max(before);
        for (&start, &end) in self.taken.range(bounds.start..bounds.end) {
            if start - at >= length {
                return Some(at);
            }
            at = end;
        }
        (bounds.end.saturating_sub(at) >= length).then_some(at)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::simulated::SimulatedDevice;
    use crate::device::{DeviceMemory, ErrorKind, VirtualMemory};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const TIB: u64 = 1 << 40;

    fn device(space: &Arc<AddressSpace>) -> SimulatedDevice {
        SimulatedDevice::within(Arc::clone(space), 8 * TIB)
    }

    #[test]
    fn what_one_device_has_no_other_gets_until_it_is_dropped() {
        let space = Arc::new(AddressSpace::new(TIB..4 * TIB));
        let [first, second, third, fourth] = [(); 4].map(|()| device(&space));
        let bases = [&first, &second, &third].map(|device| device.obtain(4096).unwrap().0);
        assert_eq!(bases, [TIB, 2 * TIB, 3 * TIB]);
        assert_eq!(fourth.obtain(4096).unwrap_err().kind, ErrorKind::OutOfMemory);
        assert_eq!(fourth.reserve(4096).unwrap_err().kind, ErrorKind::OutOfMemory);
        assert_eq!(fourth.used(), 0, "what cannot be placed is not used");
        // Those that have a range go on within it.
        second.obtain(4096).unwrap();
        drop(second);
        assert_eq!(fourth.obtain(4096).unwrap().0, 2 * TIB);
    }

    #[test]
    fn what_a_dropped_device_keeps_is_never_had_again() {
        let space = Arc::new(AddressSpace::new(0..TIB));
        let first = device(&space);
        first.obtain(4096).unwrap();
        first.keep_addresses();
        drop(first);
        assert_eq!(device(&space).obtain(4096).unwrap_err().kind, ErrorKind::OutOfMemory);
    }

    /// A device that uses up its range takes another, and one that needs more in a row than ranges have takes that much.
    #[test]
    fn a_device_outgrows_its_range() {
        let space = Arc::new(AddressSpace::new(0..8 * TIB));
        let [first, second] = [device(&space), device(&space)];
        let spans: Vec<Range<u64>> = [&first, &second, &first, &first]
            .into_iter()
            .zip([TIB / 2, TIB / 4, TIB / 4 * 3, 3 * TIB])
            .map(|(device, bytes)| (device.reserve(bytes).unwrap().0, bytes))
            .map(|(base, bytes)| base..base + bytes)
            .collect();
        for (number, span) in spans.iter().enumerate() {
            assert!(
                spans[..number].iter().all(|other| other.end <= span.start || span.end <= other.start),
                "{spans:?}"
            );
        }
    }

    proptest! {
        /// What is taken at the same time overlaps nowhere, stays within bounds, and is refused only if no gap is long enough.
        #[test]
        fn ranges_are_apart(steps in prop::collection::vec((1..40_u64, any::<bool>(), any::<usize>()), 1..100)) {
            let bounds = 100..200;
            let space = AddressSpace::new(bounds.clone());
            let mut taken: Vec<Range<u64>> = Vec::new();
            for (length, takes, which) in steps {
                if !takes && !taken.is_empty() {
                    space.give_back(taken.swap_remove(which % taken.len()));
                    continue;
                }
                let is_free = |at: &u64| taken.iter().all(|range| !range.contains(at));
                let Some(range) = space.take(length) else {
                    let fits = |start: u64| (start..start + length).all(|at| bounds.contains(&at) && is_free(&at));
                    prop_assert!(!bounds.clone().any(fits));
                    continue;
                };
                prop_assert_eq!(range.end - range.start, length);
                prop_assert!(range.clone().all(|at| bounds.contains(&at) && is_free(&at)));
                taken.push(range);
            }
        }
    }
}
