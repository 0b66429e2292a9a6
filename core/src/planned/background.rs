//! Plans for what was observed, by whoever has the time: nothing here knows of allocators.

use super::recorder::Observed;
use alloc::vec::Vec;
use cachalot_planner::portfolio::Portfolio;
use cachalot_planner::{Plan, Watch};

/// Who is not to be kept waiting.
struct Patience<'a> {
    is_late: &'a dyn Fn() -> bool,
    is_abandoned: &'a dyn Fn() -> bool,
    /// There is a plan for every stream already.
    served: bool,
}

impl Watch for Patience<'_> {
    fn stop(&self) -> bool {
        (self.is_abandoned)() || self.served && (self.is_late)()
    }
}

impl Observed {
    /// The best plan for each stream that the [portfolio](Portfolio) finds before `is_late` says that it is; the first of each is
    /// waited for in any case. `None` if it was abandoned.
    pub fn plan(&self, is_late: &dyn Fn() -> bool, is_abandoned: &dyn Fn() -> bool) -> Option<Vec<Plan>> {
        let mut patience = Patience { is_late, is_abandoned, served: false };
        let mut portfolios: Vec<Portfolio<'_>> =
            self.streams.iter().map(|stream| Portfolio::new(&stream.problem)).collect();
        let mut more = true;
        while more && !patience.stop() {
            more = false;
            // By turns, so that a stream that is hard to plan keeps none of the others waiting.
            for portfolio in &mut portfolios {
                more |= portfolio.step(&mut patience);
            }
            patience.served = portfolios.iter().all(|portfolio| portfolio.best().is_some());
        }
        let plans = portfolios.into_iter().map(Portfolio::into_best).collect();
        if is_abandoned() { None } else { plans }
    }
}
