//! A map from `u64` to `u32` that is read without a lock: page → heap, and stream → heaps.
//!
//! Open addressing with linear probing. Readers only load; writers hold a lock of the owner's, so there is one at
//! a time. A removed key stays in its cell with the value 0 while other keys follow it without a gap, so no probe is ever cut
//! short; the cells before a gap become empty again, so keys that come and go do not fill the map. A map that fills up is copied into one of twice the length, which is then published; the old one stays
//! for readers that still look into it.
//!
//! A reader that races with a removal may be answered with the value of the key that took the cell. Owners
//! therefore verify the answer under the lock it leads them to.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// One key and its value.
#[derive(Debug, Default)]
pub struct Cell {
    /// Key + 1; 0 ⟺ the cell has never been used, and ends every probe.
    key: AtomicU64,
    /// Value + 1; 0 ⟺ the key is not in the map.
    value: AtomicU32,
}

/// Where the cells are. One writer at a time; readers at any time.
pub trait Cells: Default {
    /// Looks at the cells in force.
    fn look<'a, T>(&'a self, at: impl Fn(&'a [Cell]) -> T) -> T;

    /// The cells in force.
    fn cells(&self) -> &[Cell] {
        self.look(|cells| cells)
    }

    /// Cells for at least twice as many keys, not yet in force. `None` if there are none to be had.
    fn larger(&self) -> Option<&[Cell]>;

    /// Puts the cells that [`larger`](Self::larger) last returned in force.
    fn publish(&self);
}

/// The cells of a map of fixed capacity, a power of two.
#[derive(Debug)]
pub struct FixedCells<const N: usize>([Cell; N]);

impl<const N: usize> Default for FixedCells<N> {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Cell::default()))
    }
}

impl<const N: usize> FixedCells<N> {
    const VALID: () = assert!(N.is_power_of_two());
}

impl<const N: usize> Cells for FixedCells<N> {
    #[inline(always)]
    fn look<'a, T>(&'a self, at: impl Fn(&'a [Cell]) -> T) -> T {
        let () = Self::VALID;
        at(&self.0)
    }

    fn larger(&self) -> Option<&[Cell]> {
        None
    }

    fn publish(&self) {}
}

#[cfg(feature = "alloc")]
mod growing {
    use super::{AtomicU32, Cell, Cells, Ordering};
    use alloc::boxed::Box;
    use spin::Once;

    const FIRST: usize = if cfg!(loom) { 2 } else { 64 };
    const TABLES: usize = 32;

    /// The cells of a map that grows: some in place, then tables of doubling length, of which the newest is in force.
    #[derive(Debug)]
    pub struct GrowingCells {
        first: [Cell; FIRST],
        /// `tables[1..=newest]` are set, and perhaps one more that is being filled.
        tables: [Once<Box<[Cell]>>; TABLES],
        /// Number of the table in force; 0 while the first cells are.
        newest: AtomicU32,
    }

    impl Default for GrowingCells {
        fn default() -> Self {
            Self {
                first: core::array::from_fn(|_| Cell::default()),
                tables: [const { Once::new() }; TABLES],
                newest: AtomicU32::new(0),
            }
        }
    }

    impl Cells for GrowingCells {
        /// The look at the first cells is compiled apart: where they are and how many is known beforehand.
        #[inline(always)]
        fn look<'a, T>(&'a self, at: impl Fn(&'a [Cell]) -> T) -> T {
            match self.newest.load(Ordering::Acquire) as usize {
                0 => at(&self.first),
                newest => at(self.tables[newest % TABLES].get().map_or(&[], |table| table)),
            }
        }

        fn larger(&self) -> Option<&[Cell]> {
            let next = self.newest.load(Ordering::Relaxed) as usize + 1;
            let table = self.tables.get(next)?;
            Some(table.call_once(|| (0..FIRST << next).map(|_| Cell::default()).collect()))
        }

