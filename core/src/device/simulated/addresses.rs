//! Addresses for simulated devices: a space that any number of devices share. Each device gets
//! ranges that no other device has.

use super::{DEVICE_STRIDE, LAST_ADDRESS};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Range;
use spin::Mutex;

/// A space of addresses that simulated devices share. Devices take ranges as they need them, and
/// return them when they are dropped. Two devices that are alive at the same time never share an
/// address.
#[derive(Debug)]
pub struct AddressSpace(Mutex<Ranges>);

/// A reference to an address space, either counted or static.
#[derive(Clone, Debug)]
pub enum Space {
    /// A space that lives as long as a device or the program refers to it.
    Counted(Arc<AddressSpace>),
    /// A space that lives as long as the program.
    Static(&'static AddressSpace),
}

/// A space for the addresses of one device.
impl Default for Space {
    fn default() -> Self {
        Self::Counted(Arc::new(AddressSpace::new(DEVICE_STRIDE..LAST_ADDRESS)))
    }
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

/// The ranges of a space that are taken.
#[derive(Debug)]
struct Ranges {
    /// The addresses of the space.
    bounds: Range<u64>,
    /// Where the search for the next range starts, so that the ranges returned last are reused
    /// last.
    next: u64,
    /// The ranges that devices use: start → end.
    taken: BTreeMap<u64, u64>,
}

impl AddressSpace {
    /// Creates a space with the addresses from `bounds.start` up to, but not including,
    /// `bounds.end`.
    pub const fn new(bounds: Range<u64>) -> Self {
        let next = bounds.start;
        Self(Mutex::new(Ranges { bounds, next, taken: BTreeMap::new() }))
    }

    /// Takes a range of `length` addresses, which is at least 1. Returns `None` if no gap is long
    /// enough.
    pub(super) fn take(&self, length: u64) -> Option<Range<u64>> {
        let mut ranges = self.0.lock();
        let Range { start, end } = ranges.bounds;
        let next = ranges.next;
        let at = ranges.gap(next..end, length).or_else(|| ranges.gap(start..end, length))?;
        ranges.taken.insert(at, at + length);
        ranges.next = at + length;
        Some(at..at + length)
    }

    /// Returns a range to the space.
    pub(super) fn release_memory(&self, range: Range<u64>) {
        let mut ranges = self.0.lock();
        ranges.taken.remove(&range.start);
        if ranges.taken.is_empty() {
            // An empty map may still own the memory of its last entry, which a static space would
            // never release. Leak checkers report such memory when a library is unloaded.
            ranges.taken = BTreeMap::new();
        }
    }
}

impl Ranges {
    /// Returns the start of the first gap of `length` addresses within `bounds`.
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
    use crate::device::{ErrorKind, Segments, VirtualMemory};
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const TIB: u64 = 1 << 40;

    fn device(space: &Arc<AddressSpace>) -> SimulatedDevice {
        SimulatedDevice::within(Arc::clone(space), 8 * TIB)
    }

    #[test]
    fn devices_share_no_addresses_until_one_is_dropped() {
        let space = Arc::new(AddressSpace::new(TIB..4 * TIB));
        let [first, second, third, fourth] = [(); 4].map(|()| device(&space));
        let bases = [&first, &second, &third].map(|device| device.obtain(4096).unwrap().0);
        assert_eq!(bases, [TIB, 2 * TIB, 3 * TIB]);
        assert_eq!(fourth.obtain(4096).unwrap_err().kind, ErrorKind::OutOfMemory);
        assert_eq!(fourth.reserve(4096).unwrap_err().kind, ErrorKind::OutOfMemory);
        assert_eq!(fourth.used(), 0, "what cannot be placed is not used");
        // Devices that already have a range continue to use it.
        second.obtain(4096).unwrap();
        drop(second);
        assert_eq!(fourth.obtain(4096).unwrap().0, 2 * TIB);
    }

    #[test]
    fn a_space_may_be_static_and_a_numbered_device_has_one_of_its_own() {
        let space: &'static AddressSpace =
            alloc::boxed::Box::leak(alloc::boxed::Box::new(AddressSpace::new(TIB..4 * TIB)));
        let [first, second] = [(); 2].map(|()| SimulatedDevice::within(space, 8 * TIB));
        assert_eq!([&first, &second].map(|device| device.obtain(4096).unwrap().0), [TIB, 2 * TIB]);
        for number in 0..3 {
            let base = SimulatedDevice::numbered(number, TIB).obtain(4096).unwrap();
            assert_eq!(base.0 / DEVICE_STRIDE, u64::from(number) + 1, "of device {number}");
        }
    }

    #[test]
    fn addresses_kept_by_a_dropped_device_are_never_reused() {
        let space = Arc::new(AddressSpace::new(0..TIB));
        let first = device(&space);
        first.obtain(4096).unwrap();
        first.keep_addresses();
        drop(first);
        assert_eq!(device(&space).obtain(4096).unwrap_err().kind, ErrorKind::OutOfMemory);
    }

    /// A device whose range is full takes another range, and a longer one for a long reservation.
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
        /// Ranges that are taken at the same time are disjoint and within bounds. A range is
        /// refused only if no gap is long enough.
        #[test]
        fn ranges_are_apart(steps in prop::collection::vec((1..40_u64, any::<bool>(), any::<usize>()), 1..100)) {
            let bounds = 100..200;
            let space = AddressSpace::new(bounds.clone());
            let mut taken: Vec<Range<u64>> = Vec::new();
            for (length, takes, which) in steps {
                if !takes && !taken.is_empty() {
                    space.release_memory(taken.swap_remove(which % taken.len()));
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
