//! Reading recorded programs: `.csv`, `.csv.gz`, and memory snapshots of `PyTorch` and cachalot.
//!
//! A record is the events of one device's allocator. If its first events are missing, the state that they led to is worked out
//! from the state at the end, which a snapshot holds. Files are recognised by their content, and a record that contradicts
//! itself is refused with the line that does so.

mod backward;
mod consistency;
mod csv_record;
pub(crate) mod error;
mod event;
mod expected;
pub(crate) mod open;
pub mod snapshot;
mod start;

pub use error::{BadInput, Place};
pub use event::{Action, Event, Note};
pub use expected::{Block, BlockState, Expected, Segment};
pub use start::Start;

use consistency::Contradiction;
use open::{Format, Opened};
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// A recorded program of one device.
#[derive(Debug, Clone)]
pub struct Trace {
    /// What to call it: the file's name without its endings, with `#device` behind it if the file holds several.
    pub name: String,
    /// The file it was read from.
    pub file: PathBuf,
    /// The events, in order. Never empty, and consistent with each other.
    pub events: Vec<Event>,
    /// What was there before the first event, if the record begins in the middle of its program.
    pub start: Option<Start>,
    /// How the run ended, where that is known.
    pub expected: Option<Expected>,
}

impl Trace {
    /// Reads every record of a file: one, or one for each device of a snapshot.
    ///
    /// # Errors
    /// The first thing that is wrong with the file, or with the `NAME.expected.json.gz` beside it.
    pub fn load(file: &Path) -> Result<Vec<Self>, BadInput> {
        let mut traces = Self::parse(file, open::decompressed(file)?)?;
        // A file beside the record knows more than the record: limit, statistics, and the configuration of a `.csv`.
        if let Some(expected) = expected::beside(file, &base_name(file))? {
            for trace in &mut traces {
                trace.expected = Some(expected.clone());
            }
        }
        traces.iter_mut().try_for_each(Self::complete)?;
        Ok(traces)
    }

    /// Reads every record from the bytes of a file, and no file beside it.
    ///
    /// # Errors
    /// The first thing that is wrong with the bytes.
    pub fn load_bytes(file: &Path, bytes: &[u8]) -> Result<Vec<Self>, BadInput> {
        Self::read(file, open::decompress(file, bytes.len() as u64, bytes)?)
    }

    /// Reads every record from the decompressed content of a file, and no file beside it.
    pub(crate) fn read(file: &Path, content: Box<dyn BufRead + '_>) -> Result<Vec<Self>, BadInput> {
        let mut traces = Self::parse(file, content)?;
        traces.iter_mut().try_for_each(Self::complete)?;
        Ok(traces)
    }

    /// The same record from event number `first` on, as it is if the program's history was recorded no earlier.
    ///
    /// # Errors
    /// If no event is left, or what is left tells too little: there is no state at the end, or it contradicts the events.
    pub fn from_event(&self, first: usize) -> Result<Self, BadInput> {
        let events = self.events.get(first..).unwrap_or_default().to_vec();
        if events.is_empty() {
            return Err(BadInput::whole(&self.file, format!("there is no event {first}")));
        }
        let mut rest = Self { events, start: None, ..self.clone() };
        rest.complete()?;
        Ok(rest)
    }

    /// Works out what was there before the first event, and checks the events against it.
    fn complete(&mut self) -> Result<(), BadInput> {
        let (file, events) = (&self.file, &self.events);
        let Some(end) = &self.expected else { return consistency::check(file, events, None) };
        let start = match (backward::start(events, end), consistency::walk(events, None)) {
            // The events are those of a whole program. If the final state is not theirs, a check of the replay says so.
            (Err(_), Ok(())) => return Ok(()),
            (Err((number, why)), Err((_, Contradiction::Beginning(_)))) => {
                let what = format!("{why}: the events do not lead to the final state");
                return Err(BadInput::at_place(file, events[number].place, what));
            }
            (Ok(start), _) if !start.is_empty() => start,
            _ => return consistency::check(file, events, None),
        };
        consistency::check(file, events, Some(&start))?;
        self.start = Some(start);
        Ok(())
    }

    /// Reads every record from the decompressed content of a file. The events are not checked against each other.
    fn parse(file: &Path, content: Box<dyn BufRead + '_>) -> Result<Vec<Self>, BadInput> {
        let Opened { format, reader } = open::recognise(file, content)?;
        let name = base_name(file);
        let traces = match format {
            Format::Csv => {
                let events = csv_record::read(file, reader)?;
                vec![Self { name, file: file.to_owned(), events, start: None, expected: None }]
            }
            Format::Snapshot => snapshot::read(file, &name, reader)?,
        };
        Ok(traces)
    }

    /// The configuration string that the program ran with; empty for the default one, or where it is not known.
    pub fn config(&self) -> &str {
        self.expected.as_ref().map_or("", |expected| &expected.config)
    }

    /// The memory limit in bytes that the program ran with, if there was one and it is known.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.expected.as_ref().and_then(|expected| expected.limit_bytes)
    }
}

/// The file's name without the endings that say how it is stored.
fn base_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    [".csv", ".pickle", ".pkl", ".json"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::base_name;
    use std::path::Path;

    #[test]
    fn a_name_loses_only_the_endings_of_its_format() {
        assert_eq!(base_name(Path::new("some/where/mlp.v1.csv.gz")), "mlp.v1");
        assert_eq!(base_name(Path::new("run__stacks.pickle.gz")), "run__stacks");
        assert_eq!(base_name(Path::new("run.csv")), "run");
        assert_eq!(base_name(Path::new("run.txt")), "run.txt");
    }
}
