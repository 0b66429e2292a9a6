//! Tables of buffers: `id,lower,upper,size`, and optionally `alignment`, `offset` and `gaps`, in
//! any order, with half-open lives.
//!
//! The format is `MiniMalloc`'s, with its other names of the columns: `buffer` or `buffer_id`,
//! `begin` or `start`, and `end`, which is the last step of a life and not the step after. Its
//! column `hint` is read over. An empty `offset` leaves the position to the plan, a given offset
//! fixes the position. A buffer of 0 bytes takes no room, is not in the problem, and has the offset
//! 0 in the plan.

use super::gaps::parse;
use super::{Held, Reading, Source, Task, UNKNOWN, at_column};
use crate::trace::BadInput;
use cachalot_core::MAX_REQUEST;
use cachalot_planner::gaps::{Gap, Pieces};
use cachalot_planner::{Buffer, Problem, Unusable};
use std::collections::HashMap;
use std::path::Path;

/// The lines of a table, the header first.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// A field for each column.
    fields: Vec<Vec<String>>,
    /// For each line after the header, the buffer of the problem with its offset. `None` for a
    /// buffer of 0 bytes, which is omitted.
    places: Vec<Option<usize>>,
}

/// The required columns, followed by the optional columns.
const COLUMNS: [&str; 8] = ["id", "lower", "upper", "size", "alignment", "offset", "gaps", "hint"];
const NEEDED: usize = 4;
const GAPS: usize = 6;

/// Other names of columns. Times in `end` are the last step of a life.
const ALIASES: [(&str, &str); 5] =
    [("buffer", "id"), ("buffer_id", "id"), ("begin", "lower"), ("start", "lower"), (END, "upper")];
const END: &str = "end";

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
    let (mut problem, mut relaxed) = (Problem::default(), Problem::default());
    let (mut buffer_lines, mut held_lines) = (Vec::with_capacity(lines.len()), Vec::new());
    let mut places = Vec::with_capacity(lines.len());
    let mut ids: HashMap<&str, u64> = HashMap::with_capacity(lines.len());
    for (line, &number) in lines.iter().zip(&numbers).skip(1) {
        let buffer = columns.buffer(file, number, line, reading.alignment.unwrap_or(1))?;
        let gaps = columns.gaps(file, number, line)?;
        let (field, id) = columns.id(line);
        if let Some(other) = ids.insert(id, number) {
            let what = format!("id `{id}` is on line {other}, too: each buffer needs a different id");
            return Err(at_column(file, number, field + 1, what));
        }
        if buffer.size == 0 {
            places.push(None);
            continue;
        }
        let divided = |relaxed| {
            Pieces::of(&buffer, &gaps, relaxed)
                .map_err(|accepted| columns.wrong(file, number, line, GAPS, &accepted.to_string()))
        };
        let own = divided(false)?;
        if own.held > 0 {
            held_lines.push(number);
        }
        places.push(Some(own.add_to(&mut problem)));
        buffer_lines.resize(problem.buffers.len(), number);
        if columns.fields[GAPS].is_some() {
            divided(true)?.add_to(&mut relaxed);
        }
    }
    if !problem.buffers.is_empty() {
        problem.check().map_err(|error| whole(file, &problem, &buffer_lines, &error))?;
    }
    let held = held(&held_lines).map(|what| Held { what, relaxed });
    let source = Source::Table(Lines { fields: lines, places });
    Ok(Task { part: String::new(), problem, source, start: None, held, remarks: Vec::new() })
}

