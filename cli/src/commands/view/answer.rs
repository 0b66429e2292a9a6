//! The answer that comes first: how much of the reserved memory is free but stuck, and when.

use super::history::{Action, History};
use super::moments::Shown;
use crate::commands::bytes::{difference, grouped, show};
use serde::Serialize;
use std::fmt::Write as _;

/// The state at the peak of reserved memory, in bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Answer {
    /// The answer in words.
    pub(super) text: String,
    /// Memory from the device.
    pub(super) reserved: u64,
    /// Blocks that are not free.
    pub(super) active: u64,
    /// Free memory of segments in use.
    pub(super) stuck: u64,
    /// Segments with memory that is stuck.
    pub(super) stuck_segments: u64,
    /// Memory of wholly free segments.
    pub(super) idle: u64,
    /// Number of events before the peak.
    pub(super) event: u32,
    /// Number of events.
    pub(super) events: usize,
    /// Microseconds from the first event to the peak.
    pub(super) after_us: Option<i64>,
    /// Most memory in blocks that are not free, at any time.
    pub(super) most_active: u64,
    /// Number of failed requests.
    pub(super) failures: usize,
    /// Bytes of the largest failed request.
    pub(super) largest_failed: u64,
}

/// Finds the answer for a history. For a replay, `recorded` is the answer for the recorded program.
pub(super) fn answer(history: &History, shown: &Shown, recorded: Option<&Answer>) -> Answer {
    let Some(peak) = shown.moments.get(shown.peaks[0] as usize) else { return Answer::default() };
    let failed = || history.events.iter().filter(|event| event.action == Action::OutOfMemory);
    let first = history.events.first().map_or(0, |event| event.time);
    let at = history.events.get((peak.state as usize).saturating_sub(1)).map(|event| event.time - first);
    let sums = peak.sums;
    let mut answer = Answer {
        text: String::new(),
        reserved: sums.reserved,
        active: sums.active,
        stuck: sums.stuck,
        stuck_segments: shown.stuck_parts,
        idle: sums.reserved.saturating_sub(sums.active).saturating_sub(sums.stuck),
        event: peak.state,
        events: history.events.len(),
        after_us: at.filter(|_| history.has_times),
        most_active: shown.moments.get(shown.peaks[1] as usize).map_or(0, |moment| moment.sums.active),
        failures: failed().count(),
        largest_failed: failed().map(|event| event.size).max().unwrap_or(0),
    };
    answer.text = answer.words();
    if let Some(recorded) = recorded {
        let change = difference(recorded.reserved, answer.reserved);
        let (now, before) = (show(answer.reserved), show(recorded.reserved));
        let config = &history.config;
        answer.text = format!("With {config}, the peak is {now} instead of {before} ({change}). {}", answer.text);
    }
    answer
}

impl Answer {
    fn words(&self) -> String {
        if self.reserved == 0 {
            return "No memory is reserved.".to_owned();
        }
        let percent = |part: u64| match part as f64 / self.reserved as f64 * 100.0 {
            share if share < 10.0 => format!("{share:.1} %"),
            share => format!("{share:.0} %"),
        };
        let when = match (self.events, self.after_us) {
            (0, _) => String::new(),
            (_, Some(us)) => format!(", {} after the first event", duration(us)),
            (events, None) => format!(", event {} of {}", grouped(self.event.into()), grouped(events as u64)),
        };
        let when = if self.events == 0 { "Now".to_owned() } else { format!("At the peak{when}") };
        let segments = if self.stuck_segments == 1 { "segment" } else { "segments" };
        let mut text = format!(
            "{when}, {} of the {} reserved is free but stuck: {} in {} {segments} in use.",
            percent(self.stuck),
            show(self.reserved),
            show(self.stuck),
            grouped(self.stuck_segments)
        );
        if self.idle > 0 {
            let _ =
                write!(text, " Another {} ({}) is idle and can be given back.", show(self.idle), percent(self.idle));
        }
        let largest = show(self.largest_failed);
        let _ = match self.failures {
            0 => Ok(()),
            1 => write!(text, " A request of {largest} failed."),
            many => write!(text, " {} requests failed, the largest of {largest}.", grouped(many as u64)),
        };
        text
    }
}

/// Formats a duration for people.
fn duration(us: i64) -> String {
    match us {
        _ if us >= 120_000_000 => format!("{:.1} min", us as f64 / 6e7),
        _ if us >= 1_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ if us >= 1000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{us} µs"),
    }
}
