//! Result of a sweep, as CSV: a table of `tests/results/sweep/`.

use super::cases::{Calls, Case, SCENARIOS};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Result of one case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// No fault was found, and the allocator worked after the planned failures.
    Recovered,
    /// No fault was found, and the allocator reported a lost context.
    Lost,
    /// The run made fewer calls than planned, so no call failed.
    NotReached,
    /// A fault was found; the text describes the fault.
    Wrong(String),
}

/// The cases of one function in one scenario.
#[derive(Default, Debug)]
struct FunctionRow {
    calls: u64,
    occurrences: BTreeSet<u64>,
    recovered: u64,
    lost: u64,
    not_reached: u64,
    wrong: u64,
}

impl FunctionRow {
    fn cells(&self) -> String {
        let Self { calls, occurrences, recovered, lost, not_reached, wrong } = self;
        let cases = recovered + lost + not_reached + wrong;
        format!("{calls},{},{cases},{recovered},{lost},{not_reached},{wrong}", occurrences.len())
    }
}

/// The results of all cases.
#[derive(Debug)]
pub(super) struct Table {
    rows: BTreeMap<(usize, String), FunctionRow>,
    done: usize,
}

impl Table {
    /// Creates a table with a row per function, without cases.
    pub(super) fn new(calls: &Calls) -> Self {
        let mut rows = BTreeMap::new();
        for (scenario, functions) in calls.iter().enumerate() {
            for (function, &calls) in functions {
                rows.insert((scenario, function.clone()), FunctionRow { calls, ..FunctionRow::default() });
            }
        }
        Self { rows, done: 0 }
    }

    /// Adds a case, and returns the number of cases so far.
    pub(super) fn add(&mut self, case: &Case, outcome: &Outcome) -> usize {
        let row = self.rows.entry((case.scenario, case.function.clone())).or_default();
        row.occurrences.insert(case.nth);
        let count = match outcome {
            Outcome::Recovered => &mut row.recovered,
            Outcome::Lost => &mut row.lost,
            Outcome::NotReached => &mut row.not_reached,
            Outcome::Wrong(_) => &mut row.wrong,
        };
        *count += 1;
        self.done += 1;
        self.done
    }

    /// Returns whether calls were failed and no fault was found.
    pub(super) fn is_good(&self) -> bool {
        let all = self.total();
        all.wrong == 0 && all.recovered > 0
    }

    fn total(&self) -> FunctionRow {
        self.rows.values().fold(FunctionRow::default(), |all, row| FunctionRow {
            calls: all.calls + row.calls,
            occurrences: BTreeSet::new(),
            recovered: all.recovered + row.recovered,
            lost: all.lost + row.lost,
            not_reached: all.not_reached + row.not_reached,
            wrong: all.wrong + row.wrong,
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "function,calls,occurrences failed,cases,worked again,context lost,not reached,wrong")?;
        let mut scenario = 0;
        for ((of, function), row) in self.rows.iter().filter(|(_, row)| !row.occurrences.is_empty()) {
            if *of != scenario {
                scenario = *of;
                writeln!(f, "*with `{}`*,,,,,,,", SCENARIOS[scenario].join(" "))?;
            }
            writeln!(f, "`{function}`,{}", row.cells())?;
        }
        let FunctionRow { calls, recovered, lost, not_reached, wrong, .. } = self.total();
        write!(f, "all,{calls},,{},{recovered},{lost},{not_reached},{wrong}", self.done)
    }
}
