//! The free blocks of an arena as bits: an implicit binary tree, with summaries to find the first
//! block of a depth.
//!
//! ```text
//! node           1       the arena    bit n of level 0 is set  iff  block n is free
//!            10     11   its halves   bit n of level 1 is set  iff  word n of level 0 is not zero
//!         100 101 110 111              bit n of level 2 is set  iff  word n of level 1 is not zero
//! ```
//!
//! Block `n` consists of `2n` and `2n + 1`, its sibling is `n ^ 1`, and its first leaf is
//! `n << order`. A word has 64 nodes of one depth, except word 0, which has the depths 0 to 5 from
//! bit 1 on. Bit `q` of a summary is about word `q`, and so about 64 nodes that are six levels
//! lower. So the search at the depths `6j` to `6j + 5` starts at word 0 of level `j`.

/// The highest order of an arena: as many levels as fit in [`Tree`].
pub(super) const MAX_ORDER: u32 = 6 * LEVELS as u32 - 1;
const LEVELS: usize = 6;

/// The position of an arena's bits among the bits of all arenas.
#[derive(Clone, Copy)]
pub(super) struct Tree {
    /// Log2 of the number of leaves.
    order: u32,
    /// The first word of every level; 0 for a level that the tree does not have.
    levels: [u32; LEVELS],
}

/// Returns the number of words of a level. It is at least 1, because every search starts at a node
/// of word 0.
fn level_words(order: u32, level: usize) -> usize {
    1 << order.saturating_sub(5 + 6 * level as u32)
}

/// For every depth, the level at which the search starts, and the bits of the depth in word 0 of
/// this level.
const BEGIN: [(u8, u64); MAX_ORDER as usize + 1] = {
    let mut begin = [(0, 0); MAX_ORDER as usize + 1];
    let mut depth = 0;
    while depth < begin.len() {
        let nodes = 1 << (depth % 6);
        begin[depth] = ((depth / 6) as u8, !0 >> (64 - nodes) << nodes);
        depth += 1;
    }
    begin
};

/// Returns the bits of a level's word 0 at the depth of bit `at`.
fn same_depth(at: u64) -> u64 {
    BEGIN[at.max(1).ilog2() as usize].1
}

impl Tree {
    /// The tree of a vacant entry.
    pub(super) const NONE: Self = Self { order: 0, levels: [0; LEVELS] };

    /// Returns the number of words of an arena of `order`: 2 bits for each leaf, and a 63rd more.
    /// All words are zero at first.
    pub(super) fn words(order: u32) -> usize {
        (0..=order as usize / 6).map(|level| level_words(order, level)).sum()
    }

    /// Returns the tree that has the words from `start` on.
    pub(super) fn at(start: u32, order: u32) -> Self {
        let mut levels = [0; LEVELS];
        let mut at = start;
        for (level, first) in levels.iter_mut().enumerate().take(order as usize / 6 + 1) {
            *first = at;
            at += level_words(order, level) as u32;
        }
        Self { order, levels }
    }

    /// Returns the first word.
    pub(super) fn start(&self) -> u32 {
        self.levels[0]
    }

    /// Returns log2 of the number of leaves.
    pub(super) fn order(&self) -> u32 {
        self.order
    }

    /// Returns the node of the first leaf.
    pub(super) fn first_leaf(&self) -> u64 {
        1 << self.order
    }

    /// Returns whether block `node` is free. Node 0 is no block, and is never free.
    #[inline(always)]
    pub(super) fn holds(&self, node: u64, words: &[u64]) -> bool {
        words[self.word(0, node)] >> (node % 64) & 1 == 1
    }

    /// Sets the bit of block `node`. Returns true if the word was not zero before, because then the
    /// summaries are right already. Always returns false for word 0, because several depths share
    /// it. After false, the caller continues with [`inserted`](Self::inserted).
    #[inline(always)]
    pub(super) fn insert(&self, node: u64, words: &mut [u64]) -> bool {
        let word = &mut words[self.word(0, node)];
        let before = *word;
        *word = before | 1 << (node % 64);
        before != 0 && node >= 64
    }

