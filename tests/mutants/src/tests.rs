//! The tests of a program: times, and the changes reached.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// No test takes longer without a change.
pub(crate) const LONGEST: Duration = Duration::from_secs(900);

/// A test program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    /// The name of the file in the folder of the campaign.
    pub(crate) name: String,
    /// The folder of the package, where cargo runs the tests, for files named by relative paths.
    pub(crate) runs_in: PathBuf,
    /// A folder that each test finds empty, for tests that write files of the same name there.
    #[serde(skip)]
    pub(crate) alone: Option<PathBuf>,
}

/// A test, run in a process of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Test {
    /// The name of the test.
    pub(crate) name: String,
    /// The time without a change.
    pub(crate) seconds: f64,
    /// The changes reached.
    pub(crate) reaches: BTreeSet<usize>,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    /// Ended at the limit.
    TooLong,
}

impl Program {
    /// Returns the names of the tests in the program, which is in `folder`.
    pub(crate) fn names(&self, folder: &Path) -> Result<Vec<String>, String> {
        let output = Command::new(folder.join(&self.name)).args(["--list", "--format", "terse"]).output();
        let output = output.map_err(|error| format!("{}: {error}", self.name))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// Runs a test without a change. Returns the end and the time. The test is ended at the limit.
    pub(crate) fn timed(&self, folder: &Path, test: &str, limit: Duration) -> Result<(End, f64), String> {
        let begun = Instant::now();
        let end = self.run(folder, test, ("MUTANT", "0"), limit)?;
        Ok((end, begun.elapsed().as_secs_f64()))
    }

    /// Returns the changes reached by a test.
    pub(crate) fn reached(&self, folder: &Path, test: &str) -> Result<BTreeSet<usize>, String> {
        let file = folder.join(format!("seen.{}.{:?}", std::process::id(), std::thread::current().id()));
        let _ = std::fs::remove_file(&file);
        self.run(folder, test, ("MUTANT_SEEN", &file.display().to_string()), LONGEST)?;
        // A test that reaches no change has written no file.
        let seen = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        Ok(seen.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Returns the command that runs the program, with a file system of its own in
    /// [`alone`](Self::alone).
    fn command(&self, folder: &Path) -> Command {
        let program = folder.join(&self.name);
        let Some(alone) = &self.alone else { return Command::new(program) };
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", r#"mount -t tmpfs tmpfs "$1" && shift && exec "$@""#, "sh"]);
        command.arg(alone).arg(program);
        command
    }

    /// Runs a test, with a variable of the switch, and ends the process at the limit.
    pub(crate) fn run(
        &self,
        folder: &Path,
        test: &str,
        variable: (&str, &str),
        limit: Duration,
    ) -> Result<End, String> {
        let told = |error: std::io::Error| format!("{} in {}: {error}", self.name, self.runs_in.display());
        let mut command = self.command(folder);
        command.args(["--exact", test, "--test-threads", "1", "--quiet"]).env(variable.0, variable.1);
        command.current_dir(&self.runs_in);
        // One sequence of programs for every change, and none made shorter after a failure.
        command.envs([("PROPTEST_RNG_SEED", "1"), ("PROPTEST_MAX_SHRINK_ITERS", "0"), ("RUST_BACKTRACE", "0")]);
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(told)?;
        Ok(match ended(&mut child, limit).map_err(told)? {
            Some(status) if status.success() => End::Passed,
            Some(_) => End::Failed,
            None => End::TooLong,
        })
    }
}

/// Waits for a process. Ends the process at the limit, and returns None.
///
/// The limit is of processor time: a machine with more to do than processors must not make a test
/// seem slow. A process that does nothing is ended at five times the limit.
fn ended(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let waited = begun.elapsed();
        if waited > limit && (waited > 5 * limit || used(child.id()).is_none_or(|used| used > limit)) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Returns the processor time of a process. None where the system does not tell.
fn used(process: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in brackets, may have spaces. After it, the 12th and 13th fields
    // count hundredths of a second.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(10 * ticks))
}
