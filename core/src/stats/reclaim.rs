//! The figures of `reclaim:auto`: how much memory was given back to the device, and how much was
//! kept.

use crate::sync::impl_empty;

/// The memory that [`maintain`](crate::Pages::maintain) gave back under `reclaim:auto` since the
/// allocator was created, and that was obtained again. The last six figures are from the latest
/// look at the heaps.
///
/// A *unit* is a completely free segment, or a page of an expandable segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimStats {
    /// How often `maintain` looked at the heaps.
    pub looks: u64,
    /// Bytes of the units that were given back.
    pub given_back: u64,
    /// Units that were given back.
    pub given_back_units: u64,
    /// Bytes of the units that were obtained to replace units given back.
    pub obtained_again: u64,
    /// Units that were obtained to replace units given back.
    pub obtained_again_units: u64,
    /// Units that were obtained again too early, before giving them back had paid off. They make
    /// later decisions more cautious.
    pub too_early_units: u64,
    /// The time that the driver's calls for giving back took, in microseconds.
    pub driver_us: u64,
    /// Idle units that were used again. The time to the next use is predicted from them.
    pub observed_units: u64,
    /// Bytes of idle units.
    pub idle: u64,
    /// Idle bytes that are kept because they will probably be used too soon to be worth giving
    /// back.
    pub needed_soon: u64,
    /// Idle bytes that are worth giving back, but that the device may still use, or that cannot be
    /// released without a wait.
    pub busy: u64,
    /// Idle bytes that are worth giving back, but for which there was no time or budget.
    pub unpaid: u64,
    /// The driver time left in the budget, in microseconds.
    pub budget_us: u64,
    /// By how much the idle time that makes giving back worthwhile is multiplied, as a power of
    /// two. It rises when units are obtained again too early, and falls when units stay given back.
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
