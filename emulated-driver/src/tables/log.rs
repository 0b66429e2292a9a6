//! The call log: function, caller and answer of each call.

use crate::values::code::Code;
use crate::values::functions::Function;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;

/// Number of remembered calls. The oldest are forgotten first. The counts per function are
/// complete.
const REMEMBERED: usize = 1 << 16;

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Number of the call. The first call of the process is 1.
    pub(crate) number: u64,
    /// The called function.
    pub(crate) function: Function,
    /// The arguments as the caller passed them, pointers as numbers.
    pub(crate) args: Vec<u64>,
    /// The result of the call: an address, a handle, a status.
    pub(crate) out: Option<u64>,
    /// The calling thread's number.
    pub(crate) thread: u32,
    /// The context current to the thread.
    pub(crate) context: u64,
    /// The answer of the call.
    pub(crate) result: Code,
}

/// The log of the process.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    counts: BTreeMap<Function, u64>,
    calls: u64,
    file: Option<File>,
}

impl Log {
    /// Creates a log, which is also appended to the file `path` if given.
    ///
    /// # Panics
    /// If the file cannot be opened.
    pub(crate) fn new(path: Option<&str>) -> Self {
        let file = path
            .map(|path| File::options().create(true).append(true).open(path).expect("the file of CACHALOT_EMU_LOG"));
        Self { file, ..Self::default() }
    }

    /// Counts the start of a call, and returns the number of the call.
    pub(crate) fn begin(&mut self, function: Function) -> u64 {
        self.calls += 1;
        *self.counts.entry(function).or_default() += 1;
        self.calls
    }

    /// Adds a finished call.
    pub(crate) fn add(&mut self, entry: Entry) {
        if let Some(file) = &mut self.file {
            let line = format!("{}\n", entry.to_json());
            // One write per line, so that lines of several processes do not mix.
            file.write_all(line.as_bytes()).expect("the file of CACHALOT_EMU_LOG");
        }
        if self.entries.len() == REMEMBERED {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Forgets the remembered calls; the counts stay.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the number of calls of a function, with any answer.
    pub(crate) fn count(&self, function: Function) -> u64 {
        self.counts.get(&function).copied().unwrap_or(0)
    }

    /// Returns the number of all calls.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns the remembered calls, one JSON object a line.
    pub(crate) fn to_lines(&self) -> String {
        let lines: Vec<String> = self.entries.iter().map(|entry| entry.to_json().to_string()).collect();
        lines.join("\n")
    }
}

impl Entry {
    /// Returns the call as a JSON object.
    fn to_json(&self) -> Value {
        json!({
            "call": self.number,
            "fn": self.function.name(),
            "args": self.args,
            "out": self.out,
            "thread": self.thread,
            "context": self.context,
            "result": self.result.0,
        })
    }
}
