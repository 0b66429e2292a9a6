//! The events of served memory, in a file for `cachalot replay`, `compare`, `plan`, `tune` and
//! `view`.
//!
//! A record is a table of text (`action,addr,size,stream`), an event a line. The thread of an event
//! stores the event and goes on; a thread of the library's own writes the stored events. The file
//! grows in whole blocks of 4 KiB, filled up with empty lines, so a killed program leaves no half
//! line, and loses the events of the last 50 ms.

use crate::shared::threads::without_signals;
use cachalot_core::{Action, TraceEntry};
use cachalot_cuda::fork;
use cachalot_cuda::log;
use cachalot_cuda::own_files::{OwnFile, quietly};
use core::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// Bytes of a block of the file: the system writes a page of the file as a whole.
const BLOCK: usize = 4096;

/// The first line of a record.
const HEADER: &str = "action,addr,size,stream\n";

/// How long an event waits at most to be written.
const PAUSE: Duration = Duration::from_millis(50);

/// A record being written. All methods may be called from every thread, and none calls the
/// driver.
#[derive(Debug)]
pub struct Record {
    /// Unwritten events.
    events: Mutex<Vec<TraceEntry>>,
    /// The file, and the start of a block.
    file: Mutex<Sink>,
}

/// A file, written block by block.
#[derive(Debug)]
struct Sink {
    /// `None` after a failed write, the end of the record.
    file: Option<OwnFile>,
    /// Whole lines, less than a block.
    block: String,
}

impl Record {
    /// Starts a record in a new file, and writes the settings of the allocator and the limit next
    /// to the file, for replays. If `path` exists, another process or context writes to the file,
    /// and the name is followed by the process id and a number.
    ///
    /// # Errors
    /// The files cannot be created.
    pub fn begin(path: &Path, config: &str, limit: Option<u64>) -> io::Result<Arc<Self>> {
        let (path, file) = create(path)?;
        let known = serde_json::json!({
            "config": config,
            "limit_bytes": limit,
            "stats": {},
            "segments": [],
            "end_is_unknown": true,
        });
        quietly(|| std::fs::write(beside(&path), known.to_string()))?;
        let record = Arc::new(Self {
            events: Mutex::default(),
            file: Mutex::new(Sink { file: Some(file), block: HEADER.to_owned() }),
        });
        // Without a first block the file would be no record.
        record.write();
        watch(&record);
        let written = Arc::downgrade(&record);
        without_signals(|| {
            thread::Builder::new().name("cachalot-record".to_owned()).spawn(move || write_on(&written))
        })?;
        Ok(record)
    }

    /// Starts a record as [`begin`](Self::begin) does. `None` after a failure, which is told on the
    /// standard error: nothing is recorded.
    pub fn begin_or_tell(path: &Path, config: &str, limit: Option<u64>) -> Option<Arc<Self>> {
        let begun = Self::begin(path, config, limit);
        begun.map_err(|error| log::warning(format_args!("{}: {error}; nothing is recorded", path.display()))).ok()
    }

    /// Stores an event. Waits for no file.
    pub fn event(&self, event: &TraceEntry) {
        lock(&self.events).push(*event);
    }

    /// Writes the stored events. In a forked child the file is the parent's, and nothing is
    /// written.
    pub fn write(&self) {
        if fork::in_child() {
            return;
        }
        // In this order, so that the events of two calls stay in order.
        let mut sink = lock(&self.file);
        let events = std::mem::take(&mut *lock(&self.events));
        for event in &events {
            sink.line(event);
        }
        sink.end_block();
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.write();
    }
}

impl Sink {
    /// Adds the line of an event.
    fn line(&mut self, event: &TraceEntry) {
        let (letter, address) = match event.action {
            Action::Alloc => ('a', event.addr.0),
            Action::FreeRequested => ('f', event.addr.0),
            Action::FreeCompleted => ('c', event.addr.0),
            Action::SegmentAlloc => ('A', event.addr.0),
            Action::SegmentFree => ('F', event.addr.0),
            Action::SegmentMap => ('M', event.addr.0),
            Action::SegmentUnmap => ('U', event.addr.0),
            // The address field has the free bytes of the device.
            Action::OutOfMemory => ('O', 0),
            _ => return,
        };
        let before = self.block.len();
        writeln!(self.block, "{letter},{address:x},{},{:x}", event.size, event.stream.0).expect("a text grows");
        if self.block.len() > BLOCK {
            let line = self.block.split_off(before);
            self.end_block();
            self.block = line;
        }
    }

