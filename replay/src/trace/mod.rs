//! Reading recorded programs: `.csv`, `.csv.gz`, and memory snapshots of `PyTorch` and cachalot.
//!
//! A record is every event of one device's allocator from its beginning. Files are recognised by their content,
//! and a record that contradicts itself is refused with the line that does so.

mod consistency;
mod csv_record;
pub(crate) mod error;
mod event;
mod expected;
pub(crate) mod open;
pub mod snapshot;

pub use error::BadInput;
pub use event::{Action, Event, Note};
pub use expected::{Block, BlockState, Expected, Segment};

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
    /// How the run ended, where that is known.
    pub expected: Option<Expected>,
}

impl Trace {
    /// Reads every record of a file: one, or one for each device of a snapshot.
    ///
    /// # Errors
    /// The first thing that is wrong with the file, or with the `NAME.expected.json.gz` beside it.
    pub fn load(file: &Path) -> Result<Vec<Self>, BadInput> {
        let mut traces = Self::read(file, open::decompressed(file)?)?;
        // A file beside the record knows more than the record: limit, statistics, and the configuration of a `.csv`.
        if let Some(expected) = expected::beside(file, &base_name(file))? {
            for trace in &mut traces {
                trace.expected = Some(expected.clone());
            }
        }
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
        let Opened { format, reader } = open::recognise(file, content)?;
        let name = base_name(file);
        let traces = match format {
            Format::Csv => {
                let events = csv_record::read(file, reader)?;
                vec![Self { name, file: file.to_owned(), events, expected: None }]
            }
            Format::Snapshot => snapshot::read(file, &name, reader)?,
        };
        for trace in &traces {
            consistency::check(file, &trace.events)?;
        }
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