    /// Updates the summaries after [`insert`](Self::insert). Returns true if the order has no other
    /// free block.
    pub(super) fn inserted(&self, node: u64, words: &mut [u64]) -> bool {
        let (mut level, mut at) = (0, node);
        while at >= 64 {
            (level, at) = (level + 1, at / 64);
            let word = &mut words[self.word(level, at)];
            let before = *word;
            *word |= 1 << (at % 64);
            // If a summary word was not zero, its bit in the level above is set already.
            if at >= 64 && before != 0 {
                return false;
            }
        }
        words[self.word(level, 0)] & same_depth(at) == 1 << at
    }

    /// Returns the bits of the other free blocks in the word of block `node`. Returns 0 for word 0,
    /// because its blocks have several depths.
    #[inline(always)]
    pub(super) fn beside(&self, node: u64, words: &[u64]) -> u64 {
        let bits = words[self.word(0, node)] & !(1 << (node % 64));
        if node >= 64 { bits } else { 0 }
    }

    /// Clears the bit of block `node`. The caller continues with [`removed`](Self::removed) if the
    /// word became zero.
    #[inline(always)]
    pub(super) fn remove(&self, node: u64, words: &mut [u64]) {
        words[self.word(0, node)] &= !(1 << (node % 64));
    }

    /// Updates the summaries after [`remove`](Self::remove). Returns true if the block was the only
    /// free block of the order.
    pub(super) fn removed(&self, node: u64, words: &mut [u64]) -> bool {
        let (mut level, mut at) = (0, node);
        while at >= 64 {
            (level, at) = (level + 1, at / 64);
            let word = &mut words[self.word(level, at)];
            *word &= !(1 << (at % 64));
            if at >= 64 && *word != 0 {
                return false;
            }
        }
        words[self.word(level, 0)] & same_depth(at) == 0
    }

    /// Returns the index of the word with bit `at` of a level.
    #[inline(always)]
    fn word(&self, level: usize, at: u64) -> usize {
        self.levels[level] as usize + (at / 64) as usize
    }

    /// Returns the first free block of `order`. At least one block of `order` is free.
    pub(super) fn first(&self, order: u32, words: &[u64]) -> u64 {
        let (level, bits) = BEGIN[(self.order - order) as usize];
        let mut level = level as usize;
        let mut at = u64::from((words[self.levels[level] as usize] & bits).trailing_zeros());
        while level > 0 {
            level -= 1;
            at = at * 64 + u64::from(words[self.levels[level] as usize + at as usize].trailing_zeros());
        }
        at
    }

    /// Returns the first free block at or after `node`, which is at `depth` or just past the end of
    /// `depth`. Reads every word on the way.
    pub(super) fn next(&self, depth: u32, node: u64, words: &[u64]) -> Option<u64> {
        let end = 2 << depth;
        let mut at = node;
        while at < end {
            let bits = words[self.word(0, at)] >> (at % 64);
            if bits != 0 {
                return Some(at + u64::from(bits.trailing_zeros())).filter(|found| *found < end);
            }
            at = at / 64 * 64 + 64;
        }
        None
    }

    /// Returns whether the summaries agree with the words below.
    pub(super) fn check(&self, words: &[u64]) -> bool {
        (1..=self.order as usize / 6).all(|level| {
            let (first, below) = (self.levels[level] as usize, self.levels[level - 1] as usize);
            let count = level_words(self.order, level - 1);
            // Word 0 is not summarised, because the search starts in it.
            words[first] & 1 == 0
                && (1..count).all(|at| (words[below + at] != 0) == (words[first + at / 64] >> (at % 64) & 1 == 1))
        }) && words[self.start() as usize] & 1 == 0
    }
}
