//! The answers of processes that can be parked, as JSON and in words.

use crate::commands::bytes::{duration, plural, show};
use crate::commands::{SCHEMA, print};
use cachalot_run::control::client::{AskError, Sleeper};
use cachalot_run::control::{RefusalKind, SleepState, Status, Transfer};
use serde::Serialize;
use std::fmt::Write as _;
use std::io;

/// The output of `--json` of `park`, `wake` and `status`.
#[derive(Serialize)]
pub(super) struct SleepLine {
    schema: u32,
    pub(super) processes: Vec<Status>,
    pub(super) failures: Vec<SleepFailure>,
}

/// A process without an answer, or with a refusal.
#[derive(Serialize)]
pub(super) struct SleepFailure {
    pid: u32,
    /// The kind of the refusal. `None`: the process does not answer.
    kind: Option<RefusalKind>,
    pub(super) text: String,
}

impl SleepLine {
    /// Sorts the answers of processes.
    pub(super) fn new<'a>(answers: impl Iterator<Item = (&'a Sleeper, Result<Status, AskError>)>) -> Self {
        let mut line = Self { schema: SCHEMA, processes: Vec::new(), failures: Vec::new() };
        for (sleeper, answer) in answers {
            match answer {
                Ok(status) => line.processes.push(status),
                Err(error) => line.failures.push(SleepFailure::new(sleeper.pid(), &error)),
            }
        }
        line
    }

    /// Prints the JSON object.
    pub(super) fn print(&self) -> io::Result<()> {
        serde_json::to_string(self).map_err(io::Error::from).and_then(print)
    }
}

impl SleepFailure {
    fn new(pid: u32, error: &AskError) -> Self {
        let kind = match error {
            AskError::Refused(refusal) => Some(refusal.kind),
            _ => None,
        };
        Self { pid, kind, text: error.to_string() }
    }
}

/// Returns a process's name with its id.
pub(super) fn name(status: &Status) -> String {
    let program = if status.name == status.program { String::new() } else { format!(", {}", status.program) };
    format!("{} ({}{program})", status.name, status.pid)
}

/// Returns milliseconds in words.
pub(super) fn time(ms: u64) -> String {
    duration(i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX))
}

/// Returns what a process tells, in sentences.
pub(super) fn sentences(status: &Status) -> String {
    let mut text = format!("{} is {}", name(status), status.state);
    match (status.state, status.idle_ms) {
        (_, None) => text.push_str("; no work was submitted yet"),
        (SleepState::Awake, Some(idle)) => {
            let _ = write!(text, " for {}, and idle for {}", time(status.awake_ms), time(idle));
        }
        (_, Some(idle)) => {
            let _ = write!(text, ", and idle for {}", time(idle));
        }
    }
    let (parked, device) = (show(status.parked_bytes), show(status.device_bytes));
    let _ = write!(text, ". {parked} are parked, and {device} of served memory are on the device");
    if let Some(group) = &status.group {
        let _ = write!(text, ". The process is in group {group}");
    }
    for (what, count, last) in [("park", status.parks, &status.last_park), ("wake", status.wakes, &status.last_wake)] {
        if let Some(last) = last {
            let _ = write!(text, ". {}, the last of {}", plural(count, what), moved(*last));
        }
    }
    if !status.remaining.is_empty() {
        text.push_str(". A park leaves on the device ");
        let parts: Vec<_> =
            status.remaining.iter().map(|rest| format!("{} {}", show(rest.bytes), words(rest.what.name()))).collect();
        text.push_str(&parts.join(", "));
    }
    if let Some(error) = &status.last_error {
        let _ = write!(text, ". The last failure: {error}");
    }
    text + "."
}

pub(super) fn moved(transfer: Transfer) -> String {
    format!("{} in {}", show(transfer.bytes), time(transfer.ms))
}

/// Returns a name of JSON as words.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::sentences;
    use cachalot_run::control::{Remainder, RemainderKind, SleepState, Status, Transfer};

    #[test]
    fn a_state_is_told_in_sentences() {
        let awake = Status { pid: 7, name: "a".to_owned(), program: "a".to_owned(), ..Status::default() };
        let text =
            "a (7) is awake; no work was submitted yet. 0 B are parked, and 0 B of served memory are on the device.";
        assert_eq!(sentences(&awake), text);
        let parked = Status {
            program: "python3".to_owned(),
            group: Some("team".to_owned()),
            state: SleepState::Parked,
            idle_ms: Some(300_000),
            parked_bytes: 12 << 30,
            remaining: vec![
                Remainder { what: RemainderKind::Context, bytes: 518 << 20 },
                Remainder { what: RemainderKind::KeptAwake, bytes: 2 << 20 },
            ],
            last_park: Some(Transfer { ms: 412, bytes: 12 << 30 }),
            parks: 1,
            last_error: Some("cuMemMap: 2".to_owned()),
            ..awake
        };
        let text = "a (7, python3) is parked, and idle for 5.0 min. 12.00 GiB are parked, and 0 B of served memory are on the \
                    device. The process is in group team. 1 park, the last of 12.00 GiB in 412.0 ms. A park leaves on the \
                    device 518.00 MiB context, 2.00 MiB kept awake. The last failure: cuMemMap: 2.";
        assert_eq!(sentences(&parked), text);
    }
}
