//! Reads pages of PyTorch's `memory_viz`, which have the snapshot as base64 in a script.

use super::BadInput;
use super::kind::record_instead;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::read::DecoderReader;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

/// What is before the snapshot: `trace_plot`, `segment_plot` and `profile_plot` write the list of
/// files as JSON.
const BEFORE: &[u8] = b"\"base64\":";

/// Most bytes before the snapshot. Pages of PyTorch have less than a thousand, and a page with the
/// viewer inside less than a million.
const MOST_BEFORE: u64 = 16 << 20;

/// Bytes that are read at a time while the snapshot is searched.
const PART: usize = 64 << 10;

/// The padding of the last part may be missing where a page was cut.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns whether a file starts as a page.
pub(super) fn is_page(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let starts = |with: &str| start.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with.as_bytes()));
    starts("<!doctype html") || starts("<html") || starts("<!--")
}

/// Returns the snapshot in a page.
///
/// # Errors
/// If the page has none: what it is, and what to do.
pub(super) fn snapshot<'r>(file: &Path, mut page: impl BufRead + 'r) -> Result<Box<dyn BufRead + 'r>, BadInput> {
    let before = search(&mut page).map_err(|error| BadInput::whole(file, super::error::describe_io(&error)))?;
    if let Some(what) = before {
        return Err(BadInput::whole(file, what));
    }
    let decoded = DecoderReader::new(Quoted { page, is_over: false }, &BASE64);
    Ok(Box::new(BufReader::with_capacity(PART, Decoded(decoded))))
}

/// The decoded snapshot, with errors that name the page.
struct Decoded<R>(R);

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            // The decoder's own kind, which a damaged gzip stream has as well.
            ErrorKind::InvalidData => io::Error::other(format!("the snapshot in the page is damaged: {error}")),
            _ => error,
        })
    }
}

/// Reads to the first character of the snapshot. Returns what the page is if it has none.
fn search(page: &mut impl BufRead) -> io::Result<Option<&'static str>> {
    let (mut window, mut read) = (Vec::new(), 0);
    let (mut is_picture, mut is_old) = (false, false);
    loop {
        let part = match page.fill_buf() {
            Ok(part) => part,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if part.is_empty() || read > MOST_BEFORE {
            return Ok(Some(match (is_picture, is_old) {
                (true, _) => PICTURE,
                (_, true) => OLD,
                _ => OTHER,
            }));
        }
        let (kept, part) = (window.len(), &part[..part.len().min(PART)]);
        window.extend_from_slice(part);
        is_picture |= find(&window, b"data:image/png;base64,").is_some();
        is_old |= find(&window, b"let alloc_data").is_some();
        if let Some(at) = find(&window, BEFORE) {
            // The window ends at or after the key: the rest stays in the reader.
            let used = (at + BEFORE.len()).saturating_sub(kept);
            page.consume(used);
            return quote(page);
        }
        let count = part.len();
        read += count as u64;
        page.consume(count);
        window.drain(..window.len().saturating_sub(BEFORE.len().max(PICTURE_KEY) - 1));
    }
}

/// Length of what is before a picture.
const PICTURE_KEY: usize = b"data:image/png;base64,".len();

/// Reads to after the quotation mark before the snapshot.
fn quote(page: &mut impl BufRead) -> io::Result<Option<&'static str>> {
    for byte in page.by_ref().bytes().take(16) {
        match byte? {
            b' ' => {}
            b'"' => return Ok(None),
            _ => break,
        }
    }
    Ok(Some(OTHER))
}

fn find(text: &[u8], key: &[u8]) -> Option<usize> {
    text.windows(key.len()).position(|part| part == key)
}

const PICTURE: &str = concat!(
    "this page has only a picture, as export_memory_timeline() writes it: export the timeline as .raw.json.gz, or ",
    record_instead!()
);
const OLD: &str = concat!(
    "this page is of the first memory_viz, of 2022, which has the figures of its picture and no snapshot: ",
    record_instead!()
);
const OTHER: &str = concat!(
    "this page has no snapshot: expected is a page of torch.cuda._memory_viz (trace_plot, segment_plot), and of a page of \
     `cachalot view` the file that it was made of; or ",
    record_instead!()
);

/// The text of a page to the next quotation mark.
struct Quoted<R> {
    page: R,
    is_over: bool,
}

impl<R: BufRead> Read for Quoted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_over || buffer.is_empty() {
            return Ok(0);
        }
        let part = self.page.fill_buf()?;
        let part = &part[..part.len().min(buffer.len())];
        let end = part.iter().position(|&byte| byte == b'"');
        let count = end.unwrap_or(part.len());
        buffer[..count].copy_from_slice(&part[..count]);
        self.is_over = end.is_some();
        self.page.consume(count + usize::from(self.is_over));
        Ok(count)
    }
}
