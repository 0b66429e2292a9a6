//! A bitmap for every order, of the arenas that have a free block of the order, with as many levels
//! of summaries as the number of arenas needs.
//!
//! ```text
//! orders     one bit for each order: some arena has a block
//! top        one word for each order: bit a set iff arena a, or row a below, has a block
//! below      one row per 64 arenas, or per 64 rows below: a word for each order
//! ```

use super::tree::MAX_ORDER;
use cachalot_core::Storage;
use cachalot_core::records::Table;

/// The number of orders.
pub(super) const ORDERS: usize = MAX_ORDER as usize + 1;

/// The arenas that have a free block, for each order.
#[derive(Clone)]
pub(super) struct OrderBitmap<S: Storage> {
    /// Bit `k` is set iff `top[k]` is not zero.
    orders: u64,
    /// The highest level, a word for each order.
    top: [u64; ORDERS],
    /// The levels below `top`, the lowest first, with `ORDERS` words per row. The first `height`
    /// levels are in use.
    below: [S::Table<u64>; 2],
    /// The number of levels below `top`.
    height: usize,
}

impl<S: Storage> Default for OrderBitmap<S> {
    fn default() -> Self {
        Self { orders: 0, top: [0; ORDERS], below: Default::default(), height: 0 }
    }
}

impl<S: Storage> OrderBitmap<S> {
    /// Makes room for arenas with numbers below `count`, which can be at most 262,144. Returns
    /// false if a table is full.
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

    /// Returns the orders with a free block, as bits.
    #[inline(always)]
    pub(super) fn orders(&self) -> u64 {
        self.orders
    }

    /// Records that `arena` has a free block of `order`.
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

    /// Records that `arena` has no free block of `order`.
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

    /// Returns the lowest number of an arena with a free block of `order`. At least one arena has
    /// one.
    pub(super) fn first(&self, order: u32) -> u32 {
        let order = order as usize;
        let mut at = self.top[order].trailing_zeros();
        for table in self.below[..self.height].iter().rev() {
            at = at * 64 + table[at as usize * ORDERS + order].trailing_zeros();
        }
        at
    }

    /// Returns whether the bitmap records a free block of `order` in `arena`.
    pub(super) fn holds(&self, order: u32, arena: u32) -> bool {
        let at = arena as usize;
        let word =
            if self.height == 0 { self.top[order as usize] } else { self.below[0][at / 64 * ORDERS + order as usize] };
        word >> (at % 64) & 1 == 1
    }

    /// Returns whether the summaries agree with the rows below.
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
