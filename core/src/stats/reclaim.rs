//! What `reclaim:auto` has given back to the device, and what it keeps and why.

/// What [`maintain`](crate::Pages::maintain) has given back under `reclaim:auto` since the allocator was
/// created, and what became of it. The last six are of the latest call that looked at the heaps.
///
/// A *unit* is a wholly free segment, or a page of an expandable segment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReclaimStats {
    /// Calls that looked at the heaps.
    pub looks: u64,
    /// Bytes of the units given back.
    pub given_back: u64,
    /// The units given back.
    pub given_back_units: u64,
    /// Bytes of the units that were obtained in place of units given back.
    pub obtained_again: u64,
    /// The units that were obtained in place of units given back.
    pub obtained_again_units: u64,
    /// Units obtained again before the time had passed for which giving back is worth its cost. They
    /// make the following decisions more cautious.
    pub too_early_units: u64,
    /// The time of the driver's calls that gave units back, in microseconds.
    pub driver_us: u64,
    /// Units whose idle time has ended, from which the times to the next use are predicted.
    pub observed_units: u64,
    /// Bytes of idle units.
    pub idle: u64,
    /// Idle bytes that are needed too soon, as predicted, to be worth giving back.
    pub needed_soon: u64,
    /// Idle bytes that are worth giving back, and that the device may still use, or cannot take back
    /// without waiting for its work.
    pub busy: u64,
    /// Idle bytes that are worth giving back, and for which time or budget was lacking.
    pub unpaid: u64,
    /// The driver time that is left of the budget, in microseconds.
    pub budget_us: u64,
    /// By what the time that is worth the cost is multiplied, as a power of two. Rises with units
    /// obtained too early, and falls with units that were not.
    pub caution: u32,
}
