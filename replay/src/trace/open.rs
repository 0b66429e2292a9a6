//! Opening a file and recognising its format by its first bytes, whatever it is called.

use super::BadInput;
use super::error::describe_io;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// How the events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Text lines.
    Csv,
    /// A memory snapshot: a pickled object, or one in JSON.
    Snapshot,
}

/// A file at its first byte, decompressed.
pub(super) struct Opened {
    /// What its first bytes say it is.
    pub(super) format: Format,
    /// Its content.
    pub(super) reader: Box<dyn BufRead>,
}

/// The two bytes that every gzip stream begins with (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The opcode PROTO, with which every pickle of protocol 2 and later begins.
const PICKLE_PROTO: u8 = 0x80;

/// Opens a file for reading, decompressed if it is compressed.
pub(crate) fn decompressed(file: &Path) -> Result<Box<dyn BufRead>, BadInput> {
    let cannot = |error: std::io::Error| BadInput::whole(file, format!("cannot be read: {error}"));
    let mut raw = BufReader::new(File::open(file).map_err(cannot)?);
    let start = raw.fill_buf().map_err(cannot)?;
    if start.is_empty() {
        return Err(BadInput::at(file, 1, "the file is empty"));
    }
    if start.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(raw))));
    }
    Ok(Box::new(raw))
}

/// Opens a record and recognises its format.
pub(super) fn open(file: &Path) -> Result<Opened, BadInput> {
    let mut reader = decompressed(file)?;
    let start = reader.fill_buf().map_err(|error| BadInput::at(file, 1, describe_io(&error)))?;
    let format = match start.first() {
        None => return Err(BadInput::at(file, 1, "the file is empty")),
        Some(&PICKLE_PROTO | b'{') => Format::Snapshot,
        Some(_) => Format::Csv,
    };
    Ok(Opened { format, reader })
}
