//! A progress bar for long work, for people only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time until a bar appears.
const PATIENCE: Duration = Duration::from_secs(1);

/// The progress of a command with any number of threads.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Time at which the bar appears. `None` once visible, and without a terminal.
    appears: Mutex<Option<Instant>>,
}

impl Progress {
    /// Creates the progress of `total` steps. The bar goes to standard error, on a terminal only.
    pub(crate) fn new(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg:24!} {wide_bar} {percent:>3}% {eta:>4}") {
            bar.set_style(style);
        }
        let appears = std::io::stderr().is_terminal().then(|| Instant::now() + PATIENCE);
        Self { bar, appears: Mutex::new(appears) }
    }

    /// Shows the name of the current work.
    pub(crate) fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Counts `steps` more as done.
    pub(crate) fn advance(&self, steps: u64) {
        self.bar.inc(steps);
        let mut appears = self.appears.lock();
        if appears.is_some_and(|time| Instant::now() >= time) {
            *appears = None;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Runs `act`, which writes to the terminal, with the bar hidden.
    pub(crate) fn suspend(&self, act: impl FnOnce()) {
        self.bar.suspend(act);
    }

    /// Removes the bar from the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
