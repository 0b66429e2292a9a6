//! Reads records in text form: `action,addr,size,stream[,note]`, one event a line, addresses and
//! streams in hexadecimal.

use super::error::describe_io;
use super::{Action, BadInput, Event, Note, Place, RecordFacts};
use cachalot_core::MAX_REQUEST;
use std::io::{BufRead, Read};
use std::path::Path;

/// The required columns, in order.
const COLUMNS: [&str; 4] = ["action", "addr", "size", "stream"];

/// Accepted names of the fifth column.
const NOTE_COLUMNS: [&str; 2] = ["note", "pool"];

/// Greatest length of a header. A file with a longer first line is no record.
const LONGEST_HEADER_BYTES: u64 = 256;

/// Reads every event of a record. Checks each size, but leaves contradictions between events to
/// `consistency`.
pub(super) fn read(file: &Path, mut reader: Box<dyn BufRead + '_>) -> Result<Vec<Event>, BadInput> {
    let columns = read_header(file, &mut reader)?;
    let mut lines = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(reader);
    let mut record = csv::StringRecord::new();
    let mut events = Vec::new();
    loop {
        match lines.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                let line = error.position().unwrap_or(lines.position()).line() + 1;
                return Err(BadInput::at(file, line, describe(&error)));
            }
        }
        // The header on line 1 was removed before.
        let line = record.position().map_or(0, csv::Position::line) + 1;
        events.push(parse(&record, columns, line).map_err(|what| BadInput::at(file, line, what))?);
    }
    if events.is_empty() {
        return Err(BadInput::at(file, 1, "the record holds no events"));
    }
    Ok(events)
}

/// Removes the first line and returns the number of columns.
fn read_header(file: &Path, reader: &mut dyn BufRead) -> Result<usize, BadInput> {
    let mut header = Vec::new();
    reader
        .take(LONGEST_HEADER_BYTES)
        .read_until(b'\n', &mut header)
        .map_err(|error| BadInput::at(file, 1, describe_io(&error)))?;
    let header = String::from_utf8_lossy(&header);
    let columns: Vec<&str> = header.trim_end_matches(['\n', '\r']).split(',').collect();
    let known = match columns.len() {
        4 => columns == COLUMNS,
        5 => columns[..4] == COLUMNS && NOTE_COLUMNS.contains(&columns[4]),
        _ => false,
    };
    if known {
        return Ok(columns.len());
    }
    Err(BadInput::at(
        file,
        1,
        "not a trace: neither a pickled snapshot nor a table with the first line `action,addr,size,stream[,note]`",
    ))
}

fn describe(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Io(error) => describe_io(error),
        csv::ErrorKind::Utf8 { .. } => "the line is not text".to_owned(),
        _ => format!("the line cannot be read: {error}"),
    }
}

fn parse(record: &csv::StringRecord, columns: usize, line: u64) -> Result<Event, String> {
    let fields = record.len();
    if fields != columns {
        return Err(format!(
            "the line has {fields} fields, the header has {columns}: the line is cut short or damaged"
        ));
    }
    let action = Action::from_letter(&record[0])
        .ok_or_else(|| format!("unknown action `{}`: it must be one of a f c A F M U O", &record[0]))?;
    let addr = hexadecimal("address", &record[1])?;
    let size = bytes(&record[2])?;
    let stream = hexadecimal("stream", &record[3])?;
    let note = match record.get(4) {
        Some("capture") => Note::Capture,
        _ => Note::None,
    };
    Ok(Event { action, addr, size, of: RecordFacts { stream, note, pool: None, place: Place::line(line) } })
}

fn hexadecimal(what: &str, text: &str) -> Result<u64, String> {
    // `from_str_radix` would accept a sign.
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || text.is_empty() {
        return Err(format!("the {what} `{text}` is not a hexadecimal number"));
    }
    u64::from_str_radix(text, 16).map_err(|_| format!("the {what} `{text}` is wider than 64 bits"))
}

fn bytes(text: &str) -> Result<u64, String> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.is_empty() {
        return Err(format!("the size `{text}` is not a number of bytes"));
    }
    match text.parse::<u64>() {
        Ok(size) if size < MAX_REQUEST => Ok(size),
        _ => Err(format!("the size `{text}` is too large: it must be below {MAX_REQUEST} bytes (1 EiB)")),
    }
}

#[cfg(test)]
mod tests {
    use super::{BadInput, Place, read};
    use crate::trace::{Action, Note};
    use std::io::{BufReader, Cursor};
    use std::path::Path;

    fn read_text(text: &str) -> Result<Vec<super::Event>, BadInput> {
        read(Path::new("t.csv"), Box::new(BufReader::new(Cursor::new(text.as_bytes().to_vec()))))
    }

    #[test]
    fn the_fifth_column_may_be_absent_or_named_differently() {
        for (header, row) in [
            ("action,addr,size,stream", "a,ff,512,0"),
            ("action,addr,size,stream,note", "a,ff,512,0,"),
            ("action,addr,size,stream,pool\r", "a,ff,512,0,0.0\r"),
        ] {
            let events = read_text(&format!("{header}\n{row}\n")).expect("a record");
            assert_eq!(events.len(), 1);
            assert_eq!((events[0].action, events[0].addr, events[0].size), (Action::Alloc, 0xff, 512));
            assert_eq!((events[0].of.note, events[0].of.place), (Note::None, Place::Line(2)));
        }
        let events = read_text("action,addr,size,stream,note\na,ff,512,2c,capture").expect("a record");
        assert_eq!((events[0].of.note, events[0].of.stream), (Note::Capture, 0x2c));
    }

    #[test]
    fn a_bad_field_is_named_with_its_line() {
        for (row, what) in [
            ("a,xyz,512,0", "the address `xyz` is not a hexadecimal number"),
            ("a,+1,512,0", "the address `+1` is not a hexadecimal number"),
            ("a,11112222333344445,512,0", "the address `11112222333344445` is wider than 64 bits"),
            ("a,1,-512,0", "the size `-512` is not a number of bytes"),
            ("a,1,,0", "the size `` is not a number of bytes"),
            ("a,1,512,", "the stream `` is not a hexadecimal number"),
            ("q,1,512,0", "unknown action `q`: it must be one of a f c A F M U O"),
            ("a,1,512", "the line has 3 fields, the header has 4: the line is cut short or damaged"),
            (
                "a,1,1152921504606846976,0",
                "the size `1152921504606846976` is too large: it must be below 1152921504606846976 bytes (1 EiB)",
            ),
            (
                "a,1,99999999999999999999999,0",
                "the size `99999999999999999999999` is too large: it must be below 1152921504606846976 bytes (1 EiB)",
            ),
        ] {
            let error = read_text(&format!("action,addr,size,stream\na,200,512,0\n{row}\n")).expect_err(row);
            assert_eq!(error.to_string(), format!("t.csv:3: {what}"));
        }
    }

    #[test]
    fn what_is_no_record_is_refused_on_its_first_line() {
        for text in ["hello\n", "action,addr,size\n", "action,addr,size,stream,colour\n", "\u{1}\u{2}\n"] {
            let error = read_text(text).expect_err(text);
            assert!(error.to_string().starts_with("t.csv:1: not a trace"), "{error}");
        }
        let error = read_text("action,addr,size,stream\n").expect_err("no events");
        assert_eq!(error.to_string(), "t.csv:1: the record holds no events");
    }
}
