//! A small run in a process of its own: what it is asked for, and what its answer means.

use super::cases::Case;
use super::table::Outcome;
use cachalot_cuda::driver::LIBRARY_VARIABLE;
use cachalot_emulated_driver::install::install;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The small runs. Between them they make every driver call that the allocator makes, most of them more than 200 times.
pub(super) const SCENARIOS: [&[&str]; 3] = [&[], &["--config", "expandable_segments:True"], &["--identity", "asked"]];

/// What the runs have in common: small enough to be run some ten thousand times.
const RUN: &str = "--json --ops 1500 --threads 1 --streams 3 --devices 2 --disturb 2 --round 100 --batch 4 --blocks 30 \
                   --max-mib 2 --hold-us 0";

/// What the emulated driver is told beside the faults: work is done in the order of the seed, so that a run repeats itself.
/// Addresses that a failed call may have taken are not given back: there are enough for 1,500 failures.
const DRIVER: [(&str, &str); 5] = [
    ("CACHALOT_EMU_STEP", "1"),
    ("CACHALOT_EMU_DEVICES", "2"),
    ("CACHALOT_EMU_MEMORY", "100663296"),
    ("CACHALOT_EMU_POISON", "off"),
    ("CACHALOT_EMU_ADDRESS_SPACE", "1099511627776"),
];

/// A run that takes longer than so many seconds hangs.
const LONGEST_S: &str = "60";

/// What becomes of a run on a driver without a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Without {
    /// Nothing was wrong.
    Worked,
    /// It did not begin, and said why.
    Refused,
}

/// How the small runs are started.
#[derive(Debug)]
pub(super) struct Child {
    /// The emulated driver.
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

    /// How often each driver function is called without faults.
    ///
    /// # Errors
    /// What is wrong without faults.
    pub(super) fn calls(&self, scenario: usize) -> Result<BTreeMap<String, u64>, String> {
        let output = self.run(scenario, None)?;
        let report: Option<Value> = serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success());
        let calls = report.and_then(|report| serde_json::from_value(report["driver_calls"].clone()).ok());
        calls
            .filter(|calls: &BTreeMap<_, _>| !calls.is_empty())
            .ok_or_else(|| format!("the driver is not the emulated one, or fails: {}", text(&output)))
    }

    /// Runs every scenario on a driver that lacks a function: it must work without it, or the run must not begin and say why.
    ///
    /// # Errors
    /// What it did instead.
    pub(super) fn judge_without(&self, function: &str) -> Result<Without, String> {
        let folder = std::env::temp_dir().join(format!("cachalot-stress-{}-{function}", std::process::id()));
        let library = install(&folder, &[function]).map_err(|error| error.to_string())?;
        let child = Self { library, seed: self.seed };
        let outcomes =
            (0..SCENARIOS.len()).map(|scenario| child.run(scenario, None).and_then(|output| without(&output)));
        let outcomes: Result<Vec<_>, _> = outcomes.collect();
        // It may stay behind; nothing depends on it.
        let _removed = std::fs::remove_dir_all(&folder);
        Ok(if outcomes?.contains(&Without::Refused) { Without::Refused } else { Without::Worked })
    }

    /// Runs one case, and says what came of it.
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

/// What became of a run on a driver without a function.
fn without(output: &Output) -> Result<Without, String> {
    match output.status.code() {
        Some(0) => Ok(Without::Worked),
        Some(status) if status == i32::from(crate::NOT_BEGUN) && !output.stderr.is_empty() => Ok(Without::Refused),
        _ => Err(format!("{}: {}", output.status, text(output))),
    }
}

/// What a process said, the beginning of it.
fn text(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().take(12).map(|line| line.chars().take(400).collect::<String>()).collect::<Vec<_>>().join("\n  ")
}
