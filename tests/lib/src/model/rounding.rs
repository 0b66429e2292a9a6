//! Size rules of the reference, by divisions and remainders, without code of the core.

use cachalot_core::{Config, PoolKind};

const MIB: u64 = 1 << 20;

/// Size from which on requests are rejected, in bytes (2^60, `one_exa_bytes`).
const REFUSED: u64 = 1 << 60;

/// Returns the block size for a request, or `None` if the request is rejected.
pub(super) fn round(bytes: u64, config: &Config) -> Option<u64> {
    if bytes >= REFUSED {
        return None;
    }
    let mut power = 1;
    while power * 2 <= bytes {
        power *= 2;
    }
    let mut interval = 0;
    while interval < 15 && power > MIB << interval {
        interval += 1;
    }
    let divisions = u64::from(config.roundup_power2_divisions().intervals()[interval]);
    let step = if divisions > 1 && bytes > 512 * divisions { power / divisions } else { 512 };
    let size = bytes.div_ceil(step).max(1) * step;
    (size < REFUSED).then_some(size)
}

/// Returns the pool of a block size.
pub(super) fn kind(size: u64) -> PoolKind {
    if size > MIB { PoolKind::Large } else { PoolKind::Small }
}

/// Returns the segment size for a block of `size` bytes.
pub(super) fn segment(size: u64, config: &Config) -> u64 {
    if size <= MIB {
        2 * MIB
    } else if size < 10 * MIB {
        config.large_segment_size()
    } else {
        size.div_ceil(2 * MIB) * 2 * MIB
    }
}
