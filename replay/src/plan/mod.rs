//! Programs whose allocations are known in advance, as problems for the planner.
//!
//! ```text
//! table.csv    id,lower,upper,size[,alignment][,offset] ─┐
//! program.json operators with inputs and outputs        ─┼─▶ Task ─▶ Problem ─▶ plan ─▶ table
//! model        .onnx, .tflite                           ─┤
//! record       of an allocator, .csv.gz or snapshot     ─┘
//! ```

mod gaps;
mod model;
pub mod operators;
pub mod record;
pub use cachalot_tuner::section;
pub mod solve;
pub mod table;

use crate::trace::error::describe_io;
use crate::trace::kind::{self, Kind};
use crate::trace::{BadInput, Trace, open};
use cachalot_planner::operators::Lowered;
use cachalot_planner::{Plan, Problem};
use std::io::{BufRead, Read};
use std::ops::Range;
use std::path::Path;

/// A planning problem with the source.
#[derive(Debug, Clone)]
pub struct Task {
    /// Name of the problem: a device of a program, or a section of a record. Empty if the file is a
    /// single problem.
    pub part: String,
    /// The checked problem.
    pub problem: Problem,
    /// The source of the problem.
    pub source: Source,
    /// Description of the memory before the first event, if a record starts in the middle of the
    /// program.
    pub start: Option<String>,
    /// The bytes that a plan of the problem keeps although the source does not, because the planner
    /// cannot express it.
    pub held: Option<Held>,
    /// What the source leaves out or fills in, in sentences without a full stop.
    pub remarks: Vec<String>,
}

/// Bytes that a plan keeps although the source leaves them free.
#[derive(Debug, Clone)]
pub struct Held {
    /// A line about it.
    pub what: String,
    /// The problem without it and without what the source asks for in its place: what no plan of
    /// this problem can be below, no plan of the source can.
    pub relaxed: Problem,
}

/// The source of a problem.
#[derive(Debug, Clone)]
pub enum Source {
    /// The lines of a table.
    Table(table::Lines),
    /// A device of a program of operators.
    Operators {
        /// The names of the program, shared by all devices.
        names: std::sync::Arc<operators::Names>,
        /// The lowered program, shared by all devices.
        lowered: std::sync::Arc<Lowered>,
        /// The device.
        device: u32,
    },
    /// A section of a record.
    Record(record::Recorded),
}

/// Options for reading files.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Alignment in bytes of buffers without a stated alignment.
    pub alignment: Option<u64>,
    /// The section of records, as numbers of allocations. Found automatically if not given.
    pub section: Option<Range<u64>>,
    /// Numbers for the named dimensions of a model.
    pub dimensions: Vec<(String, u64)>,
}

/// Greatest length of a table or a program in bytes.
const LONGEST_BYTES: u64 = 1 << 30;

/// Greatest length of a model in bytes, which is that of a message of protocol buffers.
const LONGEST_MODEL_BYTES: u64 = 1 << 31;

/// Reads the problems of a file: a single problem, or a problem for each device of a program or a
/// snapshot.
///
/// # Errors
/// The first mistake in the file, with the place and the accepted values.
pub fn load(file: &Path, reading: &Reading) -> Result<Vec<Task>, BadInput> {
    read(file, open::decompressed(file)?, reading)
}

/// Reads the problems from the bytes of a file.
///
/// # Errors
/// The first mistake in the bytes, with the place and the accepted values.
pub fn load_bytes(file: &Path, bytes: &[u8], reading: &Reading) -> Result<Vec<Task>, BadInput> {
    read(file, open::decompress(file, bytes.len() as u64, bytes)?, reading)
}

fn read(file: &Path, mut content: Box<dyn BufRead + '_>, reading: &Reading) -> Result<Vec<Task>, BadInput> {
    let unreadable = |error: std::io::Error| BadInput::whole(file, describe_io(&error));
    let start = content.fill_buf().map_err(unreadable)?;
    if start.first() == Some(&0x80) || start.starts_with(b"action,") {
        return record::tasks(file, &Trace::read(file, content)?, reading);
    }
    if let Kind::Rmm | Kind::Profile | Kind::Timeline | Kind::Vma | Kind::Other(_) = kind::of(start) {
        return record::tasks(file, &Trace::read(file, content)?, reading);
    }
    let (model, longest) = match kind::of(start) {
        model @ (Kind::Onnx | Kind::TfLite) => (Some(model), LONGEST_MODEL_BYTES),
        _ => (None, LONGEST_BYTES),
    };
    let mut bytes = Vec::new();
    content.take(longest + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > longest {
        let of = if model.is_some() { "a model" } else { "a table or a program" };
        return Err(BadInput::whole(file, format!("the content is longer than {longest} bytes, the most of {of}")));
    }
    match model {
        Some(Kind::Onnx) => return model::onnx::load(file, &bytes, reading),
        Some(_) => return model::tflite::load(file, &bytes, reading),
        None => {}
    }
    let text = String::from_utf8(bytes).map_err(|_| BadInput::at(file, 1, UNKNOWN))?;
    match text.trim_start().chars().next() {
        // A snapshot may also be JSON.
        Some('{') if text.contains("\"device_traces\"") => {
            record::tasks(file, &Trace::load_bytes(file, text.as_bytes())?, reading)
        }
        Some('{') => operators::load(file, &text, reading),
        _ => table::load(file, &text, reading).map(|task| vec![task]),
    }
}

impl Task {
    /// Returns the number of buffers. A buffer with gaps is several of the problem.
    pub fn buffers(&self) -> usize {
        match &self.source {
            Source::Table(lines) => lines.planned(),
            Source::Operators { .. } | Source::Record(_) => self.problem.buffers.len(),
        }
    }

    /// Returns the plan as a table: the columns of the input and `offset`, or for a program of
    /// operators the position of each value.
    pub fn rows(&self, plan: &Plan) -> Vec<Vec<String>> {
        match &self.source {
            Source::Table(lines) => lines.with_offsets(&plan.offsets),
            Source::Operators { names, lowered, device } => operators::placed(names, lowered, *device, plan),
            Source::Record(recorded) => record::with_offsets(&recorded.numbers, &self.problem, plan),
        }
    }
}

/// Error for a file of no accepted form.
const UNKNOWN: &str = "nothing that can be planned: expected a table with the columns id,lower,upper,size[,alignment][,offset][,gaps], \
                       a program of operators in JSON, a model (.onnx, .tflite), or a record of an allocator (.csv, .csv.gz, or a pickled snapshot)";

/// Returns an error at a column of a line, both counted from 1.
fn at_column(file: &Path, line: u64, column: usize, what: impl std::fmt::Display) -> BadInput {
    BadInput::at(file, line, format!("column {column}: {what}"))
}
