//! The figures of a candidate over several programs, and the rules for a recommendation.

use crate::judge::Cost;
use cachalot_core::MIB;

/// The quantity to minimise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Aim {
    /// The peak of reserved memory.
    Memory,
    /// The time in the driver.
    Time,
}

/// The limits of a recommendation. Both apply to every program.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Budget {
    /// The greatest average driver time of a request in microseconds, with [`Aim::Memory`]. The
    /// first 10 ms of a program do not count. A program that is above this limit with the baseline
    /// may take as long as with the baseline.
    pub us_per_request: f64,
    /// The most reserved memory as a multiple of that of the baseline, with [`Aim::Time`].
    pub memory_factor: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { us_per_request: 10.0, memory_factor: 1.0 }
    }
}

/// The size of a segment of the caching policy for several large blocks, in bytes.
const SEGMENT: u64 = 20 * MIB;

/// The figures of a candidate over several programs, compared with the baseline.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Summary {
    /// The geometric mean of reserved memory over that of the baseline, minus 1: -0.5 is half of
    /// the memory.
    pub memory_change: f64,
    /// The geometric mean of driver time over that of the baseline, minus 1.
    pub time_change: f64,
    /// The worst change of the minimised quantity in a program. A program with fewer failures than
    /// with the baseline does not count.
    pub worst_change: f64,
    /// The sum over the programs of the peaks of reserved memory, in bytes.
    pub reserved_bytes: u64,
    /// The average driver time of a request, in microseconds.
    pub us_per_request: f64,
    /// The number of requests that failed because there was no memory.
    pub ooms: u64,
    /// The costs of each program, in the order of the programs.
    pub programs: Vec<Cost>,
}

/// The reason why a candidate is recommended, or why it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Note {
    /// The candidate is the baseline.
    Baseline,
    /// The candidate is recommended.
    Best,
    /// Another candidate is better, or simpler.
    Behind,
    /// A program exceeds the budget.
    OverBudget,
    /// A seen program becomes worse by more than is allowed.
    Worse,
    /// The programs held back gain nothing, or one of them cannot be run, becomes worse by more
    /// than is allowed, or exceeds the budget.
    Unconfirmed,
}

impl Aim {
    /// Returns the minimised quantity. Driver time gets an extra microsecond, so that no time is
    /// zero.
    fn of(self, cost: &Cost) -> f64 {
        match self {
            Self::Memory => cost.reserved_bytes.max(1) as f64,
            Self::Time => time(cost),
        }
    }
}

fn time(cost: &Cost) -> f64 {
    cost.driver_ns.saturating_sub(cost.start_ns) as f64 + 1000.0
}

/// Returns the mean of the natural logarithms of `of(cost) / of(base)`.
fn mean_log(costs: &[Cost], base: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let sum: f64 = costs.iter().zip(base).map(|(cost, base)| (of(cost) / of(base)).ln()).sum();
    sum / costs.len().max(1) as f64
}

/// Sums up costs and compares them with the baseline.
pub(crate) fn summary(costs: &[Cost], base: &[Cost], aim: Aim) -> Summary {
    let compared = costs.iter().zip(base).filter(|(cost, base)| cost.ooms >= base.ooms);
    let worst = compared.map(|(cost, base)| aim.of(cost) / aim.of(base) - 1.0);
    let sum = |of: fn(&Cost) -> u64| costs.iter().map(of).sum::<u64>();
    Summary {
        memory_change: mean_log(costs, base, |cost| Aim::Memory.of(cost)).exp_m1(),
        time_change: mean_log(costs, base, time).exp_m1(),
        worst_change: worst.reduce(f64::max).unwrap_or(0.0),
        reserved_bytes: sum(|cost| cost.reserved_bytes),
        us_per_request: sum(|cost| cost.driver_ns.saturating_sub(cost.start_ns)) as f64
            / 1000.0
            / sum(|cost| cost.requests.saturating_sub(cost.start_requests)).max(1) as f64,
        ooms: sum(|cost| cost.ooms),
        programs: costs.to_vec(),
    }
}

/// Returns the mean logarithm of the minimised quantity over the baseline. Less is better.
pub(crate) fn score(costs: &[Cost], base: &[Cost], aim: Aim) -> f64 {
    mean_log(costs, base, |cost| aim.of(cost))
}

/// Returns the mean logarithm of the other resource over the baseline.
pub(crate) fn spent(costs: &[Cost], base: &[Cost], aim: Aim) -> f64 {
    let other = if aim == Aim::Memory { Aim::Time } else { Aim::Memory };
    mean_log(costs, base, |cost| other.of(cost))
}

