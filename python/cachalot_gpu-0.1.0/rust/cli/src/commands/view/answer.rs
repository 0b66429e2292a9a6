//! The answer that comes first: how much of the reserved memory is free but stuck, which setting would
//! have held less, and when the peak was.

use super::history::{Action, History};
use super::moments::Shown;
use crate::commands::answer::{advice, releasable, stuck};
use crate::commands::bytes::{difference, duration, grouped, show};
use cachalot_replay::tune::Better;
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
    /// Free memory of segments in use, and the number of these segments.
    pub(super) in_holes: u64,
    pub(super) hole_segments: u64,
    /// Memory of wholly free segments, and their number.
    pub(super) idle: u64,
    pub(super) idle_segments: u64,
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
    /// The setting that would have held less. `None` if none would, and without a replay.
    pub(super) better: Option<Better>,
}

/// Finds the answer for a history. For a replay, `recorded` is the answer for the recorded program.
pub(super) fn answer(history: &History, shown: &Shown, recorded: Option<&Answer>) -> Answer {
    let Some(peak) = shown.moments.get(shown.peaks[0] as usize) else { return Answer::default() };
    let failed = || history.events.iter().filter(|event| event.action == Action::OutOfMemory);
    let first = history.events.first().map_or(0, |event| event.time);
    let at = history.events.get((peak.state as usize).saturating_sub(1)).map(|event| event.time.wrapping_sub(first));
    let sums = peak.sums;
    let mut answer = Answer {
        text: String::new(),
        reserved: sums.reserved,
        active: sums.active,
        in_holes: sums.holes,
        hole_segments: shown.free_parts[0],
        idle: sums.reserved.saturating_sub(sums.active).saturating_sub(sums.holes),
        idle_segments: shown.free_parts[1],
        event: peak.state,
        events: history.events.len(),
        after_us: at.filter(|_| history.has_times),
        most_active: shown.moments.get(shown.peaks[1] as usize).map_or(0, |moment| moment.sums.active),
        failures: failed().count(),
        largest_failed: failed().map(|event| event.size).max().unwrap_or(0),
        better: history.answer.as_ref().and_then(|answer| answer.better.clone()),
    };
    answer.text = answer.words(history.answer.is_some());
    if let Some(recorded) = recorded {
        let change = difference(recorded.reserved, answer.reserved);
        let (now, before) = (show(answer.reserved), show(recorded.reserved));
        let config = &history.config;
        answer.text = format!("With {config}, the peak is {now} instead of {before} ({change}). {}", answer.text);
    }
    answer
}

impl Answer {
    /// Returns the answer in words. Whether a setting would help is known if the history `is_replayed`.
    fn words(&self, is_replayed: bool) -> String {
        if self.reserved == 0 {
            return "No memory is reserved.".to_owned();
        }
        let mut text = if self.events == 0 {
            // Without a request that needs memory, idle segments can be released, and are not stuck.
            let mut text = stuck(self.reserved, self.in_holes, &plural(self.hole_segments), "at the end");
            if self.idle_segments > 0 {
                text += &releasable(self.reserved, self.idle, &plural(self.idle_segments));
            }
            text + "."
        } else {
            // At the peak no free block was of use to the request for which memory was obtained.
            let segments = self.hole_segments + self.idle_segments;
            let bytes = self.in_holes.saturating_add(self.idle);
            let mut text = stuck(self.reserved, bytes, &plural(segments), "at the peak");
            if self.idle_segments > 0 {
                let _ = write!(text, ", {} of them idle", grouped(self.idle_segments));
            }
            if is_replayed {
                let _ = write!(text, "; {}", advice(self.better.as_ref()));
            }
            let when = match self.after_us {
                Some(us) => format!("{} after the first event", duration(us)),
                None => format!("at event {} of {}", grouped(self.event.into()), grouped(self.events as u64)),
            };
            let _ = write!(text, ". The peak of {} was {when}.", show(self.reserved));
            text
        };
        let largest = show(self.largest_failed);
        let _ = match self.failures {
            0 => Ok(()),
            1 => write!(text, " A request of {largest} failed."),
            many => write!(text, " {} requests failed, the largest of {largest}.", grouped(many as u64)),
        };
        text
    }
}

fn plural(segments: u64) -> String {
    format!("{} segment{}", grouped(segments), if segments == 1 { "" } else { "s" })
}
