//! The latest events of all threads. A finding with an address prints the events at the address,
//! for cases that do not repeat.

use crate::finding::{self, Origin};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::OnceLock;
use std::time::Instant;

/// Greatest number of events.
const MOST_EVENTS: usize = 200_000;

/// Greatest number of printed events.
const MOST_PRINTED: usize = 60;

/// An event at a part of memory.
struct Event {
    time_us: u128,
    origin: Origin,
    what: String,
    address: u64,
    bytes: u64,
    /// The tag of the written contents.
    written: Option<u64>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time_us, origin, what, address, bytes, .. } = self;
        write!(f, "  {time_us} us {origin} {what} {address:#x}+{bytes:#x}")
    }
}

/// The events, if they are recorded.
static EVENTS: OnceLock<(Instant, Mutex<VecDeque<Event>>)> = OnceLock::new();

/// Begins to record events.
pub(crate) fn start() {
    EVENTS.get_or_init(|| (Instant::now(), Mutex::default()));
}

/// Notes an event at `bytes` of memory; at all memory, if `bytes` is 0.
pub(crate) fn note(address: u64, bytes: u64, what: impl FnOnce() -> String) {
    add(address, bytes, None, what);
}

/// Notes the contents written to `bytes` of memory, by their tag.
pub(crate) fn note_write(address: u64, bytes: u64, tag: u64, what: impl FnOnce() -> String) {
    add(address, bytes, Some(tag), what);
}

fn add(address: u64, bytes: u64, written: Option<u64>, what: impl FnOnce() -> String) {
    if let Some((begin, events)) = EVENTS.get() {
        let (time_us, origin) = (begin.elapsed().as_micros(), finding::origin());
        let event = Event { time_us, origin, what: what(), address, bytes, written };
        let mut events = events.lock();
        if events.len() == MOST_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }
}

/// Prints the latest events at a part of memory.
pub(crate) fn print(address: u64, bytes: u64) {
    // Not waited for: the caller may be in the handler of a signal.
    let Some(events) = EVENTS.get().and_then(|(_, events)| events.try_lock()) else { return };
    let touches = |event: &&Event| {
        event.bytes == 0 || (event.address < address + bytes.max(1) && address < event.address + event.bytes)
    };
    let found: Vec<&Event> = events.iter().rev().filter(touches).take(MOST_PRINTED).collect();
    let mut out = std::io::stdout().lock();
    for event in found.into_iter().rev() {
        // Ignored: the finding itself is printed.
        let _written = writeln!(out, "{event}");
    }
}

/// Returns the address and the text of the latest event that wrote a word. `place` returns the
/// address of the word in a tag's contents.
pub(crate) fn writer(place: impl Fn(u64) -> Option<u64>) -> Option<(u64, String)> {
    let events = EVENTS.get()?.1.try_lock()?;
    events.iter().rev().find_map(|event| {
        let at = place(event.written?)?;
        (event.address..event.address + event.bytes).contains(&at).then(|| (at, event.to_string()))
    })
}
