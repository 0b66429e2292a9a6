//! The book of a process, written at the process's end as JSON.

use super::Ledger;
use super::view::BookView;
use cachalot_cuda::log;
use cachalot_cuda::own_files::quietly;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

/// The version of the file. A change against readers raises the number.
const SCHEMA: u32 = 1;

/// Greatest length of a file, in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// The books of a process, each of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Books {
    /// The version of the file.
    pub schema: u32,
    /// The books, in the order of devices.
    pub books: Vec<BookView>,
}

/// Returns the path to write to: `%p` in the name is the process id, for programs with children.
pub fn path_of_caller(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.replace("%p", &std::process::id().to_string()).into(),
        None => path.to_owned(),
    }
}

/// Writes the books of the process. The file is complete or missing.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, books: Vec<BookView>) -> io::Result<()> {
    let text = serde_json::to_string(&Books { schema: SCHEMA, books })?;
    quietly(|| cachalot_atomic_file::write(&path_of_caller(path), |file| io::Write::write_all(file, text.as_bytes())))
}

/// Books to write when the process exits, with their paths.
static AT_EXIT: Mutex<Vec<(Weak<Ledger>, PathBuf)>> = Mutex::new(Vec::new());

/// Has a book written when the process exits, together with all books for the same path. A process
/// ended by a signal writes nothing, and neither does a forked child of the ledger's process. A
/// failure is a line of the standard error.
pub fn write_at_exit(ledger: &Arc<Ledger>, path: &Path) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function takes nothing, calls no driver, and does not unwind.
        unsafe { libc::atexit(write_all) };
    });
    let mut books = AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner);
    books.push((Arc::downgrade(ledger), path.to_owned()));
}

extern "C" fn write_all() {
    let _ = std::panic::catch_unwind(|| {
        // Another thread may hold the lock for good: the thread ended with the process.
        let Ok(mut books) = AT_EXIT.try_lock() else { return };
        while let Some((_, path)) = books.first().cloned() {
            let here: Vec<_> = books.extract_if(.., |(_, other)| *other == path).collect();
            let living = here.iter().filter_map(|(ledger, _)| ledger.upgrade()).filter(|ledger| !ledger.is_forked());
            let views: Vec<_> = living.map(|ledger| ledger.view()).collect();
            if !views.is_empty()
                && let Err(error) = write(&path, views)
            {
                log::warning(format_args!("the ledger {}: {error}", path.display()));
            }
        }
    });
}

/// Reads the books of a file.
///
/// # Errors
/// The file cannot be read, is no ledger, or is of another version.
pub fn read(path: &Path) -> io::Result<Books> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    let fault = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    if text.len() as u64 > MOST_BYTES {
        return Err(fault(format!("more than {MOST_BYTES} bytes are no ledger")));
    }
    let books: Books = serde_json::from_str(&text).map_err(|error| fault(format!("no ledger: {error}")))?;
    if books.schema != SCHEMA {
        return Err(fault(format!("a ledger of version {}, and this program reads version {SCHEMA}", books.schema)));
    }
    Ok(books)
}
