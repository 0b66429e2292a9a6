//! Pins: the parts of memory that the program holds in place.
//!
//! A pin outlives the block for which it was made, so the pin keeps the length. The pages and
//! segments count their pins themselves. Registering memory takes a driver tens of microseconds and
//! more, so a search through all pins is cheap beside it.

use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Storage};

/// A pinned part of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pin {
    /// Address of the first byte.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The slot of the heap that has the memory. A pinned part stays in its heap.
    pub slot: u32,
    /// The segment that contains the memory. For a vacant entry: the next one.
    pub segment: u32,
    /// How often exactly the part is pinned. 0 ⟺ the entry is vacant.
    count: u32,
}

impl Pin {
    /// Returns the pin of a part not pinned yet.
    pub(crate) fn new(at: u64, bytes: u64, slot: u32, segment: u32) -> Self {
        Self { at, bytes, slot, segment, count: 0 }
    }
}

impl Vacant for Pin {
    fn vacant(next: u32) -> Self {
        Self::new(0, 0, NONE, next)
    }

    fn vacate(&mut self, next: u32) {
        *self = Self::vacant(next);
    }

    fn next_vacant(&self) -> u32 {
        self.segment
    }
}

/// The pins of a device.
#[derive(Clone)]
pub(crate) struct Pins<S: Storage> {
    table: SlotTable<Pin, S>,
}

impl<S: Storage> Default for Pins<S> {
    fn default() -> Self {
        Self { table: SlotTable::default() }
    }
}

impl<S: Storage> Pins<S> {
    /// Counts a pin.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full. Nothing is counted then.
    pub(crate) fn add(&mut self, pin: Pin) -> Result<(), CapacityError> {
        let is_same = |entry: &&mut Pin| entry.count > 0 && (entry.at, entry.bytes) == (pin.at, pin.bytes);
        if let Some(entry) = self.table.entries_mut().iter_mut().find(is_same) {
            entry.count = entry.count.checked_add(1).ok_or(CapacityError)?;
            return Ok(());
        }
        if !self.table.make_room(1) {
            return Err(CapacityError);
        }
        self.table.insert(Pin { count: 1, ..pin });
        Ok(())
    }

    /// Returns a pinned part that contains the address `at`.
    pub(crate) fn containing(&self, at: u64) -> Option<Pin> {
        let contains = |pin: &&Pin| pin.count > 0 && at.checked_sub(pin.at).is_some_and(|offset| offset < pin.bytes);
        self.table.entries().iter().find(contains).copied()
    }

    /// Takes one pin of the shortest part that begins at `at` off, and returns the part.
    ///
    /// The memory may have been pinned for blocks of several lengths, one after the other. The
    /// longest part is unpinned last, so what any of the others still pins stays pinned.
    pub(crate) fn remove(&mut self, at: u64) -> Option<Pin> {
        let parts = (0..).zip(self.table.entries()).filter(|(_, pin)| pin.count > 0 && pin.at == at);
        let (number, &pin) = parts.min_by_key(|(_, pin)| pin.bytes)?;
        if pin.count == 1 {
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
    use crate::tables::Growable;

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
