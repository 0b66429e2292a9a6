//! The published book: totals by object and kind, each an atomic word.
//!
//! Only the process of the book writes, from all threads. A reader may see totals of slightly
//! different moments, and never half a number.

use super::kind::{KINDS, Kind};
use crate::shared::form;
use crate::shared::map::Words;
use crate::shared::process::Identity;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first word of the file: `CACHBOK1`.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"CACHBOK1");

/// Greatest number of objects in a book. The last row stands for all other objects.
pub(super) const OBJECTS: usize = 256;

/// Words of an object's name.
const NAME: usize = 32;

/// The book of a process on a device.
#[repr(C, align(64))]
pub(super) struct Book {
    /// [`MAGIC`], written last.
    pub(super) magic: AtomicU64,
    /// Bytes of the file.
    pub(super) length: AtomicU64,
    /// The namespace of the process id.
    pub(super) namespace: AtomicU64,
    pub(super) pid: AtomicU64,
    pub(super) start: AtomicU64,
    pub(super) image: AtomicU64,
    pub(super) uuid: [AtomicU64; 2],
    pub(super) program: [AtomicU64; 4],
    /// Number of objects with a name.
    pub(super) objects: AtomicU64,
    /// The driver's own figures: used bytes of the device, all bytes, and the time in milliseconds
    /// since 1970. 0 before the first.
    pub(super) used: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) when: AtomicU64,
    /// Bytes of the device in the book at that time.
    pub(super) booked_then: AtomicU64,
    /// Bookings without room in the table of living entries, their bytes, and frees of memory
    /// without an entry.
    pub(super) dropped: AtomicU64,
    pub(super) dropped_bytes: AtomicU64,
    pub(super) unknown_frees: AtomicU64,
    /// Objects beyond the table, counted at each booking.
    pub(super) unnamed: AtomicU64,
    pub(super) rows: [Row; OBJECTS],
}

// SAFETY: atomic words.
unsafe impl Words for Book {}

/// The totals of an object.
#[repr(C)]
pub(super) struct Row {
    name: [AtomicU64; NAME],
    pub(super) cells: [Cell; KINDS],
}

/// The total of an object and a kind.
#[repr(C)]
pub(super) struct Cell {
    pub(super) bytes: AtomicU64,
    pub(super) count: AtomicU64,
    /// Greatest number of bytes so far.
    pub(super) peak: AtomicU64,
}

impl Row {
    /// Names the row. A long name keeps the end, which tells more.
    pub(super) fn rename(&self, name: &str) {
        let most = NAME * 8;
        let mut from = name.len().saturating_sub(most);
        while !name.is_char_boundary(from) {
            from += 1;
        }
        for (word, part) in self.name.iter().zip(form::pack::<NAME>(&name[from..])) {
            word.store(part, Ordering::Relaxed);
        }
    }

    /// Returns the name.
    pub(super) fn name(&self) -> String {
        form::unpack(self.name.iter().map(|word| word.load(Ordering::Relaxed)))
    }
}

impl Cell {
    pub(super) fn add(&self, bytes: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let sum = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        self.peak.fetch_max(sum, Ordering::Relaxed);
    }

    /// Subtracts bytes, stops at 0, and returns the subtracted bytes.
    pub(super) fn subtract(&self, bytes: u64) -> u64 {
        let less = |word: &AtomicU64, by: u64| {
            let before =
                word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |value| Some(value.saturating_sub(by)));
            before.unwrap_or_default()
        };
        bytes.min(less(&self.bytes, bytes))
    }

    /// Subtracts an entry.
    pub(super) fn remove(&self, bytes: u64) {
        let less = |count: u64| Some(count.saturating_sub(1));
        let _ = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.subtract(bytes);
    }
}

impl Book {
    /// Fills in the constant words.
    pub(super) fn begin(&self, owner: Identity, namespace: u64, program: &str, uuid: [u64; 2]) {
        let words = [
            (&self.length, size_of::<Self>() as u64),
            (&self.namespace, namespace),
            (&self.pid, owner.pid.into()),
            (&self.start, owner.start),
            (&self.image, owner.image),
            (&self.uuid[0], uuid[0]),
            (&self.uuid[1], uuid[1]),
        ];
        words.iter().for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        for (word, part) in self.program.iter().zip(form::pack::<4>(program)) {
            word.store(part, Ordering::Relaxed);
        }
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Returns the process of the book.
    pub(super) fn owner(&self) -> Identity {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Identity { pid: read(&self.pid) as u32, start: read(&self.start), image: read(&self.image) }
    }

    /// Returns the bytes of all device memory in the book.
    pub(super) fn of_device(&self) -> u64 {
        let rows = &self.rows[..self.len()];
        let kinds = || Kind::ALL.into_iter().filter(|kind| kind.is_of_device());
        let cells = rows.iter().flat_map(|row| kinds().map(|kind| &row.cells[kind as usize]));
        cells.fold(0_u64, |sum, cell| sum.saturating_add(cell.bytes.load(Ordering::Relaxed)))
    }

    /// Returns the number of named objects, at most the length of the table.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.objects.load(Ordering::Acquire)).unwrap_or(OBJECTS).min(OBJECTS)
    }
}
