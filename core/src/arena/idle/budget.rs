//! The cost of giving a unit back and obtaining it again, and the budget of driver time.
//!
//! The costs are those of an H200 (driver 580), corrected by the times measured on the device in
//! use.

use crate::arena::heaps::units::UnitKind;
use crate::units::MIB;

/// The time of calls, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cost {
    /// The time to give a unit back.
    pub give: u64,
    /// The time to obtain the unit again.
    pub obtain: u64,
}

impl Cost {
    /// Returns the time of both.
    pub(super) fn both(self) -> u64 {
        self.give.saturating_add(self.obtain)
    }
}

/// The time for which an unspent budget is kept, in microseconds.
const KEPT_US: u64 = 60_000_000;

/// The shortest worthwhile time, in milliseconds. Memory that is needed sooner is of no use to
/// another process, because it takes as long to start.
const LEAST_MS: u64 = 5000;

/// The largest factor by which a driver may count as slower or faster than the H200's.
const MOST_PACE: f64 = 64.0;

/// The driver time that is left, and the pace of the driver.
#[derive(Debug)]
pub(super) struct Budget {
    /// The nanoseconds that may be spent.
    left: u64,
    /// The time of the device's driver relative to the H200's, by kind of unit.
    pace: [f64; 2],
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { left: 0, pace: [1.0; 2] }
    }

    /// Adds `share` of `us` microseconds that have passed.
    pub(super) fn earn(&mut self, us: u64, share: f64) {
        // The conversions round towards zero and saturate.
        let most = (KEPT_US as f64 * 1000.0 * share) as u64;
        self.left = self.left.saturating_add((us.min(KEPT_US) as f64 * 1000.0 * share) as u64).min(most);
    }

    /// Returns the nanoseconds left.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Subtracts the time of giving back and obtaining again from the budget.
    pub(super) fn spend(&mut self, ns: u64) {
        self.left = self.left.saturating_sub(ns);
    }

    /// Returns the estimated cost of a unit of `bytes`. A segment costs `cuMemFree` and
    /// `cuMemAlloc`. A page costs `cuMemUnmap` and `cuMemRelease`, and later `cuMemCreate`,
    /// `cuMemMap` and `cuMemSetAccess`.
    pub(super) fn cost(&self, kind: UnitKind, bytes: u64) -> Cost {
        let pace = self.pace[kind as usize];
        let at_pace = |ns: u64| (ns as f64 * pace) as u64;
        let mib = bytes / MIB;
        match kind {
            UnitKind::Segment => Cost { give: at_pace(25_000 + 330 * mib), obtain: at_pace(31_000 + 45 * mib) },
            UnitKind::Pages => Cost { give: at_pace(27_000 + 310 * mib), obtain: at_pace(33_000 + 23 * mib) },
        }
    }

    /// Notes that units with an estimated cost of `estimated` nanoseconds took `taken` to give
    /// back.
    pub(super) fn learn(&mut self, kind: UnitKind, estimated: u64, taken: u64) {
        if estimated > 0 && taken > 0 {
            let pace = &mut self.pace[kind as usize];
            let measured = *pace * taken as f64 / estimated as f64;
            *pace = (*pace * 0.875 + measured * 0.125).clamp(1.0 / MOST_PACE, MOST_PACE);
        }
    }
}