        fn publish(&self) {
            let next = self.newest.load(Ordering::Relaxed) + 1;
            self.newest.store(next, Ordering::Release);
        }
    }
}

#[cfg(feature = "alloc")]
pub(crate) use growing::GrowingCells;

/// The map. Keys below `u64::MAX`, values below `u32::MAX`.
#[derive(Debug, Default)]
pub(crate) struct AtomicMap<C> {
    cells: C,
    /// Cells that are not empty, keys that were removed included. Written by the one writer.
    used: AtomicU32,
    /// Keys in the map. Written by the one writer.
    live: AtomicU32,
}

/// Where the search for `key` begins among `len` places, a power of two below 2^32 (multiplicative hashing, Knuth, TAOCP vol. 3,
/// 6.4): the upper half of the product is mixed well enough in its lower bits too.
#[inline(always)]
pub(crate) fn start(key: u64, len: usize) -> usize {
    let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    hash as usize & len.wrapping_sub(1)
}

/// The number of the cell of `key`, else of the first that `key` may take, else none: every cell is in use.
fn place(cells: &[Cell], key: u64) -> Option<usize> {
    if cells.is_empty() {
        return None;
    }
    let first = start(key, cells.len());
    let mut vacant = None;
    for at in (first..cells.len()).chain(0..first) {
        let cell = &cells[at];
        match cell.key.load(Ordering::Relaxed) {
            0 => return vacant.or(Some(at)),
            found if found == key + 1 => return Some(at),
            _ if vacant.is_none() && cell.value.load(Ordering::Relaxed) == 0 => vacant = Some(at),
            _ => {}
        }
    }
    vacant
}

/// Empties the cells of removed keys that end at number `last`, if the cell behind it is empty: every probe that passes them ends
/// there, so none of them has to be passed. Says how many. Writers only.
fn empty_before_gap(cells: &[Cell], last: usize) -> u32 {
    let len = cells.len();
    if cells[(last + 1) % len].key.load(Ordering::Relaxed) != 0 {
        return 0;
    }
    let backwards = (0..len).map(|step| &cells[(last + len - step) % len]);
    let removed = |cell: &&Cell| cell.key.load(Ordering::Relaxed) != 0 && cell.value.load(Ordering::Relaxed) == 0;
    let mut emptied = 0;
    for cell in backwards.take_while(removed) {
        cell.key.store(0, Ordering::Release);
        emptied += 1;
    }
    emptied
}

/// What is in the cell of `key`, if that is not where the probe begins; 0 if there is none.
#[inline(never)]
fn get_further(key: u64, cells: &[Cell], first: usize) -> u32 {
    for cell in cells[first..].iter().chain(&cells[..first]) {
        match cell.key.load(Ordering::Acquire) {
            found if found == key + 1 => return cell.value.load(Ordering::Acquire),
            0 => return 0,
            _ => {}
        }
    }
    0
}

