//! A live line about the current problem, for people only.

use crate::commands::bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// Interval between two updates of the line.
const TICK: Duration = Duration::from_millis(100);

/// A line on standard error, shown on a terminal only.
pub(super) struct Live {
    bar: ProgressBar,
}

impl Live {
    /// Creates the line, without results.
    pub(super) fn new(title: &str, deadline: Duration) -> Self {
        let shown = std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let template = format!("{{spinner}} {{prefix}}  {{msg}}  {{elapsed}} of {} s", deadline.as_secs_f64());
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        if shown {
            bar.enable_steady_tick(TICK);
        }
        Self { bar }
    }

    /// Shows a better plan.
    pub(super) fn improved(&self, peak: u64, bound: u64, algorithm: &str) {
        let above = gap(peak, bound);
        self.bar.set_message(format!("peak {} ({above} above the bound, {algorithm})", bytes::show(peak)));
    }

    /// Removes the line from the screen.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Formats the excess of a peak over a bound.
pub(super) fn gap(peak: u64, bound: u64) -> String {
    if peak == bound {
        return "0.00 %".to_owned();
    }
    format!("{:.2} %", (peak as f64 / bound as f64 - 1.0) * 100.0)
}
