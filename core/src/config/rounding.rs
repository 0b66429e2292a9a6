//! Rounds the bytes of a request up to the size of its block, and finds its pool and the size of a
//! new segment.
//!
//! ```text
//! request ──round_size──▶ size of the block ──PoolKind::of──▶ small │ large
//!                                  └─────────segment_size──▶ bytes to allocate from the device
//! ```
//!
//! These are pure functions: no allocation, no lock, no call to the device. No sum can overflow,
//! because a request is below [`MAX_REQUEST`], 2^60, and no rule more than doubles a size or adds
//! more than 2 MiB.

use crate::units::{MAX_REQUEST, MIB, UNIT};

/// The largest block size of the small pool, in bytes (`kSmallSize`, `PyTorch` 2.0–2.15). Also the
/// largest remainder of a large block that is not worth splitting off.
pub const SMALL_MAX: u64 = MIB;

/// The size of every segment of the small pool, in bytes (`kSmallBuffer`).
pub const SMALL_SEGMENT: u64 = 2 * MIB;

/// The smallest block size that gets its own segment, in bytes (`kMinLargeAlloc`).
pub const OWN_SEGMENT_MIN: u64 = 10 * MIB;

/// The default size of a segment for several large blocks, in bytes (`kLargeBuffer`).
pub const LARGE_SEGMENT: u64 = 20 * MIB;

/// The size of a segment for a single block is a multiple of this, in bytes (`kRoundLarge`).
pub const SEGMENT_STEP: u64 = 2 * MIB;

/// The size of a segment of the large pool is a multiple of this under `exact_segments`, in bytes.
pub const EXACT_STEP: u64 = 4096;

/// The number of size intervals that have their own divisions (`kRoundUpPowerOfTwoIntervals`).
pub const INTERVALS: usize = 16;

/// Log2 of the first interval's start, in bytes. Interval `i` has the sizes from 2^i MiB up to
/// 2^(i+1) MiB. The first interval also includes all smaller sizes, and the last one all larger
/// sizes (`kRoundUpPowerOfTwoStart`).
const FIRST_INTERVAL_LOG2: u32 = MIB.ilog2();

/// The number of equal steps into which each doubling of the block size is divided, for each of the
/// [`INTERVALS`].
///
/// With `d` divisions, a size above `512 × d` is rounded up to a multiple of `p / d`, where `p` is
/// the largest power of two that is not above the size. 0 and 1 both mean plain rounding to
/// [`UNIT`]; they differ only in reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Divisions {
    /// The divisions of each interval: 0 or a power of two.
    of_interval: [u32; INTERVALS],
    /// Set iff an interval has more than one division.
    any: bool,
}

impl Divisions {
    /// No divisions: every size is rounded to [`UNIT`].
    pub const NONE: Self = Self { of_interval: [0; INTERVALS], any: false };

    /// Creates divisions, the first for sizes below 2 MiB. Returns `None` unless each is 0 or a
    /// power of two.
    #[must_use]
    pub fn new(of_interval: [u32; INTERVALS]) -> Option<Self> {
        of_interval
            .iter()
            .all(|&d| d == 0 || d.is_power_of_two())
            .then(|| Self { of_interval, any: of_interval.iter().any(|&d| d > 1) })
    }

    /// Returns the divisions of each interval, the first for sizes below 2 MiB.
    #[must_use]
    pub const fn intervals(&self) -> &[u32; INTERVALS] {
        &self.of_interval
    }
}

/// Rounds `bytes` up by the divisions of its interval, which `of_interval` returns: 0 or a power of
/// two. `bytes` is positive and below [`MAX_REQUEST`].
#[inline]
pub(crate) fn divide(bytes: u64, of_interval: impl FnOnce(usize) -> u32) -> u64 {
    let log2 = bytes.ilog2();
    let interval = (log2.saturating_sub(FIRST_INTERVAL_LOG2) as usize).min(INTERVALS - 1);
    let divisions = u64::from(of_interval(interval));
    if divisions > 1 && bytes > UNIT * divisions {
        // bytes > 512·d and d is a power of two ⟹ 2^log2 ≥ 512·d ⟹ the step is a multiple of 512.
        let step = (1 << log2) >> divisions.trailing_zeros();
        round_up(bytes, step)
    } else {
        round_up(bytes, UNIT)
    }
}

impl Default for Divisions {
    fn default() -> Self {
        Self::NONE
    }
}

/// The kind of blocks in a heap, small or large. Only the rounded size decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PoolKind {
    /// Blocks of at most [`SMALL_MAX`] bytes.
    Small,
    /// Blocks of more than [`SMALL_MAX`] bytes.
    Large,
}

impl PoolKind {
    /// Returns the kind of a block of `size` bytes, a size that [`round_size`] has returned.
    #[inline]
    #[must_use]
    pub const fn of(size: u64) -> Self {
        if size <= SMALL_MAX { Self::Small } else { Self::Large }
    }
}

/// Returns the size in bytes of the block for a request of `bytes`: a positive multiple of
/// [`UNIT`], at most [`MAX_REQUEST`]. Returns `None` for requests of [`MAX_REQUEST`] and above,
/// which the allocator refuses.
///
/// Zero bytes are rounded like one byte. The allocator answers requests of zero bytes without a
/// block.
#[inline]
#[must_use]
pub fn round_size(bytes: u64, divisions: &Divisions) -> Option<u64> {
    if bytes >= MAX_REQUEST {
        return None;
    }
    let bytes = bytes.max(1);
    Some(if divisions.any { divide(bytes, |interval| divisions.of_interval[interval]) } else { round_up(bytes, UNIT) })
}

/// Rounds `bytes` up to a multiple of `step`, a power of two. Both are at most 2^60, so the sum
/// cannot overflow.
#[inline]
pub(crate) const fn round_up(bytes: u64, step: u64) -> u64 {
    (bytes + (step - 1)) & !(step - 1)
}
