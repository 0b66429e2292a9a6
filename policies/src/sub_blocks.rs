//! Sub-blocks of exact sizes, with a list of free sub-blocks for each size.
//!
//! ```text
//! size ──hash──▶ class 3 KiB ──▶ ■ ─ ■ ─ ■          free sub-blocks, last freed first
//! chunk ──▶ sub-block ──▶ sub-block ──▶ sub-block   in address order
//! ```
//!
//! A sub-block keeps its entry while it is allocated, so a free never needs a new entry.

use cachalot_core::Storage;
use cachalot_core::records::{HashIndex, Indexed};
use cachalot_core::records::{NONE, SlotTable, Vacant};

/// A sub-block, live or free.
#[derive(Clone)]
pub(crate) struct SubBlockEntry {
    /// The address of the first byte.
    pub addr: u64,
    /// The class of the sub-block's size.
    class: u32,
    /// The segment of the sub-block.
    pub chunk: u32,
    /// The previous free sub-block of the class. It has no meaning for a live sub-block.
    prev: u32,
    /// The next free sub-block of the class. In a vacant entry, the next vacant entry.
    next: u32,
    /// The next sub-block in the chunk, or `NONE`.
    pub after: u32,
    /// Whether the sub-block is free.
    pub free: bool,
}

/// A vacant entry keeps all but its link.
impl Vacant for SubBlockEntry {
    fn vacant(next: u32) -> Self {
        Self { addr: 0, class: NONE, chunk: NONE, prev: NONE, next, after: NONE, free: false }
    }

    fn vacate(&mut self, next: u32) {
        self.next = next;
    }

    fn next_vacant(&self) -> u32 {
        self.next
    }
}

/// A size with at least one sub-block.
#[derive(Clone)]
struct Class {
    /// The size in bytes of each sub-block of the class.
    size: u64,
    /// The head of the list of free sub-blocks, or `NONE`.
    free: u32,
    /// The address of the sub-block at the head, if there is one. It is a copy, so that a request
    /// does not wait for the head's entry to be loaded.
    addr: u64,
    /// The number of sub-blocks of the class, live and free. The class is removed with its last
    /// sub-block.
    count: u32,
    /// The next class with the same hash. In a vacant entry, the next vacant entry.
    chain: u32,
}

/// A vacant entry keeps all but its link.
impl Vacant for Class {
    fn vacant(next: u32) -> Self {
        Self { size: 0, free: NONE, addr: 0, count: 0, chain: next }
    }

    fn vacate(&mut self, next: u32) {
        self.chain = next;
    }

    fn next_vacant(&self) -> u32 {
        self.chain
    }
}

impl Indexed for Class {
    #[inline(always)]
    fn key(&self) -> u64 {
        self.size
    }

    #[inline(always)]
    fn chain(&self) -> u32 {
        self.chain
    }

    fn set_chain(&mut self, next: u32) {
        self.chain = next;
    }
}

/// All sub-blocks of a heap, and their classes.
#[derive(Clone, Default)]
pub(crate) struct SubBlocks<S: Storage> {
    table: SlotTable<SubBlockEntry, S>,
    classes: SlotTable<Class, S>,
    by_size: HashIndex<S>,
}

impl<S: Storage> SubBlocks<S> {
    /// Makes room for another sub-block, whatever its size. Returns false if a table is full.
    pub(crate) fn make_room(&mut self) -> bool {
        // The second call sees the classes grown by `make_room`. After buckets exist, a failure to
        // add more only makes chains longer.
        self.make_chains() && self.table.make_room(1) && self.classes.make_room(1) && self.make_chains()
    }

    /// Makes room in the hash index for every class.
    fn make_chains(&mut self) -> bool {
        self.by_size.make_room(self.classes.entries_mut())
    }

    /// Returns the address of the first free sub-block of `size`.
    pub(crate) fn peek(&self, size: u64) -> Option<u64> {
        let class = self.by_size.find(size, self.classes.entries())?;
        let class = &self.classes[class];
        (class.free != NONE).then_some(class.addr)
    }

    /// Allocates the first free sub-block of `size`. Returns its number, address and chunk.
    #[inline(always)]
    pub(crate) fn take_first(&mut self, size: u64) -> Option<(u32, u64, u32)> {
        let class = self.by_size.find(size, self.classes.entries())?;
        let class = &mut self.classes[class];
        let (sub_block, sub_blocks) = (class.free, self.table.entries_mut());
        // No entry has the number `NONE`, so the bounds check is also the test for an empty list.
        let entry = sub_blocks.get_mut(sub_block as usize)?;
        entry.free = false;
        let SubBlockEntry { chunk, next, .. } = *entry;
        let addr = class.addr;
        class.free = next;
        if let Some(next) = sub_blocks.get_mut(next as usize) {
            next.prev = NONE;
            class.addr = next.addr;
        }
        Some((sub_block, addr, chunk))
    }

