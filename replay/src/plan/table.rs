//! Tables of buffers: `id,lower,upper,size`, and optionally `alignment` and `offset`, in any order,
//! with half-open lives.
//!
//! The format comes from `MiniMalloc`'s benchmarks. An empty `offset` leaves the position to the
//! plan, a given offset fixes the position. A buffer of 0 bytes takes no room, is not in the
//! problem, and has the offset 0 in the plan.

use super::{Reading, Source, Task, UNKNOWN, at_column};
use crate::trace::BadInput;
use cachalot_core::MAX_REQUEST;
use cachalot_planner::{Buffer, Problem, Unusable};
use std::collections::HashMap;
use std::path::Path;

/// The lines of a table, the header first.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// A field for each column.
    fields: Vec<Vec<String>>,
    /// Whether the problem has a buffer for each line after the header. Buffers of 0 bytes are
    /// omitted.
    planned: Vec<bool>,
}

/// The required columns, followed by the optional columns.
const COLUMNS: [&str; 6] = ["id", "lower", "upper", "size", "alignment", "offset"];
const NEEDED: usize = 4;

/// Reads a table.
pub(super) fn load(file: &Path, text: &str, reading: &Reading) -> Result<Task, BadInput> {
    // With `\r\n`, the reader would report the line before the record as the record's line.
    let text = text.replace("\r\n", "\n");
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let (mut lines, mut numbers) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(1, csv::Position::line);
            BadInput::at(file, line, format!("the line cannot be read: {error}"))
        })?;
        numbers.push(record.position().map_or(1, csv::Position::line));
        lines.push(record.iter().map(|field| field.trim().to_owned()).collect::<Vec<_>>());
    }
    let header = lines.first().ok_or_else(|| BadInput::at(file, 1, "the file is empty"))?;
    let columns = Columns::of(file, header)?;
    let (mut buffers, mut buffer_lines) = (Vec::with_capacity(lines.len()), Vec::with_capacity(lines.len()));
    let mut planned = Vec::with_capacity(lines.len());
    let mut ids: HashMap<&str, u64> = HashMap::with_capacity(lines.len());
    for (line, &number) in lines.iter().zip(&numbers).skip(1) {
        let buffer = columns.buffer(file, number, line, reading.alignment.unwrap_or(1))?;
        let (field, id) = columns.id(line);
        if let Some(other) = ids.insert(id, number) {
            let what = format!("id `{id}` is on line {other}, too: accepted is an id of its own for each buffer");
            return Err(at_column(file, number, field + 1, what));
        }
        planned.push(buffer.size > 0);
        if buffer.size > 0 {
            buffers.push(buffer);
            buffer_lines.push(number);
        }
    }
    let problem = Problem { buffers, ..Problem::default() };
    if !problem.buffers.is_empty() {
        problem.check().map_err(|error| whole(file, &problem, &buffer_lines, &error))?;
    }
    Ok(Task { part: String::new(), problem, source: Source::Table(Lines { fields: lines, planned }), start: None })
}

/// Returns an error about several buffers, at the line of the buffer with the mistake.
fn whole(file: &Path, problem: &Problem, lines: &[u64], error: &Unusable) -> BadInput {
    let line = |buffer: u32| lines[buffer as usize];
    match *error {
        Unusable::FixedOverlap { first, second, step } => {
            let (first, second) = (first.min(second), first.max(second));
            let [one, other] = [first, second].map(|buffer| {
                let Buffer { fixed, size, .. } = problem.buffers[buffer as usize];
                fixed.unwrap_or(0)..fixed.unwrap_or(0) + size
            });
            let what = format!("bytes {other:?} overlap {one:?} of line {}, and both live at {step}", line(first));
            BadInput::at(file, line(second), what)
        }
        Unusable::Total { buffer } => BadInput::at(
            file,
            line(buffer),
            "sizes, alignments and offsets up to here add up to 4 EiB or more: a plan has to stay below",
        ),
        _ => BadInput::whole(file, error.to_string()),
    }
}

/// The field of each column.
struct Columns([Option<usize>; COLUMNS.len()]);

