//! The answer that comes first: what was reserved and live at most, which setting would have saved
//! some of it, and when the peak was.

use super::history::History;
use super::moments::Shown;
use crate::commands::answer::{last, rescue, sentence, sentence_at_end};
use crate::commands::bytes::{difference, duration, grouped, show};
use cachalot_replay::memory::Action;
use cachalot_replay::tune::{self, Stuck};
use serde::Serialize;

/// The peaks of a device, in bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Answer {
    /// The answer in words.
    pub(super) sentence: String,
    /// The findings about the record and its replays. `None` without events, and for a replay with
    /// another configuration.
    pub(super) of_record: Option<tune::Answer>,
    /// The change that would have served every failed request, in words. `None` without failures
    /// and replays.
    pub(super) rescue: Option<String>,
    /// Peak of reserved memory.
    pub(super) peak_reserved_bytes: u64,
    /// Number of events before that peak.
    pub(super) event: u32,
    /// Microseconds from the first event to that peak.
    pub(super) after_us: Option<i64>,
    /// The memory when the most was in use.
    pub(super) fullest: Stuck,
    /// Number of events of the whole history.
    pub(super) events: usize,
    /// The range in words, if the answer is about one.
    #[serde(skip)]
    pub(super) range: Option<String>,
    /// Number of failed requests, and bytes of the largest.
    pub(super) ooms: usize,
    pub(super) largest_failed_bytes: u64,
    /// Whether the file tells the configuration.
    pub(super) tells_config: bool,
    /// Whether the history starts in the middle of the program.
    pub(super) is_cut: bool,
}

/// Finds the answer for a history. For a replay, `recorded` is the answer for the recorded program.
pub(super) fn answer(history: &History, shown: &Shown, recorded: Option<&Answer>) -> Answer {
    let [Some(peak), Some(fullest)] = shown.peaks.map(|peak| shown.moments.get(peak as usize)) else {
        return Answer::default();
    };
    let failed = || history.events.iter().filter(|event| event.action == Action::OutOfMemory);
    let first = history.events.first().map_or(0, |event| event.of.time);
    let at = history.events.get((peak.state as usize).saturating_sub(1)).map(|event| event.of.time.wrapping_sub(first));
    let sums = fullest.sums;
    let first_event = history.part.as_ref().map_or(0, |part| part.first);
    let (mut idle, mut kept) = ((0_u64, 0), 0_u64);
    for &(pool, bytes, segments) in &shown.free_parts.idle {
        if history.names.is_private(pool) {
            kept = kept.saturating_add(bytes);
        } else {
            idle = (idle.0.saturating_add(bytes), idle.1 + segments);
        }
    }
    let mut answer = Answer {
        sentence: String::new(),
        of_record: history.answer.clone(),
        rescue: history.answer.as_ref().filter(|answer| answer.replayed_bytes.is_some()).and_then(rescue),
        peak_reserved_bytes: peak.sums.reserved,
        event: peak.state + first_event as u32,
        after_us: at.filter(|_| history.has_times),
        fullest: Stuck {
            reserved_bytes: sums.reserved,
            in_use_bytes: sums.active,
            hole_bytes: sums.holes,
            hole_segments: shown.free_parts.with_holes,
            idle_bytes: idle.0,
            idle_segments: idle.1,
            kept_bytes: kept,
        },
        events: history.part.as_ref().map_or(history.events.len(), |part| part.events),
        range: history.part.as_ref().map(|part| part.words.clone()),
        ooms: failed().count(),
        largest_failed_bytes: failed().map(|event| event.size).max().unwrap_or(0),
        tells_config: history.tells_config,
        is_cut: history.is_cut,
    };
    answer.sentence = answer.words(history);
    if let Some(recorded) = recorded {
        let change = difference(recorded.peak_reserved_bytes, answer.peak_reserved_bytes);
        let (now, before) = (show(answer.peak_reserved_bytes), show(recorded.peak_reserved_bytes));
        let config = &history.config;
        answer.sentence =
            format!("With {config}, the peak is {now} instead of {before} ({change}). {}", answer.sentence);
    }
    answer
}

/// Returns the memory at the end.
fn at_end(history: &History) -> Stuck {
    history.end.as_ref().map_or_else(Stuck::default, |end| end.stuck(|of| history.names.is_private(of.pool)))
}

impl Answer {
    /// Returns the answer in words.
    fn words(&self, history: &History) -> String {
        if self.peak_reserved_bytes == 0 {
            return "No memory is reserved.".to_owned();
        }
        // One event is the last, as with enabled='state', and no history.
        if self.events <= 1 {
            return sentence_at_end(&at_end(history));
        }
        if let Some(why) = &history.contradiction {
            let end = sentence_at_end(&at_end(history));
            return format!("{end} Note: the history cannot be used, and the figures of the page are wrong: {why}.");
        }
        let of = if self.range.is_some() { " of the range" } else { "" };
        let when = match self.after_us {
            Some(0) => format!("at the first event{of}"),
            Some(us) => format!("{} after the first event{of}", duration(us)),
            None => format!("at event {} of {}", grouped(self.event.into()), grouped(self.events as u64)),
        };
        let mut text = self.of_record.as_ref().map_or_else(
            || self.words_without_replay(&when),
            |answer| format!("{} The peak was {when}.", sentence(answer)),
        );
        if !self.tells_config {
            text.push_str(" The file does not contain its settings, so the defaults are assumed.");
        }
        for remark in &history.remarks {
            text = format!("{text} Note: {remark}.");
        }
        text
    }

    /// Returns the figures of a history that is too long for a replay.
    fn words_without_replay(&self, when: &str) -> String {
        let (peak, most) = (show(self.peak_reserved_bytes), show(self.fullest.in_use_bytes));
        let text = if let Some(range) = &self.range {
            format!("In the range ({range}), {peak} were reserved at the peak, {when}, and at most {most} were in use.")
        } else if self.is_cut {
            let of = last(self.events as u64);
            format!("{of}{peak} were reserved at the peak, {when}, and at most {most} were in use.")
        } else {
            format!("{peak} were reserved at the peak, {when}, and at most {most} were in use.")
        };
        let largest = show(self.largest_failed_bytes);
        match self.ooms {
            0 => text,
            1 => format!("A request of {largest} failed. {text}"),
            many => format!("{} requests failed, the largest of {largest}. {text}", grouped(many as u64)),
        }
    }
}
