//! A heap profile for pprof: blocks and bytes by call stack.
//!
//! Every name and number is from the published schema, `proto/profile.proto` of
//! github.com/google/pprof.

use super::super::diff::Time;
use cachalot_replay::inspect::{Holding, Since, holdings};
use cachalot_snapshot::{Frame, Snapshot, Stack};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write};

/// Function of a sample without a recorded stack.
const NO_STACK: &str = "(no stack was recorded)";

/// The only mapping. A profile without one makes pprof look for symbols.
const MAPPING: u64 = 1;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// The innermost first.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "3")]
    num: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// A profile under construction, with the numbers of its parts.
struct Builder {
    profile: Profile,
    texts: HashMap<String, i64>,
    /// By name and file.
    functions: HashMap<(i64, i64), u64>,
    /// By function and line.
    locations: HashMap<(u64, i64), u64>,
}

/// Writes the profile of a snapshot at a time.
pub(super) fn write(to: &mut dyn Write, snapshot: &Snapshot, since: &Since, at: Time) -> io::Result<()> {
    let mut found = holdings(snapshot, since, at.into());
    // The order of the holdings is random, and files of one snapshot are equal.
    found.sort_by_cached_key(|holding| (holding.device, holding.stack.map(lines)));
    let profile = Builder::new().build(snapshot, &found);
    let mut encoder = GzEncoder::new(to, Compression::default());
    encoder.write_all(&profile.encode_to_vec())?;
    encoder.finish()?.flush()
}

/// Returns the frames of a stack for comparison.
fn lines(stack: &Stack) -> Vec<(String, i64, String)> {
    stack.frames().iter().map(|frame| (frame.filename.clone(), frame.line, frame.name.clone())).collect()
}

impl Builder {
    fn new() -> Self {
        // The first text is empty, as the schema demands.
        let profile = Profile { string_table: vec![String::new()], ..Profile::default() };
        let texts = HashMap::from([(String::new(), 0)]);
        Self { profile, texts, functions: HashMap::new(), locations: HashMap::new() }
    }

    fn build(mut self, snapshot: &Snapshot, found: &[Holding<'_>]) -> Profile {
        let types = [
            ("allocated_objects", "count"),
            ("allocated_space", "bytes"),
            ("pending_space", "bytes"),
            ("reserved_space", "bytes"),
        ];
        self.profile.sample_type = types.map(|(name, unit)| self.value_type(name, unit)).to_vec();
        self.profile.default_sample_type = self.text("allocated_space");
        // Every block is in the profile: a period of one byte.
        self.profile.period_type = Some(self.value_type("space", "bytes"));
        self.profile.period = 1;
        let mapping = Mapping { id: MAPPING, has_functions: true, has_filenames: true, has_line_numbers: true };
        self.profile.mapping = vec![mapping];
        let times = snapshot.device_traces.iter().filter_map(|trace| trace.last()?.time_us);
        self.profile.time_nanos = times.max().unwrap_or(0).saturating_mul(1000);
        let device = self.text("device");
        for holding in found {
            let values = [holding.blocks, holding.allocated, holding.pending, holding.reserved];
            let location_id = match holding.stack {
                Some(stack) => stack.telling().into_iter().map(|frame| self.location(frame)).collect(),
                None => vec![self.location(&Frame { name: NO_STACK.to_owned(), ..Frame::default() })],
            };
            self.profile.sample.push(Sample {
                location_id,
                value: values.map(u64::cast_signed).to_vec(),
                label: vec![Label { key: device, num: holding.device }],
            });
        }
        self.profile
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.text(name), unit: self.text(unit) }
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.texts.get(text) {
            return number;
        }
        let number = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), number);
        number
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        let (name, filename) = (self.text(&frame.name), self.text(&frame.filename));
        let next = self.functions.len() as u64 + 1;
        let function_id = *self.functions.entry((name, filename)).or_insert(next);
        if function_id == next {
            self.profile.function.push(Function { id: next, name, system_name: name, filename });
        }
        let next = self.locations.len() as u64 + 1;
        let id = *self.locations.entry((function_id, frame.line)).or_insert(next);
        if id == next {
            let line = vec![Line { function_id, line: frame.line }];
            self.profile.location.push(Location { id, mapping_id: MAPPING, line });
        }
        id
    }
}
