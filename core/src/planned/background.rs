//! Planning in the background: computes plans from an observation, on any thread, without an
//! allocator.

use super::recorder::Observed;
use alloc::vec::Vec;
use cachalot_planner::portfolio::Portfolio;
use cachalot_planner::{Plan, Watch};

/// Decides when the portfolio stops.
struct Deadline<'a> {
    /// Returns whether the caller's deadline has passed.
    is_late: &'a dyn Fn() -> bool,
    /// Returns whether the caller no longer wants plans.
    is_abandoned: &'a dyn Fn() -> bool,
    /// Whether every stream has a plan. Until then the deadline does not count.
    served: bool,
}

impl Watch for Deadline<'_> {
    fn stop(&self) -> bool {
        (self.is_abandoned)() || self.served && (self.is_late)()
    }
}

impl Observed {
    /// Computes a plan for each stream with the [portfolio](Portfolio), and improves the plans
    /// until `is_late` returns true. The first plan of each stream is computed in any case. Returns
    /// `None` if `is_abandoned` returned true.
    pub fn plan(&self, is_late: &dyn Fn() -> bool, is_abandoned: &dyn Fn() -> bool) -> Option<Vec<Plan>> {
        let mut deadline = Deadline { is_late, is_abandoned, served: false };
        let mut portfolios: Vec<Portfolio<'_>> =
            self.streams.iter().map(|stream| Portfolio::new(&stream.problem)).collect();
        let mut more = true;
        while more && !deadline.stop() {
            more = false;
            // The streams take turns, so that one that is hard to plan does not hold up the others.
            for portfolio in &mut portfolios {
                more |= portfolio.step(&mut deadline);
            }
            deadline.served = portfolios.iter().all(|portfolio| portfolio.best().is_some());
        }
        let plans = portfolios.into_iter().map(Portfolio::into_best).collect();
        if is_abandoned() { None } else { plans }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::planned::recorder::Log;
    use crate::units::StreamId;
    use cachalot_planner::verify;
    use core::cell::Cell;

    /// Two streams whose blocks overlap in time, too many for a first plan to be the best.
    fn observed() -> Observed {
        let mut log = Log::default();
        let mut number: u64 = 1;
        for request in 0..300 {
            number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            log.malloc(StreamId(request % 2), 512 * (1 + (number >> 40) % 90), 4096 * request);
            log.free(4096 * (number >> 33).rem_euclid(request + 1));
        }
        (0..300).for_each(|request| log.free(4096 * request));
        log.finish(1).unwrap()
    }

    #[test]
    fn a_late_caller_gets_a_plan_for_each_stream_even_so() {
        let observed = observed();
        let plans = observed.plan(&|| true, &|| false).unwrap();
        assert_eq!(plans.len(), 2);
        for (stream, plan) in observed.streams.iter().zip(&plans) {
            verify(&stream.problem, plan).unwrap();
        }
    }

    #[test]
    fn the_search_goes_on_until_the_caller_is_late() {
        let looks = Cell::new(0);
        let late_after = |most: u32| {
            looks.set(0);
            let is_late = || {
                looks.set(looks.get() + 1);
                looks.get() > most
            };
            observed().plan(&is_late, &|| false).unwrap();
            looks.get()
        };
        assert!(late_after(50) > late_after(0), "a later deadline");
    }

    #[test]
    fn an_abandoned_search_has_no_plan() {
        assert_eq!(observed().plan(&|| false, &|| true), None);
        // Abandoned in the middle.
        let looks = Cell::new(0);
        let is_abandoned = || {
            looks.set(looks.get() + 1);
            looks.get() > 2
        };
        assert_eq!(observed().plan(&|| false, &is_abandoned), None);
    }
}