impl<C: Cells> AtomicMap<C> {
    /// The value of `key`. Lock-free.
    #[inline(always)]
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        let found = self.cells.look(|cells| {
            let first = start(key, cells.len());
            match cells.get(first) {
                Some(cell) if cell.key.load(Ordering::Acquire) == key + 1 => cell.value.load(Ordering::Acquire),
                Some(_) => get_further(key, cells, first),
                None => 0,
            }
        });
        found.checked_sub(1)
    }

    /// Makes sure that `extra` further keys fit. False if they cannot. Writers only.
    pub(crate) fn make_room(&self, extra: u32) -> bool {
        let live = self.live.load(Ordering::Relaxed);
        let wanted = self.used.load(Ordering::Relaxed).max(live) as usize + extra as usize;
        loop {
            let cells = self.cells.cells();
            if wanted * 2 <= cells.len() {
                return true;
            }
            let Some(larger) = self.cells.larger() else {
                return (live + extra) as usize <= cells.len();
            };
            for cell in cells {
                let value = cell.value.load(Ordering::Relaxed);
                if value != 0 {
                    let key = cell.key.load(Ordering::Relaxed) - 1;
                    let to = &larger[place(larger, key).expect("a table twice as long has room")];
                    to.value.store(value, Ordering::Relaxed);
                    to.key.store(key + 1, Ordering::Relaxed);
                }
            }
            self.used.store(live, Ordering::Relaxed);
            self.cells.publish();
        }
    }

    /// Sets the value of `key`, for which room was made. Writers only.
    pub(crate) fn insert(&self, key: u64, value: u32) {
        self.change(key, |_| Some(value));
    }

    /// Removes `key` if it is there. Writers only.
    pub(crate) fn remove(&self, key: u64) {
        self.change(key, |_| None);
    }

    /// Gives `key` another value, or none; room was made if it had none. Writers only.
    pub(crate) fn change(&self, key: u64, new: impl FnOnce(Option<u32>) -> Option<u32>) {
        let cells = self.cells.cells();
        let Some(at) = place(cells, key) else {
            assert!(new(None).is_none(), "room was made");
            return;
        };
        let cell = &cells[at];
        let known = cell.key.load(Ordering::Relaxed);
        let old = if known == key + 1 { cell.value.load(Ordering::Relaxed).checked_sub(1) } else { None };
        let new = new(old);
        match (old, new) {
            (None, None) => return,
            (None, Some(_)) => self.live.store(self.live.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
            (Some(_), None) => self.live.store(self.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed),
            (Some(_), Some(_)) => {}
        }
        if known == 0 {
            self.used.store(self.used.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        if known != key + 1 {
            cell.key.store(key + 1, Ordering::Release);
        }
        cell.value.store(new.map_or(0, |value| value + 1), Ordering::Release);
        if new.is_none() {
            let emptied = empty_before_gap(cells, at);
            self.used.store(self.used.load(Ordering::Relaxed) - emptied, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn keys_that_come_and_go_need_no_more_cells() {
        let map = AtomicMap::<GrowingCells>::default();
        for key in 0..100_000 {
            assert!(map.make_room(1));
            map.insert(key, key as u32);
            assert_eq!(map.get(key), Some(key as u32));
            if let Some(old) = key.checked_sub(8) {
                map.remove(old);
                assert_eq!(map.get(old), None);
            }
        }
        assert_eq!(map.cells.cells().len(), 64);
        assert!((99_992..100_000).all(|key| map.get(key) == Some(key as u32)));
    }

    fn agrees_with_a_hash_map(map: &AtomicMap<impl Cells>, keys: u64) {
        let mut model = HashMap::new();
        let mut random = 0x1234_5678_u64;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (random >> 33) % keys;
            if random >> 63 == 0 {
                assert!(map.make_room(1));
                map.insert(key, step);
                model.insert(key, step);
            } else {
                map.remove(key);
                model.remove(&key);
            }
            let asked = (random >> 13) % keys;
            assert_eq!(map.get(asked), model.get(&asked).copied(), "key {asked} after step {step}");
        }
    }

    #[test]
    fn growing_map_agrees_with_a_hash_map() {
        agrees_with_a_hash_map(&AtomicMap::<GrowingCells>::default(), 5000);
    }

    #[test]
    fn fixed_map_agrees_with_a_hash_map() {
        agrees_with_a_hash_map(&AtomicMap::<FixedCells<64>>::default(), 63);
    }

    #[test]
    fn a_full_fixed_map_says_so_and_reuses_the_cells_of_removed_keys() {
        let map = AtomicMap::<FixedCells<2>>::default();
        for key in 0..1000 {
            assert!(map.make_room(2));
            map.insert(key, 1);
            map.insert(key + 1, 2);
            assert!(!map.make_room(1));
            map.remove(key);
            map.remove(key + 1);
        }
    }
}
