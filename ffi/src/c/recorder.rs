//! The state of an allocator's flight recorder, which its devices share: how much is kept, and the
//! file after a failed request. `recording` starts it.

use cachalot_cuda::log;
use cachalot_snapshot::recorder::Attempt;
use core::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Writes a file of the allocator. `None` if there is none to write.
pub(crate) type WriteFile = dyn Fn() -> Option<Attempt> + Send + Sync;

/// The recorder of an allocator. Off at first.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Option<Active>>);

/// A recorder that is on.
pub(crate) struct Active {
    /// How many events of each device are kept.
    pub(crate) events: usize,
    pub(crate) write: Arc<WriteFile>,
}

thread_local! {
    /// The file of the thread's failed request, for the text of the failure.
    static WRITTEN: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// Takes the file that was written for the thread's failed request.
pub(crate) fn take_written() -> Option<PathBuf> {
    // A thread that is exiting may have destroyed the value.
    WRITTEN.try_with(RefCell::take).ok().flatten()
}

impl Recorder {
    /// Switches the recorder on or off.
    pub(crate) fn set(&self, active: Option<Active>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = active;
    }

    /// Returns how many events are kept, or 0 if the recorder is off.
    pub(crate) fn events(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |active| active.events)
    }

    /// Writes a file after a failed request, and says so on the standard error. No lock is held.
    #[cold]
    pub(crate) fn on_out_of_memory(&self, device: i32) {
        let active = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let write = active.as_ref().map(|active| Arc::clone(&active.write));
        drop(active);
        let _ = take_written();
        let Some(attempt) = write.and_then(|write| write()) else { return };
        log::warning(format_args!("device {device} ran out of memory: {attempt}"));
        if attempt.failure.is_none() {
            let _ = WRITTEN.try_with(|written| *written.borrow_mut() = Some(attempt.path));
        }
    }
}
