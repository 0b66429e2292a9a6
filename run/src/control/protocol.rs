//! The protocol: a request and an answer, each a line of JSON.
//!
//! ```text
//! {"schema":1,"request":"park","timeout_ms":30000}
//! {"schema":1,"ok":{"pid":4711,"name":"server","state":"parked", …}}
//! {"schema":1,"error":{"kind":"never_idle","text":"…"}}
//! ```
//!
//! A connection has one request and one answer. An unknown field of a request is refused, because
//! the sender expects an effect. An unknown field of an answer is ignored, so later versions may
//! add fields without another [`SCHEMA`].

use super::status::{Status, plain};
use crate::shared::time::milliseconds;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The version of requests and answers. A change against readers raises the number.
pub const SCHEMA: u32 = 1;

/// Greatest length of a request in bytes, with the line break.
pub(super) const MOST_REQUEST: usize = 4096;

/// Greatest length of an answer in bytes, with the line break.
pub(super) const MOST_ANSWER: usize = 64 << 10;

/// The time for a park or a wake whose request names no time, in milliseconds.
const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// How long a snapshot or a trim may wait for parks and wakes.
const TURN_TIME: Duration = Duration::from_secs(30);

/// The greatest time for a park or a wake, in milliseconds: a day.
const MOST_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1000;

/// Greatest number of characters in the text of a refusal.
const MOST_TEXT: usize = 4000;

/// A request to a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The version. A request without a version has [`SCHEMA`].
    #[serde(default = "schema")]
    schema: u32,
    /// The requested action.
    #[serde(rename = "request")]
    pub action: Action,
    /// How long the process may wait for the start of a park or a wake, in milliseconds.
    #[serde(default = "default_timeout_ms")]
    timeout_ms: u64,
    /// The file of a snapshot, as an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The bytes of each device that a trim leaves. Without them, it leaves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep: Option<u64>,
}

/// The requested action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Move the memory to the host.
    Park,
    /// Move the memory back to the device.
    Wake,
    /// Write the latest events and all blocks to a file.
    Snapshot,
    /// Give cached memory back to the driver.
    Trim,
    /// Tell the state.
    Status,
}

/// An answer of a process.
pub type Answer = Result<Status, ControlRefusal>;

/// Why a process did not do as asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ControlRefusal {
    /// The kind of the reason, for scripts.
    pub kind: RefusalKind,
    /// The reason in words: what was wrong, and what would help.
    pub text: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefusalKind {
    /// The request is no request of the protocol.
    BadRequest,
    /// The request came from another user.
    Denied,
    /// Another park or wake took the whole time.
    Busy,
    /// The program's work did not end within the time.
    NeverIdle,
    /// A stream of the program is being captured.
    Capturing,
    /// The host has too little memory for the contents.
    NoHostMemory,
    /// The folder of `--park-to` has too little room.
    NoFileSpace,
    /// The device has too little free memory for a wake.
    NoDeviceMemory,
    /// The process has memory, a driver or a setting for which parking is not possible.
    Unsupported,
    /// The process records no events.
    NotRecorded,
    /// The file of a snapshot could not be written.
    NotWritten,
    /// A driver call failed.
    Driver,
    /// A defect of the library.
    Internal,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

/// A line of an answer.
#[derive(Serialize, Deserialize)]
struct AnswerLine {
    schema: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ok: Option<Status>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ControlRefusal>,
}

/// The version of an answer, read first: a line of another version may have another form.
#[derive(Deserialize)]
struct AnswerVersion {
    schema: u32,
}

const fn schema() -> u32 {
    SCHEMA
}

const fn default_timeout_ms() -> u64 {
    DEFAULT_TIMEOUT_MS
}

impl Request {
    /// Creates a request. The time is cut off at a day.
    pub fn new(action: Action, timeout: Duration) -> Self {
        let timeout_ms = milliseconds(timeout).min(MOST_TIMEOUT_MS);
        Self { schema: SCHEMA, action, timeout_ms, file: None, keep: None }
    }

    /// Creates a request for a snapshot in a file, an absolute path.
    pub fn snapshot(file: PathBuf) -> Self {
        Self { file: Some(file), ..Self::new(Action::Snapshot, TURN_TIME) }
    }

    /// Creates a request for a trim that leaves `keep` bytes of served memory on each device.
    pub fn trim(keep: u64) -> Self {
        Self { keep: Some(keep), ..Self::new(Action::Trim, TURN_TIME) }
    }

    /// Returns the bytes that a trim leaves.
    pub(super) fn keep(&self) -> u64 {
        self.keep.unwrap_or(0)
    }

    /// Returns how long the process may wait for the start of a park or a wake.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Returns the request as a line.
    pub(super) fn to_line(&self) -> Vec<u8> {
        line(self)
    }

    /// Reads a request from a line.
    ///
    /// # Errors
    /// The line is no request: the refusal names the mistake.
    pub(super) fn of_line(line: &[u8]) -> Result<Self, ControlRefusal> {
        let bad = |text: String| ControlRefusal::new(RefusalKind::BadRequest, text);
        let request: Self = serde_json::from_slice(line).map_err(|error| bad(format!("no request: {error}")))?;
        if request.schema != SCHEMA {
            return Err(bad(format!("a request of schema {}: this process has schema {SCHEMA}", request.schema)));
        }
        if (request.action == Action::Snapshot) != request.file.as_ref().is_some_and(|file| file.is_absolute()) {
            return Err(bad("a snapshot, and no other request, has `file`: an absolute path".to_owned()));
        }
        if request.keep.is_some() && request.action != Action::Trim {
            return Err(bad("a trim, and no other request, has `keep`".to_owned()));
        }
        if request.timeout_ms > MOST_TIMEOUT_MS {
            let given = request.timeout_ms;
            return Err(bad(format!("timeout_ms is {given}: the most is {MOST_TIMEOUT_MS}, which is a day")));
        }
        Ok(request)
    }
}

impl RefusalKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::BadRequest,
        Self::Denied,
        Self::Busy,
        Self::NeverIdle,
        Self::Capturing,
        Self::NoHostMemory,
        Self::NoFileSpace,
        Self::NoDeviceMemory,
        Self::Unsupported,
        Self::NotRecorded,
        Self::NotWritten,
        Self::Driver,
        Self::Internal,
        Self::Other,
    ];
}

