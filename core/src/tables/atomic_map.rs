//! A hash map from `u64` to `u32` that is read without a lock. It is used for the stream index
//! (stream → heaps), and for the page map (page → heap) where no radix table fits.
//!
//! The map uses open addressing with linear probing. Readers only load. A writer holds a lock of
//! the map's owner, so there is one writer at a time. A removed key keeps its cell, with value 0,
//! while the next cell is in use, because an empty cell would end probes too early. Once the next
//! cell is empty, the cell becomes empty too, so keys that come and go do not fill the map. A full
//! map is copied into a table of twice the length, which is then published. The old table is kept,
//! because readers may still be probing it.
//!
//! A reader that races with a removal may get the value of the next key that uses the cell.
//! Therefore callers verify the answer under the lock of the heap that it names.

use crate::sync::{AtomicU32, AtomicU64, Empty, Ordering, empty, empty_by, impl_empty};

/// A key and its value.
#[derive(Debug)]
pub struct Cell {
    /// Key + 1. 0 ⟺ the cell is empty, which ends every probe.
    key: AtomicU64,
    /// Value + 1. 0 ⟺ the key is not in the map.
    value: AtomicU32,
}

impl_empty! { Cell { key, value } }

/// Storage for the cells. Many threads read at the same time; one thread writes.
pub trait Cells: Empty {
    /// Calls `at` with the published cells.
    fn look<'a, T>(&'a self, at: impl Fn(&'a [Cell]) -> T) -> T;

    /// Returns the published cells.
    fn cells(&self) -> &[Cell] {
        self.look(|cells| cells)
    }

    /// Returns empty cells for at least twice as many keys. They are not published yet. `None` if
    /// the map cannot grow.
    fn larger(&self) -> Option<&[Cell]>;

    /// Publishes the cells that [`larger`](Self::larger) last returned.
    fn publish(&self);
}

/// The cells of a map with a fixed capacity, which must be a power of two.
#[derive(Debug)]
pub struct FixedCells<const N: usize>([Cell; N]);

empty_by!([const N: usize] FixedCells<N> = Self(empty!()));

impl<const N: usize> FixedCells<N> {
    /// Rejects other capacities at compile time: [`start`] masks the hash with `N − 1`.
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
    use super::{AtomicU32, Cell, Cells, Ordering, empty, empty_by};
    use alloc::boxed::Box;
    use spin::Once;

    /// Cells in place. Under loom there are only two, so that a model with few steps makes the map
    /// grow.
    const FIRST: usize = if cfg!(loom) { 2 } else { 64 };
    /// The most tables. The last one would have 2^37 cells, more than any host has memory for.
    const TABLES: usize = 32;

    /// The cells of a growing map: some in place, then tables of doubling length. The newest table
    /// is the published one.
    #[derive(Debug)]
    pub struct GrowingCells {
        /// The cells that are published first.
        first: [Cell; FIRST],
        /// `tables[1..=newest]` are set. One more is set while the writer fills it.
        tables: [Once<Box<[Cell]>>; TABLES],
        /// The number of the published table; 0 while `first` is published.
        newest: AtomicU32,
    }

    empty_by! {
        GrowingCells =
            Self { first: empty!(), tables: [const { Once::new() }; TABLES], newest: AtomicU32::new(0) }
    }

