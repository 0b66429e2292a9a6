//! The order in which a process obtained memory from devices, which libraries that register
//! segments in several processes go by.

use cachalot_core::DevicePtr;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of segments and pages, in the order in which they were obtained.
#[derive(Debug, Default)]
pub(crate) struct Births(Mutex<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    next: u32,
    /// The numbers by address.
    of: BTreeMap<u64, u32>,
}

impl Births {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        // A panic while the lock was held has left numbers in the map, at worst one too few.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives memory the next number.
    pub(crate) fn note(&self, base: DevicePtr) {
        let mut numbers = self.numbers();
        let next = numbers.next;
        numbers.next += 1;
        numbers.of.insert(base.0, next);
    }

    /// Forgets memory that goes back to the device.
    pub(crate) fn forget(&self, base: DevicePtr) {
        self.numbers().of.remove(&base.0);
    }

    /// Returns the number of the segment, or of the page, in which `address` is; 0 if none does.
    pub(crate) fn number(&self, address: DevicePtr) -> u32 {
        self.numbers().of.range(..=address.0).next_back().map_or(0, |(_, &number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_number_of_its_turn() {
        let births = Births::default();
        for base in [0x5000, 0x1000, 0x3000] {
            births.note(DevicePtr(base));
        }
        births.forget(DevicePtr(0x1000));
        births.note(DevicePtr(0x1000));
        assert_eq!([0x1000, 0x3000, 0x3fff, 0x5000, 0x10].map(|at| births.number(DevicePtr(at))), [3, 2, 2, 0, 0]);
        // A part of longer memory, which starts below, may be where other memory started before.
        births.forget(DevicePtr(0x3000));
        assert_eq!(births.number(DevicePtr(0x3fff)), 3);
    }
}
