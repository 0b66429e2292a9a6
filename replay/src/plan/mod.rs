//! Programs whose allocations are known in advance, as problems for the planner.
//!
//! ```text
//! table.csv    id,lower,upper,size[,alignment][,offset] ─┐
//! program.json operators with inputs and outputs        ─┼─▶ Task ─▶ Problem ─▶ plan ─▶ table
//! record       of an allocator, .csv.gz or snapshot     ─┘
//! ```

pub mod operators;
pub mod record;
pub mod section;
pub mod solve;
pub mod table;

use crate::trace::error::describe_io;
use crate::trace::{BadInput, Trace, open};
use cachalot_planner::operators::Lowered;
use cachalot_planner::{Plan, Problem};
use std::io::{BufRead, Read};
use std::ops::Range;
use std::path::Path;

/// What is to be planned, and where it comes from.
#[derive(Debug, Clone)]
pub struct Task {
    /// What it is called: a device of a program, a section of a record; empty where a file is one problem.
    pub part: String,
    /// The problem; it has been checked.
    pub problem: Problem,
    /// What it was made from.
    pub source: Source,
    /// What was there before the first event, in words, if a record begins in the middle of its program.
    pub start: Option<String>,
}

/// What a problem was made from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The lines of a table.
    Table(table::Lines),
    /// A device of a program of operators.
    Operators {
        /// The program's names, shared by all of its devices.
        names: std::sync::Arc<operators::Names>,
        /// What was worked out from it, likewise.
        lowered: std::sync::Arc<Lowered>,
        /// The device.
        device: u32,
    },
    /// A section of a record.
    Record(record::Recorded),
}

/// How files are read.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The alignment of what states none, in bytes.
    pub alignment: Option<u64>,
    /// The section of records, as numbers of allocations; found if not given.
    pub section: Option<Range<u64>>,
}

/// The most bytes of a table or a program.
const LONGEST_BYTES: u64 = 1 << 30;

/// Reads the problems of a file: one, or one for each device of a program or a snapshot.
///
/// # Errors
/// The first thing that is wrong with the file, with its place and what is accepted there.
pub fn load(file: &Path, reading: &Reading) -> Result<Vec<Task>, BadInput> {
    read(file, open::decompressed(file)?, reading)
}

/// Reads the problems from the bytes of a file.
///
/// # Errors
/// The first thing that is wrong with the bytes, with its place and what is accepted there.
pub fn load_bytes(file: &Path, bytes: &[u8], reading: &Reading) -> Result<Vec<Task>, BadInput> {
    read(file, open::decompress(file, bytes.len() as u64, bytes)?, reading)
}

fn read(file: &Path, mut content: Box<dyn BufRead + '_>, reading: &Reading) -> Result<Vec<Task>, BadInput> {
    let unreadable = |error: std::io::Error| BadInput::whole(file, describe_io(&error));
    let start = content.fill_buf().map_err(unreadable)?;
    if start.first() == Some(&0x80) || start.starts_with(b"action,") {
        return record::tasks(file, &Trace::read(file, content)?, reading);
    }
    let mut bytes = Vec::new();
    content.take(LONGEST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LONGEST_BYTES {
        let what = format!("the content is longer than {LONGEST_BYTES} bytes, the most of a table or a program");
        return Err(BadInput::whole(file, what));
    }
    let text = String::from_utf8(bytes).map_err(|_| BadInput::at(file, 1, UNKNOWN))?;
    match text.trim_start().chars().next() {
        // A snapshot may be JSON, too.
        Some('{') if text.contains("\"device_traces\"") => {
            record::tasks(file, &Trace::load_bytes(file, text.as_bytes())?, reading)
        }
        Some('{') => operators::load(file, &text, reading),
        _ => table::load(file, &text, reading).map(|task| vec![task]),
    }
}

impl Task {
    /// The plan as a table: the columns of the input and `offset`; of a program of operators, where each value lies.
    pub fn rows(&self, plan: &Plan) -> Vec<Vec<String>> {
        match &self.source {
            Source::Table(lines) => lines.with_offsets(&plan.offsets),
            Source::Operators { names, lowered, device } => operators::placed(names, lowered, *device, plan),
            Source::Record(recorded) => record::with_offsets(&recorded.numbers, &self.problem, plan),
        }
    }
}

/// What a file may be.
const UNKNOWN: &str = "nothing that can be planned: accepted are a table with the columns id,lower,upper,size[,alignment][,offset], \
                       a program of operators in JSON, and a record of an allocator (.csv, .csv.gz, or a pickled snapshot)";

/// A complaint about a place in a line; both are counted from 1.
fn at_column(file: &Path, line: u64, column: usize, what: impl std::fmt::Display) -> BadInput {
    BadInput::at(file, line, format!("column {column}: {what}"))
}
