//! What is known so far of the problem in hand, shown to a person only.

use crate::commands::bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How often the line is drawn again.
const TICK: Duration = Duration::from_millis(100);

/// A line on standard error, if that is a terminal.
pub(super) struct Live {
    bar: ProgressBar,
}

impl Live {
    /// Nothing is known yet.
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

    /// There is a better plan.
    pub(super) fn improved(&self, peak: u64, bound: u64, algorithm: &str) {
        let above = gap(peak, bound);
        self.bar.set_message(format!("peak {} ({above} above the bound, {algorithm})", bytes::show(peak)));
    }

    /// Takes the line off the screen.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// By how much a peak is above a bound.
pub(super) fn gap(peak: u64, bound: u64) -> String {
    if peak == bound {
        return "0.00 %".to_owned();
    }
    format!("{:.2} %", (peak as f64 / bound as f64 - 1.0) * 100.0)
}
