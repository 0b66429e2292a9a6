//! The fault sweep: every driver call that a small run makes is failed at its n-th occurrence, once or for good, before or
//! after it acted, by several codes; each in a process of its own, which must end in order and say that nothing was wrong.

use crate::options::{Faults, Occurrences, SweepOptions};
use cachalot_emulated_driver::install::built_library;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The small runs. Between them they make every driver call that the allocator makes, most of them more than 200 times.
const SCENARIOS: [&[&str]; 2] = [&[], &["--config", "expandable_segments:True"]];

/// What the runs have in common: small enough to be run some ten thousand times.
const RUN: [&str; 18] = [
    "--ops", "1200", "--threads", "1", "--streams", "3", "--devices", "2", "--disturb", "12", "--round", "300", "--batch",
    "8", "--blocks", "60", "--max-mib", "8",
];

/// What the emulated driver is told beside the faults: work is done in the order of the seed, so that a run repeats itself.
const DRIVER: [(&str, &str); 5] = [
    ("CACHALOT_EMU_STEP", "1"),
    ("CACHALOT_EMU_DEVICES", "2"),
    ("CACHALOT_EMU_MEMORY", "100663296"),
    ("CACHALOT_EMU_POISON", "off"),
    ("CACHALOT_EMU_ADDRESS_SPACE", "68719476736"),
];

/// Unknown; illegal address, which is for good.
const CODES: [u32; 2] = [999, 700];
/// Out of memory, for calls that can say so.
const OUT_OF_MEMORY: u32 = 2;
/// Those calls.
const OBTAINING: [&str; 7] = [
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuEventCreate",
    "cuStreamCreate",
];
/// Occurrences are swept up to this many by default; a scenario that makes fewer calls of each says so.
const LONGEST_S: &str = "120";

/// One run with a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Case {
    scenario: usize,
    function: String,
    nth: u64,
    persistent: bool,
    when: Faults,
    code: u32,
}

/// What the sweep comes to.
#[derive(Default, Debug)]
struct Tally {
    done: usize,
    hit: usize,
    lost: usize,
    failures: Vec<String>,
}

/// Sweeps, and prints what came of it.
pub(crate) fn sweep(options: &SweepOptions) -> ExitCode {
    let library = match std::env::var_os(cachalot_cuda::driver::LIBRARY_VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => match built_library() {
            Ok(path) => path,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(super::NOT_BEGUN);
            }
        },
    };
    let sweep = Sweep { options, library };
    match sweep.cases() {
        Ok(cases) => sweep.run(&cases),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct Sweep<'a> {
    options: &'a SweepOptions,
    library: PathBuf,
}

impl Sweep<'_> {
    /// A small run in a process of its own.
    fn child(&self, scenario: usize, extra: &[&str], plan: Option<&Value>) -> Result<Output, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", LONGEST_S]).arg(program);
        command.args(["--json", "--hold-us", "20", "--seed", &self.options.seed.to_string()]).args(RUN);
        command.args(SCENARIOS[scenario]).args(extra).envs(DRIVER);
        command.env(cachalot_cuda::driver::LIBRARY_VARIABLE, &self.library);
        if let Some(plan) = plan {
            command.env("CACHALOT_EMU_PLAN", plan.to_string());
        }
        command.output().map_err(|error| error.to_string())
    }

    /// Every case: what the runs call without faults, and how often, says which there are.
    fn cases(&self) -> Result<Vec<Case>, String> {
        let mut cases = Vec::new();
        for scenario in 0..SCENARIOS.len() {
            let output = self.child(scenario, &[], None)?;
            let report: Value = serde_json::from_slice(&output.stdout)
                .map_err(|_| format!("a run without faults fails: {}", text(&output)))?;
            let calls: BTreeMap<String, u64> =
                serde_json::from_value(report["driver_calls"].clone()).map_err(|error| error.to_string())?;
            if calls.is_empty() || !output.status.success() {
                return Err(format!("the driver is not the emulated one, or fails: {}", text(&output)));
            }
            println!("scenario {scenario}: {} functions, calls {calls:?}", calls.len());
            for (function, count) in calls {
                if self.options.function.as_ref().is_none_or(|only| *only == function) {
                    self.cases_of(scenario, &function, count, &mut cases);
                }
            }
        }
        Ok(cases)
    }

    /// The cases of one function that is called so often.
    fn cases_of(&self, scenario: usize, function: &str, count: u64, cases: &mut Vec<Case>) {
        let mut codes = CODES.to_vec();
        if OBTAINING.contains(&function) {
            codes.push(OUT_OF_MEMORY);
        }
        for (place, nth) in self.occurrences(count).into_iter().enumerate() {
            for (turn, (persistent, when)) in
                [(false, Faults::Before), (true, Faults::Before), (false, Faults::After), (true, Faults::After)]
                    .into_iter()
                    .enumerate()
            {
                for (which, &code) in codes.iter().enumerate() {
                    // One code in turn, such that each meets each manner.
                    if self.options.every_code || which == (place + turn / 2) % codes.len() {
                        cases.push(Case { scenario, function: function.to_owned(), nth, persistent, when, code });
                    }
                }
            }
        }
    }

    /// Which occurrences of a call are failed.
    fn occurrences(&self, count: u64) -> Vec<u64> {
        let most = count.min(self.options.most);
        if self.options.occurrences == Occurrences::All {
            return (1..=most).collect();
        }
        let fibonacci = std::iter::successors(Some((1, 2)), |&(a, b)| Some((b, a + b))).map(|(a, _)| a);
        let mut some: Vec<u64> = fibonacci.take_while(|&nth| nth < most).collect();
        some.push(most);
        some
    }

    /// Runs every case, several at once.
    fn run(&self, cases: &[Case]) -> ExitCode {
        let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
        std::thread::scope(|scope| {
            for _ in 0..self.options.jobs {
                scope.spawn(|| {
                    while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = self.judge(case);
                        let mut tally = tally.lock();
                        tally.add(case, outcome);
                        if tally.done.is_multiple_of(1000) {
                            println!("{} of {} cases, {} failures", tally.done, cases.len(), tally.failures.len());
                        }
                    }
                });
            }
        });
        let Tally { done, hit, lost, failures } = tally.into_inner();
        println!("{done} cases, {hit} with faults, {lost} of which lost a context, {} failures", failures.len());
        if failures.is_empty() && hit > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Runs one case and says what came of it: the run's report, or what is wrong.
    fn judge(&self, case: &Case) -> Result<Value, String> {
        let plan = json!([{
            "fn": case.function,
            "nth": case.nth,
            "persistent": case.persistent,
            "when": case.when.name(),
            "code": case.code,
        }]);
        let output = self.child(case.scenario, &["--faults", case.when.name()], Some(&plan))?;
        let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        match report {
            Some(report) if output.status.success() => Ok(report),
            _ => Err(format!("{}: {}", output.status, text(&output))),
        }
    }
}

impl Tally {
    fn add(&mut self, case: &Case, outcome: Result<Value, String>) {
        self.done += 1;
        match outcome {
            Ok(report) => {
                self.hit += usize::from(report["faults"].as_u64() > Some(0));
                self.lost += usize::from(!report["lost"].is_null());
            }
            Err(why) => {
                println!("{case:?}: {why}");
                self.failures.push(why);
            }
        }
    }
}

/// What a process said, the beginning of it.
fn text(output: &Output) -> String {
    let said: String = String::from_utf8_lossy(&output.stderr).into_owned();
    said.lines().take(12).map(|line| line.chars().take(400).collect::<String>()).collect::<Vec<_>>().join("\n  ")
}