/// Returns a line about gaps with a window that the planner cannot express.
fn held(lines: &[u64]) -> Option<String> {
    let first = lines.first()?;
    let more = if lines.len() > 1 { format!(" and {} more", lines.len() - 1) } else { String::new() };
    let why = "the bytes below a window are held in a gap that follows no time with all bytes";
    Some(format!("line {first}{more}: {why}, so a smaller plan may exist"))
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

/// Returns the name of a column in [`COLUMNS`].
fn named(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

/// The field of each column.
struct Columns {
    fields: [Option<usize>; COLUMNS.len()],
    /// 1 if lives and gaps are told with their last step, and 0 with the step after.
    last: u64,
}

impl Columns {
    fn of(file: &Path, header: &[String]) -> Result<Self, BadInput> {
        let mut columns = [None; COLUMNS.len()];
        let accepted = "expected id, lower, upper, size and, if wanted, alignment, offset and gaps";
        let known = header.iter().filter(|name| COLUMNS.contains(&named(name))).count();
        if known == 0 {
            return Err(BadInput::at(file, 1, UNKNOWN));
        }
        for (field, name) in header.iter().enumerate() {
            let Some(column) = COLUMNS.iter().position(|column| *column == named(name)) else {
                return Err(at_column(file, 1, field + 1, format!("unknown name `{name}`: {accepted}")));
            };
            if columns[column].replace(field).is_some() {
                let name = COLUMNS[column];
                return Err(at_column(file, 1, field + 1, format!("`{name}` is there twice: {accepted}")));
            }
        }
        match (0..NEEDED).find(|&column| columns[column].is_none()) {
            Some(missing) => {
                let what = format!("no column is named `{}`: {accepted}", COLUMNS[missing]);
                Err(at_column(file, 1, header.len() + 1, what))
            }
            None => Ok(Self { fields: columns, last: u64::from(header.iter().any(|name| name == END)) }),
        }
    }

    /// Returns the number of the field with the id, and the id.
    fn id<'a>(&self, fields: &'a [String]) -> (usize, &'a str) {
        let field = self.fields[0].unwrap_or(0);
        (field, &fields[field])
    }

    /// Returns an error at a field.
    fn wrong(&self, file: &Path, line: u64, fields: &[String], column: usize, accepted: &str) -> BadInput {
        let field = self.fields[column].unwrap_or(0);
        let name = if column == 2 && self.last > 0 { END } else { COLUMNS[column] };
        at_column(file, line, field + 1, format!("{name} `{}`: expected {accepted}", fields[field]))
    }

    /// Returns the gaps of a line whose fields are complete.
    fn gaps(&self, file: &Path, line: u64, fields: &[String]) -> Result<Vec<Gap>, BadInput> {
        let Some(field) = self.fields[GAPS] else { return Ok(Vec::new()) };
        let gaps = fields[field].split_whitespace().map(|gap| parse(gap, self.last));
        let accepted = "nothing, or gaps FROM-TO or FROM-TO@LOW:HIGH with spaces between";
        gaps.collect::<Option<_>>().ok_or_else(|| self.wrong(file, line, fields, GAPS, accepted))
    }

    fn buffer(&self, file: &Path, line: u64, fields: &[String], alignment: u64) -> Result<Buffer, BadInput> {
        let count = self.fields.iter().flatten().count();
        if fields.len() != count {
            let what = format!("the line has {} fields, the header has {count}", fields.len());
            return Err(BadInput::at(file, line, what));
        }
        let wrong = |column: usize, accepted: &str| self.wrong(file, line, fields, column, accepted);
        let number = |column: usize, accepted: &str| -> Result<Option<u64>, BadInput> {
            match self.fields[column].map(|field| fields[field].as_str()) {
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
        let end = end.checked_add(self.last).ok_or_else(|| wrong(2, "a whole number below the most of 64 bits"))?;
        let bytes = format!("a whole number of bytes from 0 to {}", MAX_REQUEST - 1);
        let size = number(3, &bytes)?.unwrap_or(0);
        let power = format!("a power of two below {MAX_REQUEST}");
        let alignment = number(4, &power)?.unwrap_or(alignment);
        let multiple = format!("nothing, or a multiple of the alignment {alignment} below {MAX_REQUEST}");
        let fixed = number(5, &multiple)?;
        if end <= start {
            let least = if self.last > 0 { "from lower on" } else { "above lower" };
            return Err(wrong(2, &format!("a number {least}, {start}")));
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
    /// Returns the number of buffers with bytes.
    pub(super) fn planned(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Returns the lines with the offsets of a plan: every column of the input, and `offset`.
    pub(super) fn with_offsets(&self, offsets: &[u64]) -> Vec<Vec<String>> {
        let place = self.fields[0].iter().position(|name| name == "offset");
        let column = self.places.iter().map(|place| {
            let offset = place.and_then(|place| offsets.get(place)).copied().unwrap_or(0);
            (place.is_some(), offset.to_string())
        });
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
