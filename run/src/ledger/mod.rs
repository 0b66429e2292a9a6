//! Attribution of device memory: every piece is booked to the shared object that asked for it.
//!
//! A book is of a process and a device. The caller of each booking is the first object on the stack
//! beyond the CUDA runtime, the driver, the library in front, the C library and the loader. Nothing
//! here calls the driver.
//!
//! ```text
//! file        the book of a process, written at the process's end
//! publish     the mapped file of a living process's book
//! view        a book, as read
//! stacks      call stacks, on demand
//! caller      the asking object
//! objects     libraries and programs, as mapped by the loader
//! layout live the totals, published · entries not yet freed
//! kind        kinds of memory in a book
//! ```

mod caller;
pub mod file;
mod kind;
mod layout;
mod live;
mod objects;
pub mod publish;
mod stacks;
#[cfg(test)]
mod tests;
pub mod view;

pub use kind::Kind;

use crate::shared::folder;
use crate::shared::uuid::Uuid;
use layout::OBJECTS;
use live::{Booking, Live};
use objects::{Object, Objects};
use publish::Published;
use rustc_hash::FxHashMap;
use stacks::Stacks;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use view::BookView;

/// The number of the row for callers out of sight.
const UNKNOWN: u16 = 0;

/// The number of the row for objects beyond the table.
const OTHERS: u16 = OBJECTS as u16 - 1;

/// Options of a ledger.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LedgerOptions {
    /// Publish the book for `cachalot top`.
    pub publish: bool,
    /// Keep the call stack of each booking.
    pub stacks: bool,
}

/// The book of the process on a device. All methods may be called from every thread, and none calls
/// the driver. In a forked child of the ledger's process, the methods do nothing.
pub struct Ledger {
    book: Published,
    objects: Objects,
    /// Rows of the book by the names of objects.
    rows: RwLock<FxHashMap<String, u16>>,
    live: Live,
    stacks: Option<Stacks>,
    fault: Option<String>,
}

impl Ledger {
    /// Opens the book of the process on a device. If the book cannot be published, the ledger keeps
    /// a private book, and [`Self::fault`] says why.
    ///
    /// # Errors
    /// The system has no memory for the book.
    pub fn new(device: Uuid, options: LedgerOptions) -> io::Result<Self> {
        let folder = options.publish.then(folder::of_user).transpose();
        match folder {
            Ok(folder) => Self::in_folder(folder.as_deref(), device, options.stacks),
            Err(error) => Ok(Self { fault: Some(error.to_string()), ..Self::in_folder(None, device, options.stacks)? }),
        }
    }

    /// Opens the book with a file in a folder, or without a file. See [`Self::new`].
    ///
    /// # Errors
    /// The system has no memory for the book.
    pub fn in_folder(folder: Option<&Path>, device: Uuid, stacks: bool) -> io::Result<Self> {
        let published = folder.map(|folder| Published::in_folder(folder, device)).transpose();
        let (book, fault) = match published {
            Ok(Some(book)) => (book, None),
            Ok(None) => (Published::private(device)?, None),
            Err(error) => (Published::private(device)?, Some(format!("the book cannot be published: {error}"))),
        };
        book.book().rows[usize::from(UNKNOWN)].rename("(unknown)");
        book.book().objects.store(1, Ordering::Release);
        Ok(Self {
            book,
            objects: Objects::default(),
            rows: RwLock::default(),
            live: Live::default(),
            stacks: stacks.then(Stacks::default),
            fault,
        })
    }

    /// Publishes the book again, if its file was removed. Calls the system, and may be called at
    /// any time.
    pub fn stay_published(&self) {
        // A folder that cannot be made again is a matter of whoever looks for the book.
        let _ = self.book.stay();
    }