impl ControlRefusal {
    /// Creates a refusal. The text names the obstacle, and has no line break.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Makes the text fit for a terminal and for a line of the protocol.
    fn clean(self) -> Self {
        Self { text: plain(&self.text, MOST_TEXT), ..self }
    }
}

impl fmt::Display for ControlRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ControlRefusal {}

/// Returns an answer as a line. An answer beyond the greatest length becomes a refusal.
pub(super) fn answer_line(answer: Answer) -> Vec<u8> {
    let whole = |answer: Answer| {
        let (ok, error) = match answer {
            Ok(status) => (Some(status.clean()), None),
            Err(refusal) => (None, Some(refusal.clean())),
        };
        line(&AnswerLine { schema: SCHEMA, ok, error })
    };
    let text = whole(answer);
    if text.len() <= MOST_ANSWER {
        return text;
    }
    let reason = format!("the answer has {} bytes: the most is {MOST_ANSWER}", text.len());
    whole(Err(ControlRefusal::new(RefusalKind::Internal, reason)))
}

/// Reads an answer from a line. The texts are fit for a terminal.
///
/// # Errors
/// The line is no answer, or of another version.
pub(super) fn read_answer(line: &[u8]) -> io::Result<Answer> {
    let fault = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let no_answer = |error: serde_json::Error| fault(format!("no answer: {error}"));
    let AnswerVersion { schema } = serde_json::from_slice(line).map_err(no_answer)?;
    if schema != SCHEMA {
        return Err(fault(format!("an answer of schema {schema}, and this program reads schema {SCHEMA}")));
    }
    match serde_json::from_slice::<AnswerLine>(line).map_err(no_answer)? {
        AnswerLine { ok: Some(status), error: None, .. } => Ok(Ok(status.clean())),
        AnswerLine { ok: None, error: Some(refusal), .. } => Ok(Err(refusal.clean())),
        _ => Err(fault("no answer: exactly one of `ok` and `error` is expected".to_owned())),
    }
}

/// Returns a value as a line of JSON.
fn line(value: &impl Serialize) -> Vec<u8> {
    // Texts and numbers always have a form in JSON.
    let mut text = serde_json::to_vec(value).unwrap_or_default();
    text.push(b'\n');
    text
}
