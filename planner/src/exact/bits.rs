//! Bit sets of 64-bit words, and a table of bit sets. The table stores only the words between the
//! first and the last member of a set.

use alloc::vec;
use alloc::vec::Vec;

/// A set of items.
#[derive(Clone)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// Creates an empty set with room for `items` items.
    pub(super) fn none(items: usize) -> Self {
        Self(vec![0; items.div_ceil(64)])
    }

    /// Creates the set of the items `0..items`.
    pub(super) fn all(items: usize) -> Self {
        let mut bits = Self::none(items);
        (0..items).for_each(|item| bits.insert(item));
        bits
    }

    pub(super) fn holds(&self, item: usize) -> bool {
        self.0[item / 64] >> (item % 64) & 1 != 0
    }

    pub(super) fn insert(&mut self, item: usize) {
        self.0[item / 64] |= 1 << (item % 64);
    }

    pub(super) fn remove(&mut self, item: usize) {
        self.0[item / 64] &= !(1 << (item % 64));
    }

    /// Returns the word of the items from `64 * index` on.
    pub(super) fn word(&self, index: usize) -> u64 {
        self.0[index]
    }
}

/// A table of bit sets, one in each row.
pub(super) struct Table {
    /// For each row, the index of its first word in `words`; at the end, the number of words.
    begin: Vec<u32>,
    /// For each row, the position of its first word within the whole set.
    from: Vec<u32>,
    words: Vec<u64>,
}

impl Table {
    /// Creates a table without rows.
    pub(super) fn new() -> Self {
        Self { begin: vec![0], from: Vec::new(), words: Vec::new() }
    }

    /// Appends a row: the items of `first..=last` for which `member` returns true.
    pub(super) fn push(&mut self, first: usize, last: usize, mut member: impl FnMut(usize) -> bool) {
        self.from.push((first / 64) as u32);
        for index in first / 64..=last / 64 {
            let word = (0..64).filter(|bit| (first..=last).contains(&(index * 64 + bit)) && member(index * 64 + bit));
            self.words.push(word.fold(0, |word, bit| word | 1 << bit));
        }
        self.begin.push(self.words.len() as u32);
    }

    /// Returns the words of a row, each with its position within the whole set.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let words = &self.words[self.begin[row] as usize..self.begin[row + 1] as usize];
        words.iter().enumerate().map(move |(index, &word)| (self.from[row] as usize + index, word))
    }
}

/// An iterator over the items of a word, in ascending order.
pub(super) struct Members {
    base: usize,
    word: u64,
}

/// Iterates over the items in `word`, which is the word at position `index` of a set.
pub(super) fn members(index: usize, word: u64) -> Members {
    Members { base: index * 64, word }
}

impl Iterator for Members {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.word == 0 {
            return None;
        }
        let item = self.base + self.word.trailing_zeros() as usize;
        // This clears the lowest bit that is set.
        self.word &= self.word - 1;
        Some(item)
    }
}
