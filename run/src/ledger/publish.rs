//! The mapped file of a book: made by a process, and read by any process of the user.

use super::layout::{Book, MAGIC};
use super::view::BookView;
use crate::options::name_of_process;
use crate::shared::map::Shared;
use crate::shared::marks;
use crate::shared::process::{self, Identity};
use crate::shared::removal::{remove_at_exit, remove_now};
use crate::shared::uuid::Uuid;
use crate::shared::{folder, form};
use cachalot_cuda::own_files::OwnFile;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

/// The start of the name of every book's file.
const PREFIX: &str = "book-";

/// Bytes of the file.
const BYTES: u64 = Shared::<Book>::BYTES;

/// Most books of a process on a device: of a program before an `exec`, and of several copies of the
/// library.
const COPIES: u32 = 8;

/// A book in memory, with or without a file.
pub(super) struct Published {
    /// Changes only when the file was removed.
    book: RwLock<Shared<Book>>,
    file: Mutex<Option<Named>>,
    /// The process of the book. A forked child has another id.
    pid: u32,
}

/// The file of a book.
struct Named {
    path: PathBuf,
    open: OwnFile,
    device: Uuid,
}

impl Published {
    /// Makes a book for the process alone.
    pub(super) fn private(device: Uuid) -> io::Result<Self> {
        let (book, pid) = (Shared::<Book>::private()?, std::process::id());
        let owner = Identity::of_caller().unwrap_or(Identity { pid, start: 0, image: 0 });
        book.begin(owner, 0, &name_of_caller(pid), device.to_words());
        Ok(Self { book: RwLock::new(book), file: Mutex::default(), pid })
    }

    /// Makes a book with a file in a folder.
    pub(super) fn in_folder(folder: &Path, device: Uuid) -> io::Result<Self> {
        let owner = Identity::of_caller()?;
        // The books of the dead go now and then, and not only when a user looks: a container that
        // crashes again and again would fill its folder, which outlives it.
        in_folder(folder)?;
        let file = form::create(folder, BYTES)?;
        let book = Shared::<Book>::new(&file)?;
        book.begin(owner, process::namespace()?, &name_of_caller(owner.pid), device.to_words());
        let named = Named::give(folder, owner, file, device)?;
        Ok(Self { book: RwLock::new(book), file: Mutex::new(Some(named)), pid: owner.pid })
    }

    /// Returns the book. It must not be asked for again before it is dropped.
    pub(super) fn book(&self) -> RwLockReadGuard<'_, Shared<Book>> {
        self.book.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the calling process is a forked child of the book's process.
    pub(super) fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Gives the book a file again whose file was removed: systemd removes the files of a user at
    /// the user's last logout. A book that cannot have one is tried again at the next call.
    pub(super) fn stay(&self) -> io::Result<()> {
        if self.is_forked() {
            return Ok(());
        }
        let Ok(mut file) = self.file.try_lock() else { return Ok(()) };
        let Some(named) = file.as_mut().filter(|named| named.open.is_removed()) else { return Ok(()) };
        let folder = named.path.parent().expect("the path has a folder");
        if !folder.exists() {
            folder::private(folder.to_owned())?;
        }
        let copy = form::create(folder, BYTES)?;
        // Nothing is booked meanwhile.
        let mut book = self.book.write().unwrap_or_else(PoisonError::into_inner);
        copy.write_all_at(book.bytes(), 0)?;
        let again = Shared::<Book>::new(&copy)?;
        *named = Named::give(folder, book.owner(), copy, named.device)?;
        *book = again;
        Ok(())
    }

    /// Removes the file's name. The book stays in memory.
    pub(super) fn remove(&self) {
        if self.is_forked() {
            return;
        }
        if let Some(named) = self.file.lock().unwrap_or_else(PoisonError::into_inner).take() {
            remove_now(&named.path);
        }
    }
}

impl Named {
    /// Gives a file the first free name of a process's books.
    fn give(folder: &Path, owner: Identity, file: File, device: Uuid) -> io::Result<Self> {
        let open = OwnFile::new(file)?;
        // Before the name, for whoever finds no mark removes the file. A file system without locks
        // leaves that to process ids.
        let _ = marks::hold(open.get()?, 0);
        for copy in 0..COPIES {
            let path = folder.join(format!("{PREFIX}{}-{}-{device}-{copy}", owner.pid, owner.start));
            if form::give_name(open.get()?, &path)? {
                remove_at_exit(path.clone());
                return Ok(Self { path, open, device });
            }
        }
        Err(io::Error::other(format!("the process has {COPIES} books in {}", folder.display())))
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
    let open = |path: &Path| form::open(path, BYTES, true).or_else(|_| form::open(path, BYTES, false));
    each_book(folder, open, |path, file, book| {
        // Process ids of another container say nothing here. Its processes mark their books.
        let is_here = book.namespace.load(Ordering::Relaxed) == here;
        let is_dead = if is_here { !book.owner().is_alive() } else { marks::hold_all(file) };
        if is_dead {
            let _ = fs::remove_file(path);
        } else if is_here {
            books.push(BookView::new(book));
        }
    })?;
    books.sort_by(|one, other| (one.pid, &one.device).cmp(&(other.pid, &other.device)));
    Ok(books)
}

/// Reads the books of a user's living processes in a folder, with the namespaces of their process
/// ids. Removes nothing.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn of_other(folder: &Path, user: u32) -> io::Result<Vec<(u64, BookView)>> {
    let here = process::namespace()?;
    let mut books = Vec::new();
    let open = |path: &Path| form::open_of(path, BYTES, user);
    each_book(folder, open, |_, file, book| {
        let namespace = book.namespace.load(Ordering::Relaxed);
        let is_alive = if namespace == here { book.owner().is_alive() } else { marks::is_held(file, 0) != Some(false) };
        if is_alive {
            books.push((namespace, BookView::new(book)));
        }
    })?;
    Ok(books)
}

/// Calls `act` with the path, the file and the book of each book in a folder, of the files that
/// `open` opens: a file may be removed meanwhile.
///
/// # Errors
/// The folder cannot be read.
fn each_book(
    folder: &Path,
    open: impl Fn(&Path) -> io::Result<File>,
    mut act: impl FnMut(&Path, &File, &Shared<Book>),
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(file) = open(&entry.path()) else { continue };
        if let Some(book) = read(&file) {
            act(&entry.path(), &file, &book);
        }
    }
    Ok(())
}

/// Maps the book of a file. `None`: the file is of another kind or version.
fn read(file: &File) -> Option<Shared<Book>> {
    let book = Shared::<Book>::to_read(file).ok()?;
    let is_book = book.magic.load(Ordering::Acquire) == MAGIC && book.length.load(Ordering::Relaxed) == BYTES;
    is_book.then_some(book)
}
