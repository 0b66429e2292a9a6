//! Sets of items as words of 64 bits, and tables of them that keep only the words between the first and the last member.

use alloc::vec;
use alloc::vec::Vec;

/// A set of items.
#[derive(Clone)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// None of so many items.
    pub(super) fn none(items: usize) -> Self {
        Self(vec![0; items.div_ceil(64)])
    }

    /// All of so many items.
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

    /// The word that holds the items from `64 * index` on.
    pub(super) fn word(&self, index: usize) -> u64 {
        self.0[index]
    }
}

/// A set for each of many things.
pub(super) struct Table {
    /// Where each row begins in `words`, and behind the last.
    begin: Vec<u32>,
    /// Which word of a set is the first of each row.
    from: Vec<u32>,
    words: Vec<u64>,
}

impl Table {
    /// No rows.
    pub(super) fn new() -> Self {
        Self { begin: vec![0], from: Vec::new(), words: Vec::new() }
    }

    /// Adds a row that can hold the items `first..=last`, and those of them that `member` says.
    pub(super) fn push(&mut self, first: usize, last: usize, mut member: impl FnMut(usize) -> bool) {
        self.from.push((first / 64) as u32);
        for index in first / 64..=last / 64 {
            let word = (0..64).filter(|bit| (first..=last).contains(&(index * 64 + bit)) && member(index * 64 + bit));
            self.words.push(word.fold(0, |word, bit| word | 1 << bit));
        }
        self.begin.push(self.words.len() as u32);
    }

    /// A row's words, each with its index in the whole set.
    pub(super) fn row(&self, row: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let words = &self.words[self.begin[row] as usize..self.begin[row + 1] as usize];
        words.iter().enumerate().map(move |(index, &word)| (self.from[row] as usize + index, word))
    }
}

/// The members of a word, ascending.
pub(super) struct Members {
    base: usize,
    word: u64,
}

/// The items that `word`, the one at `index` of its set, holds.
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
        self.word &= self.word - 1;
        Some(item)
    }
}