    /// Writes the block, filled up with empty lines.
    fn end_block(&mut self) {
        if self.block.is_empty() {
            return;
        }
        let mut block = std::mem::take(&mut self.block).into_bytes();
        block.resize(BLOCK, b'\n');
        if let Some(file) = &self.file
            && let Err(error) = quietly(|| file.get().and_then(|mut file| file.write_all(&block)))
        {
            log::warning(format_args!("the record ends here: {error}"));
            self.file = None;
        }
    }
}

/// Creates the file of a record. Returns the path, too.
fn create(path: &Path) -> io::Result<(PathBuf, OwnFile)> {
    let new = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    let mut tried = path.to_owned();
    let mut number = 0;
    loop {
        match new(&tried) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 10_000 => {
                number += 1;
                tried = numbered(path, number);
            }
            created => return created.and_then(OwnFile::new).map(|file| (tried, file)),
        }
    }
}

/// Returns the name of another record of the process.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    let count = if number == 1 { String::new() } else { format!("-{number}") };
    path.with_file_name(format!("{stem}-{}{count}{ending}", std::process::id()))
}

/// Returns the path of the file next to a record.
fn beside(record: &Path) -> PathBuf {
    let name = record.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".csv").unwrap_or(&name);
    record.with_file_name(format!("{stem}.expected.json"))
}

/// Writes the events of a record from time to time, until the record is dropped.
fn write_on(record: &Weak<Record>) {
    loop {
        thread::sleep(PAUSE);
        let Some(record) = record.upgrade() else { return };
        record.write();
    }
}

/// The records of the process, to be written when the process exits.
static RECORDS: Mutex<Vec<Weak<Record>>> = Mutex::new(Vec::new());

/// Has a record written when the process exits.
fn watch(record: &Arc<Record>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function takes nothing, calls no driver, and does not unwind. A library in
        // front of the driver is never unloaded.
        unsafe { libc::atexit(write_at_exit) };
    });
    let mut records = lock(&RECORDS);
    records.retain(|known| known.strong_count() > 0);
    records.push(Arc::downgrade(record));
}

/// Writes every record.
extern "C" fn write_at_exit() {
    let _ = std::panic::catch_unwind(|| {
        // Another thread may hold the lock for good: it ended with the process.
        let records = RECORDS.try_lock().map(|records| records.clone()).unwrap_or_default();
        records.iter().filter_map(Weak::upgrade).for_each(|record| record.write());
    });
}

/// Locks a part of a record. A panic inside leaves the part whole.
fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, HEADER, Record, beside, numbered};
    use cachalot_core::{Action, DevicePtr, StreamId, TraceEntry};
    use std::path::Path;

    #[test]
    fn a_file_grows_in_blocks_of_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        let record = Record::begin(&path, "", Some(7)).unwrap();
        let text = || std::fs::read_to_string(&path).unwrap();
        assert_eq!((text().len(), text().trim_end()), (BLOCK, HEADER.trim_end()));
        for number in 0..1000 {
            record.event(&TraceEntry {
                action: Action::Alloc,
                site: 0,
                addr: DevicePtr(number << 40),
                size: 512,
                stream: StreamId(0),
                time_us: 0,
            });
            if number % 100 == 0 {
                record.write();
            }
        }
        drop(record);
        let text = text();
        assert_eq!(text.len() % BLOCK, 0);
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!((lines.len(), lines[1], lines[1000]), (1001, "a,0,512,0", "a,3e70000000000,512,0"));
        // A block starts a line and ends one.
        assert!(text.as_bytes().chunks(BLOCK).all(|block| block.ends_with(b"\n")));
        assert!(std::fs::read_to_string(beside(&path)).unwrap().contains(r#""limit_bytes":7"#));
    }

    #[test]
    fn a_file_in_use_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        let records: Vec<_> = (0..3).map(|_| Record::begin(&path, "", None).unwrap()).collect();
        assert_eq!(records.len(), 3);
        for number in 1..3 {
            assert!(numbered(&path, number).is_file());
        }
        assert_eq!(beside(Path::new("/a/b.csv")), Path::new("/a/b.expected.json"));
    }
}
