//! A small run in a separate process: arguments, and evaluation of the result.

use super::cases::{Case, SCENARIOS};
use super::table::Outcome;
use cachalot_cuda::driver::LIBRARY_VARIABLE;
use cachalot_emulated_driver::install::install;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Arguments common to all runs: small enough for some ten thousand runs.
const RUN: &str = "--json --ops 1500 --threads 1 --streams 3 --devices 2 --disturb 2 --round 100 --batch 4 --blocks 30 \
                   --max-mib 2 --hold-us 0";

/// Settings of the emulated driver besides the faults. Work is done in the order of the seed, so
/// that a run is repeatable. Addresses taken by a failed call are not returned: the address space
/// suffices for 1,500 failures.
const DRIVER: [(&str, &str); 5] = [
    ("CACHALOT_EMU_STEP", "1"),
    ("CACHALOT_EMU_DEVICES", "2"),
    ("CACHALOT_EMU_MEMORY", "100663296"),
    ("CACHALOT_EMU_POISON", "off"),
    ("CACHALOT_EMU_ADDRESS_SPACE", "1099511627776"),
];

/// Time limit in seconds; a longer run counts as a hang.
const LONGEST_S: &str = "60";

/// Result of a run on a driver without a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Without {
    /// No fault was found.
    Worked,
    /// The run did not start, and printed the reason.
    Refused,
}

/// Starts the small runs.
#[derive(Debug)]
pub(super) struct Child {
    /// Path of the emulated driver.
    pub(super) library: PathBuf,
    pub(super) seed: u64,
}

impl Child {
    fn run(&self, scenario: usize, case: Option<&Case>) -> Result<Output, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", LONGEST_S]).arg(program).args(RUN.split_whitespace());
        command.args(["--seed", &self.seed.to_string()]).args(SCENARIOS[scenario]);
        command.envs(DRIVER).env(LIBRARY_VARIABLE, &self.library);
        if let Some(case) = case {
            command.args(["--faults", case.when.name()]).env("CACHALOT_EMU_PLAN", case.plan().to_string());
        }
        command.output().map_err(|error| format!("timeout: {error}"))
    }

    /// Counts the calls of each driver function in a run without faults.
    ///
    /// # Errors
    /// The failure of the run without faults.
    pub(super) fn calls(&self, scenario: usize) -> Result<BTreeMap<String, u64>, String> {
        let output = self.run(scenario, None)?;
        let report: Option<Value> = serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success());
        let calls = report.and_then(|report| serde_json::from_value(report["driver_calls"].clone()).ok());
        calls
            .filter(|calls: &BTreeMap<_, _>| !calls.is_empty())
            .ok_or_else(|| format!("the driver is not the emulated one, or fails: {}", text(&output)))
    }

    /// Runs every scenario on a driver without a function. Each run must work, or must not start
    /// and print the reason.
    ///
    /// # Errors
    /// A description of any other result.
    pub(super) fn judge_without(&self, function: &str) -> Result<Without, String> {
        let folder = std::env::temp_dir().join(format!("cachalot-stress-{}-{function}", std::process::id()));
        let library = install(&folder, &[function]).map_err(|error| error.to_string())?;
        let child = Self { library, seed: self.seed };
        let outcomes =
            (0..SCENARIOS.len()).map(|scenario| child.run(scenario, None).and_then(|output| without(&output)));
        let outcomes: Result<Vec<_>, _> = outcomes.collect();
        // Ignore a failure: no code depends on the folder.
        let _removed = std::fs::remove_dir_all(&folder);
        Ok(if outcomes?.contains(&Without::Refused) { Without::Refused } else { Without::Worked })
    }

    /// Runs one case, and evaluates the result.
    pub(super) fn judge(&self, case: &Case) -> Outcome {
        let output = match self.run(case.scenario, Some(case)) {
            Ok(output) => output,
            Err(why) => return Outcome::Wrong(why),
        };
        let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        match report {
            Some(report) if output.status.success() && !report["lost"].is_null() => Outcome::Lost,
            Some(report) if output.status.success() && report["faults"].as_u64() > Some(0) => Outcome::Recovered,
            Some(_) if output.status.success() => Outcome::NotReached,
            _ => Outcome::Wrong(format!("{}: {}", output.status, text(&output))),
        }
    }
}

/// Evaluates a run on a driver without a function.
fn without(output: &Output) -> Result<Without, String> {
    match output.status.code() {
        Some(0) => Ok(Without::Worked),
        Some(status) if status == i32::from(crate::setup::NOT_BEGUN) && !output.stderr.is_empty() => {
            Ok(Without::Refused)
        }
        _ => Err(format!("{}: {}", output.status, text(output))),
    }
}

/// Returns the start of a process's standard error.
fn text(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    stderr.lines().take(12).map(|line| line.chars().take(400).collect::<String>()).collect::<Vec<_>>().join("\n  ")
}