    /// Frees a live sub-block of `size` bytes at `addr`. The caller passes both, so that nothing
    /// waits for the entry to be loaded.
    #[inline(always)]
    pub(crate) fn free(&mut self, sub_block: u32, addr: u64, size: u64) {
        let sub_blocks = self.table.entries_mut();
        let class = &mut self.classes[sub_blocks[sub_block as usize].class];
        debug_assert_eq!(class.size, size, "a sub-block is freed with its own size");
        let next = core::mem::replace(&mut class.free, sub_block);
        class.addr = addr;
        let entry = &mut sub_blocks[sub_block as usize];
        debug_assert!(!entry.free, "a sub-block is freed once");
        (entry.free, entry.prev, entry.next) = (true, NONE, next);
        if let Some(next) = sub_blocks.get_mut(next as usize) {
            next.prev = sub_block;
        }
    }

    /// Adds a live sub-block after `before` in the chunk. Room was made.
    pub(crate) fn cut(&mut self, addr: u64, size: u64, chunk: u32, before: u32) -> u32 {
        let class = self.by_size.find(size, self.classes.entries()).unwrap_or_else(|| {
            let class = self.classes.insert(Class { size, ..Class::vacant(NONE) });
            self.by_size.insert(class, self.classes.entries_mut());
            class
        });
        self.classes[class].count += 1;
        let sub_block = self.table.insert(SubBlockEntry { addr, class, chunk, ..SubBlockEntry::vacant(NONE) });
        if before != NONE {
            self.table[before].after = sub_block;
        }
        sub_block
    }

    /// Removes a free sub-block, and returns the next sub-block in the chunk.
    pub(crate) fn forget(&mut self, sub_block: u32) -> u32 {
        let SubBlockEntry { class, prev, next, after, .. } = self.table[sub_block];
        if next != NONE {
            self.table[next].prev = prev;
        }
        if prev == NONE {
            self.classes[class].free = next;
            self.classes[class].addr = if next == NONE { 0 } else { self.table[next].addr };
        } else {
            self.table[prev].next = next;
        }
        self.table.remove(sub_block);
        self.classes[class].count -= 1;
        if self.classes[class].count == 0 {
            self.by_size.take(self.classes[class].size, self.classes.entries_mut());
            self.classes.remove(class);
        }
        after
    }

    /// Returns the entry of a sub-block, and its size in bytes.
    pub(crate) fn get(&self, sub_block: u32) -> (&SubBlockEntry, u64) {
        let entry = &self.table[sub_block];
        (entry, self.classes[entry.class].size)
    }

    /// Checks that the classes list exactly the free sub-blocks. The chunks have `sub_blocks`
    /// sub-blocks, and `free` of these are free.
    pub(crate) fn check(&self, sub_blocks: u32, free: u32) -> Result<(), &'static str> {
        if sub_blocks != self.table.len() {
            return Err("an entry is occupied that no chunk leads to");
        }
        let (mut classes, mut held, mut listed) = (0, 0, 0);
        for (number, class) in self.classes.entries().iter().enumerate() {
            // A vacant entry is found under no size.
            if self.by_size.find(class.size, self.classes.entries()) != Some(number as u32) {
                continue;
            }
            if class.count == 0 {
                return Err("a class is kept that has no sub-blocks");
            }
            if class.free != NONE && class.addr != self.table[class.free].addr {
                return Err("a class's first free sub-block is said to begin elsewhere");
            }
            (classes, held) = (classes + 1, held + class.count);
            let (mut at, mut prev) = (class.free, NONE);
            while at != NONE {
                let sub_block = &self.table[at];
                if !sub_block.free || sub_block.class as usize != number || sub_block.prev != prev || listed == free {
                    return Err("a class lists a sub-block that is not free or of another size");
                }
                listed += 1;
                (prev, at) = (at, sub_block.next);
            }
        }
        if classes != self.classes.len() {
            return Err("a class is not found by its size");
        }
        if (held, listed) == (sub_blocks, free) { Ok(()) } else { Err("a free sub-block is missing from its class") }
    }
}
