//! The input of every planner, a [`Problem`], and the output, a [`Plan`].

use alloc::vec::Vec;

/// A buffer: bytes that the program needs during a range of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Buffer {
    /// The first step at which the buffer is live.
    pub start: u64,
    /// The first step at which the buffer is no longer live; above `start`. `u64::MAX` for a buffer
    /// that is never freed.
    pub end: u64,
    /// The length in bytes, including padding; above 0.
    pub size: u64,
    /// The offset of the buffer is a multiple of this power of two. Ignored for the writer of an
    /// accepted overwrite.
    #[cfg_attr(feature = "serde", serde(default = "unaligned"))]
    pub alignment: u64,
    /// The offset, if the caller decides it. A buffer with a fixed offset is never the writer of an
    /// accepted overwrite.
    #[cfg_attr(feature = "serde", serde(default))]
    pub fixed: Option<u64>,
}

/// The permission that `writer` starts its life in place, inside `target`, in the last step of the
/// target's life.
///
/// It is decided before planning whether a pair is accepted, by the rule of MegEngine (2022). Pairs
/// are taken in the order of the list. A pair is accepted under three conditions: the writer starts
/// in the last step of the target; the writer does not overwrite another buffer yet; no buffer
/// overwrites the target yet, or only a smaller one does. A smaller writer that loses its place
/// becomes an ordinary buffer again.
///
/// In every plan, an accepted writer is at the offset of the target plus `offset`. A refused writer
/// is an ordinary buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Overwrite {
    /// The number of the buffer to write.
    pub writer: u32,
    /// The number of the buffer to write over.
    pub target: u32,
    /// The distance in bytes from the start of `target` to the start of `writer`.
    pub offset: u64,
}

/// The requirement that two buffers are at the same offset in every plan, each with its own size.
/// Their lives do not overlap.
///
/// XLA calls a colocation `ShareWith`. Colocations are transitive: if two buffers are each
/// colocated with a third one, all three are at the same offset. The strictest alignment of the
/// group applies to all its members. Between the lives of the members, other buffers may use the
/// bytes. A colocated buffer may be a target, but never a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Colocation {
    /// The number of the first buffer.
    pub first: u32,
    /// The number of the second buffer.
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
    /// The pairs of buffers that are at the same offset.
    pub colocations: Vec<Colocation>,
}

/// A solution of a problem: an offset for every buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Plan {
    /// The offset of each buffer in bytes, by the number of the buffer.
    pub offsets: Vec<u64>,
    /// The bytes that all buffers need together: the largest end of a buffer, which is its offset
    /// plus its size. Alignments round offsets up, but not ends. A caller that wants a region of
    /// whole pages rounds the peak up once.
    pub peak: u64,
}

/// Rounds `value` up to a multiple of `alignment`, a power of two. Saturates near `u64::MAX`.
pub(super) const fn align_up(value: u64, alignment: u64) -> u64 {
    let rest = alignment.wrapping_sub(1);
    value.saturating_add(rest) & !rest
}

/// Returns the alignment of a buffer that does not name one.
#[cfg(feature = "serde")]
const fn unaligned() -> u64 {
    1
}