impl Columns {
    fn of(file: &Path, header: &[String]) -> Result<Self, BadInput> {
        let mut columns = [None; COLUMNS.len()];
        let accepted = "accepted are id, lower, upper, size and, if wanted, alignment and offset";
        let known = header.iter().filter(|name| COLUMNS.contains(&name.as_str())).count();
        if known == 0 {
            return Err(BadInput::at(file, 1, UNKNOWN));
        }
        for (field, name) in header.iter().enumerate() {
            let Some(column) = COLUMNS.iter().position(|column| column == name) else {
                return Err(at_column(file, 1, field + 1, format!("unknown name `{name}`: {accepted}")));
            };
            if columns[column].replace(field).is_some() {
                return Err(at_column(file, 1, field + 1, format!("`{name}` is there twice: {accepted}")));
            }
        }
        match (0..NEEDED).find(|&column| columns[column].is_none()) {
            Some(missing) => {
                let what = format!("no column is named `{}`: {accepted}", COLUMNS[missing]);
                Err(at_column(file, 1, header.len() + 1, what))
            }
            None => Ok(Self(columns)),
        }
    }

    /// Returns the number of the field with the id, and the id.
    fn id<'a>(&self, fields: &'a [String]) -> (usize, &'a str) {
        let field = self.0[0].unwrap_or(0);
        (field, &fields[field])
    }

    fn buffer(&self, file: &Path, line: u64, fields: &[String], alignment: u64) -> Result<Buffer, BadInput> {
        let count = self.0.iter().flatten().count();
        if fields.len() != count {
            let what = format!("the line has {} fields, the header has {count}", fields.len());
            return Err(BadInput::at(file, line, what));
        }
        let wrong = |column: usize, accepted: &str| {
            let field = self.0[column].unwrap_or(0);
            let what = format!("{} `{}`: accepted is {accepted}", COLUMNS[column], fields[field]);
            at_column(file, line, field + 1, what)
        };
        let number = |column: usize, accepted: &str| -> Result<Option<u64>, BadInput> {
            match self.0[column].map(|field| fields[field].as_str()) {
                None => Ok(None),
                Some("") if column >= NEEDED => Ok(None),
                Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                    text.parse().map(Some).map_err(|_| wrong(column, accepted))
                }
                Some(_) => Err(wrong(column, accepted)),
            }
        };
        let start = number(1, "a whole number of at most 64 bits")?.unwrap_or(0);
        let end = number(2, "a whole number of at most 64 bits")?.unwrap_or(0);
        let bytes = format!("a whole number of bytes from 0 to {}", MAX_REQUEST - 1);
        let size = number(3, &bytes)?.unwrap_or(0);
        let power = format!("a power of two below {MAX_REQUEST}");
        let alignment = number(4, &power)?.unwrap_or(alignment);
        let multiple = format!("nothing, or a multiple of the alignment {alignment} below {MAX_REQUEST}");
        let fixed = number(5, &multiple)?;
        if end <= start {
            return Err(wrong(2, &format!("a number above lower, {start}")));
        }
        if size >= MAX_REQUEST {
            return Err(wrong(3, &bytes));
        }
        if !alignment.is_power_of_two() || alignment >= MAX_REQUEST {
            return Err(wrong(4, &power));
        }
        if fixed.is_some_and(|fixed| !fixed.is_multiple_of(alignment) || fixed >= MAX_REQUEST) {
            return Err(wrong(5, &multiple));
        }
        Ok(Buffer { start, end, size, alignment, fixed })
    }
}

impl Lines {
    /// Returns the lines with the offsets of a plan: every column of the input, and `offset`.
    pub(super) fn with_offsets(&self, offsets: &[u64]) -> Vec<Vec<String>> {
        let place = self.fields[0].iter().position(|name| name == "offset");
        let mut offsets = offsets.iter();
        let mut offset = |&planned: &bool| if planned { offsets.next().copied().unwrap_or(0) } else { 0 };
        let column: Vec<_> = self.planned.iter().map(|planned| (*planned, offset(planned).to_string())).collect();
        let filled = |(line, (planned, offset)): (&Vec<String>, (bool, String))| {
            let mut line = line.clone();
            match place {
                // A buffer of 0 bytes keeps a given offset.
                Some(field) if planned || line[field].is_empty() => line[field] = offset,
                Some(_) => {}
                None => line.push(offset),
            }
            line
        };
        self.fields.iter().zip(std::iter::once((true, "offset".to_owned())).chain(column)).map(filled).collect()
    }
}
