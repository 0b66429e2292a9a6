//! The call log: what was called, by whom, and what it answered.

use crate::code::Code;
use crate::functions::Function;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;

/// How many calls are remembered; older ones are forgotten first. The counts per function are complete.
const REMEMBERED: usize = 1 << 16;

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The first call of the process is 1.
    pub(crate) number: u64,
    /// What was called.
    pub(crate) function: Function,
    /// The arguments as the caller passed them, pointers as numbers.
    pub(crate) args: Vec<u64>,
    /// What the call handed out: an address, a handle, a status.
    pub(crate) out: Option<u64>,
    /// The calling thread's number.
    pub(crate) thread: u32,
    /// The context current to it.
    pub(crate) context: u64,
    /// What the call answered.
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
    /// A log that is also appended to `path`, if there is one.
    ///
    /// # Panics
    /// If the file cannot be opened.
    pub(crate) fn new(path: Option<&str>) -> Self {
        let file = path
            .map(|path| File::options().create(true).append(true).open(path).expect("the file of CACHALOT_EMU_LOG"));
        Self { file, ..Self::default() }
    }

    /// Counts a call that begins, and returns its number.
    pub(crate) fn begin(&mut self, function: Function) -> u64 {
        self.calls += 1;
        *self.counts.entry(function).or_default() += 1;
        self.calls
    }

    /// Adds a call that ended.
    pub(crate) fn add(&mut self, entry: Entry) {
        if let Some(file) = &mut self.file {
            let line = format!("{}\n", entry.to_json());
            // One write a line, so that the lines of several processes do not mix.
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

    /// How often a function was called, whatever it answered.
    pub(crate) fn count(&self, function: Function) -> u64 {
        self.counts.get(&function).copied().unwrap_or(0)
    }

    /// How many calls there were in all.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// The remembered calls, one JSON object a line.
    pub(crate) fn to_lines(&self) -> String {
        let lines: Vec<String> = self.entries.iter().map(|entry| entry.to_json().to_string()).collect();
        lines.join("\n")
    }
}

impl Entry {
    /// The call as a JSON object.
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
