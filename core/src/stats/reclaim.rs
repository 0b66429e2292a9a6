//! Figures of `reclaim:auto`: memory given back to the device, and memory kept.

use crate::sync::impl_empty;

/// Memory given back by [`maintain`](crate::Pages::maintain) under `reclaim:auto` since the
/// allocator was created, and obtained again. The last six figures are of the latest look at the
/// heaps.
///
/// A *unit* is a wholly free segment, or a page of an expandable segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimStats {
    /// Looks at the heaps.
    pub looks: u64,
    /// Bytes of the units given back.
    pub given_back: u64,
    /// The units given back.
    pub given_back_units: u64,
    /// Bytes of the units obtained in place of units given back.
    pub obtained_again: u64,
    /// The units obtained in place of units given back.
    pub obtained_again_units: u64,
    /// Units obtained again before the time had passed for which giving back is worth the cost.
    /// They make the following decisions more cautious.
    pub too_early_units: u64,
    /// The time of the driver's calls for giving back, in microseconds.
    pub driver_us: u64,
    /// Units whose idle time has ended, from which the times to the next use are predicted.
    pub observed_units: u64,
    /// Bytes of idle units.
    pub idle: u64,
    /// Idle bytes with a predicted use too soon to be worth giving back.
    pub needed_soon: u64,
    /// Worthwhile idle bytes, perhaps still used by the device, or impossible to release
    /// without a wait.
    pub busy: u64,
    /// Worthwhile idle bytes for which time or budget was lacking.
    pub unpaid: u64,
    /// The driver time left of the budget, in microseconds.
    pub budget_us: u64,
    /// The factor of the worthwhile time, as a power of two. Rises with units
    /// obtained too early, and falls with units left away.
    pub caution: u32,
}

impl_empty! {
    ReclaimStats {
        looks,
        given_back,
        given_back_units,
        obtained_again,
        obtained_again_units,
        too_early_units,
        driver_us,
        observed_units,
        idle,
        needed_soon,
        busy,
        unpaid,
        budget_us,
        caution,
    }
}
