//! What is to be planned, and what a plan is.

use alloc::vec::Vec;

/// A buffer: so many bytes for so long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The first step at which it lives.
    pub start: u64,
    /// The step before which it has ended; above `start`. `u64::MAX` for a buffer that is never given back.
    pub end: u64,
    /// Its length in bytes, padding included; above 0.
    pub size: u64,
    /// What its offset is a multiple of; a power of two. Counts for nothing in a buffer that overwrites another.
    pub alignment: u64,
    /// Where it must lie, if that is settled already. Such a buffer overwrites nobody.
    pub fixed: Option<u64>,
}

/// `writer` may begin its life in place, inside `target`, in the last step of that one's life.
///
/// Whether it does is settled before any planning, as MegEngine (2022) settles it: in the order of the list, a pair is
/// accepted if the writer begins in the target's last step and overwrites nobody yet, and if the target is overwritten by
/// nobody yet or only by a smaller buffer, which then is an ordinary one again. An accepted writer lies at the target's
/// offset plus `offset` in every plan; a refused one is a buffer like any other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overwrite {
    /// The buffer that is written.
    pub writer: u32,
    /// The buffer that it is written over.
    pub target: u32,
    /// Where in `target` it begins, in bytes.
    pub offset: u64,
}

/// Two buffers lie at the same offset in every plan, each with its own size; they never live at once.
///
/// XLA's `ShareWith`. Who shares a place with the same buffer shares it with each other, and all have the strictest alignment of
/// any of them. Between their lives the place is free for others. Such a buffer overwrites nobody; it may be overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Colocation {
    /// One.
    pub first: u32,
    /// The other.
    pub second: u32,
}

/// Buffers, numbered from 0, which of them may be written over which, and which must share a place.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Problem {
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// Who may be written over whom, in order of preference.
    pub overwrites: Vec<Overwrite>,
    /// Who shares a place.
    pub colocations: Vec<Colocation>,
}

/// An offset for every buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Where each buffer lies, in bytes from the beginning.
    pub offsets: Vec<u64>,
    /// How many bytes they need together: the largest end of a buffer that overwrites nobody, rounded up to that one's alignment.
    pub peak: u64,
}

/// The next multiple of `alignment`, a power of two, from `value` on.
pub(super) const fn align_up(value: u64, alignment: u64) -> u64 {
    let rest = alignment.wrapping_sub(1);
    value.saturating_add(rest) & !rest
}
