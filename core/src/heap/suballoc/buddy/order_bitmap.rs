//! For every order, the arenas that have a free block of it: bitmaps with summaries, as high as there are arenas.
//!
//! ```text
//! orders     one bit an order: some arena has one
//! top        for each order a word: bit a is set iff arena a has one, or the row below has one
//! below      for each 64 arenas a row, which has a word for each order; for each 64 rows a row of the level above
//! ```

use super::tree::MAX_ORDER;
use crate::tables::{Storage, Table};

pub(super) const ORDERS: usize = MAX_ORDER as usize + 1;

/// Which arenas have free blocks of which orders.
pub(super) struct OrderBitmap<S: Storage> {
    /// Bit `k` is set iff `top[k]` is not zero.
    orders: u64,
    top: [u64; ORDERS],
    /// The levels below `top`, the lowest first: `height` of them are used, each `ORDERS` words a row.
    below: [S::Table<u64>; 2],
    height: usize,
}

impl<S: Storage> Default for OrderBitmap<S> {
    fn default() -> Self {
        Self { orders: 0, top: [0; ORDERS], below: Default::default(), height: 0 }
    }
}

impl<S: Storage> OrderBitmap<S> {
    /// Makes sure that arenas of numbers below `count` fit: 262,144 at the most.
    pub(super) fn make_room_for(&mut self, count: usize) -> bool {
        while count > 64 << (6 * self.height) {
            let Some(table) = self.below.get_mut(self.height) else { return false };
            if !table.make_room(ORDERS) {
                return false;
            }
            for word in &mut self.top {
                table.add(*word);
                *word = u64::from(*word != 0);
            }
            self.height += 1;
        }
        self.below[..self.height].iter_mut().enumerate().all(|(level, table)| {
            let words = count.div_ceil(64 << (6 * level)) * ORDERS;
            let missing = words.saturating_sub(table.len());
            let fits = table.make_room(missing);
            if fits {
                (0..missing).for_each(|_| table.add(0));
            }
            fits
        })
    }

    /// The orders of which there is a free block, as bits.
    #[inline(always)]
    pub(super) fn orders(&self) -> u64 {
        self.orders
    }

    /// Arena `arena` has a free block of `order` now.
    pub(super) fn insert(&mut self, order: u32, arena: u32) {
        let order = order as usize;
        let mut at = arena as usize;
        for table in &mut self.below[..self.height] {
            let word = &mut table[at / 64 * ORDERS + order];
            let before = *word;
            *word |= 1 << (at % 64);
            if before != 0 {
                return;
            }
            at /= 64;
        }
        self.top[order] |= 1 << (at % 64);
        self.orders |= 1 << order;
    }

    /// Arena `arena` has none of `order` any more.
    pub(super) fn remove(&mut self, order: u32, arena: u32) {
        let order = order as usize;
        let mut at = arena as usize;
        for table in &mut self.below[..self.height] {
            let word = &mut table[at / 64 * ORDERS + order];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
        self.top[order] &= !(1 << (at % 64));
        self.orders &= !(u64::from(self.top[order] == 0) << order);
    }

    /// The arena of the lowest number that has a free block of `order`; one has.
    pub(super) fn first(&self, order: u32) -> u32 {
        let order = order as usize;
        let mut at = self.top[order].trailing_zeros();
        for table in self.below[..self.height].iter().rev() {
            at = at * 64 + table[at as usize * ORDERS + order].trailing_zeros();
        }
        at
    }

    /// Whether `arena` is said to have a free block of `order`.
    pub(super) fn holds(&self, order: u32, arena: u32) -> bool {
        let at = arena as usize;
        let word =
            if self.height == 0 { self.top[order as usize] } else { self.below[0][at / 64 * ORDERS + order as usize] };
        word >> (at % 64) & 1 == 1
    }

    /// Whether the summaries agree with what they summarise.
    pub(super) fn check(&self) -> bool {
        (0..ORDERS).all(|order| {
            let is_set = |level: usize, at: usize| {
                let word =
                    if level == self.height { self.top[order] } else { self.below[level][at / 64 * ORDERS + order] };
                word >> (at % 64) & 1 == 1
            };
            (self.top[order] != 0) == (self.orders >> order & 1 == 1)
                && (0..self.height).all(|level| {
                    let mut rows = self.below[level].chunks(ORDERS).enumerate();
                    rows.all(|(row, words)| (words[order] != 0) == is_set(level + 1, row))
                })
        })
    }
}
