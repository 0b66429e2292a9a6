//! The clock of a trace of torch.profiler.

use cachalot_replay::trace::BadInput;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The key with the time that is 0 in the trace, in nanoseconds since 1970. Traces of earlier
/// versions, up to `PyTorch` 2.2, have no such key, and times since 1970.
const BASE: &[u8] = b"\"baseTimeNanoseconds\"";

/// The key with the events of every trace.
const EVENTS: &[u8] = b"\"traceEvents\"";

/// Bytes that are searched at a time.
const PART: usize = 1 << 20;

/// Most bytes of a key and its value.
const LONGEST: usize = 64;

/// Returns the time that is 0 in a trace, in nanoseconds since 1970.
pub(super) fn base_time_ns(file: &Path) -> Result<i64, BadInput> {
    let cannot = |error: io::Error| BadInput::whole(file, format!("cannot be read: {error}"));
    let mut raw = BufReader::new(File::open(file).map_err(cannot)?);
    let is_compressed = raw.fill_buf().map_err(cannot)?.starts_with(&[0x1f, 0x8b]);
    let found = if is_compressed { search(MultiGzDecoder::new(raw)) } else { search(raw) };
    match found.map_err(cannot)? {
        (Some(base), _) => Ok(base),
        (None, true) => Ok(0),
        (None, false) => Err(BadInput::whole(file, "not a trace of torch.profiler: there is no key \"traceEvents\"")),
    }
}

/// Searches a text for the base time, and for events. Never holds more than a part of the text.
fn search(mut text: impl Read) -> io::Result<(Option<i64>, bool)> {
    let (mut window, mut has_events) = (Vec::new(), false);
    loop {
        let count = text.by_ref().take(PART as u64).read_to_end(&mut window)?;
        let is_end = count == 0;
        has_events |= find(&window, EVENTS).is_some();
        if let Some(at) = find(&window, BASE) {
            let value = &window[at + BASE.len()..];
            if is_end || value.len() >= LONGEST {
                return Ok((number(value), has_events));
            }
        }
        if is_end {
            return Ok((None, has_events));
        }
        // A key and its value may be on both sides of the end of a part.
        let keep = window.len().saturating_sub(2 * LONGEST);
        window.drain(..keep);
    }
}

fn find(text: &[u8], key: &[u8]) -> Option<usize> {
    text.windows(key.len()).position(|part| part == key)
}

/// Returns the number behind a key.
fn number(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{PART, search};

    #[test]
    fn the_base_is_found_anywhere() {
        let found = |text: &str| search(text.as_bytes()).expect("memory can be read");
        assert_eq!(found(r#"{"baseTimeNanoseconds": 17, "traceEvents": []}"#), (Some(17), true));
        assert_eq!(found(r#"{"traceEvents":[]}"#), (None, true));
        assert_eq!(found("{}"), (None, false));
        for before in PART - 90..PART + 5 {
            let text =
                format!("{{\"traceEvents\":[{}],\"baseTimeNanoseconds\":1700000000000000000}}", " ".repeat(before));
            assert_eq!(found(&text), (Some(1_700_000_000_000_000_000), true), "{before}");
        }
    }
}
