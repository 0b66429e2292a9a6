//! Reads logs of RMM's `logging_resource_adaptor`: `Thread,Time,Action,Pointer,Size,Stream`.

use super::error::describe_io;
use super::rebuilt::{Before, Call, Did, Rebuilt, rebuilt};
use super::{BadInput, Place};
use std::io::BufRead;
use std::path::Path;

/// Says what a log does not have.
const REMARK: &str = "a log of RMM does not say what was held from the device: the pages of 2 MiB count that its addresses \
                      touch, and a free on another stream counts as one on the stream of the allocation";

/// Reads a log.
///
/// # Errors
/// The first line that cannot be read.
pub(super) fn read(file: &Path, reader: Box<dyn BufRead + '_>) -> Result<Rebuilt, BadInput> {
    let mut lines = csv::ReaderBuilder::new().flexible(true).from_reader(reader);
    let (mut line, mut calls) = (csv::ByteRecord::new(), Vec::new());
    loop {
        match lines.read_byte_record(&mut line) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                let number = error.position().unwrap_or(lines.position()).line();
                let what = match error.kind() {
                    csv::ErrorKind::Io(error) => describe_io(error),
                    _ => format!("the line cannot be read: {error}"),
                };
                return Err(BadInput::at(file, number, what));
            }
        }
        let number = line.position().map_or(0, csv::Position::line);
        calls.push(call(&line, number).map_err(|what| BadInput::at(file, number, what))?);
    }
    if calls.is_empty() {
        return Err(BadInput::at(file, 1, "the log holds no events: flush the adaptor before the program ends"));
    }
    let mut made = rebuilt(&calls, Before::default());
    made.remarks.insert(0, REMARK.to_owned());
    Ok(made)
}

fn call(line: &csv::ByteRecord, number: u64) -> Result<Call, String> {
    let field = |at: usize| line.get(at).map_or("", |field| str::from_utf8(field).unwrap_or("").trim());
    if line.len() != 6 {
        let count = line.len();
        return Err(format!("the line has {count} fields, the header has 6: the line is cut short or damaged"));
    }
    let did = match field(2) {
        "allocate" => Did::Alloc,
        "free" | "deallocate" => Did::Free,
        "allocate failure" => Did::Fail,
        other => return Err(format!("unknown action `{other}`: it must be allocate, free or allocate failure")),
    };
    let addr = match (did, field(3)) {
        (Did::Fail, _) => 0,
        (_, text) => hexadecimal(text).ok_or_else(|| format!("the pointer `{text}` is not a hexadecimal number"))?,
    };
    let size = field(4).parse().map_err(|_| format!("the size `{}` is not a number of bytes", field(4)))?;
    let stream = hexadecimal(field(5)).ok_or_else(|| format!("the stream `{}` is not a number", field(5)))?;
    Ok(Call { did, addr, size, stream, place: Place::line(number) })
}

/// Reads a number with or without `0x`. glibc prints a null pointer as `(nil)`.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(if text == "(nil)" { "0" } else { text });
    // `from_str_radix` would accept a sign.
    let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::trace::rebuilt::Rebuilt;
    use std::path::Path;

    fn read_text(lines: &str) -> Result<Rebuilt, String> {
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{lines}");
        read(Path::new("log.csv"), Box::new(std::io::Cursor::new(text))).map_err(|error| error.to_string())
    }

    #[test]
    fn a_bad_line_is_named_with_its_number() {
        let good = "1979932,14:21:19.998533,allocate,0x30a000000,256,0x2\n";
        for (line, what) in [
            ("1,2,allocate,0x1", "the line has 4 fields, the header has 6: the line is cut short or damaged"),
            ("1,2,grow,0x1,2,0", "unknown action `grow`: it must be allocate, free or allocate failure"),
            ("1,2,free,+1,2,0", "the pointer `+1` is not a hexadecimal number"),
            ("1,2,free,0x1,-2,0", "the size `-2` is not a number of bytes"),
            ("1,2,free,0x1,2,", "the stream `` is not a number"),
        ] {
            assert_eq!(read_text(&format!("{good}{line}\n")).expect_err(line), format!("log.csv:3: {what}"));
        }
        let none = read_text("").expect_err("no events");
        assert!(none.starts_with("log.csv:1: the log holds no events"), "{none}");
    }

    #[test]
    fn a_failure_has_no_address() {
        let log =
            "1,2,allocate,0x30a000000,256,0x2\n1,3,allocate failure,(nil),4096,0x2\n1,4,free,0x30a000000,256,0x3\n";
        let made = read_text(log).expect("a log");
        let letters: String = made.events.iter().map(|event| event.action.letter()).collect();
        assert_eq!((letters.as_str(), made.remarks.len()), ("MaOfc", 1));
    }
}
