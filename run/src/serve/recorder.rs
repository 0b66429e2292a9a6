//! The flight recorder of a process: the latest events of each context, and a file with them after
//! a request that failed for lack of memory, or when another process asks for them.

use crate::control::{ControlRefusal, RefusalKind};
use crate::serve::served::Served;
use cachalot_core::Error;
use cachalot_cuda::log;
use cachalot_cuda::own_files::quietly;
use cachalot_snapshot::recorder::{Files, Options};
use cachalot_snapshot::{Format, Stack, Taken};
use std::path::Path;
use std::sync::Arc;

/// The recorder of a process.
pub(super) struct Recorder {
    /// How many events of each context are kept. 0: the recorder is off.
    events: usize,
    files: Files,
}

impl Recorder {
    /// Returns a recorder with the options of the environment, or one that is off.
    pub(super) fn new(is_on: bool) -> Self {
        let options = if is_on { Options::of_environment(log::warning) } else { Options::off() };
        Self { events: options.events, files: Files::new(&options) }
    }

    /// Returns whether events are kept.
    pub(super) fn is_on(&self) -> bool {
        self.events > 0
    }

    /// Writes the latest events and all blocks of the contexts to a file, on request of another
    /// process.
    ///
    /// # Errors
    /// The recorder is off, or the file cannot be written.
    pub(super) fn save(&self, contexts: &[Arc<Served>], file: &Path) -> Result<(), ControlRefusal> {
        if !self.is_on() {
            let text = "the flight recorder is off, by CACHALOT_RECORDER=0 or --observe";
            return Err(ControlRefusal::new(RefusalKind::NotRecorded, text));
        }
        let parts = contexts
            .iter()
            .map(|served| (served.ordinal().0.cast_unsigned(), Taken::of(served.allocator(), |_| Stack::default())));
        let Some(taken) = Taken::joined(parts) else {
            return Err(ControlRefusal::new(RefusalKind::NotRecorded, "the program has used no device yet"));
        };
        quietly(|| taken.write_file(file, Format::of(file))).map_err(|error| {
            ControlRefusal::new(RefusalKind::NotWritten, format!("{} could not be written: {error}", file.display()))
        })
    }

    /// Starts to keep the events of a context.
    pub(super) fn keep_events_of(&self, served: &Served) {
        if self.events > 0
            && let Err(error) = served.keep_events(self.events)
        {
            log::warning(format_args!("the flight recorder is off: {error}"));
        }
    }

    /// Writes the events of a context to a file if `error` is a lack of memory, and says so. The
    /// program knows nothing of the library, so the line is all that it gets.
    #[cold]
    pub(super) fn write(&self, served: &Served, error: &Error) {
        if self.events == 0 || !matches!(error, Error::OutOfMemory(_)) {
            return;
        }
        let take = || Taken::of(served.allocator(), |_| Stack::default());
        if let Some(attempt) = quietly(|| self.files.write(take)) {
            log::refusal(format_args!("device {} ran out of memory: {attempt}", served.ordinal().0));
        }
    }
}