/// Returns the milliseconds for which a unit of `bytes`, out of `held` bytes in all, must not be
/// needed so that giving it back is worth `cost_ns`. This is the time in which the unit's part of
/// the budget pays the cost: if all memory is used once in this time, it uses up the whole budget.
/// At least [`LEAST_MS`].
pub(super) fn worth_ms(cost_ns: u64, bytes: u64, held: u64, share: f64) -> u64 {
    let part = bytes as f64 / held.max(bytes) as f64;
    // Saturates; a share of 0 pays nothing.
    ((cost_ns as f64 / (share * part) / 1e6) as u64).saturating_add(1).max(LEAST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_close_to_those_measured_on_an_h200() {
        let budget = Budget::new();
        // MiB, then the measured microseconds of cuMemFree and cuMemAlloc.
        for (mib, give, obtain) in [(2, 24, 31), (20, 32, 32), (200, 98, 49), (2000, 673, 113)] {
            let cost = budget.cost(UnitKind::Segment, mib * MIB);
            let near = |ns: u64, us: u64| (ns as f64 / 1000.0 / us as f64 - 1.0).abs() < 0.25;
            assert!(near(cost.give, give) && near(cost.obtain, obtain), "{mib} MiB: {cost:?}");
        }
        let page = budget.cost(UnitKind::Pages, 2 * MIB);
        assert!((55_000..65_000).contains(&page.both()), "{page:?}");
    }

    #[test]
    fn a_cost_grows_with_the_size_and_the_pace() {
        let mut budget = Budget::new();
        assert_eq!(budget.cost(UnitKind::Segment, 100 * MIB), Cost { give: 58_000, obtain: 35_500 });
        assert_eq!(budget.cost(UnitKind::Pages, 100 * MIB), Cost { give: 58_000, obtain: 35_300 });
        for (estimated, taken) in [(0, 100), (100, 0), (0, 0)] {
            budget.learn(UnitKind::Segment, estimated, taken);
        }
        assert_eq!(budget.cost(UnitKind::Segment, 0), Cost { give: 25_000, obtain: 31_000 }, "nothing was measured");
        // An eighth of twice the time.
        budget.learn(UnitKind::Segment, 100, 200);
        assert_eq!(budget.cost(UnitKind::Segment, 0), Cost { give: 28_125, obtain: 34_875 });
    }

    #[test]
    fn a_slower_driver_is_learned_and_bounded() {
        let mut budget = Budget::new();
        let before = budget.cost(UnitKind::Segment, 20 * MIB);
        for _ in 0..100 {
            let estimated = budget.cost(UnitKind::Segment, 20 * MIB).give;
            budget.learn(UnitKind::Segment, estimated, 4 * before.give);
        }
        let after = budget.cost(UnitKind::Segment, 20 * MIB);
        assert!(after.give.abs_diff(4 * before.give) < before.give / 10, "{after:?}");
        assert!(after.obtain > 3 * before.obtain);
        assert_eq!(
            budget.cost(UnitKind::Pages, 20 * MIB),
            Budget::new().cost(UnitKind::Pages, 20 * MIB),
            "the other kind"
        );
        (0..1000).for_each(|_| budget.learn(UnitKind::Segment, 1, u64::MAX));
        assert!(budget.cost(UnitKind::Segment, 0).give <= 25_000 * 64);
    }

    #[test]
    fn the_budget_is_a_share_of_the_time_and_is_kept_for_a_minute() {
        let mut budget = Budget::new();
        budget.earn(1_000_000, 0.01);
        assert_eq!(budget.left(), 10_000_000);
        budget.spend(4_000_000);
        assert_eq!(budget.left(), 6_000_000);
        (0..10).for_each(|_| budget.earn(3_600_000_000, 0.01));
        assert_eq!(budget.left(), 600_000_000);
        budget.spend(u64::MAX);
        assert_eq!(budget.left(), 0);
        budget.earn(1_000_000, 0.0);
        assert_eq!(budget.left(), 0);
    }

    #[test]
    fn the_worth_of_all_memory_is_the_whole_budget() {
        // 1000 units of 20 MiB that cost 60 µs each, once in the time that is worth it.
        let worth = worth_ms(60_000, 20 * MIB, 20_000 * MIB, 0.01);
        assert!((6000..=6001).contains(&worth), "{worth}");
        assert!((1000.0 * 0.06 / worth as f64 - 0.01).abs() < 0.001);
        assert_eq!(worth_ms(60_000, 20 * MIB, 20 * MIB, 0.01), LEAST_MS);
        assert_eq!(worth_ms(60_000, 20 * MIB, 2000 * MIB, 0.0), u64::MAX);
    }
}
