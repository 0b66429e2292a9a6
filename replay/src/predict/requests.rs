//! Reads a list of requests: a program without addresses and segments, such as the step of a
//! training run on a machine without a GPU.
//!
//! A list is CSV with the header `request,block,size,stream`, and optionally `site`. `a` requests
//! `size` bytes for `stream` as block number `block`, and `f` frees the block. A number is free for
//! another block after the free. `size` and `stream` of a free are ignored and may be empty. `e`
//! empties the cache. `site` starts with the part of a training step (`forward`, `backward` or
//! `optimizer`), and ends with what tells the place of a request from others.

use super::Calls;
use crate::program::{Operation, Program};
use crate::trace::error::describe_io;
use crate::trace::{BadInput, open};
use cachalot_core::{MAX_REQUEST, StreamId};
use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::path::Path;

/// The first line of a list. The last column may be missing.
const HEADER: [&str; 5] = ["request", "block", "size", "stream", "site"];

/// Returns whether the bytes of a file start as a list of requests.
pub fn is_list(bytes: &[u8]) -> bool {
    bytes.starts_with(b"request,")
}

/// Reads a file that is a list of requests. `None` for any other file.
///
/// # Errors
/// The file cannot be read, or the first unusable line of a list, and the reason.
pub fn load(file: &Path) -> Result<Option<List>, BadInput> {
    let mut content = open::decompressed(file)?;
    let cannot = |error: std::io::Error| BadInput::whole(file, describe_io(&error));
    if !is_list(content.fill_buf().map_err(cannot)?) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes).map_err(cannot)?;
    read(file, &bytes).map(Some)
}

/// Reads a list of requests.
///
/// # Errors
/// The first unusable line, and the reason.
pub fn read(file: &Path, bytes: &[u8]) -> Result<List, BadInput> {
    let mut builder = csv::ReaderBuilder::new();
    builder.comment(Some(b'#')).trim(csv::Trim::All);
    let mut reader = builder.from_reader(bytes);
    let header = reader.headers().map_err(|error| BadInput::at(file, 1, error.to_string()))?;
    let has_sites = header == HEADER.as_slice();
    if !has_sites && header != HEADER[..4] {
        let told = HEADER[..4].join(",");
        return Err(BadInput::at(
            file,
            1,
            format!("the first line of a list of requests is `{told}` or `{told},site`"),
        ));
    }
    let mut reading = ListReader { sites: has_sites.then(Default::default), ..ListReader::default() };
    for row in reader.records() {
        let line = |position: Option<&csv::Position>| position.map_or(0, csv::Position::line);
        let row = row.map_err(|error| BadInput::at(file, line(error.position()), error.to_string()))?;
        reading.add(&row).map_err(|what| BadInput::at(file, line(row.position()), what))?;
    }
    Ok(List { program: reading.program, calls: reading.sites.map(|(calls, _)| calls) })
}

/// A list of requests.
#[derive(Debug)]
pub struct List {
    /// The calls.
    pub program: Program,
    /// Where they were made, if the list says.
    pub calls: Option<Calls>,
}

/// A program and its reader's state.
#[derive(Default)]
struct ListReader {
    program: Program,
    /// Slots of the live blocks.
    slots: HashMap<u64, u32>,
    free: Vec<u32>,
    /// The sites so far, and the number of each.
    sites: Option<(Calls, HashMap<String, u32>)>,
}

impl ListReader {
    fn add(&mut self, row: &csv::StringRecord) -> Result<(), String> {
        let number = |at: usize| {
            row[at].parse::<u64>().map_err(|_| format!("the {} `{}` is not a whole number", HEADER[at], &row[at]))
        };
        let operation = match &row[0] {
            "a" => {
                let block = number(1)?;
                let (bytes, stream) = (number(2)?, StreamId(number(3)?));
                if bytes >= MAX_REQUEST {
                    return Err(format!("the size {bytes} is out of range: 0 to {MAX_REQUEST} bytes (1 EiB)"));
                }
                let slot = self.free.pop().unwrap_or_else(|| {
                    self.program.slots += 1;
                    self.program.slots - 1
                });
                if self.slots.insert(block, slot).is_some() {
                    return Err(format!("block {block} is requested twice"));
                }
                Operation::Malloc { bytes, stream, slot }
            }
            "f" => {
                let block = number(1)?;
                let slot = self.slots.remove(&block).ok_or_else(|| format!("block {block} is not allocated"))?;
                self.free.push(slot);
                Operation::Free { slot }
            }
            "e" => Operation::EmptyCache,
            other => return Err(format!("unknown request `{other}`: it must be `a`, `f` or `e`")),
        };
        if let (Some((calls, numbers)), "a" | "f") = (&mut self.sites, &row[0]) {
            calls.add(&row[4], &row[0] == "a", numbers);
        }
        self.program.operations.push(operation);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_slots_that_are_used_again() {
        let text = b"request,block,size,stream\na,7,1000,0\na,8,2000,3\nf,7,,\ne,,,\na,9,5,0\n";
        assert!(is_list(text));
        let List { program, calls } = read(Path::new("r.csv"), text).expect("a list");
        assert_eq!(calls, None);
        let malloc = |bytes, stream, slot| Operation::Malloc { bytes, stream: StreamId(stream), slot };
        let wanted = [
            malloc(1000, 0, 0),
            malloc(2000, 3, 1),
            Operation::Free { slot: 0 },
            Operation::EmptyCache,
            malloc(5, 0, 0),
        ];
        assert_eq!((program.operations.as_slice(), program.slots), (wanted.as_slice(), 2));
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (rows, what) in [
            ("a,1,x,0", "r.csv:2: the size `x` is not a whole number"),
            ("f,1,,", "r.csv:2: block 1 is not allocated"),
            ("a,1,5,0\na,1,5,0", "r.csv:3: block 1 is requested twice"),
            ("z,1,5,0", "r.csv:2: unknown request `z`: it must be `a`, `f` or `e`"),
            ("a,1,1152921504606846976,0", "r.csv:2: the size 1152921504606846976 is out of range"),
        ] {
            let error = read(Path::new("r.csv"), format!("request,block,size,stream\n{rows}\n").as_bytes());
            let error = error.expect_err(rows).to_string();
            assert!(error.starts_with(what), "{error}");
        }
        let error = read(Path::new("r.csv"), b"request,size\n").expect_err("another header").to_string();
        assert_eq!(
            error,
            "r.csv:1: the first line of a list of requests is `request,block,size,stream` or `request,block,size,stream,site`"
        );
    }
}
