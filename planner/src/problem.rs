//! The input of every planner, a [`Problem`], and the output, a [`Plan`].

use alloc::vec::Vec;

/// A buffer: bytes needed by the program during a range of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Buffer {
    /// First step at which the buffer is live.
    pub start: u64,
    /// First step at which the buffer is no longer live; above `start`. `u64::MAX` for a buffer
    /// without a free.
    pub end: u64,
    /// Length in bytes, padding included; above 0.
    pub size: u64,
    /// The offset of the buffer is a multiple of this power of two. Ignored for the writer of an
    /// accepted overwrite.
    #[cfg_attr(feature = "serde", serde(default = "unaligned"))]
    pub alignment: u64,
    /// The offset, if decided by the caller. A buffer with a fixed offset is never the writer of an
    /// accepted overwrite.
    #[cfg_attr(feature = "serde", serde(default))]
    pub fixed: Option<u64>,
}

/// Permission for `writer` to start its life in place, inside `target`, in the last step of the
/// target's life.
///
/// Whether a pair is accepted is decided before planning, by the rule of MegEngine (2022). Pairs
/// are taken in the order of the list. A pair is accepted if three conditions hold: the writer
/// starts in the last step of the target; the writer overwrites no buffer yet; no buffer overwrites
/// the target yet, or only a smaller one. A displaced smaller writer becomes an ordinary buffer
/// again.
///
/// An accepted writer is at the offset of the target plus `offset` in every plan. A refused
/// writer is an ordinary buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Overwrite {
    /// Number of the buffer to write.
    pub writer: u32,
    /// Number of the buffer to write over.
    pub target: u32,
    /// Distance in bytes from the start of `target` to the start of `writer`.
    pub offset: u64,
}

/// Requires two buffers to be at one offset in every plan, each with its own size. Their
/// lives do not overlap.
///
/// XLA calls a colocation `ShareWith`. Colocations are transitive: if two buffers are each
/// colocated with a third, all three are at one offset. The strictest alignment of the group
/// applies to all members. Between the lives of the members, the bytes are available to all
/// buffers. A colocated buffer may be a target, but never a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Colocation {
    /// Number of the first buffer.
    pub first: u32,
    /// Number of the second buffer.
    pub second: u32,
}

/// A planning problem: buffers numbered from 0, permitted overwrites, and required colocations.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Problem {
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// The permitted overwrites, in order of preference.
    pub overwrites: Vec<Overwrite>,
    /// The pairs of buffers that are at one offset.
    pub colocations: Vec<Colocation>,
}

/// A solution of a problem: an offset for every buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Plan {
    /// Offset of each buffer in bytes, by the number of the buffer.
    pub offsets: Vec<u64>,
    /// Bytes needed by all buffers together: the largest end of a buffer, its offset plus its size.
    /// An alignment rounds offsets, never ends: whoever wants a region of whole pages rounds the
    /// peak up once.
    pub peak: u64,
}

/// Rounds `value` up to a multiple of `alignment`, a power of two. Saturates near `u64::MAX`.
pub(super) const fn align_up(value: u64, alignment: u64) -> u64 {
    let rest = alignment.wrapping_sub(1);
    value.saturating_add(rest) & !rest
}

/// The alignment of a buffer that names none.
#[cfg(feature = "serde")]
const fn unaligned() -> u64 {
    1
}