    impl Cells for GrowingCells {
        /// Calls `at` with the published cells. `at` is compiled twice, once for the cells in
        /// place.
        #[inline(always)]
        fn look<'a, T>(&'a self, at: impl Fn(&'a [Cell]) -> T) -> T {
            // `at` is called in two places so that it is compiled twice: in the first, the address
            // and the length of the cells are constants. `Acquire` pairs with the `Release` in
            // `publish`, so the reader sees every cell that was copied before.
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
            // Only the writer stores `newest`, so its own load needs no ordering.
            let next = self.newest.load(Ordering::Relaxed) + 1;
            self.newest.store(next, Ordering::Release);
        }
    }
}

#[cfg(feature = "alloc")]
pub(crate) use growing::GrowingCells;

/// A map that is read without a lock. Keys are below `u64::MAX`, values below `u32::MAX`.
#[derive(Debug)]
pub struct AtomicMap<C> {
    /// The published cells, and room for larger ones.
    cells: C,
    /// The number of cells in use, including those of removed keys. Only the writer accesses it.
    used: AtomicU32,
    /// The number of keys in the map. Only the writer accesses it.
    live: AtomicU32,
}

impl_empty! { [C: Cells] AtomicMap<C> { cells, used, live } }

/// Returns the index at which the probe for `key` starts, among `len` cells, a power of two below
/// 2^32.
///
/// Multiplicative hashing (Knuth, TAOCP vol. 3, 6.4). The lower bits of the product's upper half
/// are mixed well enough to be used directly.
#[inline(always)]
pub(crate) fn start(key: u64, len: usize) -> usize {
    let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    // If `len` is 0, the mask is all ones, and callers find no cell at the index.
    hash as usize & len.wrapping_sub(1)
}

/// Returns the index of the cell of `key`, or of the first cell that `key` may take if it has none.
/// `None` if every cell is in use.
#[inline]
fn place(cells: &[Cell], key: u64) -> Option<usize> {
    if cells.is_empty() {
        return None;
    }
    let first = start(key, cells.len());
    let mut vacant = None;
    // The first cell of a removed key may be reused, but only after the probe has shown that `key`
    // itself is not in a later cell.
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

/// Empties a run of cells of removed keys that ends at index `last`, if the cell after `last` is
/// empty. Every probe that passes one of these cells ends in the gap after them, so no probe needs
/// them. Returns how many cells were emptied. Writers only.
fn empty_before_gap(cells: &[Cell], last: usize) -> u32 {
    let len = cells.len();
    if cells[(last + 1) % len].key.load(Ordering::Relaxed) != 0 {
        return 0;
    }
    let backwards = (0..len).map(|step| &cells[(last + len - step) % len]);
    let removed = |cell: &&Cell| cell.key.load(Ordering::Relaxed) != 0 && cell.value.load(Ordering::Relaxed) == 0;
    let mut emptied = 0;
    // Go backwards from the gap, so that the rest of the run always ends at an empty cell.
    for cell in backwards.take_while(removed) {
        cell.key.store(0, Ordering::Release);
        emptied += 1;
    }
    emptied
}

/// Probes all cells for `key`, after its first cell turned out to hold another key. Returns what is
/// stored, which is the value + 1, or 0 if the key is not in the map.
#[inline(never)]
fn get_further(key: u64, cells: &[Cell], first: usize) -> u32 {
    let stored = key.wrapping_add(1);
    for cell in cells[first..].iter().chain(&cells[..first]) {
        match cell.key.load(Ordering::Acquire) {
            found if found == stored => return cell.value.load(Ordering::Acquire),
            0 => return 0,
            _ => {}
        }
    }
    0
}

impl<C: Cells> AtomicMap<C> {
    /// Returns the value of `key`. Lock-free.
    #[inline(always)]
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        // `u64::MAX`, which no map contains, wraps to the key of an empty cell. Such a cell has no
        // value.
        let stored = key.wrapping_add(1);
        let found = self.cells.look(|cells| {
            let first = start(key, cells.len());
            match cells.get(first) {
                // Most keys are in their first cell. The loop over the other cells is out of line.
                Some(cell) if cell.key.load(Ordering::Acquire) == stored => cell.value.load(Ordering::Acquire),
                Some(_) => get_further(key, cells, first),
                None => 0,
            }
        });
        found.checked_sub(1)
    }

    /// Calls `visit` with every key and its value, in no order. Writers only.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u64, u32)) {
        for cell in self.cells.cells() {
            if let Some(value) = cell.value.load(Ordering::Relaxed).checked_sub(1) {
                visit(cell.key.load(Ordering::Relaxed) - 1, value);
            }
        }
    }

