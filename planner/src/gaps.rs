//! Gaps of buffers: times in the life of a buffer when it needs no bytes, or only some of them.
//!
//! In a problem, a buffer with gaps is several buffers at one place, one for each time with the
//! same bytes. Between their lives the place is free for others.
//!
//! ```text
//! gap at 3..6        gap at 3..6, window 4..8
//! ██████   ██████    ██████▄▄▄██████    the bytes from 4 up to 8 stay: they follow the whole buffer in place
//! ```

use super::{Buffer, Colocation, Overwrite, Problem};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// A time when a buffer needs only a part of its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The steps of the gap.
    pub life: Range<u64>,
    /// The bytes that remain in use, counted from the start of the buffer. Empty if all are free.
    pub window: Range<u64>,
}

/// The reason why a buffer cannot have its gaps. The text says which gaps are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnusableGap {
    /// Gaps overlap, or go beyond the life of the buffer.
    Life {
        /// The first step of the life of the buffer.
        start: u64,
        /// The first step after the life of the buffer.
        end: u64,
    },
    /// A window goes beyond the end of the buffer.
    Window {
        /// The size of the buffer in bytes.
        size: u64,
    },
    /// The buffer never has all its bytes.
    NeverWhole,
}

impl fmt::Display for UnusableGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Life { start, end } => write!(f, "gaps in turn, between {start} and {end}"),
            Self::Window { size } => write!(f, "windows of at most the size, {size}"),
            Self::NeverWhole => write!(f, "a time of its life with all bytes"),
        }
    }
}

impl core::error::Error for UnusableGap {}

/// The buffers of a problem for one buffer with gaps.
#[derive(Debug, Default)]
pub struct Pieces {
    buffers: Vec<Buffer>,
    /// The number of a piece that has all bytes. Its offset is that of the buffer.
    whole: usize,
    /// The pieces that are in place over another one: the piece, the other one, and the distance.
    over: Vec<(usize, usize, u64)>,
    /// The number of gaps that hold more bytes than they need: see [`Pieces::of`].
    pub held: usize,
}

impl Pieces {
    /// Divides a buffer of more than 0 bytes into pieces. One kind of gap cannot be expressed: its
    /// window starts above the first byte, and the time right before it does not use all bytes of
    /// the window. With `relaxed`, such a gap is free as a whole; otherwise it holds all bytes
    /// below its window, too. The best plan of the relaxed problem needs no more bytes than one
    /// with the exact gaps.
    ///
    /// # Errors
    /// The gaps overlap, are outside the buffer, or take up its whole life.
    pub fn of(buffer: &Buffer, gaps: &[Gap], relaxed: bool) -> Result<Self, UnusableGap> {
        let mut gaps = gaps.to_vec();
        gaps.sort_by_key(|gap| gap.life.start);
        let (whole, life) = (0..buffer.size, buffer.start..buffer.end);
        // The times in their order, with the bytes in use.
        let mut times: Vec<Gap> = Vec::new();
        let mut at = life.start;
        for gap in gaps {
            if gap.life.start < at || gap.life.end > life.end || gap.life.is_empty() {
                return Err(UnusableGap::Life { start: life.start, end: life.end });
            }
            if gap.window.end > buffer.size {
                return Err(UnusableGap::Window { size: buffer.size });
            }
            times.push(Gap { life: at..gap.life.start, window: whole.clone() });
            at = gap.life.end;
            times.push(gap);
        }
        times.push(Gap { life: at..life.end, window: whole.clone() });
        times.retain(|time| !time.life.is_empty());
        times.dedup_by(|later, time| {
            let joins = time.life.end == later.life.start && time.window == later.window;
            time.life.end = if joins { later.life.end } else { time.life.end };
            joins
        });
        let first = times.iter().position(|time| time.window == whole).ok_or(UnusableGap::NeverWhole)?;
        let mut pieces = Self::default();
        let mut before: Option<(usize, Gap)> = None;
        for (number, mut time) in times.into_iter().enumerate() {
            let under = before.take().filter(|(_, before)| before.life.end == time.life.start);
            let under = under
                .filter(|(_, before)| before.window.start <= time.window.start && time.window.end <= before.window.end);
            if time.window.is_empty() {
                continue;
            }
            let piece = pieces.buffers.len();
            let mut own = Buffer { start: time.life.start, end: time.life.end, ..*buffer };
            if let Some((target, under)) = under.filter(|_| time.window.start > 0) {
                // A buffer in place starts in the last step of the buffer under it.
                own = Buffer { start: own.start - 1, size: time.window.end - time.window.start, fixed: None, ..own };
                pieces.over.push((piece, target, time.window.start - under.window.start));
            } else if time.window.start > 0 && relaxed {
                continue;
            } else {
                pieces.held += usize::from(time.window.start > 0);
                time.window.start = 0;
                own.size = time.window.end;
            }
            pieces.buffers.push(own);
            if number == first {
                pieces.whole = piece;
            }
            before = Some((piece, time));
        }
        Ok(pieces)
    }

    /// Adds the pieces to a problem. Returns the number of the buffer that has the offset of the
    /// whole.
    pub fn add_to(self, problem: &mut Problem) -> usize {
        let first = problem.buffers.len();
        let number = |piece: usize| (first + piece) as u32;
        let is_over = |piece: usize| self.over.iter().any(|&(over, ..)| over == piece);
        let beside = (0..self.buffers.len()).filter(|&piece| piece != self.whole && !is_over(piece));
        let whole = number(self.whole);
        problem.colocations.extend(beside.map(|piece| Colocation { first: whole, second: number(piece) }));
        let in_place = |&(piece, target, offset)| Overwrite { writer: number(piece), target: number(target), offset };
        problem.overwrites.extend(self.over.iter().map(in_place));
        problem.buffers.extend(self.buffers);
        first + self.whole
    }
}
