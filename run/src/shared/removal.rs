//! Files of the process that are removed when the process exits.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

/// Files to remove at the end of the process, with the process of each file.
static FILES: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// Has a file removed when the process exits. A killed process leaves the file to the next reader.
pub(crate) fn remove_at_exit(path: PathBuf) {
    extern "C" fn remove_all() {
        // A forked child may meet a lock that another thread of its parent held.
        if let Ok(files) = FILES.try_lock() {
            let own = files.iter().filter(|(pid, _)| *pid == std::process::id());
            own.for_each(|(_, path)| drop(fs::remove_file(path)));
        }
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function waits for no lock, and does not panic. A system without room for the
        // function leaves the files to the next reader.
        let _ = unsafe { libc::atexit(remove_all) };
    });
    FILES.lock().unwrap_or_else(PoisonError::into_inner).push((std::process::id(), path));
}

/// Removes a file of [`remove_at_exit`] now.
pub(crate) fn remove_now(path: &Path) {
    FILES.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, other)| other != path);
    // A file that stays is of a dead process soon, and every reader removes such files.
    let _ = fs::remove_file(path);
}