    /// Makes room for `extra` more keys. Returns false if they do not fit. Writers only.
    pub(crate) fn make_room(&self, extra: u32) -> bool {
        let live = self.live.load(Ordering::Relaxed);
        let wanted = self.used.load(Ordering::Relaxed).max(live) as usize + extra as usize;
        loop {
            let cells = self.cells.cells();
            // At most half of the cells are in use, so probes remain short.
            if wanted * 2 <= cells.len() {
                return true;
            }
            // A map of fixed capacity may fill up. Probes become longer then, but every cell can be
            // used.
            let Some(larger) = self.cells.larger() else {
                return (live + extra) as usize <= cells.len();
            };
            // Copy the keys that are in the map, but not the removed ones. No reader looks at
            // `larger` before `publish`, so relaxed stores are enough.
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

    /// Sets the value of `key`. The caller has made room for it. Writers only.
    pub(crate) fn insert(&self, key: u64, value: u32) {
        self.change(key, |_| Some(value));
    }

    /// Removes `key` if the map has it. Writers only.
    pub(crate) fn remove(&self, key: u64) {
        self.change(key, |_| None);
    }

    /// Replaces the value of `key` with `new(old)`, where `None` means "not in the map". The caller
    /// has made room if `key` is new. Writers only.
    pub(crate) fn change(&self, key: u64, new: impl FnOnce(Option<u32>) -> Option<u32>) {
        debug_assert!(key < u64::MAX, "key + 1 is stored");
        let cells = self.cells.cells();
        let Some(at) = place(cells, key) else {
            assert!(new(None).is_none(), "room was made");
            return;
        };
        let cell = &cells[at];
        // `place` may return the cell of a removed key. Any old value in it belongs to another key.
        let known = cell.key.load(Ordering::Relaxed);
        let old = if known == key + 1 { cell.value.load(Ordering::Relaxed).checked_sub(1) } else { None };
        let new = new(old);
        debug_assert!(new.is_none_or(|new| new < u32::MAX), "value + 1 is stored");
        match (old, new) {
            (None, None) => return,
            (None, Some(_)) => self.live.store(self.live.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
            (Some(_), None) => self.live.store(self.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed),
            (Some(_), Some(_)) => {}
        }
        if known == 0 {
            self.used.store(self.used.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        // Store the key before the value: a reader that sees the new value in this cell also sees
        // the new key, and a reader that sees only the new key finds value 0, "not in the map".
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
    use std::vec::Vec;

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
            let probe = (random >> 13) % keys;
            assert_eq!(map.get(probe), model.get(&probe).copied(), "key {probe} after step {step}");
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

    #[test]
    fn a_map_grows_once_more_than_half_of_its_cells_are_wanted() {
        let map = AtomicMap::<GrowingCells>::default();
        for key in 0..32 {
            assert!(map.make_room(1));
            map.insert(key, 1);
        }
        assert_eq!(map.cells.cells().len(), 64);
        assert!(map.make_room(1));
        assert_eq!(map.cells.cells().len(), 128);
        // Many keys at once in an empty map.
        let map = AtomicMap::<GrowingCells>::default();
        assert!(map.make_room(100));
        (0..100).for_each(|key| map.insert(key, 1));
        assert_eq!(map.cells.cells().len(), 256);
        let map = AtomicMap::<FixedCells<64>>::default();
        assert!(map.make_room(64) && !map.make_room(65));
    }

    #[test]
    fn cells_of_removed_keys_before_a_gap_are_empty_again() {
        let map = AtomicMap::<FixedCells<64>>::default();
        assert!(map.make_room(4));
        // Keys that start at the same cell fill the cells after it.
        let first = start(0, 64);
        let keys: Vec<u64> = (0..).filter(|&key| start(key, 64) == first).take(4).collect();
        keys.iter().for_each(|&key| map.insert(key, 7));
        keys[..3].iter().for_each(|&key| map.remove(key));
        assert_eq!((map.get(keys[3]), map.used.load(Ordering::Relaxed)), (Some(7), 4), "a later probe passes them");
        map.remove(keys[3]);
        assert_eq!(map.used.load(Ordering::Relaxed), 0);
        assert!(map.cells.cells().iter().all(|cell| cell.key.load(Ordering::Relaxed) == 0));
    }
}
