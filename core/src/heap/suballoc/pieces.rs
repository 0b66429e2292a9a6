//! Pieces of exact sizes, the free ones found by their size.
//!
//! ```text
//! size ──hash──▶ class 3 KiB ──▶ ■ ─ ■ ─ ■     free pieces, the one given back last first
//! chunk ──▶ piece ──▶ piece ──▶ piece           as they were cut, in address order
//! ```
//!
//! A piece keeps its entry while it is taken: to give it back takes none.

use crate::tables::Storage;
use crate::tables::hash_index::{HashIndex, Indexed};
use crate::tables::slot_table::{NONE, SlotTable, Vacant};

/// A piece that was cut, taken or free.
pub(crate) struct Piece {
    pub addr: u64,
    class: u32,
    /// The segment it was cut from.
    pub chunk: u32,
    /// Neighbours among the free pieces of the class.
    prev: u32,
    /// Vacant ⟹ the next vacant entry.
    next: u32,
    /// The piece behind it in the chunk.
    pub after: u32,
    pub free: bool,
}

impl Vacant for Piece {
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

/// A size of which there are pieces.
struct Class {
    size: u64,
    /// Head of the list of free pieces.
    free: u32,
    /// Where that piece begins, if there is one: the request that takes it has the address a look earlier.
    addr: u64,
    /// Pieces of this size, taken and free. They are what keeps the entry.
    pieces: u32,
    /// The next class whose size has the same hash; vacant ⟹ the next vacant entry.
    chain: u32,
}

impl Vacant for Class {
    fn vacant(next: u32) -> Self {
        Self { size: 0, free: NONE, addr: 0, pieces: 0, chain: next }
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

/// The pieces of one policy.
pub(crate) struct Pieces<S: Storage> {
    table: SlotTable<Piece, S>,
    classes: SlotTable<Class, S>,
    by_size: HashIndex<S>,
}

impl<S: Storage> Default for Pieces<S> {
    fn default() -> Self {
        Self { table: SlotTable::default(), classes: SlotTable::default(), by_size: HashIndex::default() }
    }
}

impl<S: Storage> Pieces<S> {
    /// Makes sure that a further piece fits, whatever its size.
    pub(crate) fn make_room(&mut self) -> bool {
        // Once there are chains, those that do not become more only become longer.
        self.make_chains() && self.table.make_room(1) && self.classes.make_room(1) && self.make_chains()
    }

    fn make_chains(&mut self) -> bool {
        self.by_size.make_room(self.classes.entries_mut())
    }

    /// Where the free piece of `size` begins that comes first.
    pub(crate) fn peek(&self, size: u64) -> Option<u64> {
        let class = self.by_size.find(size, self.classes.entries())?;
        let class = &self.classes[class];
        (class.free != NONE).then_some(class.addr)
    }

    /// Takes the free piece of `size` that comes first: its number, its address and its chunk.
    #[inline(always)]
    pub(crate) fn take_first(&mut self, size: u64) -> Option<(u32, u64, u32)> {
        let class = self.by_size.find(size, self.classes.entries())?;
        let class = &mut self.classes[class];
        let (piece, pieces) = (class.free, self.table.entries_mut());
        // There is no entry at `NONE`.
        let entry = pieces.get_mut(piece as usize)?;
        entry.free = false;
        let Piece { chunk, next, .. } = *entry;
        let addr = class.addr;
        class.free = next;
        if let Some(next) = pieces.get_mut(next as usize) {
            next.prev = NONE;
            class.addr = next.addr;
        }
        Some((piece, addr, chunk))
    }

    /// A taken piece, of `size` at `addr`, is free.
    #[inline(always)]
    pub(crate) fn give(&mut self, piece: u32, addr: u64, size: u64) {
        let pieces = self.table.entries_mut();
        let class = &mut self.classes[pieces[piece as usize].class];
        debug_assert_eq!(class.size, size, "a piece is given back as it was taken");
        let next = core::mem::replace(&mut class.free, piece);
        class.addr = addr;
        let entry = &mut pieces[piece as usize];
        debug_assert!(!entry.free, "a piece is given back once");
        (entry.free, entry.prev, entry.next) = (true, NONE, next);
        if let Some(next) = pieces.get_mut(next as usize) {
            next.prev = piece;
        }
    }

    /// Adds a piece that is taken, behind `before` in its chunk; room was made.
    pub(crate) fn cut(&mut self, addr: u64, size: u64, chunk: u32, before: u32) -> u32 {
        let class = self.by_size.find(size, self.classes.entries()).unwrap_or_else(|| {
            let class = self.classes.insert(Class { size, ..Class::vacant(NONE) });
            self.by_size.insert(class, self.classes.entries_mut());
            class
        });
        self.classes[class].pieces += 1;
        let piece = self.table.insert(Piece { addr, class, chunk, ..Piece::vacant(NONE) });
        if before != NONE {
            self.table[before].after = piece;
        }
        piece
    }

    /// Forgets a free piece, and says which one is behind it in its chunk.
    pub(crate) fn forget(&mut self, piece: u32) -> u32 {
        let Piece { class, prev, next, after, .. } = self.table[piece];
        if next != NONE {
            self.table[next].prev = prev;
        }
        if prev == NONE {
            self.classes[class].free = next;
            self.classes[class].addr = if next == NONE { 0 } else { self.table[next].addr };
        } else {
            self.table[prev].next = next;
        }
        self.table.remove(piece);
        self.classes[class].pieces -= 1;
        if self.classes[class].pieces == 0 {
            self.by_size.take(self.classes[class].size, self.classes.entries_mut());
            self.classes.remove(class);
        }
        after
    }

    /// A piece, and its size.
    pub(crate) fn get(&self, piece: u32) -> (&Piece, u64) {
        let entry = &self.table[piece];
        (entry, self.classes[entry.class].size)
    }

    /// The classes list exactly the free pieces. The chunks hold `pieces`, of which `free` are.
    pub(crate) fn check(&self, pieces: u32, free: u32) -> Result<(), &'static str> {
        if pieces != self.table.len() {
            return Err("an entry is occupied that no chunk leads to");
        }
        let (mut classes, mut held, mut listed) = (0, 0, 0);
        for (number, class) in self.classes.entries().iter().enumerate() {
            // A vacant entry is found under no size.
            if self.by_size.find(class.size, self.classes.entries()) != Some(number as u32) {
                continue;
            }
            if class.pieces == 0 {
                return Err("a class is kept that has no pieces");
            }
            if class.free != NONE && class.addr != self.table[class.free].addr {
                return Err("a class's first free piece is said to begin elsewhere");
            }
            (classes, held) = (classes + 1, held + class.pieces);
            let (mut at, mut prev) = (class.free, NONE);
            while at != NONE {
                let piece = &self.table[at];
                if !piece.free || piece.class as usize != number || piece.prev != prev || listed == free {
                    return Err("a class lists a piece that is not free or of another size");
                }
                listed += 1;
                (prev, at) = (at, piece.next);
            }
        }
        if classes != self.classes.len() {
            return Err("a class is not found by its size");
        }
        if (held, listed) == (pieces, free) { Ok(()) } else { Err("a free piece is missing from its class") }
    }
}
