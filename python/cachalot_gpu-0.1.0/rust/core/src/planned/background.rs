//! Planning in the background: computes plans from an observation, on any thread, without an
//! allocator.

use super::recorder::Observed;
use alloc::vec::Vec;
use cachalot_planner::portfolio::Portfolio;
use cachalot_planner::{Plan, Watch};

/// Decides when the portfolio stops.
struct Deadline<'a> {
    /// The caller's deadline has passed.
    is_late: &'a dyn Fn() -> bool,
    /// The caller no longer wants plans.
    is_abandoned: &'a dyn Fn() -> bool,
    /// Every stream has a plan. Before that the deadline does not count.
    served: bool,
}

impl Watch for Deadline<'_> {
    fn stop(&self) -> bool {
        (self.is_abandoned)() || self.served && (self.is_late)()
    }
}

impl Observed {
    /// Computes a plan for each stream with the [portfolio](Portfolio), improving until `is_late`
    /// returns true. The first plan of each stream is computed in any case. Returns `None` if
    /// `is_abandoned` returned true.
    pub fn plan(&self, is_late: &dyn Fn() -> bool, is_abandoned: &dyn Fn() -> bool) -> Option<Vec<Plan>> {
        let mut deadline = Deadline { is_late, is_abandoned, served: false };
        let mut portfolios: Vec<Portfolio<'_>> =
            self.streams.iter().map(|stream| Portfolio::new(&stream.problem)).collect();
        let mut more = true;
        while more && !deadline.stop() {
            more = false;
            // In turns, so that a stream that is hard to plan does not keep the other streams
            // waiting.
            for portfolio in &mut portfolios {
                more |= portfolio.step(&mut deadline);
            }
            deadline.served = portfolios.iter().all(|portfolio| portfolio.best().is_some());
        }
        let plans = portfolios.into_iter().map(Portfolio::into_best).collect();
        if is_abandoned() { None } else { plans }
    }
}
