//! A progress bar for work that turns out to be long, shown to a person only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Work that is over sooner shows no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// The progress of one command, whatever number of threads it has.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When a bar appears; `None` if it has, or if nobody would see it.
    appears: Mutex<Option<Instant>>,
}

impl Progress {
    /// Nothing done yet of `total` steps. The bar goes to standard error, if that is a terminal.
    pub(crate) fn new(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg:24!} {wide_bar} {percent:>3}% {eta:>4}") {
            bar.set_style(style);
        }
        let appears = std::io::stderr().is_terminal().then(|| Instant::now() + PATIENCE);
        Self { bar, appears: Mutex::new(appears) }
    }

    /// Says what is being done now.
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

    /// Does something that writes to the terminal, without the bar in its way.
    pub(crate) fn suspend(&self, act: impl FnOnce()) {
        self.bar.suspend(act);
    }

    /// Takes the bar off the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