/// Returns whether a candidate exceeds the budget in some program. A program with fewer failures
/// may spend more.
pub(crate) fn is_over_budget(costs: &[Cost], base: &[Cost], aim: Aim, budget: Budget) -> bool {
    let mut compared = costs.iter().zip(base).filter(|(cost, base)| cost.ooms >= base.ooms);
    compared.any(|(cost, base)| match aim {
        Aim::Memory => {
            let most = budget.us_per_request.max(base.us_per_request_after_start());
            cost.us_per_request_after_start() > most
        }
        Aim::Time => cost.reserved_bytes as f64 > base.reserved_bytes as f64 * budget.memory_factor,
    })
}

/// Returns whether a candidate makes a program worse, by more than the part `most` or with more
/// failed requests. A program with fewer failures may need more.
pub(crate) fn is_worse(costs: &[Cost], base: &[Cost], aim: Aim, most: f64) -> bool {
    costs.iter().zip(base).any(|(cost, base)| {
        let harm = aim.of(cost) > aim.of(base) * (1.0 + most);
        cost.ooms > base.ooms || (cost.ooms == base.ooms && harm)
    })
}

/// Returns the costs of a seen program without a difference of less than a segment: less than 20
/// MiB more is the granularity of a policy and not a loss. Without this, a small program would
/// exclude every setting. Held-back programs have no such allowance.
pub(crate) fn without_granularity(cost: &Cost, base: &Cost) -> Cost {
    let is_near = cost.reserved_bytes > base.reserved_bytes && cost.reserved_bytes - base.reserved_bytes < SEGMENT;
    Cost { reserved_bytes: if is_near { base.reserved_bytes } else { cost.reserved_bytes }, ..*cost }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cost of a program that takes 10 ms in the driver only for its start.
    fn cost(reserved_bytes: u64, driver_us: u64, ooms: u64) -> Cost {
        Cost { reserved_bytes, driver_ns: (10_000 + driver_us) * 1000, ooms, requests: 10, ..Cost::default() }
    }

    #[test]
    fn harm_begins_above_one_percent_of_any_program() {
        let base = [cost(1000, 10, 0), cost(5000, 10, 0)];
        let worse = |other| is_worse(&[cost(100, 99, 0), other], &base, Aim::Memory, 0.01);
        assert!(!worse(cost(5050, 99, 0)) && worse(cost(5051, 0, 0)));
        assert!(worse(cost(100, 0, 1)), "a failed request is worse than any memory");
        let failing = [cost(1000, 10, 2)];
        assert!(!is_worse(&[cost(2000, 10, 1)], &failing, Aim::Memory, 0.01), "a failed request less may need memory");
        assert!(is_worse(&[cost(1, 212, 0)], &base[..1], Aim::Time, 0.01));
    }

    #[test]
    fn a_budget_holds_for_each_program() {
        let base = [cost(1000, 10, 0), cost(1000, 900, 0)];
        let budget = Budget { us_per_request: 5.0, memory_factor: 1.1 };
        let over = |costs: [Cost; 2], aim| is_over_budget(&costs, &base, aim, budget);
        // Ten requests in each: 5 µs for each are 50 µs. The second one has 90 µs with the
        // baseline.
        assert!(!over([cost(1, 50, 0), cost(1, 900, 0)], Aim::Memory));
        assert!(over([cost(1, 51, 0), cost(1, 900, 0)], Aim::Memory));
        assert!(over([cost(1, 1, 0), cost(1, 901, 0)], Aim::Memory));
        assert!(!over([cost(1100, 0, 0), cost(1, 0, 0)], Aim::Time));
        assert!(over([cost(1101, 0, 0), cost(1, 0, 0)], Aim::Time));
    }

    #[test]
    fn a_program_that_fails_less_often_has_no_budget() {
        let base = [cost(1000, 10, 2)];
        let budget = Budget { us_per_request: 5.0, memory_factor: 1.0 };
        assert!(is_over_budget(&[cost(1, 900, 2)], &base, Aim::Memory, budget));
        assert!(!is_over_budget(&[cost(1, 900, 1)], &base, Aim::Memory, budget));
    }

    #[test]
    fn less_than_a_segment_more_is_no_harm_in_a_program_seen() {
        let base = cost(100 * MIB, 0, 0);
        let with = |mib: u64| without_granularity(&cost(mib * MIB, 0, 0), &base).reserved_bytes / MIB;
        assert_eq!([with(90), with(100), with(119), with(120)], [90, 100, 100, 120]);
    }

    #[test]
    fn means_are_geometric() {
        let base = [cost(100, 9, 0), cost(400, 9, 0)];
        let summary = summary(&[cost(200, 9, 1), cost(50, 9, 0)], &base, Aim::Memory);
        assert!((summary.memory_change + 0.5).abs() < 1e-12, "{summary:?}");
        assert!(summary.time_change.abs() < 1e-12 && (summary.worst_change - 1.0).abs() < 1e-12);
        assert_eq!((summary.reserved_bytes, summary.ooms), (250, 1));
        assert!((summary.us_per_request - 1000.9).abs() < 1e-9);
    }
}