    /// Returns why the book is not published. `None`: the book is published, or was not to be.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Books memory to the calling object. `id` is the address or the handle: the next booking of
    /// the same kind and number replaces the entry.
    pub fn book(&self, kind: Kind, bytes: u64, id: u64) {
        if self.is_forked() {
            return;
        }
        let (object, stack) = self.caller(bytes);
        if let Ok(before) = self.live.insert(kind, id, Booking { bytes, object, stack }) {
            if let Some(before) = before {
                self.forget(kind, before);
            }
            self.book.book().rows[usize::from(object)].cells[kind as usize].add(bytes);
        } else {
            self.forget_stack(stack, bytes);
            let book = self.book.book();
            book.dropped.fetch_add(1, Ordering::Relaxed);
            book.dropped_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Takes memory out of the book, and returns the bytes. `None`: the book has no such memory.
    pub fn unbook(&self, kind: Kind, id: u64) -> Option<u64> {
        if self.is_forked() {
            return None;
        }
        let entry = self.live.remove(kind, id)?;
        self.forget(kind, entry);
        Some(entry.bytes)
    }

    /// Counts a free of memory of which no call was seen.
    pub fn missed(&self) {
        if !self.is_forked() {
            self.book.book().unknown_frees.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Books bytes that the caller's call has taken, without saying how many.
    pub fn grow(&self, kind: Kind, bytes: u64) {
        if bytes > 0 && !self.is_forked() {
            let (object, _) = self.caller(0);
            self.book.book().rows[usize::from(object)].cells[kind as usize].add(bytes);
        }
    }

    /// Takes bytes out of the book that were booked by [`grow`](Self::grow). Returns how many of
    /// them there were.
    pub fn shrink(&self, kind: Kind, bytes: u64) -> u64 {
        if bytes == 0 || self.is_forked() {
            return 0;
        }
        // An object may give back what another took: a context, or a module.
        let (object, _) = self.caller(0);
        let book = self.book.book();
        let mut rest = bytes - book.rows[usize::from(object)].cells[kind as usize].subtract(bytes);
        for row in &book.rows[..book.len()] {
            rest -= row.cells[kind as usize].subtract(rest);
        }
        bytes - rest
    }

    /// Notes the driver's own figures: used and all bytes of the device.
    pub fn driver(&self, used: u64, total: u64) {
        if self.is_forked() {
            return;
        }
        let book = self.book.book();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        book.used.store(used, Ordering::Relaxed);
        book.total.store(total, Ordering::Relaxed);
        book.booked_then.store(book.of_device(), Ordering::Relaxed);
        book.when.store(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the book of the moment.
    pub fn view(&self) -> BookView {
        let mut view = BookView::new(&self.book.book());
        if let Some(stacks) = &self.stacks {
            (view.stacks, view.dropped_stacks) = stacks.view();
        }
        view
    }

    /// Returns whether the calling process is a forked child of the ledger's process.
    fn is_forked(&self) -> bool {
        self.book.is_forked()
    }

    /// Removes the published file. Called at the end of the process; the ledger stays usable.
    pub fn finish(&self) {
        self.book.remove();
    }

    /// Returns the numbers of the calling object's row, and of the call stack.
    fn caller(&self, bytes: u64) -> (u16, u32) {
        let caller = caller::find(&self.objects, self.stacks.is_some());
        let stack = match &self.stacks {
            Some(stacks) if bytes > 0 && !caller.frames.is_empty() => stacks.add(&self.objects, caller.frames, bytes),
            _ => 0,
        };
        (caller.object.map_or(UNKNOWN, |object| self.row(&object)), stack)
    }

    /// Returns the number of an object's row, and starts a missing row.
    fn row(&self, object: &Arc<Object>) -> u16 {
        let known = self.rows.read().unwrap_or_else(PoisonError::into_inner).get(&object.name).copied();
        if let Some(row) = known {
            return row;
        }
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let book = self.book.book();
        let next = book.len();
        if let Some(&row) = rows.get(&object.name) {
            return row;
        }
        if next >= usize::from(OTHERS) {
            // Without an entry in `rows`, every booking of such an object comes here and is
            // counted.
            if next < OBJECTS {
                book.rows[usize::from(OTHERS)].rename("(others)");
                book.objects.store(OBJECTS as u64, Ordering::Release);
            }
            book.unnamed.fetch_add(1, Ordering::Relaxed);
            return OTHERS;
        }
        book.rows[next].rename(&object.name);
        // The name is complete before a reader counts the row.
        book.objects.store(next as u64 + 1, Ordering::Release);
        rows.insert(object.name.clone(), next as u16);
        next as u16
    }

    /// Takes an entry out of the totals.
    fn forget(&self, kind: Kind, entry: Booking) {
        let Booking { bytes, object, stack } = entry;
        self.book.book().rows[usize::from(object)].cells[kind as usize].remove(bytes);
        self.forget_stack(stack, bytes);
    }

    fn forget_stack(&self, stack: u32, bytes: u64) {
        if let Some(stacks) = &self.stacks {
            stacks.remove(stack, bytes);
        }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("fault", &self.fault).finish_non_exhaustive()
    }
}
