//! The tests of a program: how long each takes, and which changes it reaches.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// No test takes longer without a change.
pub(crate) const LONGEST: Duration = Duration::from_secs(900);

/// A test that runs in a process of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Test {
    /// The program, in the folder of the campaign.
    pub(crate) program: String,
    /// The name of the test.
    pub(crate) name: String,
    /// How long it takes without a change.
    pub(crate) seconds: f64,
    /// The changes whose places it reaches.
    pub(crate) reaches: BTreeSet<usize>,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    /// It ran past its limit, and was ended.
    TooLong,
}

/// Returns the names of the tests in a program.
pub(crate) fn names(program: &Path) -> Result<Vec<String>, String> {
    let output = Command::new(program).args(["--list", "--format", "terse"]).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Returns how long a test takes without a change. It is ended at the limit.
pub(crate) fn timed(program: &Path, name: &str, limit: Duration) -> Result<(End, f64), String> {
    let begun = Instant::now();
    let end = run(program, name, ("MUTANT", "0"), limit).map_err(|error| format!("{name}: {error}"))?;
    Ok((end, begun.elapsed().as_secs_f64()))
}

/// Returns the changes that a test reaches.
pub(crate) fn reached(folder: &Path, program: &str, name: &str) -> Result<BTreeSet<usize>, String> {
    let file = folder.join(format!("seen.{}.{:?}", std::process::id(), std::thread::current().id()));
    let _ = std::fs::remove_file(&file);
    let seen = ("MUTANT_SEEN", &*file.display().to_string());
    run(&folder.join(program), name, seen, LONGEST).map_err(|error| format!("{name}: {error}"))?;
    // A test that reaches no change has written no file.
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Runs a test, with a variable of the switch, and ends it at the limit.
pub(crate) fn run(program: &Path, name: &str, variable: (&str, &str), limit: Duration) -> std::io::Result<End> {
    let mut command = Command::new(program);
    command.args(["--exact", name, "--test-threads", "1", "--quiet"]).env(variable.0, variable.1);
    // One sequence of programs for every change, and none made shorter after a failure.
    command.envs([("PROPTEST_RNG_SEED", "1"), ("PROPTEST_MAX_SHRINK_ITERS", "0"), ("RUST_BACKTRACE", "0")]);
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    Ok(match ended(&mut child, limit)? {
        Some(status) if status.success() => End::Passed,
        Some(_) => End::Failed,
        None => End::TooLong,
    })
}

/// Waits for a process. Ends it at the limit, and returns None.
fn ended(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
