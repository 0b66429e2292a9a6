//! Pins: the parts of memory that the program holds in place.
//!
//! A pin outlives the block that was pinned. Therefore it stores the length, and parts may overlap.
//! The pages and segments count their pins themselves.

use crate::sync::impl_empty;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, vacant};
use crate::tables::{CapacityError, Storage};

/// A pinned part of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pin {
    /// The address of the first byte.
    pub at: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The slot of the heap that contains the memory. A pinned part never leaves its heap.
    pub slot: u32,
    /// The segment that contains the memory. In a vacant entry, the next vacant entry.
    pub segment: u32,
    /// How often exactly this part is pinned. 0 ⟺ the entry is vacant.
    count: u32,
}

impl Pin {
    /// Returns a pin for a part that is not pinned yet.
    pub(crate) fn new(at: u64, bytes: u64, slot: u32, segment: u32) -> Self {
        Self { at, bytes, slot, segment, count: 0 }
    }
}

vacant!(Pin, segment, |next| Self::new(0, 0, NONE, next));

/// The pins of a device.
#[derive(Clone)]
pub(crate) struct Pins<S: Storage> {
    table: SlotTable<Pin, S>,
    /// The root of the set of the pins, sorted by address and then by length.
    by_address: Link,
    /// The nodes of the set.
    nodes: RadixTree<S>,
    /// The length of the longest part so far, in bytes.
    longest: u64,
}

impl_empty! { [S: Storage] Pins<S> { table, by_address, nodes, longest } }

/// Returns a function that sorts pins by address and length. No two entries pin the same part.
fn by_address<S: Storage>(table: &SlotTable<Pin, S>) -> impl Fn(u32) -> Key {
    |pin| Key { major: table[pin].at, minor: table[pin].bytes }
}

impl<S: Storage> Pins<S> {
    /// Counts a pin.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full. Nothing is counted then.
    pub(crate) fn add(&mut self, pin: Pin) -> Result<(), CapacityError> {
        if let Some(known) = self.shortest(pin.at, pin.bytes).filter(|&known| self.table[known].bytes == pin.bytes) {
            let count = &mut self.table[known].count;
            *count = count.checked_add(1).ok_or(CapacityError)?;
            return Ok(());
        }
        if !self.table.make_room(1) || !self.nodes.make_room(1) {
            return Err(CapacityError);
        }
        let number = self.table.insert(Pin { count: 1, ..pin });
        self.by_address = self.nodes.insert(self.by_address, number, by_address(&self.table));
        self.longest = self.longest.max(pin.bytes);
        Ok(())
    }

    /// Returns the shortest part of at least `bytes` that starts at `at`.
    fn shortest(&self, at: u64, bytes: u64) -> Option<u32> {
        let bound = Key { major: at, minor: bytes };
        let found = self.nodes.at_least(self.by_address, bound, by_address(&self.table))?;
        (self.table[found].at == at).then_some(found)
    }

    /// Returns a pinned part that contains the address `at`.
    pub(crate) fn containing(&self, at: u64) -> Option<Pin> {
        let mut bound = Key { major: at, minor: u64::MAX };
        // The first part is usually the right one: parts overlap only if the program pinned several
        // blocks that had the memory one after another.
        loop {
            let found = self.nodes.below(self.by_address, bound, by_address(&self.table))?;
            let pin = self.table[found];
            if at - pin.at < pin.bytes {
                return Some(pin);
            }
            if at - pin.at >= self.longest {
                return None;
            }
            bound = Key { major: pin.at, minor: pin.bytes };
        }
    }

    /// Removes one pin from the shortest part that starts at `at`, and returns the part.
    ///
    /// The memory may have been pinned for several blocks of different lengths over time. The
    /// longest part is unpinned last, so memory that another part still pins remains pinned.
    pub(crate) fn remove(&mut self, at: u64) -> Option<Pin> {
        let number = self.shortest(at, 0)?;
        let pin = self.table[number];
        if pin.count == 1 {
            self.by_address = self.nodes.remove(self.by_address, number, by_address(&self.table));
            self.table.remove(number);
        } else {
            self.table[number].count -= 1;
        }
        Some(pin)
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::{Pin, Pins};
    use crate::tables::{Fixed, Growable};
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn pins_are_found_as_in_a_list(steps in prop::collection::vec((0_u64..12, 1_u64..6, 0_u8..3), 1..200)) {
            let mut pins = Pins::<Growable>::default();
            let mut list: Vec<(u64, u64)> = Vec::new();
            for (at, bytes, what) in steps {
                if what < 2 {
                    pins.add(Pin::new(at, bytes, 0, 0)).unwrap();
                    list.push((at, bytes));
                } else {
                    let shortest = list.iter().filter(|(of, _)| *of == at).min().copied();
                    prop_assert_eq!(pins.remove(at).map(|pin| (pin.at, pin.bytes)), shortest);
                    list.iter().position(|&of| Some(of) == shortest).map(|place| list.remove(place));
                }
                for at in 0..20 {
                    let contains = |&(begin, bytes): &(u64, u64)| (begin..begin + bytes).contains(&at);
                    let found = pins.containing(at).map(|pin| (pin.at, pin.bytes));
                    prop_assert_eq!(found.is_some(), list.iter().any(contains));
                    prop_assert!(found.is_none_or(|found| list.contains(&found) && contains(&found)));
                }
            }
        }
    }

    #[test]
    fn a_full_table_pins_nothing() {
        let mut pins = Pins::<Fixed<1, 8, 2, 64>>::default();
        for at in [0, 512] {
            pins.add(Pin::new(at, 512, 0, 0)).unwrap();
        }
        assert!(pins.add(Pin::new(1024, 512, 0, 0)).is_err());
        pins.add(Pin::new(512, 512, 0, 0)).unwrap();
        assert_eq!([0, 512, 1024].map(|at| pins.containing(at).is_some()), [true, true, false]);
        assert_eq!([512, 512, 512, 0].map(|at| pins.remove(at).is_some()), [true, true, false, true]);
    }

    #[test]
    fn the_shortest_part_at_an_address_is_unpinned_first() {
        let mut pins = Pins::<Growable>::default();
        for bytes in [4096, 512, 4096, 8192] {
            pins.add(Pin::new(512, bytes, 0, 0)).unwrap();
        }
        pins.add(Pin::new(16384, 512, 7, 8)).unwrap();
        assert_eq!([511, 512, 8703, 8704].map(|at| pins.containing(at).is_some()), [false, true, true, false]);
        assert_eq!(pins.containing(16895).map(|pin| pin.slot), Some(7));
        let order: [_; 4] = core::array::from_fn(|_| pins.remove(512).unwrap().bytes);
        assert_eq!(order, [512, 4096, 4096, 8192]);
        assert_eq!(pins.remove(512), None);
        assert_eq!(pins.remove(0), None, "a vacant entry is no pin");
        assert_eq!(pins.containing(512), None);
        let other = pins.remove(16384).unwrap();
        assert_eq!((other.bytes, other.slot, other.segment), (512, 7, 8));
    }
}
