//! A book as read: from a living process, or from a file.

use super::Kind;
use super::layout::{Book, Row};
use crate::shared::form;
use crate::shared::uuid::Uuid;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The book of a process on a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BookView {
    /// The process id.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// The identity of the device, as printed by `nvidia-smi`.
    pub device: String,
    /// The driver's own figures, or `None` before the first.
    pub driver: Option<DriverView>,
    /// Bytes of device memory in the book.
    pub booked: u64,
    /// The driver's used bytes beyond the book of that moment: of other processes, or of unseen
    /// calls. `None` without the driver's figures.
    pub unexplained: Option<i64>,
    /// The objects with memory now or before, the greatest first.
    pub objects: Vec<ObjectView>,
    /// Bookings without room in the table of living entries.
    pub dropped: u64,
    /// Bytes of the bookings without room.
    pub dropped_bytes: u64,
    /// Frees of memory without an entry in the book.
    pub unknown_frees: u64,
    /// Bookings of objects beyond the table of objects, which are booked as `(others)`.
    pub unnamed: u64,
    /// Call stacks with memory, the greatest first. Empty unless asked for.
    #[serde(default)]
    pub stacks: Vec<StackView>,
    /// Bookings whose call stack had no room.
    #[serde(default)]
    pub dropped_stacks: u64,
}

/// Figures of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriverView {
    /// Used bytes of the device, by all processes.
    pub used: u64,
    /// All bytes of the device.
    pub total: u64,
    /// When the driver told, in milliseconds since 1970.
    pub when: u64,
}

/// An object of a book.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectView {
    /// The path, as known to the loader; the end of a long path.
    pub name: String,
    /// Bytes of device memory.
    pub bytes: u64,
    /// Memory by kind.
    pub kinds: Vec<KindView>,
}

/// Memory of an object and a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KindView {
    /// The kind of the memory.
    pub kind: Kind,
    /// Bytes held.
    pub bytes: u64,
    /// Entries held. For contexts and modules: calls with a need of memory.
    pub count: u64,
    /// Greatest number of bytes so far.
    pub peak: u64,
}

/// Memory of a call stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StackView {
    /// Bytes held.
    pub bytes: u64,
    /// Entries held.
    pub count: u64,
    /// Functions, or places in files of objects, innermost first.
    pub frames: Vec<String>,
}

fn read(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

impl ObjectView {
    /// Reads a row. `None`: the object never held memory.
    fn new(row: &Row) -> Option<Self> {
        let cells = Kind::ALL.into_iter().map(|kind| (kind, &row.cells[kind as usize]));
        let kinds = cells.map(|(kind, cell)| KindView {
            kind,
            bytes: read(&cell.bytes),
            count: read(&cell.count),
            peak: read(&cell.peak),
        });
        let kinds: Vec<_> = kinds.filter(|kind| kind.peak > 0).collect();
        let device = kinds.iter().filter(|kind| kind.kind.is_of_device());
        let bytes = device.fold(0_u64, |sum, kind| sum.saturating_add(kind.bytes));
        (!kinds.is_empty()).then(|| Self { name: row.name(), bytes, kinds })
    }
}

impl BookView {
    /// Reads a book, without call stacks.
    pub(super) fn new(book: &Book) -> Self {
        let mut objects: Vec<_> = book.rows[..book.len()].iter().filter_map(ObjectView::new).collect();
        objects.sort_by_key(|object| std::cmp::Reverse(object.bytes));
        let booked = objects.iter().fold(0_u64, |sum, object| sum.saturating_add(object.bytes));
        let driver = DriverView { used: read(&book.used), total: read(&book.total), when: read(&book.when) };
        let driver = Some(driver).filter(|driver| driver.when != 0);
        Self {
            pid: book.owner().pid,
            program: form::unpack(book.program.iter().map(read)),
            device: Uuid::of_words([read(&book.uuid[0]), read(&book.uuid[1])]).to_string(),
            driver,
            booked,
            unexplained: driver.map(|driver| difference(driver.used, read(&book.booked_then))),
            objects,
            dropped: read(&book.dropped),
            dropped_bytes: read(&book.dropped_bytes),
            unknown_frees: read(&book.unknown_frees),
            unnamed: read(&book.unnamed),
            stacks: Vec::new(),
            dropped_stacks: 0,
        }
    }
}

/// Returns `used - booked`, cut off at the ends of the numbers.
pub fn difference(used: u64, booked: u64) -> i64 {
    let difference = i128::from(used) - i128::from(booked);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}
