//! Memory that a stream waits for: a number there, compared with a number of the program.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The comparison that ends a wait (`CUstreamWaitValue_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// The number has reached the value. Numbers go round.
    AtLeast,
    /// The number is the value.
    Equal,
    /// The number has a bit of the value.
    CommonBit,
    /// Neither the number nor the value has some bit.
    FreeBit,
}

/// The width of a number in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Width {
    Four,
    Eight,
}

/// A wait for a number in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// The address at which the driver's threads read the number: a multiple of the width.
    pub(crate) at: u64,
    pub(crate) width: Width,
    pub(crate) value: u64,
    pub(crate) until: Until,
}

impl Width {
    /// Returns the width in bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

impl Watch {
    /// Reads the number. Returns whether the wait is over.
    pub(crate) fn is_over(&self) -> bool {
        let Self { value, until, .. } = *self;
        match self.width {
            Width::Four => {
                // SAFETY: aligned memory of a device, or pinned memory. If the program has freed
                // the memory since, the following fault is the purpose of the library.
                let seen = unsafe { AtomicU32::from_ptr(self.at as *mut u32) }.load(Ordering::Acquire);
                let value = value as u32;
                match until {
                    Until::AtLeast => seen.wrapping_sub(value).cast_signed() >= 0,
                    Until::Equal => seen == value,
                    Until::CommonBit => seen & value != 0,
                    Until::FreeBit => !(seen | value) != 0,
                }
            }
            Width::Eight => {
                // SAFETY: as above.
                let seen = unsafe { AtomicU64::from_ptr(self.at as *mut u64) }.load(Ordering::Acquire);
                match until {
                    Until::AtLeast => seen.wrapping_sub(value).cast_signed() >= 0,
                    Until::Equal => seen == value,
                    Until::CommonBit => seen & value != 0,
                    Until::FreeBit => !(seen | value) != 0,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Until, Watch, Width};

    #[test]
    fn a_number_that_went_round_has_reached_a_value_before() {
        let over = |seen: u64, width, value, until| Watch { at: &raw const seen as u64, width, value, until }.is_over();
        let narrow = u64::from(u32::MAX);
        assert!(over(1, Width::Four, narrow, Until::AtLeast) && !over(narrow, Width::Four, 1, Until::AtLeast));
        assert!(over(narrow, Width::Eight, 1, Until::AtLeast) && over(0, Width::Eight, u64::MAX, Until::AtLeast));
        assert!(over(1 << 32 | 7, Width::Four, 7, Until::Equal) && !over(1 << 32 | 7, Width::Eight, 7, Until::Equal));
        assert!(over(6, Width::Four, 4, Until::CommonBit) && !over(6, Width::Eight, 9, Until::CommonBit));
        assert!(over(6, Width::Four, 9, Until::FreeBit) && !over(narrow, Width::Four, 0, Until::FreeBit));
        assert!(over(narrow, Width::Eight, 0, Until::FreeBit) && !over(6, Width::Eight, !6, Until::FreeBit));
    }
}
