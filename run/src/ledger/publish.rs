//! The mapped file of a book: made by a process, and read by any process of the user.

use super::layout::{Book, MAGIC};
use super::view::BookView;
use crate::options::name_of_process;
use crate::shared::map::Shared;
use crate::shared::process::{self, Identity};
use crate::shared::removal::{remove_at_exit, remove_now};
use crate::shared::uuid::Uuid;
use crate::shared::{folder, form};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The start of the name of every book's file.
const PREFIX: &str = "book-";

/// Bytes of the file.
const BYTES: u64 = Shared::<Book>::BYTES;

/// Most books of a process on a device: of a program before an `exec`, and of several copies of the
/// library.
const COPIES: u32 = 8;

/// A book in memory, with or without a file.
pub(super) struct Published {
    book: Shared<Book>,
    path: Option<PathBuf>,
    /// The process of the book. A forked child has another id.
    pid: u32,
}

impl Published {
    /// Makes a book for the process alone.
    pub(super) fn private(device: Uuid) -> io::Result<Self> {
        let book = Self { book: Shared::private()?, path: None, pid: std::process::id() };
        let owner = Identity::of_caller().unwrap_or(Identity { pid: book.pid, start: 0, image: 0 });
        book.book().begin(owner, 0, &name_of_caller(book.pid), device.to_words());
        Ok(book)
    }

    /// Makes a book with a file in a folder.
    pub(super) fn in_folder(folder: &Path, device: Uuid) -> io::Result<Self> {
        let owner = Identity::of_caller()?;
        let file = form::create(folder, BYTES)?;
        let mut book = Self { book: Shared::new(&file)?, path: None, pid: owner.pid };
        book.book().begin(owner, process::namespace()?, &name_of_caller(owner.pid), device.to_words());
        for copy in 0..COPIES {
            let path = folder.join(format!("{PREFIX}{}-{}-{device}-{copy}", owner.pid, owner.start));
            if form::give_name(&file, &path)? {
                remove_at_exit(path.clone());
                book.path = Some(path);
                return Ok(book);
            }
        }
        Err(io::Error::other(format!("the process has {COPIES} books in {}", folder.display())))
    }

    pub(super) fn book(&self) -> &Book {
        &self.book
    }

    /// Returns whether the calling process is a forked child of the book's process.
    pub(super) fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Removes the file's name. The book stays in memory.
    pub(super) fn remove(&self) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.is_forked()) {
            remove_now(path);
        }
    }
}

/// Returns the name of `cachalot run --name`, or the program's.
fn name_of_caller(pid: u32) -> String {
    name_of_process().unwrap_or_else(|| process::program(pid))
}

impl Drop for Published {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Reads the books of all living processes of the calling user, in the order of process ids.
///
/// Files of dead processes are removed. A file of another kind or version is left out.
///
/// # Errors
/// The user's folder cannot be used.
pub fn of_user() -> io::Result<Vec<BookView>> {
    in_folder(&folder::of_user()?)
}

/// Reads the books in a folder. See [`of_user`].
///
/// # Errors
/// The folder cannot be read.
pub fn in_folder(folder: &Path) -> io::Result<Vec<BookView>> {
    let here = process::namespace()?;
    let mut books = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // A file may be removed meanwhile.
        let book = form::open(&entry.path(), BYTES, false).and_then(|file| Shared::<Book>::to_read(&file));
        let Ok(book) = book else { continue };
        let is_book = book.magic.load(Ordering::Acquire) == MAGIC
            && book.length.load(Ordering::Relaxed) == BYTES
            // Process ids of another container say nothing here.
            && book.namespace.load(Ordering::Relaxed) == here;
        if is_book && !book.owner().is_alive() {
            let _ = fs::remove_file(entry.path());
        } else if is_book {
            books.push(BookView::new(&book));
        }
    }
    books.sort_by(|one, other| (one.pid, &one.device).cmp(&(other.pid, &other.device)));
    Ok(books)
}
