//! Opens files, and recognizes the format by the first bytes, not by the name.

use super::BadInput;
use super::error::describe_io;
use super::kind::{self, Kind};
use super::page;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::OnceLock;

/// A decompressed file, at the first byte.
pub(super) struct Opened<'r> {
    /// What the file is.
    pub(super) kind: Kind,
    /// The content.
    pub(super) reader: Box<dyn BufRead + 'r>,
}

/// First two bytes of every gzip stream (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Most decompressed bytes for each byte of a compressed file. Recorded traces reach 34, and gzip
/// about 1000.
const MOST_EXPANSION: u64 = 128;

/// Number of decompressed bytes allowed for every compressed file.
const SOME_BYTES: u64 = 64 << 20;

/// The file name that stands for the standard input.
const STANDARD_INPUT: &str = "-";

/// Returns whether a file is the standard input.
pub(crate) fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == STANDARD_INPUT
}

/// Returns the whole standard input. Several readers may need the start, so the bytes are read once
/// and kept.
fn standard_input(file: &Path) -> Result<&'static [u8], BadInput> {
    static BYTES: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes).map_err(|error| error.to_string())
    });
    bytes.as_deref().map_err(|error| BadInput::whole(file, format!("cannot be read: {error}")))
}

/// Opens a file for reading, and decompresses a compressed file. `-` is the standard input.
pub(crate) fn decompressed(file: &Path) -> Result<Box<dyn BufRead>, BadInput> {
    let cannot = |error: io::Error| BadInput::whole(file, format!("cannot be read: {error}"));
    if is_standard_input(file) {
        let bytes = standard_input(file)?;
        return decompress(file, bytes.len() as u64, bytes);
    }
    let raw = File::open(file).map_err(cannot)?;
    no_script(file)?;
    let bytes = raw.metadata().map_err(cannot)?.len();
    decompress(file, bytes, BufReader::new(raw))
}

/// Refuses a script that trains, which another command predicts.
fn no_script(file: &Path) -> Result<(), BadInput> {
    if file.extension().is_some_and(|ending| ending == "py") {
        let shown = file.display();
        let what = format!("this is a Python script: `python -m cachalot_gpu.predict {shown}` predicts its memory");
        return Err(BadInput::whole(file, what));
    }
    Ok(())
}

/// Opens a file like [`decompressed`], and calls `watch` after each read with the number of bytes
/// read from the file.
pub(crate) fn decompressed_watched<'r>(
    file: &Path,
    watch: impl FnMut(u64) + 'r,
) -> Result<Box<dyn BufRead + 'r>, BadInput> {
    if is_standard_input(file) {
        return decompressed(file);
    }
    let cannot = |error: io::Error| BadInput::whole(file, format!("cannot be read: {error}"));
    let raw = File::open(file).map_err(cannot)?;
    no_script(file)?;
    let bytes = raw.metadata().map_err(cannot)?.len();
    decompress(file, bytes, BufReader::with_capacity(WATCHED_BYTES, Watched { content: raw, watch }))
}

/// Bytes of a file between two calls of `watch`.
const WATCHED_BYTES: usize = 1 << 20;

/// The content of a file, with a function to call after each read.
struct Watched<R, W> {
    content: R,
    watch: W,
}

impl<R: Read, W: FnMut(u64)> Read for Watched<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        (self.watch)(count as u64);
        Ok(count)
    }
}

/// Reads the content of a file of `bytes` bytes, and decompresses compressed content.
pub(crate) fn decompress<'r>(
    file: &Path,
    bytes: u64,
    mut raw: impl BufRead + 'r,
) -> Result<Box<dyn BufRead + 'r>, BadInput> {
    let cannot = |error: io::Error| BadInput::whole(file, format!("cannot be read: {error}"));
    let start = raw.fill_buf().map_err(cannot)?;
    if start.is_empty() {
        return Err(BadInput::at(file, 1, "the file is empty"));
    }
    if start.starts_with(&GZIP_MAGIC) {
        let most = bytes.saturating_mul(MOST_EXPANSION).max(SOME_BYTES);
        return unpacked(file, BufReader::new(Bounded { content: MultiGzDecoder::new(raw), left: most, most }));
    }
    unpacked(file, raw)
}

/// Returns the content of a page's snapshot, or any other content as it is.
fn unpacked<'r>(file: &Path, mut content: impl BufRead + 'r) -> Result<Box<dyn BufRead + 'r>, BadInput> {
    // An error of the content comes again, from a reader that knows more.
    if content.fill_buf().is_ok_and(page::is_page) {
        return page::snapshot(file, content);
    }
    Ok(Box::new(content))
}

/// The content of a compressed file up to a bound, because a short file can expand to any length.
struct Bounded<R> {
    content: R,
    /// Number of bytes left to the bound.
    left: u64,
    most: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            let what = format!(
                "the compressed data expands to more than {} bytes: the most is {MOST_EXPANSION} for each compressed \
                 byte, or {SOME_BYTES} if that is more; decompress the file to read it anyway",
                self.most
            );
            io::Error::new(io::ErrorKind::FileTooLarge, what)
        })?;
        Ok(count)
    }
}

/// Recognizes a file by its first bytes.
pub(super) fn recognise<'r>(file: &Path, mut reader: Box<dyn BufRead + 'r>) -> Result<Opened<'r>, BadInput> {
    let start = reader.fill_buf().map_err(|error| BadInput::at(file, 1, describe_io(&error)))?;
    if start.is_empty() {
        return Err(BadInput::at(file, 1, "the file is empty"));
    }
    Ok(Opened { kind: kind::of(start), reader })
}
