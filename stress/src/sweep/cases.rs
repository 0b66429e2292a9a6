//! Cases of the fault sweep: the call that fails, when, how, and with which code.

use crate::options::{Faults, Occurrences, SweepOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Arguments of the small runs. Together the runs make every driver call of the allocator, most of
/// them more than 200 times.
pub(super) const SCENARIOS: [&[&str]; 6] = [
    &[],
    &["--config", "expandable_segments:True"],
    &["--config", "policy:stitched,slack:0"],
    &["--config", "expandable_segments:True,spill:1.0", "--limit-mib", "70"],
    &["--config", "policy:stitched,slack:0,spill:1.0", "--limit-mib", "70"],
    &["--identity", "asked"],
];

/// Number of calls of each driver function without faults, by scenario.
pub(super) type Calls = Vec<BTreeMap<String, u64>>;

/// One run with a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Case {
    pub(super) scenario: usize,
    pub(super) function: String,
    /// The occurrence that fails. If `persistent`, all later occurrences fail too.
    pub(super) nth: u64,
    pub(super) persistent: bool,
    pub(super) when: Faults,
    pub(super) code: u32,
}

/// Manners of failure: persistent or not, and when.
const MANNERS: [(bool, Faults); 4] =
    [(false, Faults::Before), (true, Faults::Before), (false, Faults::After), (true, Faults::After)];
/// Codes of failure: `CUDA_ERROR_UNKNOWN`; `CUDA_ERROR_ILLEGAL_ADDRESS`, which loses the context;
/// `CUDA_ERROR_DEINITIALIZED`, after which the driver must not be called.
const CODES: [u32; 3] = [999, 700, 4];
/// `CUDA_ERROR_OUT_OF_MEMORY`, for [`OBTAINING`] only.
const OUT_OF_MEMORY: u32 = 2;
/// The functions that can run out of memory.
const OBTAINING: [&str; 7] = [
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuEventCreate",
    "cuStreamCreate",
];

impl Case {
    /// Returns the case as a fault plan of the emulated driver.
    pub(super) fn plan(&self) -> Value {
        let Self { function, nth, persistent, when, code, .. } = self;
        json!([{"fn": function, "nth": nth, "persistent": persistent, "when": when.name(), "code": code}])
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", SCENARIOS[self.scenario].join(" "), self.plan())
    }
}

/// Lists all cases. In the scenario with most calls of a function, all requested occurrences fail;
/// in the other scenarios, some occurrences fail.
pub(super) fn cases(options: &SweepOptions, calls: &Calls) -> Vec<Case> {
    let mut cases = Vec::new();
    for (scenario, functions) in calls.iter().enumerate() {
        for (function, &count) in functions {
            if !options.function.is_empty() && !options.function.contains(function) {
                continue;
            }
            let every = if main_scenario(calls, function, options.most) == scenario { options.most } else { 0 };
            let chosen = match options.occurrences {
                Occurrences::All => occurrences(count, every),
                Occurrences::Some => occurrences(count, 0),
            };
            for (place, nth) in chosen.into_iter().enumerate() {
                cases_at(scenario, function, nth, place, &mut cases);
            }
        }
    }
    cases
}

/// Returns the scenario with most calls of a function, and the first of several. Calls beyond
/// `most` do not count.
fn main_scenario(calls: &Calls, function: &str, most: u64) -> usize {
    let count = |scenario: usize| calls[scenario].get(function).map_or(0, |&count| count.min(most));
    (0..calls.len()).rev().max_by_key(|&scenario| count(scenario)).unwrap_or(0)
}

/// Adds the cases of one occurrence. `place` is the index of the occurrence among the failed
/// occurrences.
fn cases_at(scenario: usize, function: &str, nth: u64, place: usize, cases: &mut Vec<Case>) {
    for (turn, (persistent, when)) in MANNERS.into_iter().enumerate() {
        // Out of memory is impossible after an effect: the memory was available.
        let more = (OBTAINING.contains(&function) && when == Faults::Before).then_some(OUT_OF_MEMORY);
        let codes: Vec<u32> = CODES.into_iter().chain(more).collect();
        // One code per case, in turn, such that each code meets each manner.
        let code = codes[(place + turn / 2) % codes.len()];
        cases.push(Case { scenario, function: function.to_owned(), nth, persistent, when, code });
    }
}

/// Selects from `count` occurrences: the first `every`, the Fibonacci numbers beyond, and the last.
fn occurrences(count: u64, every: u64) -> Vec<u64> {
    let fibonacci = std::iter::successors(Some((1, 2)), |&(a, b)| Some((b, a + b))).map(|(a, _)| a);
    let beyond = fibonacci.take_while(|&nth| nth < count).filter(|&nth| nth > every);
    let last = (count > every).then_some(count);
    (1..=every.min(count)).chain(beyond).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::{main_scenario, occurrences};

    #[test]
    fn the_first_occurrences_are_all_chosen_and_some_beyond() {
        assert_eq!(occurrences(3, 5), [1, 2, 3]);
        assert_eq!(occurrences(5, 5), [1, 2, 3, 4, 5]);
        assert_eq!(occurrences(30, 5), [1, 2, 3, 4, 5, 8, 13, 21, 30]);
        assert_eq!(occurrences(1, 0), [1]);
        assert_eq!(occurrences(4, 0), [1, 2, 3, 4]);
    }

    #[test]
    fn a_function_is_failed_most_where_it_is_called_most() {
        let scenario = |often: u64, seldom: u64| [("often".to_owned(), often), ("seldom".to_owned(), seldom)].into();
        let calls = vec![scenario(300, 4), scenario(900, 70)];
        assert_eq!(main_scenario(&calls, "often", 200), 0);
        assert_eq!(main_scenario(&calls, "seldom", 200), 1);
    }
}
