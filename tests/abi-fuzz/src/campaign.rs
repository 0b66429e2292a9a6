//! Runs many cases, each in its own process, and sums up the results.

use crate::case::Case;
use crate::child::LIBRARY;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Result of a case.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The counts of the case.
    Clean(Value),
    /// The line of the finding.
    Found(String),
}

/// The driver, and how long a case may take.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) library: String,
    pub(crate) limit: Duration,
    /// Whether the process prints every operation.
    pub(crate) trace: bool,
    /// Whether the process prints the history at the address of a finding.
    pub(crate) history: bool,
}

/// Runs a case in a new process.
pub(crate) fn judge(case: &Case, setting: &Setting) -> Outcome {
    let json = serde_json::to_string(case).unwrap_or_default();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Outcome::Found(error.to_string()),
    };
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &setting.limit.as_secs().to_string()]).arg(program).arg("child").arg(&json);
    command.envs(case.variables()).env(LIBRARY, &setting.library);
    command.args(setting.trace.then_some("--trace")).args(setting.history.then_some("--history"));
    if setting.trace || setting.history {
        return match command.status() {
            Ok(status) if status.success() => Outcome::Clean(Value::Null),
            Ok(status) => Outcome::Found(status.to_string()),
            Err(error) => Outcome::Found(error.to_string()),
        };
    }
    match command.output() {
        Ok(output) => {
            read(&String::from_utf8_lossy(&output.stdout), &String::from_utf8_lossy(&output.stderr), output.status)
        }
        Err(error) => Outcome::Found(format!("timeout: {error}")),
    }
}

/// Reads the output of a process.
fn read(printed: &str, errors: &str, status: ExitStatus) -> Outcome {
    let said: Vec<&str> = errors.lines().take(6).collect();
    let said = said.join(" | ");
    if let Some(finding) = printed.lines().find(|line| line.starts_with("FINDING ")) {
        return Outcome::Found(format!("{finding} {said}").trim_end().to_owned());
    }
    let summary = printed.lines().find_map(|line| line.strip_prefix("SUMMARY "));
    match summary.and_then(|line| serde_json::from_str(line).ok()) {
        Some(counts) if status.success() => Outcome::Clean(counts),
        _ => Outcome::Found(format!("FINDING end: {status}: {said}")),
    }
}

/// The counts of many cases.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    counts: BTreeMap<String, u64>,
    pub(crate) calls: BTreeMap<String, u64>,
    configurations: BTreeSet<String>,
    clean: u64,
    pub(crate) found: Vec<(String, String)>,
}

impl Totals {
    /// Adds the result of a case.
    fn add(&mut self, case: &Case, outcome: Outcome) {
        self.configurations.insert(format!("{} ask {}", case.config, case.ask));
        let counts = match outcome {
            Outcome::Found(line) => {
                self.found.push((serde_json::to_string(case).unwrap_or_default(), line));
                return;
            }
            Outcome::Clean(counts) => counts,
        };
        self.clean += 1;
        *self.counts.entry(format!("cases of {} threads", case.threads)).or_default() += 1;
        *self.counts.entry("cases with faults".to_owned()).or_default() += u64::from(case.faults);
        for (key, value) in counts.as_object().into_iter().flatten() {
            if let Some(number) = value.as_u64() {
                *self.counts.entry(key.clone()).or_default() += number;
            }
        }
        for (function, number) in counts["calls"].as_object().into_iter().flatten() {
            *self.calls.entry(function.clone()).or_default() += number.as_u64().unwrap_or(0);
        }
    }

    /// Returns the summary line.
    pub(crate) fn line(&self) -> String {
        let counts: Vec<String> = self.counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let (configurations, clean, found) = (self.configurations.len(), self.clean, self.found.len());
        format!("{clean} clean seeds, {found} with a finding, {configurations} configurations: {}", counts.join(", "))
    }
}

/// Runs the cases of `seeds`, several at a time, until the time is over. Prints each finding at
/// once.
pub(crate) fn campaign(cases: &[Case], setting: &Setting, jobs: u32, time: Duration) -> Totals {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(case) = cases.get(index).filter(|_| begin.elapsed() < time) else { return };
                    let outcome = judge(case, setting);
                    if let Outcome::Found(line) = &outcome {
                        println!("seed {}: {line}\n  {}", case.seed, serde_json::to_string(case).unwrap_or_default());
                    }
                    totals.lock().add(case, outcome);
                }
            });
        }
    });
    totals.into_inner()
}
